"""Keyed count and sum: decoding and folding as an application does it, without anything of a shard.

The applications under measurement and the bare loops call the same functions, so that what separates them is what a
shard adds: sequencing, transactions, recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from broadsheet.journals.content.json import Meta

Sums: TypeAlias = "dict[str, list[int]]"
"""[count, sum] by key."""
SCHEMA = "CREATE TABLE IF NOT EXISTS sums (k TEXT PRIMARY KEY, n INTEGER, total INTEGER)"
UPSERT = (
    "INSERT INTO sums VALUES (?, ?, ?) ON CONFLICT (k) "
    "DO UPDATE SET n = n + excluded.n, total = total + excluded.total"
)


class Record(msgspec.Struct, gc=False):
    """The fields of a message that are counted."""

    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    k: str = ""
    """Empty in acknowledgements."""
    v: int = 0


decode_record = msgspec.json.Decoder(Record).decode
COLUMNS = pa.schema([("k", pa.string()), ("v", pa.int64())])


def add_record(sums: Sums, record: Record) -> None:
    """Count one message; an acknowledgement is none."""
    found = sums.get(record.k)
    if found is not None:
        found[0] += 1
        found[1] += record.v
    elif record.k:
        sums[record.k] = [1, record.v]


def read_lines(lines: bytes) -> pa.Table:
    """Return the columns of JSON lines."""
    return pa_json.read_json(
        pa.BufferReader(lines),
        read_options=pa_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        parse_options=pa_json.ParseOptions(
            explicit_schema=COLUMNS, unexpected_field_behavior="ignore"
        ),
    )


def add_table(sums: Sums, table: pa.Table) -> None:
    """Count a run of rows in columns `k` and `v`; acknowledgements have none."""
    if "k" not in table.schema.names:
        return
    grouped = table.select(["k", "v"]).group_by("k").aggregate([("v", "count"), ("v", "sum")])
    keys = grouped.column("k").to_pylist()
    # Acknowledgements are a group without a key, whose sum would make all sums floats.
    sums_of_keys = pc.fill_null(grouped.column("v_sum"), 0)
    counts, totals = (
        each.to_numpy().tolist() for each in (grouped.column("v_count"), sums_of_keys)
    )
    for key, n, total in zip(keys, counts, totals, strict=True):
        if key is None:
            continue
        found = sums.get(key)
        if found is None:
            sums[key] = [n, total]
        else:
            found[0] += n
            found[1] += total


def add_batches(sums: Sums, batches: Sequence[pa.RecordBatch]) -> None:
    """Count Arrow batches at once."""
    if batches:
        add_table(sums, pa.Table.from_batches(batches))


def rows_of(sums: Sums) -> list[tuple[str, int, int]]:
    """Return a row a key."""
    return [(key, n, total) for key, (n, total) in sums.items()]


def add_into(state: Sums, sums: Sums) -> None:
    """Add sums to a state."""
    for key, (n, total) in sums.items():
        found = state.get(key)
        if found is None:
            state[key] = [n, total]
        else:
            found[0] += n
            found[1] += total
