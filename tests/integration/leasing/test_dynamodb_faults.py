"""Tables of DynamoDB under faults: no capacity, lost requests and answers, tables that take their time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.httpsession import URLLib3Session

from broadsheet.leases import rules
from broadsheet.leases.errors import DependencyError, InvalidStateError, ThrottlingError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.facades.vmware_go import ShardCheckpointer
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.stores.dynamodb.kcl_java import KclJavaLayout
from broadsheet.leases.stores.dynamodb.store import DynamoRecordStore
from broadsheet.leases.stores.dynamodb.table import (
    ANSWER_SECONDS_MAX,
    TableOptions,
    open_dynamodb_client,
)
from broadsheet.leases.stores.dynamodb.vmware_go import VmwareGoLayout
from tests.support.aws_faults import AwsFaults, aws_faults
from tests.support.dynamodb_stores import DynamoSubject, dynamodb_subject
from tests.support.moto import aws_settings
from tests.support.stepping_clock import SteppingClock

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

pytestmark = pytest.mark.moto

WRITES = "UpdateItem"


@pytest.fixture(scope="module")
def client(moto_endpoint: str) -> Iterator[DynamoDBClient]:
    """A client of this module's own, for it is tampered with."""
    client: DynamoDBClient = boto3.client("dynamodb", **aws_settings(moto_endpoint))
    yield client
    client.close()


@pytest.fixture(params=["kcl-java", "vmware-go"])
async def subject(
    client: DynamoDBClient, request: pytest.FixtureRequest
) -> AsyncIterator[DynamoSubject]:
    """A table that is there, with a lease `a`."""
    async with dynamodb_subject(client, request.param) as subject:
        await subject.store.create_store()
        await subject.store.create(LeaseRecord(key="a", checkpoint=Position("TRIM_HORIZON")))
        yield subject


@pytest.fixture
def manager(subject: DynamoSubject) -> LeaseManager:
    """Our worker's."""
    return LeaseManager(subject.store)


@pytest.fixture
def faults(client: DynamoDBClient) -> Iterator[AwsFaults]:
    """Of writes."""
    with aws_faults(client, WRITES) as faults:
        yield faults


async def _taken(manager: LeaseManager) -> Versioned:
    seen = await manager.get_lease("a")
    assert seen is not None
    held = await manager.take(seen, "w1")
    assert held is not None
    return held


@pytest.mark.parametrize("code", ["ProvisionedThroughputExceededException", "ThrottlingException"])
async def test_throttling_is_told_and_the_lease_is_kept(
    manager: LeaseManager, faults: AwsFaults, code: str
) -> None:
    """From every write, also from renewing, where the Kinesis Client Library hides it; what is held stays held."""
    seen = await manager.get_lease("a")
    assert seen is not None
    faults.requests = [code] * 4
    with pytest.raises(ThrottlingError):
        await manager.create_lease(LeaseRecord(key="b"))
    with pytest.raises(ThrottlingError):
        await manager.take(seen, "w1")
    faults.requests = []
    held = await _taken(manager)
    faults.requests = [code] * 2
    with pytest.raises(ThrottlingError):
        await manager.renew(held)
    with pytest.raises(ThrottlingError):
        await manager.update(held, lambda r: rules.commit(r, Position("1")))

    renewed = await manager.renew(held)

    assert renewed is not None
    assert renewed.record.counter == held.record.counter + 1


@pytest.mark.parametrize("lost", ["requests", "answers"])
async def test_lost_writes_are_made_once(
    manager: LeaseManager, faults: AwsFaults, lost: str
) -> None:
    """`testRenewLease` (spurious failure), and of every other write: looked for, then made if it was not."""

    def lose() -> None:
        faults.requests = ["lost"] if lost == "requests" else []
        faults.answers = ["lost"] if lost == "answers" else []

    seen = await manager.get_lease("a")
    assert seen is not None
    lose()
    held = await manager.take(seen, "w1")
    assert held is not None
    lose()
    renewed = await manager.renew(held)
    assert renewed is not None
    lose()
    committed = await manager.update(renewed, lambda r: rules.commit(r, Position("5")))
    assert committed is not None

    assert committed.record.counter == seen.record.counter + 3
    assert await manager.get_lease("a") == committed
    assert len(faults.calls) == (6 if lost == "requests" else 3)


async def test_lost_create_is_told_from_one_that_came_late(
    manager: LeaseManager, faults: AwsFaults
) -> None:
    """It says that it created the lease if it did; if it may yet, it says that it does not know."""
    faults.answers = ["lost"]
    assert await manager.create_lease(LeaseRecord(key="b"))
    faults.requests = ["lost"]
    with pytest.raises(DependencyError, match="may have been applied"):
        await manager.create_lease(LeaseRecord(key="c"))


async def test_write_that_a_client_repeats_in_secret_is_ours(
    moto_endpoint: str, subject: DynamoSubject
) -> None:
    """boto3's own retries send a write twice: its condition fails at the second, and that was us."""
    retrying = open_dynamodb_client(**aws_settings(moto_endpoint))
    store = DynamoRecordStore(retrying, subject.table_name, layout=subject.layout)
    manager = LeaseManager(store)
    held = await _taken(manager)
    sent: list[object] = []

    def send_twice(request: Any, **_: object) -> None:
        if not sent:
            sent.append(request)
            URLLib3Session().send(request)

    retrying.meta.events.register("before-send.dynamodb.UpdateItem", send_twice)
    committed = await manager.update(held, lambda r: rules.commit(r, Position("5")))
    retrying.close()

    assert sent
    assert committed is not None
    assert committed.record.counter == held.record.counter + 1


async def test_rest_of_a_batch_is_asked_for_again(client: DynamoDBClient) -> None:
    """DynamoDB may answer a part of the keys; in the end that is throttling, and no lease is left out."""
    clock = SteppingClock()
    store = DynamoRecordStore(client, "batches", sleep=clock.sleep)
    await store.create_store()
    await store.create(LeaseRecord(key="a"))
    manager = LeaseManager(store)
    await _taken(manager)
    refusals = 2

    def put_off(name: str, answer: dict[str, Any]) -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            answer["Responses"] = {}
            answer["UnprocessedKeys"] = {"batches": {"Keys": [{"key": {"S": "a"}}]}}

    with aws_faults(client, "BatchGetItem") as faults:
        faults.rewrite = put_off
        assert [each.record.key for each in await manager.list_leases_of("w1")] == ["a"]
        assert len(faults.calls) == 3
        refusals = 100
        with pytest.raises(ThrottlingError):
            await manager.list_leases_of("w1")
    assert clock.slept_seconds[:3] == [0.05, 0.1, 0.05]
    await store.delete_store()


async def test_table_is_there_once_it_can_be_used(client: DynamoDBClient) -> None:
    """`testWaitUntilLeaseTableExists`, and what vmware-go-kcl does not do: creating waits until it may be written."""
    clock = SteppingClock()
    statuses = ["CREATING", "CREATING", "ACTIVE", "UPDATING", "CREATING", "DELETING", "ARCHIVED"]

    def show(name: str, answer: dict[str, Any]) -> None:
        if "Table" in answer and statuses:
            answer["Table"]["TableStatus"] = statuses.pop(0)

    store = DynamoRecordStore(client, "slow-table", sleep=clock.sleep)
    with aws_faults(client, "DescribeTable") as faults:
        faults.rewrite = show
        assert await store.create_store()
        assert clock.slept_seconds == [1.0, 1.0]
        assert [await store.exists() for _ in range(4)] == [True, False, False, False]
    assert not await store.create_store()
    await store.delete_store()


async def test_outage_is_not_taken_for_a_missing_table(client: DynamoDBClient) -> None:
    """vmware-go-kcl creates a table whenever it cannot describe it; the other defect is an empty list for a failure."""
    store = DynamoRecordStore(client, "not-there")
    with aws_faults(client, "DescribeTable", "Scan", "CreateTable") as faults:
        faults.requests = ["InternalServerError"] * 3
        with pytest.raises(DependencyError):
            await store.exists()
        with pytest.raises(DependencyError):
            await LeaseManager(store).list_leases()
        with pytest.raises(DependencyError):
            await LeaseManager(store).is_empty()
        faults.requests = ["ThrottlingException", "lost"]
        with pytest.raises(ThrottlingError):
            await ShardCheckpointer(store).init()
        with pytest.raises(DependencyError):
            await store.exists()


async def test_table_is_made_as_told(client: DynamoDBClient) -> None:
    """`createLeaseTable*`, `createLeaseOwnerToLeaseKeyIndex*`: capacity also of the index, protection, past, tags."""
    options = TableOptions(
        capacity_units=(10, 11),
        deletion_protection=True,
        point_in_time_recovery=True,
        tags={"team": "clicks"},
    )
    store = DynamoRecordStore(client, "made-as-told", layout=KclJavaLayout(), options=options)
    assert await store.create_store()

    table = client.describe_table(TableName="made-as-told")["Table"]
    (index,) = table["GlobalSecondaryIndexes"]
    for described in (table, index):
        throughput: Any = described.get("ProvisionedThroughput")
        assert (throughput["ReadCapacityUnits"], throughput["WriteCapacityUnits"]) == (10, 11)
    assert index.get("IndexName") == "LeaseOwnerToLeaseKeyIndex"
    assert [(key["AttributeName"], key["KeyType"]) for key in index.get("KeySchema", [])] == [
        ("leaseOwner", "HASH"),
        ("leaseKey", "RANGE"),
    ]
    assert index.get("Projection") == {"ProjectionType": "KEYS_ONLY"}
    backups = client.describe_continuous_backups(TableName="made-as-told")
    past = backups["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
    assert past.get("PointInTimeRecoveryStatus") == "ENABLED"
    tags = client.list_tags_of_resource(ResourceArn=table["TableArn"])["Tags"]
    assert tags == [{"Key": "team", "Value": "clicks"}]
    with pytest.raises(InvalidStateError, match="DeletionProtection"):
        await store.delete_store()
    client.update_table(TableName="made-as-told", DeletionProtectionEnabled=False)
    await store.delete_store()


async def test_table_of_another_layout_is_told(client: DynamoDBClient) -> None:
    """The likeliest mistake when an application moves in."""
    theirs = DynamoRecordStore(client, "another-layout", layout=VmwareGoLayout())
    await theirs.create_store()
    table = client.describe_table(TableName="another-layout")["Table"]
    assert table.get("BillingModeSummary", {}).get("BillingMode") == "PAY_PER_REQUEST"
    assert not table.get("GlobalSecondaryIndexes")

    with pytest.raises(InvalidStateError, match="layout"):
        await DynamoRecordStore(client, "another-layout", layout=KclJavaLayout()).get("a")

    await theirs.delete_store()


def test_client_gives_up_before_a_lease_ends(moto_endpoint: str) -> None:
    """It does not repeat calls in secret; what its user says about it goes before."""
    ours = open_dynamodb_client(endpoint_url=moto_endpoint, region_name="us-east-1")
    config: Any = ours.meta.config  # Its settings are made at run time.
    assert config.read_timeout == ANSWER_SECONDS_MAX
    assert config.retries["total_max_attempts"] == 1
    ours.close()
    theirs = open_dynamodb_client(**aws_settings(moto_endpoint))
    config = theirs.meta.config
    assert config.read_timeout == 20
    theirs.close()
