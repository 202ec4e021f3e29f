"""What lease managers and workers count on PostgreSQL when others are faster, locks are held and processors fail."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sa

from broadsheet.leases.errors import InvalidStateError, ThrottlingError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.metrics import LeaseMetrics
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.rules import commit
from broadsheet.leases.stores.sql.store import SqlRecordStore
from broadsheet.leases.worker.settings import StealWay, WorkerSettings
from broadsheet.leases.worker.worker import LeaseWorker
from broadsheet.runtime.task_group import TaskGroup
from tests.support.eventually import eventually
from tests.support.lease_stores import SqlSubject, sql_subject
from tests.support.memory_stream import MemoryStream
from tests.support.scripted_processor import Script, ScriptedProcessor

pytestmark = pytest.mark.postgresql


@pytest.fixture
async def subject(postgresql_url: str) -> AsyncIterator[SqlSubject]:
    """A table."""
    async with sql_subject(postgresql_url) as subject:
        await subject.store.create_store()
        yield subject


def shown(metrics: LeaseMetrics, name: str, **labels: str) -> float:
    """Return a sample; 0 if there is none."""
    return metrics.registry.get_sample_value(f"broadsheet_{name}", labels) or 0.0


async def test_operations_are_counted_by_what_became_of_them(subject: SqlSubject) -> None:
    """Done, declined because another was faster, throttled by a lock, failed for want of a table."""
    metrics = LeaseMetrics()
    records = subject.store.records
    impatient = SqlRecordStore(
        subject.engine, table_name=records.table.name, lock_wait_seconds=0.05
    )
    manager, rival = LeaseManager(impatient, metrics=metrics), LeaseManager(subject.rival)

    def operations(operation: str, outcome: str) -> float:
        return shown(metrics, "lease_operation_seconds_count", operation=operation, outcome=outcome)

    assert await manager.create_lease(LeaseRecord(key="s", checkpoint=Position("TRIM_HORIZON")))
    assert not await manager.create_lease(LeaseRecord(key="s"))
    seen = await manager.get_lease("s")
    assert seen is not None
    held = await manager.take(seen, "w1")
    assert held is not None
    assert await manager.take(seen, "w1") is None
    held = await manager.renew(held)
    assert held is not None
    with subject.engine.begin() as holder:
        holder.execute(sa.select(records.table).with_for_update())
        with pytest.raises(ThrottlingError):
            await manager.renew(held)
    taken = await rival.take(held, "w2")
    assert taken is not None
    assert await manager.renew(held) is None
    assert await manager.update(held, lambda record: commit(record, Position("1"))) is None
    await subject.store.delete_store()
    with pytest.raises(InvalidStateError):
        await manager.list_leases()

    for operation, counts in {
        "create_lease": {"done": 1, "declined": 1},
        "take": {"done": 1, "declined": 1},
        "renew": {"done": 1, "declined": 1, "throttled": 1},
        "update": {"declined": 1},
        "list_leases": {"failed": 1},
    }.items():
        for outcome in ("done", "declined", "throttled", "failed"):
            assert operations(operation, outcome) == counts.get(outcome, 0), (operation, outcome)
    waited = shown(metrics, "lease_operation_seconds_sum", operation="renew", outcome="throttled")
    assert waited >= 0.05


async def test_worker_counts_what_it_loses_and_what_fails(subject: SqlSubject) -> None:
    """A shard ends; a lease is taken from it at once, which its next renewal is told; a processor raises. How far its
    shards are behind is shown only as long as they are its own.
    """
    metrics = LeaseMetrics()
    stream = MemoryStream(poll_seconds=0.02)
    stream.add("s0", "s1", "s2")
    stream.close("s2")
    script = Script()

    def worker(name: str, store: SqlRecordStore) -> LeaseWorker:
        return LeaseWorker(
            name,
            store=store,
            source=stream,
            new_processor=lambda: ScriptedProcessor(script),
            settings=WorkerSettings(
                lease_seconds=6.0, renew_seconds=0.05, take_seconds=0.05, steal=StealWay.AT_ONCE
            ),
            metrics=metrics,
        )

    def behind(name: str) -> list[float]:
        samples = [
            metrics.registry.get_sample_value(
                "broadsheet_processor_behind_latest_seconds", {"worker": name, "shard": key}
            )
            for key in ("s0", "s1")
        ]
        return [sample for sample in samples if sample is not None]

    def fail() -> None:
        raise OSError("as the test asked for")

    first, second = worker("w1", subject.store), worker("w2", subject.rival)
    async with TaskGroup() as group:
        group.start_soon(first.run(), name="w1")
        await eventually(
            lambda: shown(metrics, "leases_left_total", worker="w1", reason="ended") == 1
        )
        await eventually(lambda: len(behind("w1")) == 2)
        assert shown(metrics, "leases_held", worker="w1") == 2
        await eventually(lambda: shown(metrics, "leases_unfinished", worker="w1") == 2)
        group.start_soon(second.run(), name="w2")
        await eventually(
            lambda: shown(metrics, "leases_left_total", worker="w1", reason="lost") == 1
        )
        await eventually(lambda: len(behind("w2")) == 1)
        assert len(behind("w1")) == 1
        assert shown(metrics, "leases_taken_total", worker="w2", how="stolen") == 1
        await eventually(lambda: shown(metrics, "lease_workers", worker="w1") == 2)
        assert shown(metrics, "leases_share", worker="w1") == 1
        (key,) = first.held
        script.on_records = fail
        stream.put(key, b"x")
        await eventually(
            lambda: shown(metrics, "leases_left_total", worker="w1", reason="failed") >= 1
        )
        first.stop()
        second.stop()

    # Until it stopped it may have taken the shard again, or the other may, and failed again.
    failed = {
        name: shown(metrics, "leases_left_total", worker=name, reason="failed")
        for name in ("w1", "w2")
    }

    assert shown(metrics, "leases_held", worker="w1") == shown(metrics, "leases_held", worker="w2")
    assert shown(metrics, "processor_records_total", worker="w1", shard=key) == 0
    # A lease that is lost in the midst of a call was not left for its failure.
    assert shown(metrics, "processor_seconds_count", worker="w1") >= failed["w1"]
    assert shown(metrics, "processor_seconds_count", worker="w2") >= failed["w2"]
    assert shown(metrics, "lease_renewals_total", worker="w1", outcome="declined") >= 1
    assert behind("w1") == behind("w2") == []
