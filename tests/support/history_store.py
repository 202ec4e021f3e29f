"""A broker that publishes fragments to files, journals with such a history, and what the broker sent of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen
from uuid import uuid4

from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.journals.client import JournalClient
from broadsheet.wire import journal_pb2 as pb
from tests.support.broker import journal_spec
from tests.support.eventually import eventually_sync
from tests.support.journal_writers import JournalWriter

ROUNDS = 8
ROWS = 40
"""Appends of a history, each of which becomes a fragment, and the rows of each."""


class History(NamedTuple):
    """A journal whose first fragments are published."""

    journal: str
    end: int
    """Of what is published, bytes."""


@dataclass(frozen=True, slots=True)
class HistoryStore:
    """A broker, and the directory where it publishes fragments."""

    broker: EmbeddedBrokerProcess
    root: Path

    @classmethod
    @contextmanager
    def started(cls, directory: Path) -> Iterator[HistoryStore]:
        """Run a broker that has sent nothing yet."""
        root = directory / "fragments"
        root.mkdir()
        arguments = ("--file-root", str(root), "--admin-port", "0")
        with EmbeddedBrokerProcess(directory / "broker", arguments=arguments) as broker:
            yield cls(broker, root)

    def sent_bytes(self) -> int:
        """Return the content that the broker has sent to readers; up to a second old."""
        with urlopen(f"{self.broker.admin_address}/metrics") as answer:  # noqa: S310 - http, our own
            text = answer.read().decode()
        found = re.search(r"^broadsheet_broker_read_bytes_total (\S+)$", text, re.MULTILINE)
        assert found is not None
        return int(float(found[1]))

    def read_through_the_broker(self, history: History) -> int:
        """Read a history; return its bytes."""

        async def read() -> int:
            async with JournalClient(self.broker.address) as client:
                reader = client.reader(history.journal, block=False, end_offset=history.end)
                return sum([len(span.content) async for span in reader])

        return asyncio.run(read())

    def history(self, codec: pb.CompressionCodec.ValueType) -> History:
        """Return a new journal of `ROWS` rows in each of some published fragments, and where these end."""
        spec = journal_spec(f"test/{uuid4().hex}/part-000", length=1024)
        spec.labels.labels.add(name="content-type", value="application/x-ndjson")
        spec.fragment.compression_codec = codec
        spec.fragment.stores.append("file:///store/")
        _apply(self.broker.address, spec)
        writer = JournalWriter(self.broker.address, spec.name)
        for begin in range(0, ROUNDS * ROWS, ROWS):
            writer.committed(range(begin, begin + ROWS))
        # The last one is not sealed.
        stored = eventually_sync(lambda: _stored(self.broker.address, spec.name, ROUNDS - 1))
        return History(spec.name, stored[-1].end)


def _apply(address: str, spec: pb.JournalSpec) -> None:
    async def apply() -> None:
        async with JournalClient(address) as client:
            await client.apply([pb.ApplyRequest.Change(upsert=spec, expect_mod_revision=-1)])

    asyncio.run(apply())


def _stored(address: str, journal: str, count: int) -> Sequence[pb.Fragment]:
    async def listed() -> list[pb.Fragment]:
        async with JournalClient(address) as client:
            return [each.spec for each in await client.list_fragments(journal)]

    found = [each for each in asyncio.run(listed()) if each.backing_store]
    return found if len(found) == count else []
