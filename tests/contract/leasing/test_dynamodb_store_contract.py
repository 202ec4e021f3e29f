"""The layouts of DynamoDB, over a real moto server, put to the suite for any record store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from broadsheet.testing.leases.suite import RecordStoreConformance
from tests.support.dynamodb_stores import DynamoSubject, dynamodb_subject

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

pytestmark = pytest.mark.moto


class _DynamoConformance(RecordStoreConformance):
    many_records = 24
    racers = 4
    layout_name: str

    @pytest.fixture
    async def subject(self, dynamodb_client: DynamoDBClient) -> AsyncIterator[DynamoSubject]:
        """A table of the test's own, read in small pages."""
        async with dynamodb_subject(dynamodb_client, self.layout_name, page_rows=10) as subject:
            yield subject


class TestNativeLayout(_DynamoConformance):
    """The layout of our own."""

    layout_name = "native"


class TestKclJavaLayout(_DynamoConformance):
    """That of the Kinesis Client Library."""

    layout_name = "kcl-java"


class TestVmwareGoLayout(_DynamoConformance):
    """That of vmware-go-kcl."""

    layout_name = "vmware-go"
