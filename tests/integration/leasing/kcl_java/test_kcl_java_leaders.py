"""A leader of ours over a table of the Kinesis Client Library for Java, and what it does about theirs.

Origins, where a test names one, are in awslabs/amazon-kinesis-client, package `leases.dynamodb`; rewritten.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator
from random import Random
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from broadsheet.leases import rules
from broadsheet.leases.errors import DependencyError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.metrics import LeaseMetrics
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.stores.dynamodb.kcl_java import state_table
from broadsheet.leases.stores.dynamodb.layout import NativeLayout
from broadsheet.leases.stores.dynamodb.store import DynamoRecordStore
from broadsheet.leases.worker.context import WorkerContext
from broadsheet.leases.worker.leader.lock import ForeignWatch
from broadsheet.leases.worker.metrics import WorkerMetrics
from broadsheet.leases.worker.pacing import Pacing
from broadsheet.leases.worker.round_plan import AssignedOnly
from broadsheet.leases.worker.rounds import LeaseRounds, LeaseWatch
from broadsheet.leases.worker.settings import WorkerSettings
from tests.support.aws_faults import aws_faults
from tests.support.dynamodb_stores import DynamoSubject, dynamodb_subject
from tests.support.moto import aws_settings
from tests.support.stepping_clock import SteppingClock

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

pytestmark = pytest.mark.moto

Row = dict[str, Any]  # Any: values of attributes.


@pytest.fixture(scope="module")
def client(moto_endpoint: str) -> Iterator[DynamoDBClient]:
    """A client of this module's own, for it is tampered with."""
    client: DynamoDBClient = boto3.client("dynamodb", **aws_settings(moto_endpoint))
    yield client
    client.close()


@pytest.fixture
async def subject(client: DynamoDBClient) -> AsyncIterator[DynamoSubject]:
    """A table that is there, with four leases of w1 and one of w2."""
    async with dynamodb_subject(client, "kcl-java") as subject:
        await subject.store.create_store()
        for key in ("lease-1", "lease-2", "lease-3", "lease-4"):
            await subject.store.create(_lease(key, "w1"))
        await subject.store.create(_lease("other", "w2"))
        yield subject


class LedWorker:
    """Worker w1, which a leader assigns leases to."""

    def __init__(self, subject: DynamoSubject) -> None:
        manager = LeaseManager(subject.rival, clock=SteppingClock())
        context = WorkerContext(
            name="w1",
            settings=WorkerSettings(),
            leases=manager,
            metrics=WorkerMetrics(LeaseMetrics(), "w1", manager.clock),
            pacing=Pacing(Random(1)),
            random=Random(1),
        )
        self.rounds = LeaseRounds(
            context, LeaseWatch(manager, context.settings, me="w1", owned_only=True)
        )
        self.taken: list[str] = []

    async def take(
        self, *, held: Collection[str] = (), left_alone: Collection[str] = ()
    ) -> list[str]:
        """Let it look once, and return what it takes."""
        self.taken = []
        await self.rounds.run(
            lambda: AssignedOnly(left_alone=left_alone),
            held=held,
            on_taken=lambda lease, _: self.taken.append(lease.record.key),
        )
        return self.taken


@pytest.fixture
def led(subject: DynamoSubject) -> LedWorker:
    """Worker w1."""
    return LedWorker(subject)


def _lease(key: str, owner: str) -> LeaseRecord:
    return LeaseRecord(key=key, owner=owner, counter=13, checkpoint=Position("123"))


async def test_assigned_leases_are_discovered(led: LedWorker) -> None:
    """`discoverNewLeases_happyCase_assertCorrectNewLeases`, `…_noLeasesInRenewer_…`: those that it does not hold."""
    assert await led.take(held={"lease-1", "lease-2"}) == ["lease-3", "lease-4"]
    assert len(await led.take()) == 4


async def test_discovery_is_tried_again_after_a_failure(
    led: LedWorker, client: DynamoDBClient
) -> None:
    """`discoverNewLeases_leaseRefresherThrowsException_assertEmptyResponse`: nothing is taken on half of an answer."""
    with aws_faults(client, "BatchGetItem") as faults:
        faults.requests = ["lost"]
        with pytest.raises(DependencyError):
            await led.take()
    assert led.taken == []
    assert await led.take(left_alone={"lease-1"}) == ["lease-2", "lease-3", "lease-4"]


async def test_index_that_is_behind_is_not_believed(led: LedWorker, client: DynamoDBClient) -> None:
    """`discoverNewLeases_inconsistentGSI_assertEmptyResponse`: each lease that it names is read again."""

    def add_stale(_name: str, answer: Row) -> None:
        answer["Items"] += [{"leaseKey": {"S": "other"}}, {"leaseKey": {"S": "gone"}}]

    with aws_faults(client, "Query") as faults:
        faults.rewrite = add_stale
        assert await led.take(held={"lease-1"}) == ["lease-2", "lease-3", "lease-4"]


async def test_leases_in_hand_off_and_finished_ones_are_not_discovered(
    led: LedWorker, subject: DynamoSubject
) -> None:
    """`discoverNewLeases_ignorePendingCheckpointLeases_assertReadyLeases`; and those that cannot be read."""
    manager = LeaseManager(subject.store)
    seen = await manager.get_lease("other")
    assert seen is not None
    assert await manager.assign(seen, "w1", graceful=True) is not None
    await subject.store.create(rules.commit(_lease("ended", "w1"), Position("SHARD_END")))
    await subject.spoil("lease-4")

    assert await led.take() == ["lease-1", "lease-2", "lease-3"]


def _leader_row(version: str, **more: Row) -> Row:
    """Return what the lock client of theirs writes."""
    return {
        "ownerName": {"S": "java-1"},
        "recordVersionNumber": {"S": version},
        "leaseDuration": {"S": "120000"},
        **more,
    }


def _put_leader(subject: DynamoSubject, version: str, **more: Row) -> None:
    """Write it into the lease table, as version 3.5 does."""
    kind = {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}}
    subject.put(_leader_row(version, **kind, **more))


async def test_leader_of_theirs_is_seen_as_long_as_its_row_changes(subject: DynamoSubject) -> None:
    """In the lease table (3.5): for 120 s after the last change that we saw, unless it stepped down."""
    clock = SteppingClock()
    watch = ForeignWatch(subject.store, clock)
    assert await watch.living() is None

    for version in ("one", "two"):
        _put_leader(subject, version)
        found = await watch.living()
        assert found is not None
        assert (found.name, found.lease_seconds) == ("java-1", 120.0)
        clock.now_seconds += 120.0
        assert await watch.living() is not None
    clock.now_seconds += 0.1
    assert await watch.living() is None
    _put_leader(subject, "three")
    assert await watch.living() is not None
    _put_leader(subject, "four", isReleased={"S": "1"})
    assert await watch.living() is None


async def test_leader_of_theirs_is_seen_in_the_table_beside(
    subject: DynamoSubject, client: DynamoDBClient
) -> None:
    """Versions 3.0 to 3.4 keep the row in a table of its own, which may not be there."""
    watch = ForeignWatch(subject.store, SteppingClock())
    assert await watch.living() is None
    name = state_table(subject.table_name)
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    assert await watch.living() is None
    client.put_item(TableName=name, Item=_leader_row("one", key={"S": "Leader"}))

    assert await watch.living() is not None


async def test_their_row_is_neither_a_lease_nor_written_by_us(subject: DynamoSubject) -> None:
    """Our own is elsewhere; theirs is only read."""
    _put_leader(subject, "one")
    before = subject.row("Leader")

    manager = LeaseManager(subject.store)
    assert "Leader" not in {found.record.key for found in await manager.list_leases()}
    await ForeignWatch(subject.store, SteppingClock()).living()
    assert subject.row("Leader") == before


async def test_tables_of_our_own_have_no_foreign_leader(client: DynamoDBClient) -> None:
    """A lease there may be named like their row."""
    store = DynamoRecordStore(client, "no-such-table", layout=NativeLayout())

    assert await store.foreign_leaders() == ()
