"""A shard that stands still, for tests of what is handed one: stores, callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.journals.client import JournalClient
from broadsheet.wire.shard_pb2 import ShardSpec


@dataclass(frozen=True)
class FixedShard:
    """Implements `broadsheet.consumer.application.Shard` without a journal client."""

    id: str = "shard-0001"
    root: str = "/test"
    local_state: LocalState | None = None

    @property
    def fqn(self) -> str:
        """Key of the spec."""
        return f"{self.root}/items/{self.id}"

    @property
    def spec(self) -> ShardSpec:
        """A spec without sources."""
        return ShardSpec(id=self.id)

    @property
    def journals(self) -> JournalClient:
        """None here."""
        raise AssertionError("this test has no journals")

    def progress(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """No progress."""
        return {}, {}
