"""The bare loop below a shard: a gRPC read, the same decoding and folding, the same operations of the store's library.

It has no sequencing, no checkpoint and no recovery log, and trusts what it reads. A process of its own, as a member is:
`python -m bench.dataplane.bare '{…}'` prints the seconds and the CPU seconds that a journal took.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import msgspec
import pyarrow as pa
import rocksdict

from bench.dataplane.app import SUMS
from bench.dataplane.sums import (
    SCHEMA,
    UPSERT,
    Sums,
    add_batches,
    add_into,
    add_record,
    add_table,
    decode_record,
    read_lines,
    rows_of,
)
from broadsheet.journals.message.uuid import UUID_BYTES
from broadsheet.wire.journal_pb2 import ReadRequest, ReadResponse

COMMIT_BYTES = 8 << 20
"""Content of one commit: about what a shard with input at hand commits at a time."""
WARM_UP_DIVISOR = 10
_FRAME_HEAD_BYTES = 8
_TIMEOUT_SECONDS = 900.0

Flush: TypeAlias = Callable[[Sums], None]
Fold: TypeAlias = Callable[[Sums, bytes], int]
"""Adds a piece of content to sums; returns the length of the whole messages in it, bytes."""


class BarePlan(msgspec.Struct, frozen=True):
    """The input of a bare loop."""

    broker: str
    journal: str
    end: int
    api: str
    store: str


class BareResult(msgspec.Struct, frozen=True):
    """The cost of a bare loop."""

    seconds: float
    cpu_seconds: float
    rows: int


def run_bare(plans: Sequence[BarePlan]) -> list[BareResult]:
    """Run a loop for each plan, each in a process, at the same time."""
    command = [sys.executable, "-m", "bench.dataplane.bare"]
    children = []
    for plan in plans:
        run = [*command, msgspec.json.encode(plan).decode()]
        children.append(subprocess.Popen(run, stdout=subprocess.PIPE))  # noqa: S603 - this module
    results = []
    for child in children:
        output, _ = child.communicate(timeout=_TIMEOUT_SECONDS)
        if child.returncode != 0:
            raise RuntimeError(f"the bare loop ended with {child.returncode}")
        results.append(msgspec.json.decode(output, type=BareResult))
    return results


def main() -> None:
    """Run one loop."""
    plan = msgspec.json.decode(sys.argv[1], type=BarePlan)
    with tempfile.TemporaryDirectory() as directory:
        flush, fold = _FLUSHES[plan.store](Path(directory)), _FOLDS[plan.api]
        warm_up = msgspec.structs.replace(plan, end=plan.end // WARM_UP_DIVISOR)
        _consume(warm_up, fold, lambda sums: None)  # Imports, and what is compiled at first use.
        began, cpu_began = time.perf_counter(), time.process_time()
        rows = _consume(plan, fold, flush)
        result = BareResult(time.perf_counter() - began, time.process_time() - cpu_began, rows)
    sys.stdout.write(msgspec.json.encode(result).decode())


def _consume(plan: BarePlan, fold: Fold, flush: Flush) -> int:
    sums: Sums = {}
    pending, uncommitted, rows = b"", 0, 0
    for content in _read(plan):
        pending = pending + content if pending else content
        used = fold(sums, pending)
        pending = pending[used:]
        uncommitted += used
        if uncommitted >= COMMIT_BYTES:
            rows += sum(n for n, _ in sums.values())
            flush(sums)
            sums, uncommitted = {}, 0
    flush(sums)
    return rows + sum(n for n, _ in sums.values())


def _read(plan: BarePlan) -> Iterator[bytes]:
    options = [("grpc.max_receive_message_length", 16 << 20)]
    address = plan.broker.rpartition("//")[2]
    request = ReadRequest(journal=plan.journal, end_offset=plan.end)
    with grpc.insecure_channel(address, options=options) as channel:
        read = channel.unary_stream(
            "/protocol.Journal/Read",
            request_serializer=ReadRequest.SerializeToString,
            response_deserializer=ReadResponse.FromString,
        )
        for response in read(request):
            if response.content:
                yield response.content


def _fold_messages(sums: Sums, content: bytes) -> int:
    used = content.rfind(b"\n") + 1
    for line in content[:used].splitlines():
        add_record(sums, decode_record(line))
    return used


def _fold_batch(sums: Sums, content: bytes) -> int:
    used = content.rfind(b"\n") + 1
    if used:
        add_table(sums, read_lines(content[:used]))
    return used


def _fold_arrow(sums: Sums, content: bytes) -> int:
    begin, batches = 0, []
    while begin + _FRAME_HEAD_BYTES <= len(content):
        length = int.from_bytes(content[begin + 4 : begin + _FRAME_HEAD_BYTES], "little")
        body = begin + _FRAME_HEAD_BYTES
        if body + length > len(content):
            break
        if length > UUID_BYTES:
            message = pa.py_buffer(content).slice(body + UUID_BYTES, length - UUID_BYTES)
            batches += list(pa.ipc.open_stream(message))
        begin = body + length
    add_batches(sums, batches)
    return begin


def _sqlite(directory: Path) -> Flush:
    connection = sqlite3.connect(directory / "sums.db", isolation_level=None)
    for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", SCHEMA):
        connection.execute(statement)

    def flush(sums: Sums) -> None:
        connection.execute("BEGIN")
        connection.executemany(UPSERT, rows_of(sums))
        connection.execute("COMMIT")

    return flush


def _json(directory: Path) -> Flush:
    state: Sums = {}

    def flush(sums: Sums) -> None:
        add_into(state, sums)
        (directory / "next.json").write_text(json.dumps(state))
        (directory / "next.json").replace(directory / "state.json")

    return flush


def _rocksdb(directory: Path) -> Flush:
    database = rocksdict.Rdict(str(directory / "rocksdb"), rocksdict.Options(raw_mode=True))

    def flush(sums: Sums) -> None:
        writes = rocksdict.WriteBatch(raw_mode=True)
        for key, (n, total) in sums.items():
            name = key.encode()
            before: Any = database.get(name)
            if before is not None:
                n_before, total_before = SUMS.unpack(before)
                n, total = n + n_before, total + total_before
            writes.put(name, SUMS.pack(n, total))
        database.write(writes)

    return flush


def _aggregate(directory: Path) -> Flush:
    del directory
    state: Sums = {}
    return lambda sums: add_into(state, sums)


_FOLDS: dict[str, Fold] = {
    "message": _fold_messages,
    "batch": _fold_batch,
    "arrow": _fold_arrow,
}
_FLUSHES: dict[str, Callable[[Path], Flush]] = {
    "sqlite": _sqlite,
    "json": _json,
    "rocksdb": _rocksdb,
    "aggregate": _aggregate,
}

if __name__ == "__main__":
    main()
