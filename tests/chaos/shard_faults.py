"""Faults that strike what shards are made of: their sources, their recovery logs, their application's stores."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from itertools import count
from random import Random

from broadsheet.consumer.client import ShardClient
from broadsheet.journals.client import JournalClient
from broadsheet.wire import journal_pb2, shard_pb2
from tests.chaos.changed_store import ChangedStore
from tests.chaos.log_strangers import LogStrangers
from tests.chaos.patience import patient
from tests.chaos.replaced_journal import ReplacedJournal
from tests.chaos.schedule import FaultKind
from tests.chaos.side_shard import SEEN_SECONDS, SideShard
from tests.support.eventually import eventually

SHARDS = tuple(f"stream-sum-{index:03d}" for index in range(4))
"""Shards whose sums count."""
_REPLACED = "stream-sum-replaced"


class ShardFaults:
    """Strikes shards, and sees each of them go on, or be FAILED by name."""

    def __init__(
        self,
        journals: JournalClient,
        address: Callable[[], Awaitable[str]],
        random: Random,
        *,
        store: str,
    ) -> None:
        """Set it up.

        Args:
            journals: Writes into sources and logs.
            address: Returns where a member serves now.
            random: Chooses what the schedule does not.
            store: Kind of the shards' stores.
        """
        self._journals = journals
        self._address = address
        self._random = random
        self._replaced_side = self._side(_REPLACED)
        self._replaced = ReplacedJournal(self._replaced_side, address)
        self._changed = ChangedStore(address, store=store)
        self._strangers = LogStrangers(
            journals, random, [f"stream-sum/logs/{shard}" for shard in SHARDS]
        )
        self._numbers = count()
        self._likes: tuple[journal_pb2.JournalSpec, shard_pb2.ShardSpec] | None = None
        self.refused = 0
        """How often a shard was FAILED by name because another author took its log's next number."""

    async def create(
        self, journal: journal_pb2.JournalSpec, shard: shard_pb2.ShardSpec
    ) -> shard_pb2.ShardSpec:
        """Make the journals that are struck; return the spec of their shard.

        Args:
            journal: Spec of a source, and
            shard: of a shard that those of side shards are like.
        """
        self._likes = (journal, shard)
        await self._replaced_side.create(self._journals, journal)
        return self._replaced_side.spec(shard)

    async def strike(self, kind: FaultKind) -> None:
        """Do one of the faults, and wait until its victim has recovered."""
        match kind:
            case FaultKind.JOURNAL:
                await self._replaced.replace(self._journals, time.time())
            case FaultKind.LOG_BYTES:
                await self._strangers.append_bytes()
            case FaultKind.LOG_AUTHOR:
                await self._strangers.append_operations()
            case FaultKind.LOG_NUMBER:
                await self._take_number()
            case FaultKind.STORE_CLASS:
                await self._changed.change_and_change_back(self._random.choice(SHARDS))
            case _:
                raise AssertionError(f"{kind} is not for shards")

    async def _take_number(self) -> None:
        """Strike a shard of its own, because what its log has lost is lost for good."""
        assert self._likes is not None, "created"
        journal, shard = self._likes
        side = self._side(f"stream-sum-number-{next(self._numbers):03d}")
        await side.create(self._journals, journal)
        await self._apply(shard_pb2.ApplyRequest.Change(upsert=side.spec(shard)))
        self.refused += await self._strangers.take_number(side, time.time())
        await self._apply(shard_pb2.ApplyRequest.Change(delete=side.shard, expect_mod_revision=-1))

    async def _apply(self, change: shard_pb2.ApplyRequest.Change) -> None:
        async def applied() -> bool:
            async with ShardClient(await self._address()) as client:
                await client.apply([change])
            return True

        await eventually(
            patient(applied), timeout_seconds=SEEN_SECONDS, message="specs are applied"
        )

    def _side(self, shard: str) -> SideShard:
        return SideShard(self._address, self._random, shard=shard, journal=f"stream-sum/of-{shard}")
