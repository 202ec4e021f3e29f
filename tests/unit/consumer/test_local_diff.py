"""What starts, is promoted or stops: the whole table, and what belongs to a member."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broadsheet.allocator.model import ItemId
from broadsheet.consumer.resolver.local_shards import (
    Assigned,
    Instruction,
    Promote,
    Replace,
    Replica,
    ShardUpdate,
    Start,
    Stop,
    assigned_to,
    diff,
)
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support.key_space_values import assignment, item, key_space, member_id, shard_spec

SHARD = "shard-1"
ID = ItemId(SHARD)


def assigned(
    slot: int,
    create_revision: int,
    mod_revision: int = 6,
    code: ReplicaStatus.Code.ValueType = ReplicaStatus.STANDBY,
) -> Assigned:
    """Our replica in a slot, as etcd has it."""
    return Assigned(
        item=item(shard_spec(SHARD)),
        assignment=assignment(
            SHARD,
            "here",
            slot,
            code=code,
            create_revision=create_revision,
            mod_revision=mod_revision,
        ),
    )


@pytest.mark.parametrize(
    ("running", "target", "kind"),
    [
        pytest.param(None, assigned(1, 6), Start, id="new-standby"),
        pytest.param(None, assigned(0, 6), Start, id="new-primary"),
        pytest.param(Replica(1, 6, 5), assigned(1, 6, 9), ShardUpdate, id="status-written"),
        pytest.param(Replica(0, 6, 5), assigned(0, 6, 9), ShardUpdate, id="primary-status-written"),
        pytest.param(Replica(1, 6, 5), assigned(0, 8), Promote, id="promoted"),
        pytest.param(Replica(2, 6, 5), assigned(1, 8), Promote, id="moved-up"),
        pytest.param(
            Replica(2, 6, 5),
            assigned(1, 8, code=ReplicaStatus.IDLE),
            Replace,
            id="recreated-before-it",
        ),
        pytest.param(
            Replica(2, 6, 5),
            assigned(0, 8, code=ReplicaStatus.IDLE),
            Promote,
            id="promoted-by-recreation",
        ),
        pytest.param(Replica(1, 6, 5), assigned(1, 8), Replace, id="recreated-standby"),
        pytest.param(Replica(0, 6, 5), assigned(0, 8), Replace, id="recreated-primary"),
        pytest.param(Replica(0, 6, 5), assigned(1, 8), Replace, id="demoted-by-recreation"),
        pytest.param(Replica(1, 6, 5), assigned(2, 8), Replace, id="moved-down"),
    ],
)
def test_diff_one_shard(
    running: Replica | None, target: Assigned, kind: Callable[[Assigned], Instruction]
) -> None:
    """A lower slot keeps the replica; the same key keeps it; every other key is another life."""
    instructions = diff({} if running is None else {ID: running}, {ID: target})

    assert instructions == (kind(target),)


@pytest.mark.parametrize("target", [assigned(1, 6), assigned(0, 8), assigned(1, 8)])
def test_diff_replica_of_a_deleted_shard_is_not_one_of_a_later_shard_with_its_id(
    target: Assigned,
) -> None:
    """Its assignment may be there yet when a split gives its id to a new shard: promoted, it would serve old state."""
    assert diff({ID: Replica(1, 6, 4)}, {ID: target}) == (Replace(target, is_other_shard=True),)


def test_diff_unassigned_shard_stops() -> None:
    """What is assigned here no more stops."""
    assert diff({ID: Replica(0, 6, 5)}, {}) == (Stop(ID),)


def test_diff_settled_state_only_updates() -> None:
    """A state that is reached asks for nothing but passing on what was observed."""
    target = assigned(0, 6)

    assert diff({ID: Replica(0, 6, 5)}, {ID: target}) == (ShardUpdate(target),)


def test_diff_stops_come_first() -> None:
    """Leaving shards give room before others start."""
    target = assigned(1, 6)
    leaving = ItemId("shard-9")

    assert diff({leaving: Replica(0, 3, 5)}, {ID: target}) == (Stop(leaving), Start(target))


def test_assigned_to_takes_own_replicas_with_a_spec() -> None:
    """Others' replicas, and those whose shard was deleted, are not ours to run."""
    values = key_space(
        items=[item(shard_spec(SHARD)), item(shard_spec("shard-2"))],
        replicas=[
            assignment(SHARD, "here", 1),
            assignment(SHARD, "there", 0),
            assignment("shard-2", "there", 0),
            assignment("deleted", "here", 0),
        ],
    )

    found = assigned_to(member_id("here"), values.items, values.assignments)

    assert {item_id: one.assignment.slot for item_id, one in found.items()} == {ID: 1}


def test_assigned_to_twice_takes_lowest_slot() -> None:
    """Two assignments of one shard to us are illegal; acting on the lower slot is what the route says too."""
    values = key_space(
        items=[item(shard_spec(SHARD))],
        replicas=[assignment(SHARD, "here", 2), assignment(SHARD, "here", 0)],
    )

    found = assigned_to(member_id("here"), values.items, values.assignments)

    assert found[ID].assignment.slot == 0
