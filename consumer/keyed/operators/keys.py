"""Keys of rows as bytes, and as columns again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from broadsheet.consumer.keyed.key_codec import KeyCodec
from broadsheet.consumer.keyed.operators.timed_rows import Codes, Groups, first_rows, groups_of
from broadsheet.consumer.keyed.state_rows import GROUP_BYTES, place_of


class StreamKeys:
    """The key of an operator: none, one or several columns."""

    def __init__(self, schema: pa.Schema) -> None:
        """Choose the encodings.

        Raises:
            ValidationError: a column has a type that no key has.
        """
        self.schema = schema
        self.codec = KeyCodec(schema)

    def groups(self, table: pa.Table) -> tuple[Groups, list[bytes]]:
        """Group rows by key; return the key's place in state of each group.

        Args:
            table: Has the key's columns, under its names.
        """
        return self.groups_of_columns(
            [table.column(name) for name in self.schema.names], len(table)
        )

    def groups_of_columns(
        self, columns: Sequence[pa.ChunkedArray], rows: int
    ) -> tuple[Groups, list[bytes]]:
        """Group rows by the columns of a key."""
        groups = groups_of(columns, rows)
        if not columns:
            return groups, [place_of(b"")] * len(groups)
        firsts = pa.array(groups.firsts)
        values = [column.take(firsts).to_pylist() for column in columns]
        keys = self.codec.encode_all(values)
        if not self.codec.is_plain:
            groups, keys = _without_twins(groups, keys)
        return groups, [place_of(key) for key in keys]

    def columns_of(self, places: Sequence[bytes]) -> list[pa.Array]:
        """Return the key's columns of places, in their order."""
        if not self.schema.names:
            return []
        known: dict[bytes, tuple[object, ...]] = {}
        values = []
        for place in places:
            value = known.get(place)
            if value is None:
                value = known[place] = self.codec.decode(place, GROUP_BYTES)[0]
            values.append(value)
        columns = zip(*values, strict=True) if values else [[] for _ in self.schema]
        return [
            pa.array(list(column), type_)
            for column, type_ in zip(columns, self.schema.types, strict=True)
        ]


def _without_twins(groups: Groups, keys: list[bytes]) -> tuple[Groups, list[bytes]]:
    """Make one group of several values that are one key: −0 and 0, or several NaN."""
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    if len(numbers) == len(keys):
        return groups, keys
    by_code: Codes = np.fromiter(map(numbers.__getitem__, keys), np.int64, len(keys))
    codes = by_code[groups.codes]
    return Groups(codes, first_rows(codes, len(numbers))), list(numbers)


def key_order(places: Sequence[bytes]) -> Codes:
    """Return the positions of places in the order of their keys' bytes."""
    return np.array(sorted(range(len(places)), key=lambda at: places[at][GROUP_BYTES:]), np.int64)
