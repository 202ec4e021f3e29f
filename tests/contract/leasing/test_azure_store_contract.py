"""The layouts of Azure Blob Storage, over a real Azurite, put to the suite for any record store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.record import LeaseRecord
from broadsheet.testing.leases.suite import RecordStoreConformance
from tests.support.azure_stores import (
    AzureSubject,
    eph_subject,
    event_hubs_subject,
    native_subject,
)
from tests.support.lease_histories import run_history

pytestmark = pytest.mark.azurite


class TestBlobRecordStore(RecordStoreConformance):
    """The layout of our own."""

    many_records = 24
    racers = 4

    @pytest.fixture
    async def subject(self, azurite: str) -> AsyncIterator[AzureSubject]:
        """A container of the test's own."""
        async with native_subject(azurite) as subject:
            yield subject


class TestEphRecordStore(RecordStoreConformance):
    """That of Event Processor Host."""

    many_records = 20
    racers = 4

    @pytest.fixture
    async def subject(self, azurite: str) -> AsyncIterator[AzureSubject]:
        """A container of the test's own."""
        async with eph_subject(azurite) as subject:
            yield subject


class TestEventHubsRecordStore(RecordStoreConformance):
    """That of Azure's event processors."""

    many_records = 20
    racers = 4

    @pytest.fixture
    async def subject(self, azurite: str) -> AsyncIterator[AzureSubject]:
        """A container of the test's own."""
        async with event_hubs_subject(azurite) as subject:
            yield subject


async def test_records_are_in_the_order_of_their_keys(azurite: str) -> None:
    """Not in that of the names of their blobs, in which some letters are encoded and others are not."""
    keys = ["a+", "a-", "a.", "a:"]
    async with native_subject(azurite) as subject:
        await subject.store.create_store()
        for key in keys:
            await subject.store.create(LeaseRecord(key=key))

        assert [each.record.key async for each in subject.store.scan()] == keys


@pytest.mark.parametrize("opened", [eph_subject, event_hubs_subject])
async def test_only_the_present_holder_commits_on_azure(
    azurite: str, opened: Callable[[str], AbstractAsyncContextManager[AzureSubject]]
) -> None:
    """The random histories of all backends, in the layouts of others, which must not be weaker."""
    async with opened(azurite) as subject:
        await subject.store.create_store()
        await subject.store.join("w1")
        await subject.rival.join("w2")
        await run_history(
            LeaseManager(subject.store),
            LeaseManager(subject.rival),
            seed=4,
            steps=subject.history_steps,
        )
