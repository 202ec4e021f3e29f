"""The progress of drains: what is left falls with what is handed over, and unknown times are told as unknown."""

from __future__ import annotations

from dataclasses import dataclass

from broadsheet.allocator.keys import AssignmentKey
from broadsheet.allocator.model import ItemId, Member, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.allocator.state.drains import STALLED_SECONDS_LEAST, DrainProgress, Drains
from broadsheet.allocator.state.mirror import Changes
from broadsheet.consumer.rpc.operations import drain_progress
from broadsheet.wire.progress_pb2 import ProgressKind, ProgressUnit
from tests.support.memory_cluster import JsonMember

LEAVING, STAYING = MemberId("a", "leaving"), MemberId("a", "staying")


@dataclass
class _Cluster:
    """Two members, and the mirror's steps that a drain of one of them makes."""

    drains: Drains
    held: set[AssignmentKey]
    members: dict[MemberId, Member]

    @classmethod
    def of(cls, items: int) -> _Cluster:
        members = {m: _member(m, exiting=False) for m in (LEAVING, STAYING)}
        held = {AssignmentKey(ItemId(f"i{number}"), LEAVING, 0) for number in range(items)}
        cluster = cls(Drains(), held, members)
        cluster.look(0.0, members={LEAVING, STAYING}, keys=held)
        return cluster

    def exit(self, now: float, *, exiting: bool = True) -> None:
        self.members[LEAVING] = _member(LEAVING, exiting=exiting)
        self.look(now, members={LEAVING})

    def hand_over(self, now: float, *items: int) -> None:
        gone = {key for key in self.held if key.item_id in {ItemId(f"i{n}") for n in items}}
        self.held -= gone
        got = {AssignmentKey(key.item_id, STAYING, 0) for key in gone}
        self.held |= got
        self.look(now, keys=gone | got)

    def look(
        self,
        now: float,
        *,
        members: set[MemberId] | None = None,
        keys: set[AssignmentKey] | None = None,
    ) -> None:
        changes = Changes(members=frozenset(members or ()), assignments=frozenset(keys or ()))
        self.drains.look(self.members, self.held, changes, now_monotonic_seconds=now)

    def told(self, now: float) -> DrainProgress | None:
        return self.drains.progress(now).get(LEAVING)


def _member(member_id: MemberId, *, exiting: bool) -> Member:
    return Member(
        member_id=member_id,
        value=JsonMember(limit=10, exiting=exiting),
        kv=KeyValue(key=b"k", value=b"", create_revision=1, mod_revision=1, version=1, lease=0),
    )


def test_drain_tells_what_is_left_at_the_median_of_its_hand_overs() -> None:
    """Five shards, hand-overs of 2, 2 and 6 s: two are left, 4 s; one slow one does not spoil the rest's time."""
    cluster = _Cluster.of(5)
    cluster.exit(10.0)
    begun = cluster.told(10.0)
    cluster.hand_over(12.0, 0)
    cluster.hand_over(14.0, 1)
    cluster.hand_over(20.0, 2)

    told = cluster.told(20.0)

    assert begun is not None
    assert (begun.done, begun.left, begun.eta_seconds) == (0, 5, None)
    assert told is not None
    assert (told.done, told.left, told.eta_seconds) == (3, 2, 4.0)
    message = drain_progress(told)
    assert (message.kind, message.unit) == (
        ProgressKind.PROGRESS_KIND_DRAIN,
        ProgressUnit.PROGRESS_UNIT_SHARDS,
    )
    assert (message.to_do, message.rate, message.eta_s) == (2, 0.5, 4.0)


def test_drain_that_hands_nothing_over_any_more_has_no_time() -> None:
    """A full cluster takes no more: the time must not count on a rate that there is no longer; at the end it is 0."""
    cluster = _Cluster.of(2)
    cluster.exit(0.0)
    cluster.hand_over(0.5, 0)
    later = 0.5 + STALLED_SECONDS_LEAST + 1

    stalled = cluster.told(later)
    cluster.hand_over(later, 1)
    over = cluster.told(later)

    assert stalled is not None
    assert (stalled.left, stalled.eta_seconds) == (1, None)
    assert drain_progress(stalled).eta_s == -1.0
    assert over is not None
    assert (over.done, over.left, over.eta_seconds) == (2, 0, 0.0)


def test_drain_counts_items_and_not_changes_of_slots() -> None:
    """A primary becomes a standby before it leaves: two changes of keys, one hand-over."""
    cluster = _Cluster.of(1)
    cluster.exit(0.0)
    old = AssignmentKey(ItemId("i0"), LEAVING, 0)
    new = AssignmentKey(ItemId("i0"), LEAVING, 1)
    cluster.held = {new}
    cluster.look(1.0, keys={old, new})
    shifted = cluster.told(1.0)
    cluster.held = set()
    cluster.look(3.0, keys={new})
    over = cluster.told(3.0)

    assert shifted is not None
    assert (shifted.done, shifted.left) == (0, 1)
    assert over is not None
    assert (over.done, over.left) == (1, 0)


def test_drain_that_is_given_up_or_over_is_forgotten() -> None:
    """A member that stays after all, and one that is gone, drain no more; a later drain counts from its own start."""
    cluster = _Cluster.of(3)
    assert cluster.told(0.0) is None
    cluster.exit(0.0)
    cluster.hand_over(1.0, 0)
    cluster.exit(2.0, exiting=False)
    given_up = cluster.told(2.0)
    cluster.exit(3.0)
    second = cluster.told(3.0)
    del cluster.members[LEAVING]
    cluster.look(4.0, members={LEAVING}, keys=set())

    assert given_up is None
    assert second is not None
    assert (second.done, second.left) == (0, 2)
    assert cluster.told(4.0) is None
