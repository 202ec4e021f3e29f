"""A shard whose only source is deleted and made again: it must fail, say so, and go on when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broadsheet.consumer.client import RecoveryClient
from broadsheet.journals.client import JournalClient
from broadsheet.wire import journal_pb2
from tests.chaos.patience import patient
from tests.chaos.side_shard import SEEN_SECONDS, SideShard
from tests.support.eventually import eventually


class ReplacedJournal:
    """The journal and its shard."""

    def __init__(self, side: SideShard, address: Callable[[], Awaitable[str]]) -> None:
        """Name the shard.

        Args:
            side: The shard.
            address: Returns where a member serves now.
        """
        self._side = side
        self._address = address
        self._turn = asyncio.Lock()

    async def replace(self, journals: JournalClient, unix_seconds: float) -> None:
        """Delete the journal under its shard, make it again, and see the shard fail, be reset, and read on."""
        side, journal = self._side, self._side.journal
        async with self._turn:
            await side.read(await side.write(journals, unix_seconds))
            listed = await journals.get(journal)
            await journals.apply(
                [
                    journal_pb2.ApplyRequest.Change(
                        delete=journal, expect_mod_revision=listed.mod_revision
                    )
                ]
            )
            await journals.apply([journal_pb2.ApplyRequest.Change(upsert=listed.spec)])
            await eventually(
                lambda: side.has_failed(journal), timeout_seconds=SEEN_SECONDS, message="it fails"
            )
            head = await side.write(journals, unix_seconds)
            await eventually(self._is_reset, timeout_seconds=SEEN_SECONDS, message="it is reset")
            await side.read(head)

    async def _is_reset(self) -> bool:
        async def is_reset() -> bool:
            async with RecoveryClient(await self._address()) as client:
                await client.reset_source(self._side.shard, journal=self._side.journal, offset=0)
            return True

        return await patient(is_reset)()
