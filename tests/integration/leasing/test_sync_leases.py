"""The lease manager without an event loop, and the wait for a store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.leases import rules
from broadsheet.leases.errors import InvalidStateError
from broadsheet.leases.facades.kcl import LeaseManager, SyncLeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import HashRange, LeaseRecord
from broadsheet.leases.store import RecordStore
from broadsheet.leases.stores.etcd.store import EtcdRecordStore
from broadsheet.leases.stores.sql.store import SqlRecordStore
from tests.support.stepping_clock import SteppingClock


def _run_a_life(manager: SyncLeaseManager) -> None:
    """Use every operation once."""
    assert not manager.store_exists()
    assert manager.create_store_if_not_exists()
    assert manager.wait_until_store_exists()
    assert manager.is_empty()
    assert manager.create_lease(LeaseRecord(key="a"))
    assert not manager.create_lease(LeaseRecord(key="a"))
    seen = manager.get_lease("a")
    assert seen is not None
    held = manager.take(seen, "w1")
    assert held is not None
    assert manager.list_leases() == manager.list_leases_of("w1") == (held,)
    assert manager.note_children(
        "a", children=frozenset({"b"}), hash_range=HashRange(first="0", last="1")
    )
    renewed = manager.renew(manager.get_lease("a") or held)
    assert renewed is not None
    committed = manager.update(renewed, lambda record: rules.commit(record, Position("7")))
    assert committed is not None
    handed = manager.assign(committed, "w2", graceful=True)
    assert handed is not None
    evicted = manager.evict(handed)
    assert evicted is not None
    assert evicted.record.checkpoint == Position("7")
    assert manager.delete("a")
    manager.create_lease(LeaseRecord(key="b"))
    manager.delete_all()
    assert manager.list_leases() == ()


def test_sync_manager_over_sql(tmp_path: Path) -> None:
    """The whole life of a lease, from a program without a loop."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/leases.db")

    with SyncLeaseManager(lambda: nullcontext(SqlRecordStore(engine))) as manager:
        _run_a_life(manager)

    engine.dispose()


@pytest.mark.etcd
def test_sync_manager_over_etcd(etcd_server: EmbeddedEtcdProcess) -> None:
    """The same; the process's etcd lease is kept in between, and given back at the end."""
    root = f"/leasing/{uuid4().hex}"

    @asynccontextmanager
    async def opened() -> AsyncIterator[RecordStore]:
        async with (
            EtcdClient(EtcdConfig(endpoints=(etcd_server.endpoint,))) as etcd,
            EtcdRecordStore(etcd, root) as store,
        ):
            yield store

    with SyncLeaseManager(opened) as manager:
        _run_a_life(manager)
        manager.create_lease(LeaseRecord(key="a"))
        seen = manager.get_lease("a")
        assert seen is not None
        assert manager.take(seen, "w1")

    with SyncLeaseManager(opened) as manager:
        found = manager.get_lease("a")
    assert found is not None
    assert (found.record.owner, found.fence) == ("w1", 0)


def test_sync_manager_raises_what_the_store_raises(tmp_path: Path) -> None:
    """At the opening, in each call, and after the end."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/leases.db")
    manager = SyncLeaseManager(lambda: nullcontext(SqlRecordStore(engine)))
    with pytest.raises(InvalidStateError, match="no lease store"):
        manager.list_leases()
    manager.close()
    manager.close()
    with pytest.raises(RuntimeError, match="closed"):
        manager.list_leases()
    engine.dispose()

    def broken() -> AbstractAsyncContextManager[RecordStore]:
        raise OSError("no route to the store")

    with pytest.raises(OSError, match="no route"):
        SyncLeaseManager(broken)


async def test_wait_until_store_exists(tmp_path: Path) -> None:
    """`testWaitUntilLeaseTableExists`, and its `Timeout`: it looks first, and sleeps no longer than is left."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/leases.db")
    clock = SteppingClock()
    manager = LeaseManager(SqlRecordStore(engine), clock=clock, sleep=clock.sleep)

    assert not await manager.wait_until_store_exists(poll_seconds=2, timeout_seconds=1)
    assert clock.slept_seconds == [1.0]
    assert await manager.create_store_if_not_exists()
    assert await manager.create_store_if_not_exists()
    assert await manager.wait_until_store_exists(poll_seconds=2, timeout_seconds=1)
    assert clock.slept_seconds == [1.0]
    other = LeaseManager(SqlRecordStore(engine))
    assert not await other.create_store_if_not_exists()
    engine.dispose()
