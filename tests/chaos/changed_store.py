"""An application that changes its store's class: the shard must fail, say so, and go on when it is changed back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broadsheet.consumer.client import ShardClient
from broadsheet.wire import shard_pb2
from broadsheet.wire.labels import label_set
from tests.chaos.application import STORE_LABEL
from tests.chaos.patience import patient
from tests.chaos.side_shard import SEEN_SECONDS, has_failed
from tests.support.eventually import eventually

_OTHER = {"sqlite": "json", "json": "sqlite"}


class ChangedStore:
    """Changes the class of a shard's store, and changes it back."""

    def __init__(self, address: Callable[[], Awaitable[str]], *, store: str) -> None:
        """Set it up.

        Args:
            address: Returns where a member serves now.
            store: Kind of the shards' stores, `sqlite` or `json`.
        """
        self._address = address
        self._store = store
        self._turn = asyncio.Lock()

    async def change_and_change_back(self, shard: str) -> None:
        """Restart a shard with a store of another class, see it refuse the log by name, and let it go on."""
        async with self._turn:
            await self._reach(
                lambda: self._labelled(shard, _OTHER[self._store]), "the label is set"
            )
            await self._reach(lambda: self._refuses(shard), f"{shard} refuses its log")
            await self._reach(lambda: self._labelled(shard, ""), "the label is removed")
            await self._reach(lambda: self._serves(shard), f"{shard} serves again")

    async def _reach(self, look: Callable[[], Awaitable[bool]], message: str) -> None:
        await eventually(patient(look), timeout_seconds=SEEN_SECONDS, message=message)

    async def _labelled(self, shard: str, store: str) -> bool:
        async with ShardClient(await self._address()) as client:
            listed = await _listed(client, shard)
            labels = [(each.name, each.value) for each in listed.spec.labels.labels]
            others = [pair for pair in labels if pair[0] != STORE_LABEL]
            spec = shard_pb2.ShardSpec()
            spec.CopyFrom(listed.spec)
            spec.labels.CopyFrom(label_set(*others, *[(STORE_LABEL, store)] * bool(store)))
            change = shard_pb2.ApplyRequest.Change(
                upsert=spec, expect_mod_revision=listed.mod_revision
            )
            await client.apply([change])
        return True

    async def _refuses(self, shard: str) -> bool:
        """Look; a primary that serves still has the store that it opened, so it is restarted."""
        if await has_failed(self._address, shard, f"holds files of a {self._store} store"):
            return True
        async with ShardClient(await self._address()) as client:
            listed = await _listed(client, shard)
            if any(each.code == shard_pb2.ReplicaStatus.PRIMARY for each in listed.status):
                await client.unassign([shard])
        return False

    async def _serves(self, shard: str) -> bool:
        async with ShardClient(await self._address()) as client:
            listed = await _listed(client, shard)
        return any(each.code == shard_pb2.ReplicaStatus.PRIMARY for each in listed.status)


async def _listed(client: ShardClient, shard: str) -> shard_pb2.ListResponse.Shard:
    return next(each for each in (await client.list()).shards if each.spec.id == shard)
