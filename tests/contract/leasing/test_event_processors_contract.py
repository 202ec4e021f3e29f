"""How Azure's own processors balance partitions over one backend of each kind.

Origins are in azure-sdk-for-python sdk/eventhub/azure-eventhub, `livetest/synctests/test_eventprocessor.py`. The
balancing is Azure's `OwnershipManager`, as it is; the partitions' ids come from memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest
from azure.eventhub import LoadBalancingStrategy
from azure.eventhub.aio._eventprocessor._ownership_manager import OwnershipManager

from broadsheet.leases.errors import InvalidStateError
from broadsheet.leases.facades.event_hubs import RecordCheckpointStore
from broadsheet.leases.store import RecordStore
from tests.support.lease_stores import LeaseSubject
from tests.support.offline_hub import GROUP, HUB, NAMESPACE, OfflineConsumerClient, OfflineHub
from tests.support.stepping_clock import SteppingClock

pytestmark = pytest.mark.parametrize(
    "subject",
    [
        pytest.param("etcd", marks=pytest.mark.etcd),
        "sqlite",
        pytest.param("azurite", marks=pytest.mark.azurite),
        pytest.param("kcl-java", marks=pytest.mark.moto),
    ],
    indirect=True,
)
"""One backend of each kind: what they promise is tested elsewhere, on all."""

EXPIRY_SECONDS = 60.0


def _processor(store: Any, name: str, *, partitions: int = 2) -> OwnershipManager:
    """Return the part of an event processor that claims."""
    checkpoints = RecordCheckpointStore(store)
    return OwnershipManager(
        OfflineConsumerClient(OfflineHub(partitions), checkpoints),
        GROUP,
        name,
        checkpoints,
        EXPIRY_SECONDS,
        LoadBalancingStrategy.GREEDY,
        None,
    )


async def test_loadbalancer_balance(subject: LeaseSubject) -> None:
    """`test_loadbalancer_balance`: one has two; a second gets one of them; when the first leaves, it has both."""
    first = _processor(subject.store, "w1")
    second = _processor(subject.rival, "w2")
    assert sorted(await first.claim_ownership()) == ["0", "1"]

    stolen = await second.claim_ownership()

    assert len(stolen) == 1
    kept = await first.claim_ownership()
    assert sorted(kept + stolen) == ["0", "1"]
    for partition in kept:
        await first.release_ownership(partition)
    await second.claim_ownership()
    assert sorted(await second.claim_ownership()) == ["0", "1"]


async def test_ownership_manager_release_partition(subject: LeaseSubject) -> None:
    """The same name: what is released has no owner, and only its own owner can release it."""
    first = _processor(subject.store, "w1")
    second = _processor(subject.rival, "w2")
    await first.claim_ownership()
    [stolen] = await second.claim_ownership()

    for partition in ("0", "1"):
        await first.release_ownership(partition)

    found = await RecordCheckpointStore(subject.store).list_ownership(NAMESPACE, HUB, GROUP)
    owners = {each["partition_id"]: each["owner_id"] for each in found}
    kept = "1" if stolen == "0" else "0"
    assert owners == {stolen: "w2", kept: ""}


async def test_three_processors_share_nine_partitions(subject: LeaseSubject) -> None:
    """Rounds of all three settle at three each, and then stay."""
    processors = [
        _processor(store, name, partitions=9)
        for store, name in ((subject.store, "w1"), (subject.rival, "w2"), (subject.store, "w3"))
    ]
    for _ in range(7):
        owned = [await each.claim_ownership() for each in processors]
        if [len(each) for each in owned] == [3, 3, 3]:
            break

    assert [len(each) for each in owned] == [3, 3, 3]
    assert sorted(partition for each in owned for partition in each) == list("012345678")
    assert [sorted(await each.claim_ownership()) for each in processors] == [
        sorted(each) for each in owned
    ]


async def test_loadbalancer_list_ownership_error(subject: LeaseSubject) -> None:
    """The same name: an outage is an error, so that processors keep what they have; it is no empty list."""
    processor = _processor(subject.store, "w1")
    await processor.claim_ownership()
    await subject.store.delete_store()

    with pytest.raises(InvalidStateError):
        await processor.claim_ownership()

    await subject.store.create_store()


class _Shown(RecordCheckpointStore):
    """A checkpoint store that shows what it is given, and notes the claims instead of making them."""

    def __init__(self, store: RecordStore, listed: list[dict[str, Any]]) -> None:
        super().__init__(store)
        self._listed = listed
        self.claims: list[dict[str, Any]] = []

    async def list_ownership(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """Return copies of what was given."""
        return [dict(each) for each in self._listed]

    async def claim_ownership(
        self, ownership_list: Iterable[dict[str, Any]], **kwargs: Any
    ) -> list[dict[str, Any]]:
        """Note them."""
        self.claims = list(ownership_list)
        return []


@pytest.mark.parametrize(
    ("owners", "partitions", "greedy", "balanced"),
    [
        ("", 3, 3, 1),
        ("ab", 3, 1, 1),
        ("a.~", 3, 2, 1),
        ("a.~_", 4, 2, 1),
        ("a", 4, 2, 1),
        ("..~_", 4, 4, 1),
        ("ab", 2, 0, 0),
        ("am", 2, 1, 1),
    ],
    ids=["none", "two", "expired", "given back", "one", "no living", "full", "mine"],
)
async def test_balance_ownership(
    subject: LeaseSubject, owners: str, partitions: int, greedy: int, balanced: int
) -> None:
    """`test_balance_ownership`, `…_on_init`: `~` is a dead one's, `_` given back, `.` nobody's, `m` its own.

    Abandoned claims are treated as unowned; what is claimed by others since is not received from.
    """
    clock = SteppingClock(1_000.0)
    checkpoints = RecordCheckpointStore(subject.store, clock=clock)
    shape = {
        "fully_qualified_namespace": NAMESPACE,
        "eventhub_name": HUB,
        "consumer_group": GROUP,
    }
    claims = [
        shape | {"partition_id": str(number), "owner_id": "dead" if owner in "~_" else owner}
        for number, owner in enumerate(owners)
        if owner != "."
    ]
    claimed = list(await checkpoints.claim_ownership(claims))
    clock.now_seconds += 2 * EXPIRY_SECONDS
    for each in claimed:
        owner = owners[int(each["partition_id"])]
        if owner != "~":
            await checkpoints.claim_ownership([each | {"owner_id": owner.strip("_")}])
    listed = [
        each | {"last_modified_time": each["last_modified_time"] + time.time() - clock.now_seconds}
        for each in await checkpoints.list_ownership(NAMESPACE, HUB, GROUP)
    ]

    wanted = {}
    for strategy in LoadBalancingStrategy:
        shown = _Shown(subject.store, listed)
        manager = OwnershipManager(
            OfflineConsumerClient(OfflineHub(partitions), checkpoints),
            *(GROUP, "m", shown, EXPIRY_SECONDS, strategy, None),
        )
        await manager.claim_ownership()
        wanted[strategy] = shown.claims

    assert len(wanted[LoadBalancingStrategy.GREEDY]) == greedy
    assert len(wanted[LoadBalancingStrategy.BALANCED]) == balanced
    claims = wanted[LoadBalancingStrategy.GREEDY]
    stale = [{**each, "owner_id": "late"} for each in claims]
    received = list(await checkpoints.claim_ownership(claims))
    assert [each["partition_id"] for each in received] == [each["partition_id"] for each in claims]
    # `if we fail to claim we don't start`: who looked before that gets nothing.
    late = RecordCheckpointStore(subject.rival)
    assert not await late.claim_ownership(stale)
