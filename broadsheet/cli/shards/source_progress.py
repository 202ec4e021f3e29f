"""Progress of a shard in its sources, from its primary and the brokers."""

from __future__ import annotations

from dataclasses import dataclass

from broadsheet.cli.output.tables import UNKNOWN
from broadsheet.consumer.client import ShardClient
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import JournalNotFoundError


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """The progress of a shard in one of its sources."""

    journal: str
    read_through: int
    """Bytes."""
    write_head: int | None
    """Bytes; None: the journal is gone, or was replaced by a shorter one."""

    @property
    def lag(self) -> int | None:
        """Unread bytes; None if the head is of another journal than the one that was read."""
        if self.write_head is None or self.write_head < self.read_through:
            return None
        return self.write_head - self.read_through

    @property
    def lag_text(self) -> str:
        """The same for people."""
        return UNKNOWN if self.lag is None else str(self.lag)


async def progress_of(
    client: ShardClient, journals: JournalClient, shard_id: str
) -> list[SourceProgress]:
    """Ask a shard's primary, and the brokers, how far it has read its sources; ascending by journal.

    Raises:
        ServiceError: it has no primary, or no broker answers.
        TimeoutError: the primary does not answer.
    """
    found = []
    for journal, offset in sorted((await client.stat(shard_id)).read_through.items()):
        try:
            head: int | None = await journals.write_head(journal.partition(";")[0])
        except JournalNotFoundError:
            head = None
        found.append(SourceProgress(journal, offset, head))
    return found
