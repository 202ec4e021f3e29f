"""Rows a second out of sealed fragments of journals, beside Spark's own sources of JSON and Parquet files.

source_vs_json       Spark's JSON source took this many times as long as the source of JSON lines (params path, rows,
                     cores, row_bytes)
source_vs_parquet    the same of its Parquet source and the source of Arrow messages

All read the same rows, and look at every column. The journals' fragments are sealed, and published to a directory:
they are read there (path is direct), as Spark reads its files, and through the broker.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.journal_specs import FRAGMENT_BYTES, journal_change
from bench.report import Params, emit
from bench.spark.machine import CORES, Machine, rows_of, running
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.arrow import ARROW_STREAM
from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.message.framing import FixedFraming
from broadsheet.journals.message.uuid import (
    Flags,
    MessageClock,
    build_uuid,
    format_uuid,
    new_producer_id,
)
from broadsheet.wire.journal_pb2 import ApplyRequest
from broadsheet.wire.validation_journal_spec import FRAGMENT_LENGTH_MIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 1_000_000
ROUNDS = 5
TRANSACTION_ROWS = 10_000
JSON_JOURNAL = "bench/source/json/part-000"
ARROW_JOURNAL = "bench/source/arrow/part-000"
SCHEMA = "id BIGINT, k STRING, v DOUBLE, s STRING"
_JOURNALS = {"json": (JSON_JOURNAL, NDJSON), "arrow": (ARROW_JOURNAL, ARROW_STREAM)}
"""Name and content type by encoding."""
_PATHS = ("direct", "broker")
"""How fragments are read."""
POLL_SECONDS = 0.1
_FILES = {"json": "json", "parquet": "arrow"}
"""Spark's files, and the encoding of the journal that each is compared with."""


def run(bench: str, rows: int = ROWS, rounds: int = ROUNDS) -> None:
    """Read the same rows from journals and from files, in turn."""
    with running() as machine, ExitStack() as stack:
        directory = machine.directory / "rows"
        written = rows_of(machine.spark, rows)
        written.write.json(str(directory / "json"))
        written.write.parquet(str(directory / "parquet"))
        history = stack.enter_context(_history(machine))
        asyncio.run(_publish_json(history.address, directory / "json"))
        _publish_arrow(machine, history, written)
        sizes = asyncio.run(_seal(history.address))
        read = machine.spark.read
        sources: dict[str, Callable[[], DataFrame]] = {
            **{
                f"{encoding} {path}": partial(_journal, machine, history, journal, path)
                for path in _PATHS
                for encoding, (journal, _) in _JOURNALS.items()
            },
            "json": lambda: read.schema(SCHEMA).json(str(directory / "json")),
            "parquet": lambda: read.schema(SCHEMA).parquet(str(directory / "parquet")),
        }
        seconds: dict[str, list[float]] = {name: [] for name in sources}
        for measured in (False, *[True] * rounds):  # the first round warms up
            for name, source in sources.items():
                took = _seconds(source(), rows)
                if measured:
                    seconds[name].append(took)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    _emit(bench, rows, medians, sizes)


def _emit(bench: str, rows: int, medians: dict[str, float], sizes: dict[str, int]) -> None:
    for (theirs, encoding), path in product(_FILES.items(), _PATHS):
        mine, size = medians[f"{encoding} {path}"], sizes[encoding]
        row_bytes = round(size / rows)
        params: Params = {
            "encoding": encoding,
            "path": path,
            "rows": rows,
            "cores": CORES,
            "row_bytes": row_bytes,
        }
        emit(bench, "source_rows_per_s", rows / mine, "rows/s", **params)
        emit(bench, "source_mb_per_s", size / mine / 1e6, "MB/s", **params)
        spark: Params = {"rows": rows, "cores": CORES}
        emit(bench, f"{theirs}_source_rows_per_s", rows / medians[theirs], "rows/s", **spark)
        emit(bench, f"source_vs_{theirs}", medians[theirs] / mine, "ratio", **params)


class _History(NamedTuple):
    """A broker whose sealed fragments are published."""

    address: str
    root: Path
    """Directory that they are published to."""


@contextmanager
def _history(machine: Machine) -> Iterator[_History]:
    root = machine.directory / "fragments"
    root.mkdir()
    arguments = ("--file-root", str(root))
    with EmbeddedBrokerProcess(machine.directory / "history", arguments=arguments) as broker:
        yield _History(broker.address, root)


def _journal(machine: Machine, history: _History, name: str, path: str) -> DataFrame:
    rules = {"fragmentRoots": str(history.root)} if path == "direct" else {"directFragments": "off"}
    return (
        machine.spark.read.format("journal")
        .options(address=history.address, selector=f"name={name}", schema=SCHEMA, **rules)
        .load()
    )


def _seconds(rows: DataFrame, count: int) -> float:
    began = time.perf_counter()
    found = rows.selectExpr("count(*)", "sum(id)", "max(k)", "sum(v)", "max(s)").first()
    assert found is not None
    assert found[0] == count, f"read {found[0]} rows of {count}"
    return time.perf_counter() - began


async def _publish_json(address: str, files: Path) -> None:
    """Make both journals, and fill the first one."""
    async with JournalClient(address) as client:
        await client.apply([_change(*journal) for journal in _JOURNALS.values()])
        for content in _transactions(files):
            await client.append(JSON_JOURNAL, content)


def _change(
    name: str, content_type: str, fragment_bytes: int = FRAGMENT_BYTES
) -> ApplyRequest.Change:
    change = journal_change(name, content_type, fragment_bytes=fragment_bytes)
    change.upsert.fragment.stores.append("file:///store/")
    return change


def _publish_arrow(machine: Machine, history: _History, rows: DataFrame) -> None:
    writer = rows.write.format("journal").options(
        address=history.address,
        etcd=",".join(machine.services.etcd.endpoints),
        selector=f"name={ARROW_JOURNAL}",
        root="/bench/source",
        key="k",
    )
    writer.mode("append").save()


async def _seal(address: str) -> dict[str, int]:
    """Seal all fragments with rows, wait until they are published, and return the sizes of the journals by encoding,
    bytes.
    """
    acknowledgements = _acknowledgements()
    sizes = {}
    async with JournalClient(address) as client:
        for encoding, (journal, kind) in _JOURNALS.items():
            sizes[encoding] = await client.write_head(journal)
            await client.apply([_change(journal, kind, FRAGMENT_LENGTH_MIN)])
            # Content that follows a full fragment seals it; this one has no rows.
            await client.append(journal, acknowledgements[encoding])
            await _published(client, journal)
    return sizes


async def _published(client: JournalClient, journal: str) -> None:
    while True:
        # The last one is open.
        sealed = (await client.list_fragments(journal))[:-1]
        if sealed and all(each.spec.backing_store for each in sealed):
            return
        await asyncio.sleep(POLL_SECONDS)


def _acknowledgements() -> dict[str, bytes]:
    """Return, for each encoding, a message that commits a transaction without rows."""
    uuid = build_uuid(new_producer_id(), MessageClock().tick(), Flags.ACK_TXN)
    return {
        "json": b'{"_meta":{"uuid":"%s"}}\n' % format_uuid(uuid).encode(),
        "arrow": FixedFraming().frame(uuid),
    }


def _transactions(files: Path) -> Iterator[bytes]:
    clock, producer = MessageClock(), new_producer_id()
    clock.update(time.time())

    def member(flags: int) -> bytes:
        return (
            b'"_meta":{"uuid":"%s"}'
            % format_uuid(build_uuid(producer, clock.tick(), flags)).encode()
        )

    for file in sorted(files.glob("*.json")):
        lines = file.read_bytes().splitlines()
        for begin in range(0, len(lines), TRANSACTION_ROWS):
            messages = [
                line[:-1] + b"," + member(Flags.CONTINUE_TXN) + b"}\n"
                for line in lines[begin : begin + TRANSACTION_ROWS]
            ]
            yield b"".join([*messages, b"{" + member(Flags.ACK_TXN) + b"}\n"])
