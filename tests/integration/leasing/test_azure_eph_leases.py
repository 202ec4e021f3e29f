"""Leases in the blobs of Event Processor Host, beside hosts of it, on a real Azurite.

Where a host has a defect, the test says so, and shows that we do not have it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.blob.aio import BlobLeaseClient

from broadsheet.leases import rules
from broadsheet.leases.errors import DependencyError, InvalidStateError, ShutdownError
from broadsheet.leases.facades.eph import CheckpointManager
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.stores.azure.eph import EphRecordStore
from broadsheet.runtime.errors import ValidationError
from tests.support.azure_stores import AzureSubject, eph_subject
from tests.support.eph_host import EphHost

pytestmark = pytest.mark.azurite

PLACE = Position("17", offset="4096")


@pytest.fixture
async def subject(azurite: str) -> AsyncIterator[AzureSubject]:
    """A container of the test's own, with w1 here and w2 in another process."""
    async with eph_subject(azurite) as subject:
        await subject.store.create_store()
        await subject.store.join("w1")
        await subject.rival.join("w2")
        yield subject


@pytest.fixture
def manager(subject: AzureSubject) -> LeaseManager:
    """The manager of w1's process."""
    return LeaseManager(subject.store)


@pytest.fixture
def host(subject: AzureSubject) -> EphHost:
    """A host beside us."""
    return EphHost(subject.container, "h1")


async def _seen(manager: LeaseManager) -> Versioned:
    found = await manager.get_lease("0")
    assert found is not None
    return found


async def _held(manager: LeaseManager) -> Versioned:
    await manager.create_lease(LeaseRecord(key="0"))
    held = await manager.take(await _seen(manager), "w1")
    assert held is not None
    return held


async def test_existing_blob_is_not_overwritten(manager: LeaseManager, host: EphHost) -> None:
    """A host that starts writes over blobs that nobody leases just then, checkpoint and all."""
    await host.create("0", sequenceNumber=17, offset="4096")

    await CheckpointManager(manager.store).create_all_checkpoints_if_not_exists(["0", "1"])

    assert (await _seen(manager)).record.checkpoint == PLACE
    assert [each.record.key for each in await manager.list_leases()] == ["0", "1"]


async def test_lease_of_a_host_is_taken_from_it(manager: LeaseManager, host: EphHost) -> None:
    """By changing its id, as hosts do: the host's next write is refused, and its checkpoint stays."""
    await host.create("0")
    await host.acquire("0")
    await host.update("0", sequenceNumber=17, offset="4096")
    seen = await _seen(manager)
    assert (seen.record.owner, seen.record.epoch, seen.record.checkpoint) == ("h1", 1, PLACE)
    assert seen.fence

    taken = await manager.take(seen, "w1")

    assert taken is not None
    with pytest.raises(HttpResponseError):
        await host.update("0", sequenceNumber=18, offset="5000")
    fields = await host.fields("0")
    assert (fields["owner"], fields["epoch"], fields["offset"]) == ("w1", 1, "4096")


async def test_host_takes_a_lease_of_ours(manager: LeaseManager, host: EphHost) -> None:
    """Our commits are refused from then on, with an error that its caller cannot miss; a host only reports it."""
    checkpoints = CheckpointManager(manager.store)
    held = await checkpoints.update_checkpoint(await _held(manager), PLACE)

    await host.acquire("0")

    with pytest.raises(ShutdownError):
        await checkpoints.update_checkpoint(held, Position("18", offset="5000"))
    assert await manager.renew(held) is None
    now = await _seen(manager)
    assert (now.record.owner, now.record.checkpoint) == ("h1", PLACE)
    assert now.record.epoch == held.record.epoch + 1
    assert now.fence not in (0, held.fence)


async def test_release_clears_body_and_metadata(manager: LeaseManager, host: EphHost) -> None:
    """A host writes back the body that it had, so that others read an owner and the id of a lease that ended."""
    held = await _held(manager)
    properties = await host.blob("0").get_blob_properties()
    assert (properties.metadata, properties.lease.state) == ({"owninghost": "w1"}, "leased")

    assert await manager.evict(held)

    fields = await host.fields("0")
    assert (fields["owner"], fields["token"]) == ("", "")
    properties = await host.blob("0").get_blob_properties()
    assert (properties.metadata, properties.lease.state) == ({}, "available")
    await host.acquire("0")


async def test_lease_that_cannot_be_acquired_is_not_held(
    manager: LeaseManager, host: EphHost
) -> None:
    """A host that meets an error it does not know goes on with an empty token, and believes that it owns the lease."""
    await host.create("0")
    stranger = BlobLeaseClient(host.blob("0"))
    await stranger.acquire(15)
    seen = await _seen(manager)
    assert not seen.fence

    with pytest.raises(DependencyError, match="lost the compare-and-swap"):
        await manager.take(seen, "w1")

    assert (await host.fields("0"))["owner"] == ""
    await stranger.release()
    assert await manager.take(seen, "w1")


async def test_ended_lease_is_lost(
    subject: AzureSubject, manager: LeaseManager, host: EphHost
) -> None:
    """Azure's code for a write under a lease that ended is one that hosts do not take for lost; ours do."""
    held = await _held(manager)

    await BlobLeaseClient(host.blob("0")).break_lease(0)

    assert (await _seen(manager)).fence == 0
    assert await manager.update(held, lambda record: rules.commit(record, PLACE)) is None
    assert await manager.renew(held) is None
    rival = LeaseManager(subject.rival)
    taken = await rival.take(await _seen(rival), "w2")
    assert taken is not None
    assert taken.record.epoch == held.record.epoch + 1


async def test_leaving_gives_leases_back(subject: AzureSubject, manager: LeaseManager) -> None:
    """A process that ends in order frees its leases at once; who owned them is still known."""
    async with EphRecordStore(subject.container) as store:
        held = await _held(LeaseManager(store))
        assert held.fence
        assert store.deadline_monotonic_seconds is not None

    left = await _seen(manager)
    assert (left.record.owner, left.fence) == ("w1", 0)


async def test_leased_blob_can_be_deleted(subject: AzureSubject, manager: LeaseManager) -> None:
    """By who holds it, under its lease; and by anybody who means the key."""
    held = await _held(manager)
    assert await subject.store.delete("0", held)
    await _held(manager)

    assert await LeaseManager(subject.rival).delete("0")

    assert await manager.is_empty()


async def test_unreadable_blob_of_a_host_is_left_out(manager: LeaseManager, host: EphHost) -> None:
    """One bad blob must not stop a group; who asks for it is told which, and what is wrong."""
    await host.create("0")
    await host.create("1", epoch="x")

    assert [each.record.key for each in await manager.list_leases()] == ["0"]
    with pytest.raises(InvalidStateError, match=r"blob \$default/1: .*\$\.epoch"):
        await manager.get_lease("1")


async def test_length_of_a_lease_is_checked(subject: AzureSubject) -> None:
    """Azure takes 15 to 60 seconds, and says so only when the first lease is acquired."""
    for seconds in (14, 61):
        with pytest.raises(ValidationError, match="lease_seconds"):
            EphRecordStore(subject.container, lease_seconds=seconds)
