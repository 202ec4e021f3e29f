"""A table of vmware-go-kcl, with a worker of ours and one of theirs, at one time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from broadsheet.leases.facades.vmware_go import ShardCheckpointer
from broadsheet.leases.stores.dynamodb.vmware_go import WallClockExpiry
from tests.support.dynamodb_stores import DynamoSubject, dynamodb_subject
from tests.support.stepping_clock import SteppingClock
from tests.support.vmware_go_peer import VmwareGoPeer

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient


NOW_SECONDS = 1_700_000_000.0


@pytest.fixture
def clock() -> SteppingClock:
    """Everybody's."""
    return SteppingClock(NOW_SECONDS)


@pytest.fixture
async def subject(
    dynamodb_client: DynamoDBClient, clock: SteppingClock
) -> AsyncIterator[DynamoSubject]:
    """A table that is there."""
    async with dynamodb_subject(dynamodb_client, "vmware-go", clock=clock) as subject:
        await subject.store.create_store()
        yield subject


@pytest.fixture
def peer(subject: DynamoSubject, clock: SteppingClock) -> VmwareGoPeer:
    """A worker of theirs."""
    return VmwareGoPeer(subject, clock, "go-worker")


@pytest.fixture
def ours(subject: DynamoSubject, clock: SteppingClock) -> ShardCheckpointer:
    """The checkpointer of our worker."""
    return ShardCheckpointer(subject.store, expiry=WallClockExpiry(clock=clock), clock=clock)
