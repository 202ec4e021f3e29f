"""A driver's key in a cluster of shards, which has its settings; the other drivers; and what the dead left.

    enrol     the key, on a lease ──► settings compared with those of drivers that came before ──► dead clusters swept
    run       renews the lease; a driver that was cut off for longer enrols again
    leave     ends the lease, and sweeps

    {root}.clusters/{cluster}/driver    `joining.DriverRecord`, on the driver's lease

Members depend on none of it: they have leases of their own, and go on without their driver for as long as Spark lets
them.
"""

from __future__ import annotations

import msgspec
import structlog

from broadsheet.allocator.errors import EtcdError, LeaseLostError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.etcd.lease import LeaseKeeper
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.ops import Delete, Get, KeyValue, Put, prefix_range_end
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.documents import DocumentError
from broadsheet.spark_bridge.cluster.joining import DRIVER, DriverRecord, differences
from broadsheet.spark_bridge.errors import ClusterJoinError
from broadsheet.spark_bridge.keys import cluster_prefix, clusters_prefix, driver_key, is_driver_key
from broadsheet.spark_bridge.member.identity import parse_suffix

LEASE_SECONDS = 10.0
"""How long the key of a driver that was killed stays, and its settings count."""
AGAIN_SECONDS_MAX = 5.0

_log = structlog.get_logger()


async def read_drivers(etcd: Etcd, root: str) -> tuple[DriverRecord, ...]:
    """Return the drivers that live at a root, in the order in which they came; unreadable ones are logged."""
    found = sorted(await _driver_keys(etcd, root), key=lambda kv: kv.create_revision)
    readable = (_decoded(kv, root) for kv in found)
    return tuple(one for one in readable if isinstance(one, DriverRecord))


class Enrolment:
    """One driver at one root. `enrol`, then `run` in the background; `leave` last."""

    def __init__(
        self, etcd: Etcd, keys: Keys, *, cluster: str, joins: bool, clock: Clock | None = None
    ) -> None:
        """Bind it; nothing is written yet.

        Args:
            etcd: Has the root.
            keys: Of the root.
            cluster: Name of this driver's cluster, `{application}-{random}`.
            joins: Whether settings that do not fit those of others are refused; else they are not compared.
            clock: Time.
        """
        self._etcd = etcd
        self._keys = keys
        self._cluster = cluster
        self._key = driver_key(keys.root, cluster)
        self._joins = joins
        self._clock = clock or SystemClock()
        self._driver: DriverRecord | None = None
        self._keeper: LeaseKeeper | None = None

    async def enrol(self, driver: DriverRecord) -> None:
        """Announce the driver, and compare its settings with those of drivers that came before.

        Raises:
            ClusterJoinError: they do not fit; the driver's key is gone again.
            EtcdError: etcd did not answer.
        """
        self._driver = driver
        self._keeper = await self._announced(driver)
        try:
            await self._compare(driver)
        except BaseException:
            await self._revoke()
            raise
        await self._sweep(driver)

    async def run(self) -> None:
        """Renew the lease until cancelled, and enrol again if it was lost."""
        assert self._driver is not None, "enrolled"
        backoff = Backoff(max_seconds=AGAIN_SECONDS_MAX)
        while True:
            try:
                if self._keeper is None:
                    # Its members already serve: a refusal would come too late.
                    self._keeper = await self._announced(self._driver)
                backoff.reset()
                await self._keeper.run()
            except LeaseLostError as error:
                self._keeper = None
                _log.warning("cluster.driver_lease_lost", root=self._keys.root, cause=str(error))
            except EtcdError as error:
                _log.warning("cluster.driver_not_enrolled", root=self._keys.root, cause=str(error))
                await backoff.sleep()

    async def leave(self) -> None:
        """Take the driver's key away, and sweep what others left. An etcd that does not answer is no error."""
        try:
            if self._driver is not None:
                await self._sweep(self._driver)
        except EtcdError as error:
            _log.warning("cluster.not_swept", root=self._keys.root, cause=str(error))
        finally:
            await self._revoke()

    async def _revoke(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await keeper.revoke()

    async def _announced(self, driver: DriverRecord) -> LeaseKeeper:
        keeper = await LeaseKeeper.grant(self._etcd, LEASE_SECONDS, self._clock)
        key = Put(self._key, msgspec.json.encode(driver), lease=keeper.lease)
        await self._etcd.txn((), (key,))
        return keeper

    async def _compare(self, driver: DriverRecord) -> None:
        found = await _driver_keys(self._etcd, self._keys.root)
        own = next((kv.create_revision for kv in found if kv.key == self._key), 0)
        # Of two that come at once only the later one compares, so that they do not refuse each other.
        for kv in found:
            if kv.create_revision < own:
                self._compare_with(driver, _decoded(kv, self._keys.root))

    def _compare_with(self, driver: DriverRecord, other: DriverRecord | DocumentError) -> None:
        root = self._keys.root
        if not self._joins:
            name = "unknown" if isinstance(other, DocumentError) else other.application_id
            _log.warning(
                "cluster.root_shared",
                root=root,
                application=name,
                problem="another driver runs members there: with join=True settings are compared, and standbys "
                "are in another application than their primaries",
            )
            return
        if isinstance(other, DocumentError):
            raise ClusterJoinError(root, "unknown", (str(other),)) from other
        found = differences(driver, other)
        if found.refused:
            raise ClusterJoinError(root, other.application_id, found.refused)
        for text in found.told:
            _log.warning(
                "cluster.settings_differ", root=root, application=other.application_id, problem=text
            )

    async def _sweep(self, driver: DriverRecord) -> None:
        """Remove the orders and hosts of clusters whose driver and members are gone, because a kill leaves them."""
        root = self._keys.root
        prefix, members = clusters_prefix(root), self._keys.members_prefix
        found = await self._etcd.txn(
            (), tuple(Get(each, prefix_range_end(each)) for each in (prefix, members))
        )
        left, announced = found.gets
        clusters = {kv.key: kv.key.removeprefix(prefix).partition(b"/")[0] for kv in left}
        living = {name for key, name in clusters.items() if is_driver_key(root, key)}
        # Members that are alone, or whose driver is of an earlier release, still watch their orders.
        applications = {driver.application_id, *(_application_of(kv.key) for kv in announced)}
        for name in sorted({*clusters.values()} - living - {self._cluster.encode()}):
            cluster = name.decode(errors="replace")
            if cluster.rpartition("-")[0] not in applications:
                gone = cluster_prefix(root, cluster)
                await self._etcd.txn((), (Delete(gone, prefix_range_end(gone)),))
                _log.info("cluster.swept", root=root, cluster=cluster)


async def _driver_keys(etcd: Etcd, root: str) -> tuple[KeyValue, ...]:
    # Beside the cluster's other keys, where every driver's role may write, also one of an earlier release.
    prefix = clusters_prefix(root)
    found = await etcd.get_range(prefix, prefix_range_end(prefix))
    return tuple(kv for kv in found.kvs if is_driver_key(root, kv.key))


def _decoded(kv: KeyValue, root: str) -> DriverRecord | DocumentError:
    try:
        return DRIVER.decode_json(kv.value, DriverRecord)
    except DocumentError as error:
        _log.warning("cluster.driver_unreadable", root=root, cause=str(error))
        return error


def _application_of(member_key: bytes) -> str:
    incarnation = parse_suffix(member_key.rpartition(b"#")[2].decode(errors="replace"))
    return "" if incarnation is None else incarnation.application_id
