"""Workers of ours that share a table of vmware-go-kcl: what its own tests ask of theirs.

Origins are in vmware/vmware-go-kcl-v2 `test/worker_lease_stealing_test.go` and `test/worker_custom_test.go`; written
again, on a stream in memory.
"""

from __future__ import annotations

import sys

import pytest

from broadsheet.leases.facades.vmware_go import ShardCheckpointer
from broadsheet.leases.store import RecordStore
from broadsheet.leases.stores.dynamodb.store import DynamoRecordStore
from broadsheet.leases.stores.dynamodb.vmware_go import VmwareGoLayout
from broadsheet.leases.worker.settings import WorkerSettings
from broadsheet.leases.worker.worker import LeaseWorker
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.task_group import TaskGroup
from tests.support.dynamodb_stores import DynamoSubject
from tests.support.eventually import eventually
from tests.support.memory_stream import MemoryStream
from tests.support.scripted_processor import Script, ScriptedProcessor
from tests.support.stepping_clock import SteppingClock
from tests.support.vmware_go_peer import vmware_moment

pytestmark = pytest.mark.moto

SHARDS = [f"shardId-{number:012}" for number in range(4)]


@pytest.fixture
def stream() -> MemoryStream:
    """Four shards, with a record each."""
    stream = MemoryStream(poll_seconds=0.1)
    stream.add(*SHARDS)
    for shard in SHARDS:
        stream.put(shard, b"x")
    return stream


def _worker(
    name: str, store: RecordStore, stream: MemoryStream, script: Script, leases_max: int
) -> LeaseWorker:
    settings = WorkerSettings(
        lease_seconds=8.0,
        renew_seconds=0.2,
        take_seconds=0.2,
        graceful_seconds=5.0,
        leases_max=leases_max,
    )
    return LeaseWorker(
        name,
        store=store,
        source=stream,
        new_processor=lambda: ScriptedProcessor(script),
        settings=settings,
    )


@pytest.mark.parametrize(
    ("leases_max", "alone"),
    [(sys.maxsize, 4), (3, 3)],
    ids=["TestLeaseStealing", "WithMaxLeasesForWorker"],
)
async def test_lease_stealing(
    subject: DynamoSubject, stream: MemoryStream, leases_max: int, alone: int
) -> None:
    """`TestLeaseStealing`, `…InjectCheckpointer`, `…WithMaxLeasesForWorker`: one has what it may, two share.

    The victim is asked and checkpoints, for which there is no callback upstream.
    """
    scripts = Script(checkpoints=False), Script()
    first = _worker("w1", subject.store, stream, scripts[0], leases_max)
    second = _worker("w2", subject.rival, stream, scripts[1], leases_max)
    async with TaskGroup() as group:
        group.start_soon(first.run(), name="w1")
        await eventually(lambda: len(first.held) == alone and len(scripts[0].data) == alone)
        group.start_soon(second.run(), name="w2")
        await eventually(lambda: len(first.held) == len(second.held) == 2)

        active = await ShardCheckpointer(subject.store).list_active_workers(SHARDS)
        assert {name: len(shards) for name, shards in active.items()} == {"w1": 2, "w2": 2}
        first.stop()
        second.stop()

    asked = [call for call in scripts[0].calls if call.startswith("requested")]
    assert len(asked) == alone
    for shard in SHARDS:
        # `TestWorkerInjectCheckpointer`: after a graceful stop the checkpoint is there, and no owner.
        row = subject.row(shard)
        assert row["Checkpoint"] == {"S": stream.positions(shard)[-1].seq}
        assert "AssignedTo" not in row


async def test_moment_is_as_far_ahead_as_the_worker_says(
    subject: DynamoSubject, stream: MemoryStream
) -> None:
    """Workers of theirs take a lease when its moment is over: 10 s ahead, a worker that renews later lost its own."""
    clock = SteppingClock(1_700_000_000.0)
    store = DynamoRecordStore(
        subject.client, subject.table_name, layout=VmwareGoLayout(), clock=clock
    )
    LeaseWorker(
        "w1",
        store=store,
        source=stream,
        new_processor=lambda: ScriptedProcessor(Script()),
        settings=WorkerSettings(lease_seconds=45.0),
    )

    await ShardCheckpointer(store, clock=clock).get_lease(SHARDS[0], "w1")

    assert subject.row(SHARDS[0])["LeaseTimeout"] == vmware_moment(clock.now_seconds + 45)


def test_layout_of_another_length_is_refused(subject: DynamoSubject, stream: MemoryStream) -> None:
    """Which of the two lengths other workers go by, nobody could tell."""
    layout = VmwareGoLayout(lease_seconds=10.0)
    store = DynamoRecordStore(subject.client, subject.table_name, layout=layout)

    with pytest.raises(ValidationError, match=r"worker\.lease_seconds.*10\.0 s.*45\.0 s"):
        LeaseWorker(
            "w1",
            store=store,
            source=stream,
            new_processor=lambda: ScriptedProcessor(Script()),
            settings=WorkerSettings(lease_seconds=45.0),
        )
