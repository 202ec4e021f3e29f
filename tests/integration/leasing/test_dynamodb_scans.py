"""How tables of DynamoDB are read whole: page by page, in parts at once, and around what is no lease.

Origins are in awslabs/amazon-kinesis-client, `leases.dynamodb.DynamoDBLeaseRefresherTest`; rewritten.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import boto3
import pytest
from structlog.testing import capture_logs

from broadsheet.leases.errors import DependencyError, ThrottlingError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.stores.dynamodb.store import DynamoRecordStore
from tests.support.aws_faults import aws_faults
from tests.support.dynamodb_stores import DynamoSubject, dynamodb_subject
from tests.support.kcl_peer import KclPeer
from tests.support.moto import aws_settings
from tests.support.stepping_clock import SteppingClock

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

pytestmark = pytest.mark.moto

KEYS = [f"shardId-{number:02}" for number in range(12)]
WAYS = pytest.mark.parametrize("segments", [1, 3], ids=["whole", "in parts"])


@pytest.fixture(scope="module")
def client(moto_endpoint: str) -> Iterator[DynamoDBClient]:
    """A client of this module's own, for it is tampered with."""
    client: DynamoDBClient = boto3.client("dynamodb", **aws_settings(moto_endpoint))
    yield client
    client.close()


@pytest.fixture
async def subject(client: DynamoDBClient) -> AsyncIterator[DynamoSubject]:
    """A table of the Kinesis Client Library that is there, and empty."""
    async with dynamodb_subject(client, "kcl-java") as subject:
        await subject.store.create_store()
        yield subject


def _manager(
    subject: DynamoSubject, *, segments: int = 1, page_rows: int | None = 2
) -> LeaseManager:
    store = DynamoRecordStore(
        subject.client,
        subject.table_name,
        layout=subject.layout,
        page_rows=page_rows,
        scan_segments=segments,
    )
    return LeaseManager(store)


def _put_others(subject: DynamoSubject) -> None:
    """Write what is no lease, and one that cannot be read."""
    for key, kind in (("leader", "LEADER"), ("a-stream", "STREAM"), ("z", "WORKER_METRIC_STATS")):
        subject.put({"leaseKey": {"S": key}, "entityType": {"S": kind}})
    subject.put({"leaseKey": {"S": "spoilt"}, "leaseCounter": {"S": "many"}})


@WAYS
async def test_list_leases(subject: DynamoSubject, segments: int) -> None:
    """`listLeases_*`, `listLeasesParallely_*`: all pages of all parts, in order; what is no lease does not count."""
    peer = KclPeer(subject, "java")
    for key in reversed(KEYS):
        peer.create(key)
    _put_others(subject)

    with aws_faults(subject.client, "Scan") as faults, capture_logs() as logs:
        found = await _manager(subject, segments=segments).list_leases()

    assert [each.record.key for each in found] == KEYS
    assert len(faults.calls) >= 16 / 2
    # `…returnsUndecodableKeys`: they are told by name, and do not stop the others.
    skipped = [log["key"] for log in logs if log["event"] == "leasing.record_unreadable"]
    assert skipped == ["spoilt"]


@WAYS
async def test_lease_table_is_empty(subject: DynamoSubject, segments: int) -> None:
    """`isLeaseTableEmpty_*`: also if it has pages of other things; with one lease behind them it is not."""
    manager = _manager(subject, segments=segments, page_rows=1)
    assert await manager.is_empty()
    _put_others(subject)
    assert await manager.is_empty()

    KclPeer(subject, "java").create("zz")

    assert not await manager.is_empty()


@WAYS
async def test_page_that_fails_fails_the_list(subject: DynamoSubject, segments: int) -> None:
    """`listLeases…throws`: a part of the leases is no list of them."""
    peer = KclPeer(subject, "java")
    for key in KEYS[:6]:
        peer.create(key)
    manager = _manager(subject, segments=segments)

    for code, error in (
        ("ProvisionedThroughputExceededException", ThrottlingError),
        ("InternalServerError", DependencyError),
    ):
        with aws_faults(subject.client, "Scan") as faults:
            # Many, for scans that the failure before left behind may still take some of them.
            faults.requests = ["none", "none", *[code] * 30]
            with pytest.raises(error):
                await manager.list_leases()
    assert len(await manager.list_leases()) == 6


async def test_index_that_is_being_made_is_not_asked(subject: DynamoSubject) -> None:
    """`isLeaseOwnerGsiIndexActive`, `…noTransitionToActive`: it cannot be read yet; all leases are instead."""
    peer = KclPeer(subject, "w1")
    for key in KEYS[:3]:
        peer.create(key)
    assert peer.take(subject.row(KEYS[1]))

    with aws_faults(subject.client, "Query", "Scan") as faults:
        faults.requests = ["ValidationException"]
        found = await _manager(subject, page_rows=None).list_leases_of("w1")

    assert [each.record.key for each in found] == [KEYS[1]]
    assert faults.calls == ["Query", "Scan"]


async def test_table_that_another_creates_is_waited_for(client: DynamoDBClient) -> None:
    """`createLeaseTableIfNotExists` (in use): False; in vmware-go-kcl who comes second gets the error of AWS."""
    clock = SteppingClock()
    async with dynamodb_subject(client, "vmware-go") as subject:
        await subject.store.create_store()
        late = DynamoRecordStore(
            client, subject.table_name, layout=subject.layout, sleep=clock.sleep
        )
        statuses = ["CREATING", "CREATING"]

        def show(name: str, answer: dict[str, dict[str, str]]) -> None:
            if statuses:
                answer["Table"]["TableStatus"] = statuses.pop()

        with aws_faults(client, "DescribeTable") as faults:
            faults.rewrite = show
            assert not await late.create_store()

        assert clock.slept_seconds == [1.0, 1.0]
        assert await late.exists()
