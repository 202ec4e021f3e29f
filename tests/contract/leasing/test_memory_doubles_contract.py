"""What simulations run on keeps the promises of the real thing."""

from __future__ import annotations

import pytest

from broadsheet.testing.leases.source_suite import RecordSourceConformance
from broadsheet.testing.leases.suite import RecordStoreConformance
from tests.support.memory_records import MemorySubject, memory_subject
from tests.support.memory_stream import MemoryStream


class TestMemoryRecordStore(RecordStoreConformance):
    """Two processes on one memory."""

    many_records = 120

    @pytest.fixture
    def subject(self) -> MemorySubject:
        """A memory of the test's own."""
        return memory_subject()


class _StreamSubject:
    def __init__(self) -> None:
        self.source = MemoryStream(poll_seconds=0.01)
        self.source.add("0")

    async def put(self, shard_key: str, data: bytes) -> None:
        self.source.put(shard_key, data)

    async def split(self, shard_key: str) -> None:
        self.source.replace((shard_key,), ("1", "2"))


class TestMemoryStream(RecordSourceConformance):
    """A stream in memory."""

    @pytest.fixture
    def subject(self) -> _StreamSubject:
        """A stream of the test's own."""
        return _StreamSubject()
