"""The declaration of an `AggregateStore`'s columns, and the table that holds them.

Of a run only the distinct keys are looked up one by one, in a dictionary that gives each key its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from broadsheet.consumer.stores.aggregate.columns import (
    Aggregate,
    ArrowType,
    Column,
    GroupedRun,
    SketchColumn,
    Slots,
    as_plain,
    column_maker,
    grouped,
    grown,
    joined,
    key_type,
    objects,
    plain_type,
    run_column,
)
from broadsheet.journals.content.registry import registered
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.uuid import Flags
from broadsheet.runtime.errors import ValidationError

FIRST_CAPACITY: Final = 1024


class Aggregates:
    """The columns of an `AggregateStore`: its key and its aggregates.

    Aggregates(key="user", clicks=Count(), spent=Sum("amount", "float64"))
    Aggregates(key={"country": "string", "day": "date32"}, visitors=Distinct("user"))
    """

    def __init__(self, *, key: str | Mapping[str, ArrowType], **aggregates: Aggregate) -> None:
        """Declare them.

        Args:
            key: Field to group by, text; or several, or of other types, each with its type.
            aggregates: By the name of their column.

        Raises:
            ValidationError: a type, a bound or a name is none that can be used.
        """
        given: Mapping[str, ArrowType] = {key: "string"} if isinstance(key, str) else key
        if not given or not aggregates:
            raise ValidationError("", "expected a key of at least one field, and an aggregate")
        self.key = {name: key_type(f"key.{name}", type_) for name, type_ in given.items()}
        for name in self.key.keys() & aggregates.keys():
            raise ValidationError(name, "expected a name that is not the key's")
        self._is_text = [str(type_) for type_ in self.key.values()] == ["string"]
        self.columns: Mapping[str, Callable[[], Column]] = {
            name: column_maker(name, each) for name, each in aggregates.items()
        }
        """Makes the column of each aggregate."""
        blank = {name: make() for name, make in self.columns.items()}
        fields = dict.fromkeys(self.key.items())
        fields |= dict.fromkeys(column.field for column in blank.values() if column.field)
        self.fields: Sequence[tuple[str, pa.DataType]] = tuple(fields)
        """What is read of a run, the key first."""
        self._messages = _messages_schema(self.fields)
        """Types to read messages with; None: those that the messages suggest."""
        self.identities = {name: column.identity for name, column in blank.items()}
        """By name what must not change between two lives of a store."""
        self.recorded = self._schema({name: each.recorded_type for name, each in blank.items()})
        """Of rows as files have them."""
        self.shown = self._schema({name: each.shown_type for name, each in blank.items()})
        """Of rows as queries have them."""
        self.sketches = self._schema(
            {
                name: each.recorded_type
                for name, each in blank.items()
                if isinstance(each, SketchColumn)
            }
        )
        """Of rows with the sketches themselves; only the key if there is none."""

    def _schema(self, types: Mapping[str, pa.DataType]) -> pa.Schema:
        return pa.schema([*self.key.items(), *types.items()])

    def key_of(self, key: object) -> object:
        """Return a key as the table has it.

        Args:
            key: A value, or a tuple of several in the order in which the key's fields are declared.

        Raises:
            ValidationError: it is of another type.
        """
        if type(key) is str and self._is_text:
            return key
        values = key if len(self.key) > 1 and isinstance(key, tuple) else (key,)
        if len(values) != len(self.key):
            raise ValidationError("key", f"expected {len(self.key)} values, got {key!r}")
        parts = []
        for value, (name, type_) in zip(values, self.key.items(), strict=True):
            try:
                parts.append(as_plain(pa.array([value], type_)).to_pylist()[0])
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise ValidationError(
                    f"key.{name}", f"expected {type_}, got {value!r}: {error}"
                ) from error
        return parts[0] if len(parts) == 1 else tuple(parts)

    def keys_in(self, rows: pa.RecordBatch | pa.Table) -> list[Any]:
        """Return the key of each row, as `key_of` does."""
        return joined([as_plain(rows.column(name)).to_pylist() for name in self.key])

    def key_arrays(self, keys: Sequence[Any]) -> list[pa.Array]:
        """Return the key's columns of keys that `key_of` returned."""
        parts = (
            [keys]
            if len(self.key) == 1
            else [[key[i] for key in keys] for i in range(len(self.key))]
        )
        return [
            pa.array(part, plain_type(type_)).view(type_)
            for part, type_ in zip(parts, self.key.values(), strict=True)
        ]

    def rows_of(self, batch: MessageBatch) -> pa.Table:
        """Return the rows of a run of messages, without acknowledgements; a field that none of them has is null.

        Raises:
            FramingError: a message cannot be decoded.
        """
        kept = np.flatnonzero(batch.flags != Flags.ACK_TXN)
        if len(kept) < len(batch):
            batch = batch.pick(kept)
        content = registered(batch.message_type.content_type)
        columns = None if content is None else content.table_columns
        rows = batch.to_arrow(self._messages if columns is None else self._typed(columns(batch)))
        for name, type_ in self.fields:
            if name not in rows.schema.names:
                if name in self.key and len(rows):
                    continue  # Refused by `read`, which names it.
                rows = rows.append_column(name, pa.nulls(len(rows), type_))
            elif pa.types.is_date(type_):
                place = rows.schema.get_field_index(name)
                rows = rows.set_column(place, name, rows.column(name).cast(type_))
        return rows

    def _typed(self, names: Sequence[str]) -> pa.Schema:
        """Return all columns of messages that name none, such as CSV records, with the declared types or as text."""
        declared = {name: type_ for name, type_ in self.fields if not pa.types.is_null(type_)}
        return pa.schema([(name, declared.get(name, pa.string())) for name in names])

    def read(self, rows: Any) -> tuple[list[pa.Array], ...]:
        """Return what the aggregates need of a run: the chunks of each of `fields`.

        Args:
            rows: A `pyarrow.Table` or RecordBatch, anything that pyarrow takes for one (pandas, Polars), or columns by
                name: Arrow arrays, numpy arrays or lists.

        Raises:
            ValidationError: a field is missing, or of another type, or a key is null; the error names it.
        """
        if not isinstance(rows, (Mapping, pa.Table, pa.RecordBatch)):
            rows = pa.table(rows)
        names = rows.keys() if isinstance(rows, Mapping) else rows.schema.names
        for name, _ in self.fields:
            if name not in names:
                raise ValidationError(
                    name,
                    f"expected a column of this name among {', '.join(map(str, names)) or 'none'}; "
                    "give the run a schema if its rows may lack the field",
                )
        read = tuple(run_column(name, rows[name], type_) for name, type_ in self.fields)
        lengths = {sum(map(len, chunks)) for chunks in read}
        if len(lengths) > 1:
            raise ValidationError("rows", f"expected columns of one length, got {sorted(lengths)}")
        for name, chunks in zip(self.key, read, strict=False):
            if nulls := sum(chunk.null_count for chunk in chunks):
                raise ValidationError(
                    name,
                    f"expected a key in every row, got null in {nulls} of {max(lengths)}; fill it in, or leave such "
                    "rows out (of a run of messages give the batch itself, to leave out acknowledgements)",
                )
        return read


class AggregateTable:
    """The state of all aggregates, a slot a key."""

    def __init__(self, aggregates: Aggregates) -> None:
        self.aggregates = aggregates
        self.keys = np.zeros(0, np.object_)
        """By slot; None where there is none."""
        self.live = np.zeros(0, np.bool_)
        self._columns = {name: make() for name, make in aggregates.columns.items()}

    def fold(self, columns: Sequence[pa.Array], index: SlotIndex) -> Slots:
        """Add the rows of a run; return the slots of its keys.

        Args:
            columns: By position in `Aggregates.fields`, shape (rows,); at most `ROWS_PER_FOLD` rows.
            index: Of this table; it gets the new keys.

        Raises:
            ValidationError: a sum does not fit its type.
        """
        codes, keys = grouped(columns[: len(self.aggregates.key)])
        slots = index.slots_of(keys)
        self._occupy(slots, keys)
        run = GroupedRun(dict(zip(self.aggregates.fields, columns, strict=True)), codes, slots)
        for name, column in self._columns.items():
            try:
                column.fold(run)
            except OverflowError as error:
                raise _too_small(name, error) from error
        return slots

    def put(self, slots: Slots, keys: Sequence[Any], recorded: pa.RecordBatch) -> None:
        """Set keys to what a commit recorded of them; aggregates that it does not have stay as they are."""
        self._occupy(slots, keys)
        for name, column in self._columns.items():
            if name in recorded.schema.names:
                column.put(slots, recorded.column(name))

    def record(self, slots: Slots) -> pa.RecordBatch:
        """Return what a file must hold of these slots.

        Raises:
            ValidationError: a sum does not fit its type.
        """
        arrays = self._key_arrays(slots)
        for name, column in self._columns.items():
            try:
                arrays.append(column.record(slots))
            except OverflowError as error:
                raise _too_small(name, error) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.aggregates.recorded)

    def whole(self, slots: Slots, schema: pa.Schema) -> pa.RecordBatch:
        """Return slots as they were last recorded, sketches that did not change since included."""
        arrays = self._key_arrays(slots)
        for name in schema.names[len(arrays) :]:
            column = self._columns[name]
            arrays.append(
                column.whole(slots) if isinstance(column, SketchColumn) else column.record(slots)
            )
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def show(self, slots: Slots, schema: pa.Schema) -> pa.RecordBatch:
        """Return the results of slots, with some of the columns of `Aggregates.shown`."""
        by_key = dict(zip(self.aggregates.key, self._key_arrays(slots), strict=True))
        arrays = [
            by_key[name] if name in by_key else self._columns[name].show(slots)
            for name in schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def result(self, slot: int) -> dict[str, Any]:
        """Return the results of one slot, by name."""
        one = np.array([slot])
        return {name: column.show(one)[0].as_py() for name, column in self._columns.items()}

    def clear(self, slots: Slots) -> None:
        """Drop keys; slots that the table does not have are ignored."""
        slots = slots[slots < len(self.keys)]
        self.live[slots] = False
        self.keys[slots] = None
        for column in self._columns.values():
            column.clear(slots)

    def live_slots(self) -> Slots:
        """Return the slots that have a key."""
        return np.flatnonzero(self.live)

    def copied(self) -> AggregateTable:
        """Return another table with this content."""
        other = copy(self)
        other.detach()
        return other

    def detach(self) -> None:
        """Make a shallow copy's state its own."""
        self.keys, self.live = self.keys.copy(), self.live.copy()
        self._columns = {name: column.copied() for name, column in self._columns.items()}

    def _key_arrays(self, slots: Slots) -> list[pa.Array]:
        return self.aggregates.key_arrays(self.keys[slots].tolist())

    def _occupy(self, slots: Slots, keys: Sequence[Any]) -> None:
        if not len(slots):
            return
        end = int(slots.max()) + 1
        if end > len(self.live):
            capacity = max(FIRST_CAPACITY, 2 * len(self.live), end)
            self.live, self.keys = grown(self.live, capacity), grown(self.keys, capacity)
            for column in self._columns.values():
                column.grow(capacity)
        new = ~self.live[slots]
        if new.any():
            self.keys[slots[new]] = objects(keys)[new]
            self.live[slots[new]] = True


class SlotIndex(dict[Any, int]):
    """The slot of each key."""

    def __init__(self) -> None:
        super().__init__()
        self._free: list[int] = []
        self._end = 0

    def take_over(self, keys: NDArray[np.object_], slots: Slots) -> None:
        """Begin with the keys of these slots.

        Args:
            keys: By slot.
            slots: Those that have one.
        """
        self.update(zip(keys[slots].tolist(), slots.tolist(), strict=True))
        self._end = len(keys)
        self._free = np.setdiff1d(np.arange(len(keys)), slots)[::-1].tolist()

    def slots_of(self, keys: Sequence[Any]) -> Slots:
        """Return the slots of distinct keys, shape (len(keys),); new keys get one."""
        try:
            return np.fromiter(map(self.__getitem__, keys), np.intp, len(keys))
        except KeyError:
            self._add([key for key in keys if key not in self])
            return np.fromiter(map(self.__getitem__, keys), np.intp, len(keys))

    def _add(self, keys: Sequence[Any]) -> None:
        free = [self._free.pop() for _ in range(min(len(keys), len(self._free)))]
        end = self._end + len(keys) - len(free)
        self.update(zip(keys, chain(free, range(self._end, end)), strict=True))
        self._end = end

    def known_slots(self, keys: Sequence[Any]) -> Slots:
        """Return the slots of those keys that have one."""
        found = [self[key] for key in keys if key in self]
        return np.array(found, np.intp)

    def release(self, key: Any) -> None:
        """Let another key have the slot of this one."""
        self._free.append(self.pop(key))


def _messages_schema(fields: Sequence[tuple[str, pa.DataType]]) -> pa.Schema | None:
    types: dict[str, pa.DataType] = {}
    for name, type_ in fields:
        if name not in types or pa.types.is_null(types[name]):
            # Arrow's parser of JSON knows no dates; it would take any other text for one that is damaged.
            types[name] = pa.string() if pa.types.is_date(type_) else type_
    is_known = not any(map(pa.types.is_null, types.values()))
    return pa.schema(types) if is_known else None


def _too_small(name: str, error: OverflowError) -> ValidationError:
    return ValidationError(
        name,
        f"{error}; declare a larger type, e.g. 'float64' or pyarrow.decimal128(38, 0), under another name",
    )
