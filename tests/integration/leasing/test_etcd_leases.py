"""What etcd adds to leases: it knows who lives, so nobody need write to show it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.allocator.ops import LeaseId
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.leases import rules
from broadsheet.leases.errors import DependencyError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.stores.etcd.store import EtcdRecordStore
from broadsheet.testing.leases.suite import full_record
from tests.support.eventually import eventually
from tests.support.lease_stores import EtcdSubject, etcd_subject

pytestmark = pytest.mark.etcd


@pytest.fixture
async def subject(etcd_server: EmbeddedEtcdProcess) -> AsyncIterator[EtcdSubject]:
    """Two processes with a store."""
    async with etcd_subject(etcd_server.endpoint) as subject:
        await subject.store.create_store()
        yield subject


async def _held(store: EtcdRecordStore, key: str = "a", owner: str = "w1") -> Versioned:
    manager = LeaseManager(store)
    assert await manager.create_lease(LeaseRecord(key=key))
    seen = await manager.get_lease(key)
    assert seen is not None
    held = await manager.take(seen, owner)
    assert held is not None
    return held


async def _etcd_lease_of(subject: EtcdSubject, worker: str) -> LeaseId:
    found = await subject.etcd.get_range(f"{subject.root}/workers/{worker}".encode())
    return LeaseId(found.kvs[0].lease)


def _deadline(subject: EtcdSubject) -> float | None:
    return subject.store.deadline_monotonic_seconds


async def test_renewing_writes_nothing(subject: EtcdSubject) -> None:
    """Renewals of many leases, over several keep-alives' time, leave etcd as it was."""
    manager = LeaseManager(subject.store)
    held = [await _held(subject.store, f"shard-{number}") for number in range(20)]
    before = await subject.etcd.newest_revision(f"{subject.root}/".encode())

    for _ in range(5):
        assert [await manager.renew(each) for each in held] == held

    assert await subject.etcd.newest_revision(f"{subject.root}/".encode()) == before


async def test_process_keeps_its_etcd_lease(etcd_server: EmbeddedEtcdProcess) -> None:
    """It is renewed in time: our own deadline moves on, and the fence stays."""
    async with etcd_subject(etcd_server.endpoint, lease_seconds=4) as subject:
        await subject.store.create_store()
        assert _deadline(subject) is None
        held = await _held(subject.store)
        first = _deadline(subject)
        assert first is not None

        await eventually(lambda: (_deadline(subject) or 0) > first + 2.0)

        assert await LeaseManager(subject.store).renew(held) == held


async def test_dead_process_loses_its_leases_and_keeps_its_checkpoints(
    subject: EtcdSubject,
) -> None:
    """Its etcd lease expires: the owner key goes, the record stays, and what it still writes is refused."""
    zombie, heir = LeaseManager(subject.store), LeaseManager(subject.rival)
    held = await _held(subject.store)
    held_still = await zombie.update(held, lambda r: rules.prepare(r, Position("7"), b"note"))
    assert held_still is not None

    await subject.etcd.lease_revoke(await _etcd_lease_of(subject, "w1"))

    free = await heir.get_lease("a")
    assert free is not None
    assert (free.fence, free.record) == (0, held_still.record)
    assert await zombie.renew(held_still) is None
    assert await zombie.update(held_still, lambda r: rules.commit(r, Position("7"))) is None
    taken = await heir.take(free, "w2")
    assert taken is not None
    assert taken.record.pending == Position("7")
    assert await zombie.update(held_still, lambda r: rules.commit(r, Position("7"))) is None
    assert await heir.get_lease("a") == taken


async def test_silent_process_is_noticed_within_its_ttl(etcd_server: EmbeddedEtcdProcess) -> None:
    """It hangs, nobody tells etcd anything: its leases are free after its TTL and 2 s at most."""
    async with (
        etcd_subject(etcd_server.endpoint) as subject,
        EtcdClient(EtcdConfig(endpoints=(etcd_server.endpoint,))) as etcd,
    ):
        await subject.store.create_store()
        silent = EtcdRecordStore(etcd, subject.root, lease_seconds=4)
        # Its keep-alive ends with the block, and revokes: what hangs is another lease of the same length.
        lease = await etcd.lease_grant(4)
        await etcd.put(f"{subject.root}/workers/w3".encode(), b"", lease)
        seen = await silent.create(LeaseRecord(key="a"))
        held = await LeaseManager(silent).assign(seen, "w3")
        assert held is not None
        assert held.fence

        async def is_free() -> bool:
            found = await subject.rival.get("a")
            return found is not None and not found.fence

        await eventually(is_free, timeout_seconds=20, interval_seconds=0.1)


async def test_process_that_leaves_gives_its_leases_back(
    etcd_server: EmbeddedEtcdProcess, subject: EtcdSubject
) -> None:
    """No successor waits for a TTL after an orderly end."""
    async with EtcdClient(EtcdConfig(endpoints=(etcd_server.endpoint,))) as etcd:
        async with EtcdRecordStore(etcd, subject.root) as leaving:
            held = await _held(leaving, owner="w3")
            assert held.fence

        found = await subject.rival.get("a")

    assert found is not None
    assert (found.fence, found.record) == (0, held.record)


async def test_process_that_lost_its_etcd_lease_gets_another(subject: EtcdSubject) -> None:
    """The call that meets the loss says so, with nothing written; the next one works."""
    manager = LeaseManager(subject.store)
    await _held(subject.store)
    lost = await _etcd_lease_of(subject, "w1")
    await subject.etcd.lease_revoke(lost)
    seen = await manager.get_lease("a")
    assert seen is not None

    with pytest.raises(DependencyError) as raised:
        await manager.take(seen, "w1")
    assert not raised.value.outcome_unknown
    assert await manager.get_lease("a") == seen
    taken = await manager.take(seen, "w1")

    assert taken is not None
    assert taken.fence
    assert await _etcd_lease_of(subject, "w1") != lost


async def test_assigned_lease_lives_with_its_owner(
    etcd_server: EmbeddedEtcdProcess, subject: EtcdSubject
) -> None:
    """Not with the process that assigned it: leaders come and go."""
    await subject.rival.join("w2")
    async with (
        EtcdClient(EtcdConfig(endpoints=(etcd_server.endpoint,))) as etcd,
        EtcdRecordStore(etcd, subject.root) as leader,
    ):
        held = await _held(leader, owner="leader")
        assigned = await LeaseManager(leader).assign(held, "w2")
        assert assigned is not None

    assert await LeaseManager(subject.rival).renew(assigned) == assigned


async def test_lease_assigned_to_nobody_alive_is_free(subject: EtcdSubject) -> None:
    """Its owner is named and has no fence, as if it had died at once: anyone may take it."""
    held = await _held(subject.store)

    assigned = await LeaseManager(subject.store).assign(held, "w9")

    assert assigned is not None
    assert (assigned.record.owner, assigned.fence) == ("w9", 0)
    assert await LeaseManager(subject.rival).take(assigned, "w2")


async def test_etcd_that_is_down_is_a_failed_dependency() -> None:
    """A read leaves nothing in doubt."""
    config = EtcdConfig(endpoints=("unix:/nonexistent/etcd.sock",), request_timeout_seconds=0.3)
    async with EtcdClient(config) as etcd, EtcdRecordStore(etcd, "/leases") as store:
        with pytest.raises(DependencyError, match="unavailable") as raised:
            await store.get("a")

    assert raised.value.retryable
    assert not raised.value.outcome_unknown


async def test_recorded_value_is_read_and_written(subject: EtcdSubject) -> None:
    """The value under a lease's key as another version wrote it; a worker of that version reads ours."""
    path = Path(__file__).parents[2] / "data" / "stored_leases.json"
    recorded = json.loads(path.read_text("utf-8"))["text"]["full"]
    key = f"{subject.root}/leases/shard-1".encode()
    await subject.etcd.put(key, recorded.encode())

    found = await subject.store.get("shard-1")
    assert found is not None
    assert found.record == full_record(owner="w1")
    await subject.store.delete("shard-1")
    await subject.store.create(found.record)

    assert (await subject.etcd.get_range(key)).kvs[0].value.decode() == recorded
