"""The leases of a chaos run's members, as etcd has them."""

from __future__ import annotations

import time
from contextlib import suppress

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.keys import SEPARATOR, Keys
from broadsheet.allocator.ops import LeaseId, prefix_range_end


class MemberLeases:
    """Finds the lease of a member by the suffix of its name."""

    def __init__(self, config: EtcdConfig, root: str) -> None:
        """Look at `root` in an etcd."""
        self._config = config
        self._prefix = Keys(root).members_prefix

    async def revoke(self, suffix: str) -> None:
        """End the lease of the member with this suffix; nothing, if there is none or etcd is down."""
        with suppress(EtcdError):
            async with EtcdClient(self._config) as etcd:
                lease = await self._lease_of(etcd, suffix)
                if lease is not None:
                    await etcd.lease_revoke(lease)

    async def seconds_left(self, suffix: str) -> int | None:
        """Return how long the lease of the member with this suffix lives, in whole seconds; None if it has none."""
        async with EtcdClient(self._config) as etcd:
            lease = await self._lease_of(etcd, suffix)
            life = None if lease is None else await etcd.lease_life(lease)
        return None if life is None else life.left_seconds

    async def _lease_of(self, etcd: EtcdClient, suffix: str) -> LeaseId | None:
        for kv in (await etcd.get_range(self._prefix, prefix_range_end(self._prefix))).kvs:
            if kv.key.decode().endswith(f"{SEPARATOR}{suffix}"):
                return LeaseId(kv.lease)
        return None


class Renewals:
    """Sees whether a member renews its lease.

    One that lost it while it was frozen, or etcd down, serves on until it notices, and ends with an error then. Only a
    renewal shows that it is a member still.
    """

    def __init__(self, leases: MemberLeases) -> None:
        """Know nothing yet."""
        self._leases = leases
        self._seen: dict[str, float] = {}
        """When its lease ends unless it is renewed, as of the first look, by the member's suffix."""

    async def renews(self, suffix: str) -> bool:
        """Look, and return whether it was renewed since the first look.

        Etcd tells whole seconds, and members may renew more often than that: so its end must have moved by more.
        """
        left = await self._leases.seconds_left(suffix)
        if left is None:
            self._seen.pop(suffix, None)
            return False
        ends = time.monotonic() + left
        return ends > self._seen.setdefault(suffix, ends) + 1.0
