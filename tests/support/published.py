"""What readers of journals see of what was published, journal by journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import MessageType
from broadsheet.journals.message.reader import read_batches, read_committed
from broadsheet.journals.message.uuid import Flags


async def messages_of(
    address: str,
    journals: Iterable[str],
    *,
    committed: bool = True,
    message_type: MessageType | None = None,
) -> list[list[Any]]:
    """Return the messages of each journal in their order, acknowledgements left out.

    Args:
        address: A broker.
        journals: Their names.
        committed: As readers of committed messages see them; else as they were written.
        message_type: JSON if not given.
    """
    read = read_committed if committed else read_batches

    async def all_of(client: JournalClient, journal: str) -> list[Any]:
        found: list[Any] = []
        async for batch in read(client, journal, message_type or JsonType(), block=False):
            for flags, message in zip(batch.flags, batch.messages(), strict=True):
                if flags != Flags.ACK_TXN:
                    found.append(message)
        return found

    async with JournalClient(address) as client:
        return [await all_of(client, journal) for journal in journals]


async def flags_of(address: str, journal: str) -> list[int]:
    """Return the flags of each message of a journal of JSON lines as written."""
    async with JournalClient(address) as client:
        return [
            flags
            async for batch in read_batches(client, journal, JsonType(), block=False)
            for flags in batch.flags
        ]


def ids_of(messages: Sequence[Sequence[dict[str, Any]]]) -> Counter[int]:
    """Return how often each `id` was published."""
    return Counter(message["id"] for journal in messages for message in journal)
