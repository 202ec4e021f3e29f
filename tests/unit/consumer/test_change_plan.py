"""What Apply and Unassign write, and to whom they refuse it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from broadsheet.allocator.model import Assignment, ItemId
from broadsheet.allocator.ops import Compare, Delete, Put, TxnCheckpoint
from broadsheet.consumer.rpc.shard_changes import (
    StoredSpec,
    certainly_writes,
    plan_apply,
    plan_unassign,
)
from broadsheet.runtime.errors import BoundExceededError, ValidationError
from broadsheet.security.errors import NotAuthorizedError
from broadsheet.wire.journal_pb2 import LabelSelector
from broadsheet.wire.labels import label_set, selector
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ApplyRequest, ReplicaStatus, ShardSpec
from tests.support.key_space_values import KEYS, assignment, item, key_space, shard_spec

EVERYTHING = LabelSelector()
TEAM_A = selector(label_set(("team", "a")))
MINE = shard_spec("shard-1", team="a")
THEIRS = shard_spec("shard-1", team="b")
KEY = KEYS.item(ItemId("shard-1"))


def plan(
    *changes: ApplyRequest.Change,
    allowed: LabelSelector = EVERYTHING,
    stored: Mapping[str, StoredSpec] | None = None,
) -> TxnCheckpoint:
    """The transaction of these changes."""
    return plan_apply(
        changes, KEYS, allowed=allowed, stored=stored or {}, encode_hints=lambda hints: b"hints"
    )


def upsert(spec: ShardSpec, *, expect: int = 0) -> ApplyRequest.Change:
    """Create or update."""
    return ApplyRequest.Change(expect_mod_revision=expect, upsert=spec)


def delete(shard_id: str, *, expect: int = -1) -> ApplyRequest.Change:
    """Delete."""
    return ApplyRequest.Change(expect_mod_revision=expect, delete=shard_id)


@pytest.mark.parametrize(
    ("expect", "compares"),
    [
        pytest.param(0, (Compare.mod_revision(KEY, 0),), id="must-not-exist"),
        pytest.param(7, (Compare.mod_revision(KEY, 7),), id="must-be-this"),
        pytest.param(-1, (), id="whatever-is-there"),
    ],
)
def test_plan_apply_upsert_compares_expected_revision(
    expect: int, compares: tuple[Compare, ...]
) -> None:
    """The three meanings of `expect_mod_revision`."""
    checkpoint = plan(upsert(MINE, expect=expect))

    assert checkpoint.compares == compares
    assert checkpoint.operations == (Put(KEY, MINE.SerializeToString(deterministic=True)),)


def test_plan_apply_many_changes_are_one_transaction() -> None:
    """All or nothing needs them together."""
    checkpoint = plan(upsert(MINE), delete("shard-2", expect=4))

    other = KEYS.item(ItemId("shard-2"))
    assert checkpoint.compares == (Compare.mod_revision(KEY, 0), Compare.mod_revision(other, 4))
    assert checkpoint.operations[1] == Delete(other)


def test_plan_apply_hints_are_written_beside_the_spec() -> None:
    """Primary hints go to the shard's own hint key."""
    spec = shard_spec("shard-1")
    spec.recovery_log_prefix, spec.hint_prefix = "logs", "/hints"
    change = ApplyRequest.Change(upsert=spec, primary_hints=FSMHints(log="logs/shard-1"))

    assert plan(change).operations[1] == Put(b"/hints/shard-1.primary", b"hints")


def test_plan_apply_same_shard_twice_names_the_second() -> None:
    """Etcd would refuse the whole transaction without telling which."""
    with pytest.raises(ValidationError, match=r"changes\[1\].*shard-1"):
        plan(upsert(MINE), delete("shard-1"))


def test_plan_apply_beyond_one_transaction_tells_how_to_split() -> None:
    """A hundred upserts with hints are two hundred operations."""
    specs = [shard_spec(f"shard-{index}") for index in range(100)]
    changes = [ApplyRequest.Change(upsert=s, primary_hints=FSMHints(log="x")) for s in specs]

    with pytest.raises(BoundExceededError, match=r"200 operations.*128.*--max-txn-size"):
        plan(*changes)


@pytest.mark.parametrize(
    ("change", "stored"),
    [
        pytest.param(upsert(THEIRS), None, id="create-outside"),
        pytest.param(upsert(THEIRS, expect=-1), MINE, id="give-away"),
        pytest.param(delete("shard-1"), THEIRS, id="delete-others"),
        pytest.param(delete("shard-1"), None, id="delete-unknown"),
    ],
)
def test_plan_apply_scoped_claims_must_cover_old_and_new(
    change: ApplyRequest.Change, stored: ShardSpec | None
) -> None:
    """A token for team a neither makes, takes, gives away nor deletes what is not team a's."""
    held = {} if stored is None else {"shard-1": StoredSpec(spec=stored, mod_revision=5)}

    with pytest.raises(NotAuthorizedError, match="shard-1"):
        plan(change, allowed=TEAM_A, stored=held)


@pytest.mark.parametrize("expect", [-1, 0, 7])
def test_plan_apply_of_a_hidden_shard_fails_as_a_conflict(expect: int) -> None:
    """A token for team a does not take team b's shard over, and gets the answer of a shard that another just made."""
    held = {"shard-1": StoredSpec(spec=THEIRS, mod_revision=5)}

    checkpoint = plan(upsert(MINE, expect=expect), allowed=TEAM_A, stored=held)

    needed = {Compare.mod_revision(KEY, 0), Compare.mod_revision(KEY, 5)}
    assert needed <= set(checkpoint.compares), "no state of the key satisfies both"


@pytest.mark.parametrize("change", [upsert(MINE, expect=-1), delete("shard-1")])
def test_plan_apply_scoped_claims_pin_what_was_judged(change: ApplyRequest.Change) -> None:
    """Between judging and writing the shard must not become another's, even in an unconditional change."""
    held = {"shard-1": StoredSpec(spec=MINE, mod_revision=5)}

    checkpoint = plan(change, allowed=TEAM_A, stored=held)

    assert checkpoint.compares == (Compare.mod_revision(KEY, 5),)


@pytest.mark.parametrize(
    ("changes", "writes"),
    [
        pytest.param([upsert(MINE, expect=-1)], True, id="upsert"),
        pytest.param([delete("shard-1", expect=5)], True, id="delete-of-a-revision"),
        pytest.param([delete("shard-1")], False, id="delete-whatever"),
        pytest.param([delete("shard-1"), upsert(MINE)], True, id="both"),
    ],
)
def test_certainly_writes_knows_deletes_of_nothing(
    changes: list[ApplyRequest.Change], writes: bool
) -> None:
    """Waiting for the revision of a transaction that wrote nothing would wait for ever."""
    assert certainly_writes(changes) is writes


PRIMARY = assignment("shard-1", "a", 0, code=ReplicaStatus.PRIMARY)
STANDBY = assignment("shard-1", "b", 1, code=ReplicaStatus.STANDBY)
FAILED_PRIMARY = assignment("shard-1", "a", 0, code=ReplicaStatus.FAILED)
FAILED_STANDBY = assignment("shard-1", "b", 1, code=ReplicaStatus.FAILED)


@pytest.mark.parametrize(
    ("replicas", "only_failed", "removed"),
    [
        pytest.param((PRIMARY, STANDBY), False, (PRIMARY,), id="primary-goes-standby-stays"),
        pytest.param((PRIMARY, STANDBY), True, (), id="healthy-are-spared"),
        pytest.param((FAILED_PRIMARY, STANDBY), True, (FAILED_PRIMARY,), id="failed-primary"),
        pytest.param((PRIMARY, FAILED_STANDBY), True, (FAILED_STANDBY,), id="failed-standby"),
        pytest.param((PRIMARY, FAILED_STANDBY), False, (PRIMARY, FAILED_STANDBY), id="both"),
        pytest.param((), False, (), id="unassigned"),
    ],
)
def test_plan_unassign_removes(
    replicas: tuple[Assignment, ...], only_failed: bool, removed: tuple[Assignment, ...]
) -> None:
    """Failed replicas always go, the primary unless only failed ones are wanted, healthy standbys never.

    A failed replica must still be failed when it goes; a primary may change its status in between.
    """
    values = key_space(items=[item(MINE)], members=["a", "b"], replicas=replicas)

    checkpoint, affected = plan_unassign(
        ["shard-1", "unknown"], values, KEYS, allowed=EVERYTHING, only_failed=only_failed
    )

    assert checkpoint.operations == tuple(Delete(one.kv.key) for one in removed)
    assert checkpoint.compares == tuple(
        Compare.create_revision(one.kv.key, one.kv.create_revision)
        if one is PRIMARY
        else Compare.mod_revision(one.kv.key, one.kv.mod_revision)
        for one in removed
    )
    assert affected == (("shard-1",) if removed else ())


def test_plan_unassign_scoped_claims_judge_by_the_stored_labels() -> None:
    """A token for team a restarts team a's shards, and no others."""
    mine = key_space(items=[item(MINE)], members=["a"], replicas=[PRIMARY])
    theirs = key_space(items=[item(THEIRS)], members=["a"], replicas=[PRIMARY])

    checkpoint, _ = plan_unassign(["shard-1"], mine, KEYS, allowed=TEAM_A, only_failed=False)
    assert Compare.mod_revision(KEY, 5) in checkpoint.compares
    # Like a shard that does not exist.
    hidden = plan_unassign(["shard-1"], theirs, KEYS, allowed=TEAM_A, only_failed=False)
    assert (hidden[0].operations, hidden[1]) == ((), ())


def test_plan_unassign_answers_once_in_the_order_asked() -> None:
    """Repeated ids are one shard."""
    values = key_space(
        items=[item(shard_spec("shard-1")), item(shard_spec("shard-2"))],
        members=["a"],
        replicas=[PRIMARY, assignment("shard-2", "a", 0)],
    )

    _, affected = plan_unassign(
        ["shard-2", "shard-1", "shard-2"], values, KEYS, allowed=EVERYTHING, only_failed=False
    )

    assert affected == ("shard-2", "shard-1")
