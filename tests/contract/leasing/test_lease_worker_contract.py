"""Workers over each backend, as two processes: shards are shared, handed over and given back."""

from __future__ import annotations

from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.metrics import LeaseMetrics
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.store import RecordStore
from broadsheet.leases.worker.settings import StealWay, WorkerSettings
from broadsheet.leases.worker.worker import LeaseWorker
from broadsheet.runtime.task_group import TaskGroup
from tests.support.eventually import eventually
from tests.support.lease_stores import LeaseSubject
from tests.support.memory_stream import MemoryStream
from tests.support.scripted_processor import BlockingProcessor, Script

SHARDS = ("s0", "s1", "s2", "s3")


def _settings(way: StealWay) -> WorkerSettings:
    return WorkerSettings(
        lease_seconds=6.0,
        renew_seconds=0.1,
        take_seconds=0.1,
        sync_seconds=5.0,
        graceful_seconds=5.0,
        steal=way,
        threads=4,
    )


def _worker(
    name: str,
    store: RecordStore,
    stream: MemoryStream,
    script: Script,
    way: StealWay,
    metrics: LeaseMetrics,
) -> LeaseWorker:
    return LeaseWorker(
        name,
        store=store,
        source=stream,
        new_processor=lambda: BlockingProcessor(script),
        settings=_settings(way),
        metrics=metrics,
    )


async def test_workers_share_hand_over_and_give_back(
    subject: LeaseSubject, manager: LeaseManager
) -> None:
    """One has all, a second claims its half, and gets what is given back; the first comes again, by hand-offs.

    Their processors block; they prepare and commit. What they count agrees with what they do.
    """
    metrics = LeaseMetrics()
    stream = MemoryStream(poll_seconds=0.05)
    stream.add(*SHARDS)
    for key in SHARDS:
        stream.put(key, key.encode())
    script = Script()
    first = _worker("w1", subject.store, stream, script, StealWay.CLAIM, metrics)
    second = _worker("w2", subject.rival, stream, script, StealWay.CLAIM, metrics)
    again = _worker("w1", subject.store, stream, script, StealWay.HAND_OFF, metrics)

    async with TaskGroup() as group:
        group.start_soon(first.run(), name="w1")
        await eventually(lambda: _has(first, 4))
        await eventually(lambda: _processed(script, 4))
        group.start_soon(second.run(), name="w2")
        await eventually(lambda: _has(second, 2))
        await eventually(lambda: _has(first, 2))
        for key in SHARDS:
            stream.put(key, key.encode())
        await eventually(lambda: _processed(script, 8))
        first.stop()
        await eventually(lambda: _has(second, 4))
        group.start_soon(again.run(), name="w1 again")
        await eventually(lambda: _has(again, 2))
        await eventually(lambda: _has(second, 2))
        second.stop()
        stream.replace(("s0",), ("s4", "s5"))
        await eventually(lambda: _has(again, 5))
        again.stop()

    assert sorted(script.data) == sorted([key.encode() for key in SHARDS] * 2)
    assert "MainThread" not in script.threads
    left = await manager.list_leases()
    assert {found.record.holder for found in left} == {None}
    checkpoints = {found.record.key: found.record.checkpoint for found in left}
    assert checkpoints["s1"] == stream.positions("s1")[-1]
    assert checkpoints["s4"] == Position("TRIM_HORIZON")
    _check(metrics)


async def test_worker_goes_on_beside_an_unreadable_row(
    subject: LeaseSubject, manager: LeaseManager
) -> None:
    """One bad row ended every worker of the application at its start; now only its shard waits for an operator."""
    stream = MemoryStream(poll_seconds=0.05)
    stream.add("s0", "s1")
    for key in ("s0", "s1"):
        await manager.create_lease(LeaseRecord(key=key, checkpoint=Position("TRIM_HORIZON")))
        stream.put(key, key.encode())
    await subject.spoil("s0")
    script, metrics = Script(), LeaseMetrics()
    worker = _worker("w1", subject.store, stream, script, StealWay.CLAIM, metrics)

    async with TaskGroup() as group:
        group.start_soon(worker.run(), name="w1")
        await eventually(lambda: _processed(script, 1))
        worker.stop()

    assert script.data == [b"s1"]
    unreadable = metrics.registry.get_sample_value("broadsheet_leases_unreadable", {"worker": "w1"})
    assert unreadable == 1


def _check(metrics: LeaseMetrics) -> None:
    """Compare what was counted with the story: leases that came also went, none was lost, each record is there once."""

    def shown(name: str, **labels: str) -> float:
        return metrics.registry.get_sample_value(f"broadsheet_{name}", labels) or 0.0

    def leases(name: str, worker: str, *kinds: tuple[str, str]) -> float:
        return sum(shown(name, worker=worker, **{label: kind}) for label, kind in kinds)

    requested, ended, lost, failed = (
        ("reason", reason) for reason in ("requested", "ended", "lost", "failed")
    )
    free, due, stolen = (("how", how) for how in ("free", "due", "stolen"))
    for worker, way in (("w1", "hand-off"), ("w2", "claim")):
        assert shown("leases_held", worker=worker) == 0
        assert shown("leases_asked_for_total", worker=worker, way=way) >= 2
        assert shown("lease_renewals_total", worker=worker, outcome="done") > 0
        assert shown("lease_round_seconds_count", worker=worker) > 1
        taken = leases("leases_taken_total", worker, free, due)
        assert taken == leases("leases_left_total", worker, requested, ended) >= 4
        assert leases("leases_left_total", worker, lost, failed) == 0
        assert leases("leases_taken_total", worker, due) >= 2
        assert leases("leases_taken_total", worker, stolen) == 0
        assert shown("lease_renewals_total", worker=worker, outcome="declined") == 0
    records = [
        shown("processor_records_total", worker=worker, shard=key)
        for worker in ("w1", "w2")
        for key in SHARDS
    ]
    assert sum(records) == 2 * len(SHARDS)
    written = [
        shown("lease_checkpoints_total", worker=worker, outcome="done") for worker in ("w1", "w2")
    ]
    assert sum(written) >= 4 * len(SHARDS)  # Each is announced, then committed.
    assert shown("lease_operation_seconds_count", operation="take", outcome="done") == sum(
        leases("leases_taken_total", worker, free, due) for worker in ("w1", "w2")
    )


async def _has(worker: LeaseWorker, count: int) -> bool:
    assert len(worker.held) == count, worker.held
    return True


async def _processed(script: Script, count: int) -> bool:
    assert len(script.data) == count, script.data
    return True
