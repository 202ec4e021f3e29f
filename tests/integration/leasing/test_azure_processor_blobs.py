"""Leases in the blobs of Azure's event processors, beside processors of other languages, on a real Azurite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from azure.core import MatchConditions
from azure.storage.blob.aio import ContainerClient

from broadsheet.leases import rules
from broadsheet.leases.errors import ShutdownError
from broadsheet.leases.facades.event_hubs import RecordCheckpointStore
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.stores.azure.event_hubs import EventHubsRecordStore
from broadsheet.runtime.task_group import TaskGroup
from tests.support.azure_faults import FaultPolicy, faulty_container, writes
from tests.support.azure_stores import SCOPE, AzureSubject, event_hubs_subject, native_subject

pytestmark = pytest.mark.azurite

NAMES = tuple(SCOPE.split("/"))
PLACE = Position("17", offset="4096")


@pytest.fixture
async def subject(azurite: str) -> AsyncIterator[AzureSubject]:
    """A container of the test's own."""
    async with event_hubs_subject(azurite) as subject:
        await subject.store.create_store()
        yield subject


@pytest.fixture
def manager(subject: AzureSubject) -> LeaseManager:
    """The manager of w1's process."""
    return LeaseManager(subject.store)


class _Processor:
    """What a processor of another language does to its blobs, request by request."""

    def __init__(self, container: ContainerClient) -> None:
        self._container = container

    async def claim(self, owner: str, partition: str = "0") -> None:
        """Set the metadata of an ownership blob that it has seen, or make one."""
        blob = self._container.get_blob_client(f"{SCOPE}/ownership/{partition}")
        if not await blob.exists():
            await blob.upload_blob(b"", metadata={"ownerid": owner})
            return
        seen = await blob.get_blob_properties()
        await blob.set_blob_metadata(
            {"ownerid": owner}, etag=seen.etag, match_condition=MatchConditions.IfNotModified
        )

    async def checkpoint(self, number: int, offset: str, partition: str = "0") -> None:
        """Write a checkpoint blob, whatever is there."""
        await self._container.upload_blob(
            f"{SCOPE}/checkpoint/{partition}",
            b"",
            overwrite=True,
            metadata={"sequencenumber": str(number), "offset": offset},
        )

    async def metadata(self, kind: str, partition: str = "0") -> dict[str, str]:
        """Return what it reads."""
        blob = self._container.get_blob_client(f"{SCOPE}/{kind}/{partition}")
        return dict((await blob.get_blob_properties()).metadata)


@pytest.fixture
def processor(subject: AzureSubject) -> _Processor:
    """A processor beside us."""
    return _Processor(subject.container)


async def _held(manager: LeaseManager) -> Versioned:
    await manager.create_lease(LeaseRecord(key="0"))
    seen = await manager.get_lease("0")
    assert seen is not None
    held = await manager.take(seen, "w1")
    assert held is not None
    return held


async def _committed(manager: LeaseManager, held: Versioned, position: Position) -> Versioned:
    committed = await manager.update(held, lambda record: rules.commit(record, position))
    assert committed is not None
    return committed


async def test_processors_read_what_we_write(manager: LeaseManager, processor: _Processor) -> None:
    """Who owns a partition, and where it goes on; the checkpoint blob is not touched by renewals."""
    held = await _committed(manager, await _held(manager), PLACE)

    assert (await processor.metadata("ownership"))["ownerid"] == "w1"
    found = await processor.metadata("checkpoint")
    assert (found["sequencenumber"], found["offset"]) == ("17", "4096")
    renewed = await manager.renew(held)
    assert renewed is not None
    await manager.evict(renewed)
    assert (await processor.metadata("ownership"))["ownerid"] == ""
    assert await processor.metadata("checkpoint") == found


async def test_processor_takes_a_lease_of_ours(
    manager: LeaseManager, processor: _Processor
) -> None:
    """Our holder is fenced; what the record says beside stays; taking it back is a third epoch."""
    held = await _held(manager)
    prepared = await manager.update(held, lambda record: rules.prepare(record, PLACE, b"note"))
    assert prepared is not None

    await processor.claim("p1")

    assert await manager.renew(prepared) is None
    taken = await manager.get_lease("0")
    assert taken is not None
    assert (taken.record.owner, taken.record.epoch) == ("p1", held.record.epoch + 1)
    assert (taken.record.pending, taken.record.pending_state) == (PLACE, b"note")
    await processor.claim("")
    released = await manager.get_lease("0")
    assert released is not None
    assert (released.record.owner, released.fence) == (None, 0)
    back = await manager.take(released, "w1")
    assert back is not None
    assert back.record.epoch == held.record.epoch + 2


async def test_processor_that_only_renews_moves(
    manager: LeaseManager, processor: _Processor
) -> None:
    """Its claim is a new version each time, so nobody takes a lease that was renewed since it was seen."""
    await processor.claim("p1")
    seen = await manager.get_lease("0")
    assert seen is not None
    assert (seen.record.owner, seen.record.epoch) == ("p1", 1)

    await processor.claim("p1")

    assert await manager.take(seen, "w1") is None


async def test_checkpoint_of_a_processor_counts(
    manager: LeaseManager, processor: _Processor
) -> None:
    """Before anybody claims, and after it took over; our next commit goes on from there."""
    await processor.checkpoint(17, "4096")
    assert [each.record.checkpoint for each in await manager.list_leases()] == [PLACE]
    assert not await manager.create_lease(LeaseRecord(key="0"))
    held = await _committed(manager, await _held(manager), Position("20", offset="20"))

    await processor.claim("p1")
    await processor.checkpoint(25, "25")

    assert await manager.update(held, lambda record: record) is None
    seen = await manager.get_lease("0")
    assert seen is not None
    assert seen.record.checkpoint == Position("25", offset="25")
    back = await manager.take(seen, "w1")
    assert back is not None
    await _committed(manager, back, Position("26", offset="26"))
    assert (await processor.metadata("checkpoint"))["sequencenumber"] == "26"
    [listed] = await manager.list_leases()
    assert listed == await manager.get_lease("0")


async def test_zombies_repeated_checkpoint_stands_back(azurite: str) -> None:
    """A process may pause between its record and the checkpoint blob: what it writes there late moves nothing back."""
    client, faults = faulty_container(azurite, "leases-repeated-late")
    rivals, _ = faulty_container(azurite, "leases-repeated-late")
    async with client, rivals, TaskGroup() as group:
        manager = LeaseManager(EventHubsRecordStore(client, scope=SCOPE))
        await manager.create_store_if_not_exists()
        processor = _Processor(rivals)
        await processor.checkpoint(1, "1")
        old = await _committed(manager, await _held(manager), PLACE)
        faults.hold = lambda request: writes(request) and "/checkpoint/" in request.url
        late = group.start_soon(
            _committed(manager, old, Position("18", offset="18")), name="zombie"
        )
        await faults.holds.wait()

        rival = LeaseManager(EventHubsRecordStore(rivals, scope=SCOPE))
        seen = await rival.get_lease("0")
        assert seen is not None
        taken = await rival.take(seen, "w2")
        assert taken is not None
        new = await _committed(rival, taken, Position("30", offset="30"))
        faults.release()
        await late

        assert (await processor.metadata("checkpoint"))["sequencenumber"] == "30"
        assert await rival.get_lease("0") == new


async def test_commit_holds_though_it_could_not_be_repeated(azurite: str) -> None:
    """The record has it, and whoever takes over goes on from there; the next commit repeats it for the others."""
    client, faults = faulty_container(azurite, "leases-not-repeated")
    async with client:
        manager = LeaseManager(EventHubsRecordStore(client, scope=SCOPE))
        await manager.create_store_if_not_exists()
        processor = _Processor(client)
        await processor.checkpoint(1, "1")
        held = await _held(manager)
        _break_checkpoints(faults)

        committed = await _committed(manager, held, PLACE)

        assert (await processor.metadata("checkpoint"))["sequencenumber"] == "1"
        found = await manager.get_lease("0")
        assert found is not None
        assert found.record == committed.record
        faults.answer_busy_to = None
        await _committed(manager, found, Position("18", offset="18"))
        assert (await processor.metadata("checkpoint"))["sequencenumber"] == "18"
        await client.delete_container()


def _break_checkpoints(faults: FaultPolicy) -> None:
    faults.answer_busy_to = lambda request: (
        "/checkpoint/" in request.url and (request.method == "PUT")
    )


async def test_deleted_record_leaves_no_checkpoint(
    manager: LeaseManager, processor: _Processor
) -> None:
    """Else it would come back as a record that is a checkpoint alone; nor does a removed checkpoint."""
    held = await _committed(manager, await _held(manager), PLACE)
    without = await manager.update(held, lambda record: replace(record, checkpoint=None))
    assert without is not None
    assert await manager.get_lease("0") == without
    await _committed(manager, without, PLACE)

    assert await manager.delete("0")

    assert await manager.get_lease("0") is None
    assert await manager.is_empty()
    await processor.checkpoint(1, "1")
    assert await manager.delete("0")
    assert not await manager.delete("0")


@pytest.mark.parametrize("opened", [native_subject, event_hubs_subject])
async def test_record_that_is_too_long_for_metadata(azurite: str, opened: object) -> None:
    """Azure takes 8 KiB there; the body has room, and a scan reads it."""
    assert callable(opened)
    async with opened(azurite) as subject:
        await subject.store.create_store()
        record = LeaseRecord(key="0", pending=PLACE, pending_state=b"x" * 10_000)

        created = await subject.store.create(record)

        assert await subject.store.get("0") == created
        assert [each async for each in subject.store.scan()] == [created]


async def test_azures_processors_and_ours_share_a_group(
    subject: AzureSubject, processor: _Processor
) -> None:
    """Our checkpoint store over the same blobs: what either claims and stores, the other sees."""
    store = EventHubsRecordStore(subject.container)
    ours = RecordCheckpointStore(store)
    wanted = dict(
        zip(("fully_qualified_namespace", "eventhub_name", "consumer_group"), NAMES, strict=True)
    )
    await processor.claim("p1", "1")
    await processor.checkpoint(17, "4096", "1")

    [claimed] = await ours.claim_ownership([wanted | {"partition_id": "0", "owner_id": "w1"}])
    place = wanted | {"partition_id": "0", "sequence_number": 3, "offset": "3"}
    await ours.update_checkpoint(place)

    owners = {each["partition_id"]: each["owner_id"] for each in await ours.list_ownership(*NAMES)}
    assert owners == {"0": "w1", "1": "p1"}
    numbers = [each["sequence_number"] for each in await ours.list_checkpoints(*NAMES)]
    assert numbers == [3, 17]
    assert (await processor.metadata("ownership"))["ownerid"] == "w1"
    assert (await processor.metadata("checkpoint"))["sequencenumber"] == "3"
    await processor.claim("p1", "0")
    assert list(await ours.claim_ownership([claimed])) == []
    with pytest.raises(ShutdownError):
        await ours.update_checkpoint(place | {"sequence_number": 4})


def _wanted(owner: str) -> dict[str, Any]:
    names = ("fully_qualified_namespace", "eventhub_name", "consumer_group")
    return {**dict(zip(names, NAMES, strict=True)), "partition_id": "0", "owner_id": owner}


def _place(number: int) -> dict[str, Any]:
    return _wanted("") | {"sequence_number": number, "offset": str(number)}


async def test_claims_within_one_second_are_told_apart(
    subject: AzureSubject, processor: _Processor
) -> None:
    """Blobs say only in whole seconds when they were written: the second of two claims must not win over the first."""
    ours = RecordCheckpointStore(EventHubsRecordStore(subject.container))
    await processor.claim("p1")
    [seen] = await ours.list_ownership(*NAMES)

    await processor.claim("p2")

    assert list(await ours.claim_ownership([seen | {"owner_id": "w1"}])) == []
    assert (await processor.metadata("ownership"))["ownerid"] == "p2"


async def test_checkpoint_leaves_the_ownership_blob_alone(subject: AzureSubject) -> None:
    """Azure's own processors compare its ETag: a partition that is only checkpointed could not be claimed from us."""
    ours = RecordCheckpointStore(EventHubsRecordStore(subject.container))
    assert list(await ours.claim_ownership([_wanted("w1")]))
    blob = subject.container.get_blob_client(f"{SCOPE}/ownership/0")
    before = (await blob.get_blob_properties()).etag

    for number in range(3):
        await ours.update_checkpoint(_place(number))

    assert (await blob.get_blob_properties()).etag == before
    [stored] = await ours.list_checkpoints(*NAMES)
    assert (stored["sequence_number"], stored["offset"]) == (2, "2")
    again = RecordCheckpointStore(EventHubsRecordStore(subject.container))
    assert list(await again.list_checkpoints(*NAMES)) == [stored]


@pytest.mark.parametrize("numbers", [(), (5,)], ids=["no checkpoint yet", "a checkpoint"])
async def test_holder_before_cannot_checkpoint(
    subject: AzureSubject, numbers: tuple[int, ...]
) -> None:
    """It would move its successor's checkpoint back; neither blob of it may change."""
    first = RecordCheckpointStore(EventHubsRecordStore(subject.container))
    second = RecordCheckpointStore(EventHubsRecordStore(subject.container))
    [claimed] = await first.claim_ownership([_wanted("w1")])
    for number in numbers:
        await first.update_checkpoint(_place(number))
    assert list(await second.claim_ownership([claimed | {"owner_id": "w2"}]))

    with pytest.raises(ShutdownError):
        await first.update_checkpoint(_place(9))

    stored = await second.list_checkpoints(*NAMES)
    assert [each["sequence_number"] for each in stored] == list(numbers)
    await second.update_checkpoint(_place(7))


async def test_checkpoint_between_a_look_and_an_acquisition_is_kept(
    subject: AzureSubject, manager: LeaseManager
) -> None:
    """Whoever acquires the lease goes on from what its holder committed last, not from what the look showed."""
    held = await _committed(manager, await _held(manager), PLACE)
    store = EventHubsRecordStore(subject.container, scope=SCOPE)
    checkpointed = replace(
        held.record, checkpoint=Position("18", offset="18"), pending=None, owner_switches=0
    )
    await store.replace(checkpointed, held)

    taken = await store.replace(rules.take(held.record, "w2"), held)

    assert taken.record.checkpoint == Position("18", offset="18")
    assert await store.get("0") == taken
