"""The checkpoint store of Azure's event processors, on one backend of each kind.

Origins: `public/blob-checkpointstore.spec.ts` of azure-sdk-for-js eventhubs-checkpointstore-blob (JS), and
`test_in_memory_checkpointstore.py`, `test_storage_blob_partition_manager.py` of azure-sdk-for-python (PY).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from broadsheet.leases.errors import InvalidPositionError, InvalidStateError, ShutdownError
from broadsheet.leases.facades.event_hubs import RecordCheckpointStore
from tests.support.lease_stores import LeaseSubject
from tests.support.stepping_clock import SteppingClock

pytestmark = pytest.mark.parametrize(
    "subject",
    [
        pytest.param("etcd", marks=pytest.mark.etcd),
        "sqlite",
        pytest.param("azurite", marks=pytest.mark.azurite),
    ],
    indirect=True,
)
"""One backend of each kind: what they promise is tested elsewhere, on all."""

HUB = ("NS.servicebus.windows.net", "Clicks", "$Default")
STARTED_SECONDS = 1_000.0


@pytest.fixture
def clock() -> SteppingClock:
    """That of all processes."""
    return SteppingClock(STARTED_SECONDS)


@pytest.fixture
def mine(subject: LeaseSubject, clock: SteppingClock) -> RecordCheckpointStore:
    """The store of w1's process."""
    return RecordCheckpointStore(subject.store, clock=clock)


@pytest.fixture
def theirs(subject: LeaseSubject, clock: SteppingClock) -> RecordCheckpointStore:
    """The store of w2's process."""
    return RecordCheckpointStore(subject.rival, clock=clock)


def _names(partition: str) -> dict[str, Any]:
    namespace, hub, group = HUB
    return {
        "fully_qualified_namespace": namespace,
        "eventhub_name": hub,
        "consumer_group": group,
        "partition_id": partition,
    }


def _wanted(owner: str, partition: str = "0") -> dict[str, Any]:
    return _names(partition) | {"owner_id": owner}


def _checkpoint(number: int | None, offset: str | None, partition: str = "0") -> dict[str, Any]:
    return _names(partition) | {"sequence_number": number, "offset": offset}


async def _one(answer: Iterable[dict[str, Any]]) -> dict[str, Any]:
    [only] = answer
    return only


class TestOwnership:
    """Claims."""

    async def test_list_ownership_should_return_an_empty_array(
        self, mine: RecordCheckpointStore
    ) -> None:
        """JS: before anybody claimed; and no checkpoints."""
        assert list(await mine.list_ownership(*HUB)) == []
        assert list(await mine.list_checkpoints(*HUB)) == []

    async def test_claim_ownership_first_time(
        self, mine: RecordCheckpointStore, theirs: RecordCheckpointStore
    ) -> None:
        """JS `claimOwnership first time`, PY `test_claim_new_ownership`: what was asked, with its state."""
        claimed = await _one(await mine.claim_ownership([_wanted("w1")]))

        assert claimed == _wanted("w1") | {
            "etag": claimed["etag"],
            "last_modified_time": STARTED_SECONDS,
        }
        assert claimed["etag"]
        assert list(await mine.list_ownership(*HUB)) == [claimed]
        assert list(await theirs.list_ownership(*HUB)) == [claimed]

    async def test_repeated_claims(self, mine: RecordCheckpointStore, clock: SteppingClock) -> None:
        """JS `repeated claims`, PY `test_claim_existing_ownership`: one entry, whose etag and time change each time."""
        first = await _one(await mine.claim_ownership([_wanted("w1")]))
        clock.now_seconds += 10

        second = await _one(await mine.claim_ownership([dict(first)]))

        assert second["etag"] != first["etag"]
        assert second["last_modified_time"] == first["last_modified_time"] + 10
        assert list(await mine.list_ownership(*HUB)) == [second]

    async def test_claim_changes_what_it_was_given(
        self, mine: RecordCheckpointStore, theirs: RecordCheckpointStore
    ) -> None:
        """As Azure's stores do: a caller that goes on with its own dictionary has the claim's etag."""
        wanted = _wanted("w1")
        claimed = await _one(await mine.claim_ownership([wanted]))
        late = _wanted("w2")

        assert claimed is wanted
        assert list(await mine.claim_ownership([wanted]))
        assert list(await theirs.claim_ownership([late])) == []
        assert late == _wanted("w2")

    async def test_state_has_one_time_whatever_the_wall_clock_does(
        self, mine: RecordCheckpointStore, subject: LeaseSubject
    ) -> None:
        """A processor compares moments of two answers: what did not change must not seem to be renewed."""
        await mine.claim_ownership([_wanted("w1")])
        clock = SteppingClock(STARTED_SECONDS)
        watching = RecordCheckpointStore(subject.store, clock=clock)
        seen = await _one(await watching.list_ownership(*HUB))
        clock.wall_offset_seconds += 7.0

        assert await _one(await watching.list_ownership(*HUB)) == seen

    async def test_claim_three_partitions(self, mine: RecordCheckpointStore) -> None:
        """JS `three partitions`, PY `test_claim_two_partitions`, `test_claim_and_list_ownership`: each has an entry."""
        wanted = [_wanted("w1", str(partition)) for partition in range(8)]

        claimed = list(await mine.claim_ownership(wanted))

        assert [each["partition_id"] for each in claimed] == list("01234567")
        assert list(await mine.list_ownership(*HUB)) == claimed

    async def test_claim_ownership_ignores_errors_about_etags(
        self, mine: RecordCheckpointStore, theirs: RecordCheckpointStore
    ) -> None:
        """JS: a stale one is missing from the answer, beside others that succeed; nothing is thrown."""
        stale = await _one(await mine.claim_ownership([_wanted("w1")]))
        fresh = await _one(await theirs.claim_ownership([stale | {"owner_id": "w2"}]))

        claimed = list(await mine.claim_ownership([stale, _wanted("w1", "1")]))

        assert [each["partition_id"] for each in claimed] == ["1"]
        assert (await _one(await theirs.claim_ownership([fresh])))["owner_id"] == "w2"

    async def test_of_two_first_claims_one_wins(
        self, mine: RecordCheckpointStore, theirs: RecordCheckpointStore
    ) -> None:
        """Ours: the JavaScript store writes first claims unconditionally, so that both win."""
        assert list(await mine.claim_ownership([_wanted("w1")]))

        assert list(await theirs.claim_ownership([_wanted("w2")])) == []

        assert (await _one(await theirs.list_ownership(*HUB)))["owner_id"] == "w1"

    async def test_claim_with_an_empty_owner_id(
        self, mine: RecordCheckpointStore, theirs: RecordCheckpointStore
    ) -> None:
        """JS `Claiming ownership with an empty owner id`: released, the entry stays, and may be claimed by its etag."""
        claimed = await _one(await mine.claim_ownership([_wanted("w1")]))

        released = await _one(await mine.claim_ownership([claimed | {"owner_id": ""}]))

        assert released["owner_id"] == ""
        seen = await _one(await theirs.list_ownership(*HUB))
        assert (seen["owner_id"], seen["etag"]) == ("", released["etag"])
        again = await _one(await mine.claim_ownership([dict(released)]))
        assert again["etag"] != released["etag"]
        assert list(await theirs.claim_ownership([again | {"owner_id": "w2"}]))

    async def test_groups_are_apart(self, mine: RecordCheckpointStore) -> None:
        """PY `test_claim_two_ownerships`: of namespace, hub and group; which are the same in any case of letters."""
        await mine.claim_ownership([_wanted("w1")])
        await mine.claim_ownership([_wanted("w1") | {"consumer_group": "$Default2"}])

        namespace, hub, group = HUB
        found = await _one(await mine.list_ownership(namespace.lower(), hub.upper(), group))
        assert (found["eventhub_name"], found["consumer_group"]) == (hub.upper(), group)
        assert len(list(await mine.list_ownership(namespace, hub, "$default2"))) == 1
        assert list(await mine.list_ownership(namespace, "other", group)) == []

    async def test_owner_that_does_not_move_is_old(
        self,
        mine: RecordCheckpointStore,
        theirs: RecordCheckpointStore,
        clock: SteppingClock,
    ) -> None:
        """Ours: its age is what this process saw of it, by its own clock; no two clocks are compared."""
        await mine.claim_ownership([_wanted("w1")])
        seen = await _one(await theirs.list_ownership(*HUB))
        clock.now_seconds += 60

        still = await _one(await theirs.list_ownership(*HUB))

        assert still == seen
        await mine.claim_ownership([seen])
        assert (await _one(await theirs.list_ownership(*HUB)))["last_modified_time"] == (
            clock.now_seconds
        )

    async def test_claim_will_throw_if_the_store_is_gone(
        self, subject: LeaseSubject, mine: RecordCheckpointStore
    ) -> None:
        """JS `claimOwnership will throw if the error is NOT an outdated etag`, `updateCheckpoint forwards errors`.

        The Python store logs it and answers as if the claim had succeeded.
        """
        claimed = await _one(await mine.claim_ownership([_wanted("w1")]))
        await subject.store.delete_store()

        for call in (
            mine.claim_ownership([dict(claimed)]),
            mine.claim_ownership([_wanted("w1", "1")]),
            mine.update_checkpoint(_checkpoint(1, "1")),
            mine.update_checkpoint(_checkpoint(1, "1", "1")),
            mine.list_ownership(*HUB),
            mine.list_checkpoints(*HUB),
        ):
            with pytest.raises(InvalidStateError):
                await call
        await subject.store.create_store()

    async def test_supports_cancellation(self, mine: RecordCheckpointStore) -> None:
        """JS `supports cancellation`: each method ends at once, and what it had begun harms nobody."""
        [claimed] = await mine.claim_ownership([_wanted("w1")])
        for call in (
            mine.claim_ownership([_wanted("w1", "1")]),
            mine.update_checkpoint(_checkpoint(1, "1")),
            mine.list_ownership(*HUB),
            mine.list_checkpoints(*HUB),
        ):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await call

        assert list(await mine.claim_ownership([dict(claimed)]))
        await mine.update_checkpoint(_checkpoint(2, "2"))


class TestCheckpoints:
    """What processors store of their progress."""

    async def test_updates_checkpoints(self, mine: RecordCheckpointStore) -> None:
        """JS `updates checkpoints successfully`, PY `test_update_checkpoint`: also of who never claimed."""
        for number, offset in ((0, "0"), (7, "opaque")):
            await mine.update_checkpoint(_checkpoint(number, offset))

            assert list(await mine.list_checkpoints(*HUB)) == [_checkpoint(number, offset)]
        assert list(await mine.list_ownership(*HUB)) == []
        assert list(await mine.claim_ownership([_wanted("w1")]))

    async def test_checkpoint_does_not_change_the_etag(
        self, mine: RecordCheckpointStore, theirs: RecordCheckpointStore
    ) -> None:
        """PY: a processor that checkpoints between its look and its claim keeps its partition; so it can be robbed."""
        claimed = await _one(await mine.claim_ownership([_wanted("w1")]))

        await mine.update_checkpoint(_checkpoint(1, "1"))

        renewed = await _one(await mine.claim_ownership([dict(claimed)]))
        await mine.update_checkpoint(_checkpoint(2, "2"))
        assert list(await theirs.claim_ownership([renewed | {"owner_id": "w2"}]))

    async def test_who_lost_a_partition_cannot_checkpoint(
        self, mine: RecordCheckpointStore, theirs: RecordCheckpointStore
    ) -> None:
        """Ours: in Azure's own stores anybody can, and a paused processor moves its successor's checkpoint back."""
        claimed = await _one(await mine.claim_ownership([_wanted("w1")]))
        await mine.update_checkpoint(_checkpoint(1, "1"))
        stolen = await _one(await theirs.claim_ownership([claimed | {"owner_id": "w2"}]))
        await theirs.update_checkpoint(_checkpoint(5, "5"))

        for _ in range(2):
            with pytest.raises(ShutdownError, match="is lost"):
                await mine.update_checkpoint(_checkpoint(9, "9"))

        assert (await _one(await mine.list_checkpoints(*HUB)))["sequence_number"] == 5
        await mine.claim_ownership([stolen | {"owner_id": "w1"}])
        await mine.update_checkpoint(_checkpoint(6, "6"))

    async def test_who_released_a_partition_may_checkpoint_until_it_is_claimed(
        self, mine: RecordCheckpointStore, theirs: RecordCheckpointStore
    ) -> None:
        """A handler that ends late has processed what it says, and nobody else has begun."""
        claimed = await _one(await mine.claim_ownership([_wanted("w1")]))
        released = await _one(await mine.claim_ownership([claimed | {"owner_id": ""}]))

        await mine.update_checkpoint(_checkpoint(1, "1"))

        await theirs.claim_ownership([released | {"owner_id": "w2"}])
        with pytest.raises(ShutdownError):
            await mine.update_checkpoint(_checkpoint(2, "2"))

    async def test_checkpoint_with_falsy_values(self, mine: RecordCheckpointStore) -> None:
        """JS `checkpoint with falsy values`: zero is stored, and what is missing is refused by its name."""
        await mine.update_checkpoint(_checkpoint(0, "0"))
        # An event that was never in a partition has neither: Azure's stores take it, and here it changes nothing.
        await mine.update_checkpoint(_checkpoint(None, None))
        for number, offset, field in ((None, "1", "sequence_number"), (1, None, "offset")):
            with pytest.raises(InvalidPositionError, match=field):
                await mine.update_checkpoint(_checkpoint(number, offset))

        assert await _one(await mine.list_checkpoints(*HUB)) == _checkpoint(0, "0")

    async def test_checkpoint_goes_back_only_if_it_may(
        self, subject: LeaseSubject, mine: RecordCheckpointStore
    ) -> None:
        """Azure's stores take any; ours if they are told, for a hub that was made again begins at zero."""
        await mine.claim_ownership([_wanted("w1")])
        await mine.update_checkpoint(_checkpoint(7, "7"))
        with pytest.raises(InvalidPositionError, match="expected 7 or later"):
            await mine.update_checkpoint(_checkpoint(6, "6"))

        lenient = RecordCheckpointStore(subject.store, may_go_back=True)
        await lenient.update_checkpoint(_checkpoint(6, "6"))

        assert await _one(await mine.list_checkpoints(*HUB)) == _checkpoint(6, "6")
