"""The layouts of Azure Blob Storage, over a real Azurite, put to the suite for any record store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from consumer.leasing.conformance.suite import RecordStoreConformance
from tests.support.azure_stores import AzureSubject, eph_subject, native_subject

pytestmark = pytest.mark.azurite


class TestBlobRecordStore(RecordStoreConformance):
    """The layout of our own."""

    many_records = 120

    @pytest.fixture
    async def subject(self, azurite: str) -> AsyncIterator[AzureSubject]:
        """A container of the test's own."""
        async with native_subject(azurite) as subject:
            yield subject


class TestEphRecordStore(RecordStoreConformance):
    """That of Event Processor Host."""

    many_records = 40

    @pytest.fixture
    async def subject(self, azurite: str) -> AsyncIterator[AzureSubject]:
        """A container of the test's own."""
        async with eph_subject(azurite) as subject:
            yield subject
