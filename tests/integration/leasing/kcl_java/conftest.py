"""A table of the Kinesis Client Library for Java, with a worker of ours and one of theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from broadsheet.leases.facades.kcl import LeaseManager
from tests.support.dynamodb_stores import DynamoSubject, dynamodb_subject
from tests.support.kcl_peer import KclPeer

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient


@pytest.fixture
async def subject(dynamodb_client: DynamoDBClient) -> AsyncIterator[DynamoSubject]:
    """A table that is there."""
    async with dynamodb_subject(dynamodb_client, "kcl-java") as subject:
        await subject.store.create_store()
        yield subject


@pytest.fixture
def manager(subject: DynamoSubject) -> LeaseManager:
    """Our worker's."""
    return LeaseManager(subject.store)


@pytest.fixture
def peer(subject: DynamoSubject) -> KclPeer:
    """A worker of theirs."""
    return KclPeer(subject, "java")
