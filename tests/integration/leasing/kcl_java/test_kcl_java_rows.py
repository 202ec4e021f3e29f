"""Rows of the Kinesis Client Library for Java: to the letter what its workers write and read.

Origins, where a test names one, are in awslabs/amazon-kinesis-client, package `leases.dynamodb`; rewritten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broadsheet.leases import rules
from broadsheet.leases.errors import InvalidStateError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import HashRange, LeaseRecord
from broadsheet.leases.stores.dynamodb.kcl_java import KclJavaLayout
from broadsheet.leases.stores.dynamodb.store import DynamoRecordStore
from tests.support.dynamodb_stores import DynamoSubject
from tests.support.kcl_peer import KclPeer
from tests.support.leases_at_hand import lease_now, taken_lease

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient


pytestmark = pytest.mark.moto

SHARD = "shardId-000000000000"
OURS = frozenset({"epoch", "epochCounter", "rev", "broadsheet"})


def _theirs(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in OURS}


FULL_ROW = {
    "leaseKey": {"S": SHARD},
    "leaseCounter": {"N": "17"},
    "leaseOwner": {"S": "java"},
    "ownerSwitchesSinceCheckpoint": {"N": "2"},
    "checkpoint": {"S": "49587497311274533994574834252742144236107130636007899138"},
    "checkpointSubSequenceNumber": {"N": "3"},
    "parentShardId": {"SS": ["shardId-1", "shardId-2"]},
    "pendingCheckpoint": {"S": "49587497311274533994574834252742144236107130636007899139"},
    "pendingCheckpointSubSequenceNumber": {"N": "1"},
    "pendingCheckpointState": {"B": b"\x00state"},
    "childShardIds": {"SS": ["shardId-8", "shardId-9"]},
    "startingHashKey": {"S": "0"},
    "endingHashKey": {"S": "170141183460469231731687303715884105727"},
    "throughputKBps": {"N": "12.5"},
    "entityType": {"S": "LEASE"},
    "streamName": {"S": "123456789012:clicks:1"},
}


async def test_row_of_theirs_is_read(subject: DynamoSubject, manager: LeaseManager) -> None:
    """`DynamoDBLeaseSerializerTest` (round trip): every attribute of version 3.5; what we do not know is kept."""
    subject.put(FULL_ROW)

    record = (await lease_now(manager, SHARD)).record

    assert record == LeaseRecord(
        key=SHARD,
        counter=17,
        owner="java",
        checkpoint=Position("49587497311274533994574834252742144236107130636007899138", 3),
        pending=Position("49587497311274533994574834252742144236107130636007899139", 1),
        pending_state=b"\x00state",
        owner_switches=2,
        parents=frozenset({"shardId-1", "shardId-2"}),
        children=frozenset({"shardId-8", "shardId-9"}),
        hash_range=HashRange(first="0", last="170141183460469231731687303715884105727"),
        attrs={"throughputKBps": "12.5", "streamName": '"123456789012:clicks:1"'},
    )


async def test_what_we_write_is_to_the_letter(
    subject: DynamoSubject, manager: LeaseManager
) -> None:
    """`testUpdateCheckpoint` (LeaseCoordinator): each operation changes the attributes that theirs does, no other."""
    subject.put(FULL_ROW)
    held = await taken_lease(manager, key=SHARD)
    expected = FULL_ROW | {
        "leaseCounter": {"N": "18"},
        "leaseOwner": {"S": "w1"},
        "ownerSwitchesSinceCheckpoint": {"N": "3"},
    }
    assert _sorted(_theirs(subject.row(SHARD))) == _sorted(expected)

    held = await manager.update(held, lambda r: rules.commit(r, Position("SHARD_END"))) or held
    held = await manager.update(held, lambda r: rules.prepare(r, Position("7", 2), b"n")) or held
    handed = await manager.assign(held, "java", graceful=True)

    assert handed is not None
    expected |= {
        "leaseCounter": {"N": "20"},
        "leaseOwner": {"S": "java"},
        "checkpointOwner": {"S": "w1"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": "SHARD_END"},
        "checkpointSubSequenceNumber": {"N": "0"},
        "pendingCheckpoint": {"S": "7"},
        "pendingCheckpointSubSequenceNumber": {"N": "2"},
        "pendingCheckpointState": {"B": b"n"},
    }
    assert _sorted(_theirs(subject.row(SHARD))) == _sorted(expected)


async def test_lease_of_ours_has_all_that_theirs_has(
    subject: DynamoSubject, manager: LeaseManager, peer: KclPeer
) -> None:
    """`createLeaseIfNotExists`: what they always write, we always write; nothing empty."""
    peer.create("theirs")
    await manager.create_lease(LeaseRecord(key="ours", checkpoint=Position("TRIM_HORIZON")))

    ours, theirs = _theirs(subject.row("ours")), _theirs(subject.row("theirs"))

    assert ours | {"leaseKey": theirs["leaseKey"]} == theirs


async def test_row_of_an_old_version_is_read(subject: DynamoSubject, manager: LeaseManager) -> None:
    """Version 1 wrote less, and no kind of row: what is not there is 0 or nothing, and we do not add to it."""
    subject.put({"leaseKey": {"S": SHARD}, "checkpoint": {"S": "5"}, "leaseOwner": {"S": "old"}})

    found = await lease_now(manager, SHARD)
    assert (found.record.counter, found.record.owner) == (0, "old")
    assert found.record.checkpoint == Position("5")
    await taken_lease(manager, key=SHARD)

    assert _theirs(subject.row(SHARD)) == {
        "leaseKey": {"S": SHARD},
        "checkpoint": {"S": "5"},
        "leaseOwner": {"S": "w1"},
        "leaseCounter": {"N": "1"},
        "ownerSwitchesSinceCheckpoint": {"N": "1"},
    }


@pytest.mark.parametrize("entity", ["STREAM", "LEADER", "WORKER_METRIC_STATS"])
async def test_other_things_in_the_table_are_no_leases(
    subject: DynamoSubject, manager: LeaseManager, peer: KclPeer, entity: str
) -> None:
    """`isLeaseTableEmpty_*`, `listLeases_*`: version 3.5 keeps more than leases in it; who asks for one is told."""
    subject.put({"leaseKey": {"S": "x"}, "leaseOwner": {"S": "w"}, "entityType": {"S": entity}})
    assert await manager.is_empty()
    peer.create(SHARD)

    assert [each.record.key for each in await manager.list_leases()] == [SHARD]
    assert await manager.list_leases_of("w") == ()
    with pytest.raises(InvalidStateError, match="another kind of data"):
        await manager.get_lease("x")


async def test_what_they_learn_of_children_stays(
    subject: DynamoSubject, manager: LeaseManager, peer: KclPeer
) -> None:
    """`testUpdateLeaseWithMetaInfo`: it moves no counter, so it does not end our lease; nor do we undo it."""
    peer.create(SHARD)
    held = await taken_lease(manager, key=SHARD)
    assert peer.note_children(SHARD, ["c1"])

    noted = await manager.note_children(SHARD, children=frozenset({"c2"}))
    committed = await manager.update(held, lambda r: rules.commit(r, Position("1")))

    assert noted is not None
    assert committed is not None
    assert sorted(subject.row(SHARD)["childShardIds"]["SS"]) == ["c1", "c2"]


async def test_children_noted_at_once_are_all_kept(
    subject: DynamoSubject, manager: LeaseManager, peer: KclPeer
) -> None:
    """Theirs go by no version, so ours are added to what is there, and never put in its place."""
    peer.create(SHARD)
    seen = await lease_now(manager, SHARD)
    assert peer.note_children(SHARD, ["c1"])

    await subject.store.replace(rules.note_children(seen.record, children=frozenset({"c2"})), seen)

    assert sorted(subject.row(SHARD)["childShardIds"]["SS"]) == ["c1", "c2"]


async def test_row_that_was_made_anew_goes_on_with_the_epochs(
    subject: DynamoSubject, manager: LeaseManager, peer: KclPeer
) -> None:
    """Our epoch has gone with the old row: another took over, and it counts on from the last that is known."""
    peer.create(SHARD)
    held = await taken_lease(manager, key=SHARD)
    await manager.delete(SHARD)
    peer.create(SHARD)

    found = await lease_now(manager, SHARD)

    assert found.record.epoch == held.record.epoch + 1
    assert await manager.take(held, "w1") is None
    assert (await taken_lease(manager, key=SHARD)).record.epoch == held.record.epoch + 2


async def test_table_without_the_index_is_read_whole(
    dynamodb_client: DynamoDBClient, subject: DynamoSubject
) -> None:
    """Version 2 made none; version 3's is asked (`listLeaseKeysForWorker`), and each row is read again."""
    asked: list[str] = []
    dynamodb_client.meta.events.register(
        "before-call.dynamodb", lambda model, **_: asked.append(model.name), unique_id="asked"
    )
    try:
        await _check_leases_of(LeaseManager(subject.store), KclPeer(subject, "w1"))
        assert {"Query", "BatchGetItem"} <= set(asked)
        old = f"{subject.table_name}-v2"
        dynamodb_client.create_table(
            TableName=old,
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        store = DynamoRecordStore(dynamodb_client, old, layout=KclJavaLayout())
        v2 = DynamoSubject(
            client=dynamodb_client, table_name=old, layout=KclJavaLayout(), store=store, rival=store
        )
        await _check_leases_of(LeaseManager(store), KclPeer(v2, "w1"))
        await store.delete_store()
    finally:
        dynamodb_client.meta.events.unregister("before-call.dynamodb", unique_id="asked")


async def _check_leases_of(manager: LeaseManager, peer: KclPeer) -> None:
    for key in ("b", "a", "c"):
        peer.create(key)
    for key in ("b", "a"):
        assert peer.take(peer.subject.row(key))

    assert [each.record.key for each in await manager.list_leases_of("w1")] == ["a", "b"]


def _sorted(row: dict[str, Any]) -> dict[str, Any]:
    return {name: {"SS": sorted(v["SS"])} if "SS" in v else v for name, v in row.items()}
