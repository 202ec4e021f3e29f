"""Rewinds: which hints end up where, who stands in the way, and what must not have changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import Assignment, ItemId, MemberId
from broadsheet.allocator.ops import Compare, Delete, KeyValue, Put
from broadsheet.consumer.recoverylog.hints import encode_hints
from broadsheet.consumer.recoverylog.rewind_plan import RewindBasis, RewindPlan, plan_rewind
from broadsheet.wire.recorded_op_pb2 import FnodeSegments, FSMHints, Segment
from broadsheet.wire.recovery_pb2 import RewindStatus
from broadsheet.wire.shard_pb2 import ReplicaStatus, ShardSpec

SHARD = ItemId("shard-a")
SPEC = ShardSpec(id=SHARD, recovery_log_prefix="logs", hint_prefix="/hints", hint_backups=2)
KEYS = Keys("/root")
PRIMARY, BACKUP_0, BACKUP_1 = (
    f"/hints/shard-a.{name}".encode() for name in ("primary", "backup.0", "backup.1")
)


def stored(key: bytes, value: bytes, revision: int) -> KeyValue:
    """Return a key that was written once."""
    return KeyValue(
        key=key, value=value, create_revision=revision, mod_revision=revision, version=1, lease=0
    )


def hints(offset: int, *, log: str = "logs/shard-a") -> bytes:
    """Return stored hints of one file, which begins at `offset`."""
    segment = Segment(author=1, first_seq_no=offset, first_offset=offset, last_seq_no=offset + 2)
    node = FnodeSegments(fnode=offset, segments=[segment])
    return encode_hints(FSMHints(log=log, live_nodes=[node]))


def replica(name: str, slot: int, code: ReplicaStatus.Code.ValueType, revision: int) -> Assignment:
    """Return an assignment."""
    member = MemberId("zone", name)
    errors = ["it broke"] if code == ReplicaStatus.FAILED else []
    return Assignment(
        item_id=SHARD,
        member_id=member,
        slot=slot,
        value=ReplicaStatus(code=code, errors=errors),
        kv=stored(KEYS.assignment(SHARD, member, slot), b"", revision),
    )


def basis(
    values: dict[bytes, bytes] | None = None, *assignments: Assignment, spec: ShardSpec = SPEC
) -> RewindBasis:
    """Return a shard at one revision; by default with primary hints and both backups."""
    values = (
        {PRIMARY: hints(30), BACKUP_0: hints(20), BACKUP_1: hints(10)} if values is None else values
    )
    return RewindBasis(
        spec=spec,
        spec_kv=stored(KEYS.item(SHARD), b"", 5),
        hints={key: stored(key, value, 6) for key, value in values.items()},
        assignments=assignments,
        assignments_prefix=KEYS.assignments_of(SHARD),
    )


def puts(plan: RewindPlan) -> dict[bytes, bytes]:
    """Return what the transaction writes."""
    assert plan.checkpoint is not None
    return {each.key: each.value for each in plan.checkpoint.operations if isinstance(each, Put)}


def deletes(plan: RewindPlan) -> list[bytes]:
    """Return what the transaction deletes."""
    assert plan.checkpoint is not None
    return [each.key for each in plan.checkpoint.operations if isinstance(each, Delete)]


def test_primary_and_backup_change_places() -> None:
    """And everything that was read is compared: spec, each key of hints, and that no replica has come."""
    plan = plan_rewind(basis(), backup=1, force=False)

    assert plan.status == RewindStatus.REWIND_STATUS_OK
    assert puts(plan) == {PRIMARY: hints(10), BACKUP_1: hints(30)}
    assert deletes(plan) == []
    assert plan.checkpoint is not None
    assert set(plan.checkpoint.compares) == {
        Compare.mod_revision(KEYS.item(SHARD), 5),
        Compare.mod_revision(PRIMARY, 6),
        Compare.mod_revision(BACKUP_0, 6),
        Compare.mod_revision(BACKUP_1, 6),
        Compare.none_between(b"/root/assign/shard-a#", b"/root/assign/shard-a$"),
    }
    assert plan.rewind.kept_at == BACKUP_1.decode()
    assert (plan.rewind.replaced.first_offset, plan.rewind.restored.first_offset) == (30, 10)
    assert (plan.rewind.restored.files, plan.rewind.restored.last_seq_no) == (1, 12)


def test_backup_stays_where_there_was_no_primary() -> None:
    """There is nothing to keep in its place; the absent key is compared as absent."""
    plan = plan_rewind(basis({BACKUP_0: hints(20)}), backup=0, force=False)

    assert puts(plan) == {PRIMARY: hints(20)}
    assert not plan.rewind.HasField("replaced")
    assert plan.checkpoint is not None
    assert Compare.mod_revision(PRIMARY, 0) in plan.checkpoint.compares


@pytest.mark.parametrize("unreadable", [b"{garbage", b"\xff\xff", hints(7, log="logs/else")])
def test_unreadable_hints_are_set_aside(unreadable: bytes) -> None:
    """As long as they were there, no recovery could begin; the bytes are kept for whoever wants to know."""
    values = {PRIMARY: unreadable, BACKUP_0: unreadable, BACKUP_1: hints(10)}

    plan = plan_rewind(basis(values), backup=1, force=False)

    assert puts(plan) == {
        PRIMARY: hints(10),
        PRIMARY + b".unreadable": unreadable,
        BACKUP_0 + b".unreadable": unreadable,
    }
    assert deletes(plan) == [BACKUP_0]
    assert plan.rewind.replaced.unreadable
    assert plan.rewind.kept_at == "/hints/shard-a.primary.unreadable"
    assert plan.rewind.set_aside == ["/hints/shard-a.backup.0.unreadable"]


@pytest.mark.parametrize(
    ("given", "backup", "status"),
    [
        (basis(spec=ShardSpec(id=SHARD)), 0, RewindStatus.REWIND_STATUS_NO_RECOVERY_LOG),
        (basis(), 2, RewindStatus.REWIND_STATUS_BACKUP_NOT_FOUND),
        (basis({PRIMARY: hints(1)}), 0, RewindStatus.REWIND_STATUS_BACKUP_NOT_FOUND),
        (basis({BACKUP_0: b"{garbage"}), 0, RewindStatus.REWIND_STATUS_BACKUP_UNREADABLE),
    ],
)
def test_refused(given: RewindBasis, backup: int, status: RewindStatus.ValueType) -> None:
    """Each reason has its status, and no transaction."""
    plan = plan_rewind(given, backup=backup, force=True)
    assert (plan.status, plan.checkpoint) == (status, None)


@pytest.mark.parametrize(
    "code",
    [ReplicaStatus.IDLE, ReplicaStatus.BACKFILL, ReplicaStatus.STANDBY, ReplicaStatus.PRIMARY],
)
def test_shard_with_a_primary_is_refused_unless_forced(code: ReplicaStatus.Code.ValueType) -> None:
    """Whatever the replica in slot 0 says of itself: it would overwrite the hints. By force all replicas go too."""
    replicas = (replica("a", 0, code, 7), replica("b", 1, ReplicaStatus.STANDBY, 8))
    given = basis(None, *replicas)

    refused = plan_rewind(given, backup=0, force=False)
    assert (refused.status, refused.checkpoint) == (RewindStatus.REWIND_STATUS_HAS_PRIMARY, None)

    forced = plan_rewind(given, backup=0, force=True)
    assert deletes(forced) == [each.kv.key for each in replicas]
    assert forced.rewind.unassigned == ["zone#a", "zone#b"]
    assert not forced.rewind.standbys
    assert forced.checkpoint is not None
    first, second = (each.kv.key for each in replicas)
    assert forced.checkpoint.compares[-5:] == (
        Compare.none_between(b"/root/assign/shard-a#", first),
        Compare.create_revision(first, 7),
        Compare.none_between(first + b"\x00", second),
        Compare.create_revision(second, 8),
        Compare.none_between(second + b"\x00", b"/root/assign/shard-a$"),
    )


def test_failed_primary_is_none_as_long_as_it_is_failed() -> None:
    """It stays assigned, to be unassigned next; a healthy standby is named apart, for it would ignore the hints."""
    failed = replica("a", 0, ReplicaStatus.FAILED, 7)
    given = basis(None, failed, replica("b", 1, ReplicaStatus.STANDBY, 8))

    plan = plan_rewind(given, backup=0, force=False)

    assert deletes(plan) == []
    assert [*plan.rewind.failed, *plan.rewind.standbys] == ["zone#a", "zone#b"]
    assert plan.checkpoint is not None
    assert Compare.mod_revision(failed.kv.key, 7) in plan.checkpoint.compares


def test_a_hundred_backups_fit_into_one_transaction() -> None:
    """With three replicas beside; more backups than that are not looked at."""
    spec = ShardSpec()
    spec.CopyFrom(SPEC)
    spec.hint_backups = 500
    many = {f"/hints/shard-a.backup.{number}".encode(): hints(number + 1) for number in range(100)}
    replicas = [replica(name, slot, ReplicaStatus.STANDBY, 7) for slot, name in enumerate("abc", 1)]
    given = replace(basis({PRIMARY: b"{", **many}, *replicas), spec=spec)

    plan = plan_rewind(given, backup=99, force=True)

    assert plan.checkpoint is not None
    assert max(len(plan.checkpoint.compares), len(plan.checkpoint.operations)) <= 128


def test_whole_log_is_played_once_all_hints_are_set_aside() -> None:
    """Readable ones as well, or the next recovery would begin from them; nothing is lost."""
    given = basis({PRIMARY: b"{", BACKUP_0: hints(20), BACKUP_1: b"{"})

    plan = plan_rewind(given, backup=None, force=False)

    assert plan.status == RewindStatus.REWIND_STATUS_OK
    assert puts(plan) == {
        PRIMARY + b".unreadable": b"{",
        BACKUP_0 + b".set-aside": hints(20),
        BACKUP_1 + b".unreadable": b"{",
    }
    assert deletes(plan) == [BACKUP_0, BACKUP_1, PRIMARY]
    assert plan.rewind.kept_at == f"{PRIMARY.decode()}.unreadable"


def test_log_that_lost_its_beginning_is_not_played_without_hints() -> None:
    """What was pruned is needed then."""
    plan = plan_rewind(replace(basis(), log_begin=1), backup=None, force=True)

    assert plan.status == RewindStatus.REWIND_STATUS_LOG_PRUNED
    assert plan.checkpoint is None
