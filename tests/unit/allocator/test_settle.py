"""When the cluster counts as settled, which drains wait, and who stands in for whom."""

from __future__ import annotations

from dataclasses import replace

from broadsheet.allocator.model import ItemId, Member, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.allocator.policy import Objective, TransitionPolicy
from broadsheet.allocator.transition.capacity import WaitReason
from broadsheet.allocator.transition.membership_settling import Settling, waits_to_settle
from tests.support.memory_cluster import JsonMember

SETTLE, PATIENCE = 60.0, 600.0
POLICY = TransitionPolicy(
    settle_seconds=SETTLE, settle_seconds_max=0.0, drain_patience_seconds=PATIENCE
)
A1, A2, A3, B1, B2 = (MemberId(name[0], name) for name in ("a1", "a2", "a3", "b1", "b2"))

Members = dict[MemberId, Member]


def member(
    member_id: MemberId, created: int, *, exiting: bool = False, limit: int = 8, modified: int = 0
) -> Member:
    """A member, created at a revision."""
    return Member(
        member_id=member_id,
        value=JsonMember(limit, exiting),
        kv=KeyValue(
            key=str(member_id).encode(),
            value=b"",
            create_revision=created,
            mod_revision=modified or created,
            version=1,
            lease=created,
        ),
    )


def members(*each: Member) -> Members:
    """By id."""
    return {one.member_id: one for one in each}


def seen(*looks: tuple[float, Members], policy: TransitionPolicy = POLICY) -> Settling:
    """What is known after several looks."""
    settling = Settling(policy=policy)
    for now, found in looks:
        settling = settling.observed(found, now)
    return settling


OLD = members(member(A1, 1), member(B1, 2))
LEAVING = members(member(A1, 1, exiting=True, modified=5), member(B1, 2))
RENEWED = members(*LEAVING.values(), member(A2, 6))


def test_settling_without_a_policy_changes_nothing() -> None:
    """Balance never waits, drains begin at once, nobody inherits, and no timer is set."""
    settling = seen((0.0, OLD), (1.0, RENEWED), policy=TransitionPolicy(settle_seconds=0.0))

    assert settling.is_settled
    assert settling.drains_waiting == frozenset()
    assert settling.capacities == {}
    assert settling.objective(Objective()) == Objective()
    assert settling.next_change_seconds(1.0) is None


def test_settling_is_settled_once_membership_has_been_quiet_and_nobody_leaves() -> None:
    """A join, a wish to leave and a departure each begin the time again; a limit that changes does not."""
    joined = members(*OLD.values(), member(A2, 3))
    raised = members(*OLD.values(), member(A2, 3, limit=9))

    assert not seen((0.0, OLD)).is_settled
    assert seen((0.0, OLD), (SETTLE, OLD)).is_settled
    assert not seen((0.0, OLD), (SETTLE, joined)).is_settled
    assert seen((0.0, OLD), (SETTLE, joined), (2 * SETTLE, raised)).is_settled
    assert not seen((0.0, OLD), (1.0, LEAVING), (1e6, LEAVING)).is_settled
    gone = members(member(B1, 2))
    assert not seen((0.0, LEAVING), (100.0, gone)).is_settled
    assert seen((0.0, LEAVING), (100.0, gone), (100.0 + SETTLE, gone)).is_settled


def test_settling_that_never_comes_delays_balance_no_longer_than_its_bound() -> None:
    """Somebody joins every half minute, and a member that cannot go wishes to leave: balance has its turn all the same.

    The next change begins another wait, so that it is one turn a bound and not one a change.
    """
    policy = TransitionPolicy(settle_seconds=SETTLE, settle_seconds_max=5 * SETTLE)
    settling, found = Settling(policy=policy).observed(LEAVING, 0.0), dict(LEAVING)
    assert settling.describe().endswith("300 s more at most")
    for number in range(1, 10):
        found = {**found, A2: member(A2, 10 + number)}
        settling = settling.observed(found, number * SETTLE / 2)
        assert not settling.is_settled

    wait = settling.next_change_seconds(4.5 * SETTLE)
    settling = settling.observed(found, 4.5 * SETTLE + (wait or 0.0))
    changed = settling.observed(RENEWED, 5.5 * SETTLE)

    assert wait == SETTLE / 2
    assert settling.is_settled
    assert not changed.is_settled
    assert changed.observed(RENEWED, 10.5 * SETTLE).is_settled


def test_settling_waits_for_nothing_while_a_cluster_starts() -> None:
    """Nothing is placed at the first look: members that join one by one share at once, until they have been quiet."""
    joined = members(*OLD.values(), member(A2, 3))
    later = members(*joined.values(), member(A3, 4))
    starting = Settling(policy=POLICY).observed(OLD, 0.0, is_placed=False)

    assert starting.is_settled
    assert starting.observed(joined, SETTLE - 1).is_settled
    assert not starting.observed(OLD, SETTLE).observed(joined, SETTLE + 1).is_settled
    assert not starting.observed(joined, SETTLE - 1).observed(later, 3 * SETTLE).is_settled


def test_settling_same_id_by_another_process_is_a_change() -> None:
    """A member that comes back under its id holds nothing: it has joined."""
    again = members(member(A1, 9), member(B1, 2))

    assert not seen((0.0, OLD), (SETTLE, OLD), (SETTLE + 1, again)).is_settled


def test_settling_timer_finds_its_deadline_passed() -> None:
    """Whoever sleeps as long as told sees the change, to the last bit of a float; then there is nothing to wait for."""
    start = 0.1
    settling = seen((start, OLD))
    wait = settling.next_change_seconds(start)
    assert wait is not None

    later = settling.observed(OLD, start + wait)

    assert later.is_settled
    assert later.next_change_seconds(start + wait) is None


def test_settling_unsettled_solves_for_moves_and_keeps_the_rest_of_the_objective() -> None:
    """Only the order of balance and moves is another one meanwhile."""
    configured = Objective(tolerance_ratio=0.25)

    assert seen((0.0, OLD)).objective(configured) == Objective(
        tolerance_ratio=0.25, moves_before_balance=True
    )
    assert seen((0.0, OLD), (SETTLE, OLD)).objective(configured) == configured


def test_drain_waits_for_a_replacement_of_its_zone_and_no_longer_than_patience() -> None:
    """Another zone's newcomer is no replacement; one of its own is; time alone is, too."""
    elsewhere = members(*LEAVING.values(), member(B2, 6))

    assert seen((0.0, OLD), (1.0, LEAVING)).drains_waiting == {A1}
    assert seen((0.0, OLD), (1.0, LEAVING)).next_change_seconds(11.0) == PATIENCE - 10.0
    assert seen((0.0, OLD), (1.0, LEAVING), (2.0, elsewhere)).drains_waiting == {A1}
    assert seen((0.0, OLD), (1.0, LEAVING), (2.0, RENEWED)).drains_waiting == set()
    assert seen((0.0, OLD), (1.0, LEAVING), (1.0 + PATIENCE, LEAVING)).drains_waiting == set()


def test_drain_finds_a_replacement_that_joined_before_it() -> None:
    """Up first: the newcomer is there when the old member wishes to leave, so nothing waits."""
    joined = members(*OLD.values(), member(A2, 3))
    leaving = members(member(A1, 1, exiting=True, modified=4), member(B1, 2), member(A2, 3))

    settling = seen((0.0, OLD), (10.0, joined), (20.0, leaving))

    assert settling.drains_waiting == set()
    assert settling.capacities == {A2: 8}


def test_drain_long_after_a_join_is_none_of_its_business() -> None:
    """Who joined before membership came to rest is a resident, and replaces nobody."""
    joined = members(*OLD.values(), member(A2, 3))
    leaving = members(member(A1, 1, exiting=True, modified=4), member(B1, 2), member(A2, 3))

    settling = seen((0.0, OLD), (10.0, joined), (10.0 + PATIENCE, joined), (2000.0, leaving))

    assert settling.drains_waiting == {A1}


def test_drain_needs_a_replacement_of_its_own() -> None:
    """Two leave, one joins: the one that wished to leave first drains, the other waits for the next."""
    both = members(member(A1, 1, exiting=True), member(A2, 2, exiting=True))
    first = members(member(A1, 1, exiting=True), member(A2, 2))
    start = members(member(A1, 1), member(A2, 2))
    joined = members(*both.values(), member(A3, 7))

    another = members(*joined.values(), member(MemberId("a", "a4"), 8))

    settling = seen((0.0, start), (1.0, first), (2.0, both), (3.0, joined))

    assert settling.drains_waiting == {A2}
    assert settling.observed(another, 4.0).drains_waiting == set()


def test_drain_that_has_begun_goes_on_without_its_replacement() -> None:
    """The newcomer dies half way: what has moved has moved, and going back would move it again."""
    settling = seen((0.0, OLD), (1.0, LEAVING), (2.0, RENEWED), (3.0, LEAVING))

    assert settling.drains_waiting == set()


def test_drain_that_is_taken_back_may_wait_again() -> None:
    """A member that no longer wishes to leave has no drain; the next wish is a new one."""
    settling = seen((0.0, OLD), (1.0, LEAVING), (700.0, LEAVING), (701.0, OLD), (702.0, LEAVING))

    assert settling.drains_waiting == {A1}


def test_newcomer_is_weighed_as_its_predecessor_until_membership_rests() -> None:
    """It inherits a share of the predecessor's size, also when that one is gone, and its own again in the end."""
    start = members(member(A1, 1, limit=1500), member(B1, 2, limit=1500))
    leaving = members(member(A1, 1, limit=1500, exiting=True), member(B1, 2, limit=1500))
    renewed = members(*leaving.values(), member(A2, 3, limit=1205))
    gone = members(member(B1, 2, limit=1500), member(A2, 3, limit=1205))

    settling = seen((0.0, start), (1.0, leaving), (2.0, renewed), (3.0, gone))
    declared = Settling(policy=POLICY).observed(start, 0.0).observed(leaving, 1.0)
    rest = settling.observed(gone, 3.0 + PATIENCE)

    assert settling.capacities == {A2: 1500}
    assert settling.next_change_seconds(3.0) == SETTLE
    assert declared.observed(renewed, 2.0, capacities={A1: 7}).capacities == {A2: 7}
    assert rest.capacities == {}
    assert rest.next_change_seconds(3.0 + PATIENCE) is None


def test_member_that_takes_nothing_replaces_nobody() -> None:
    """A newcomer of limit 0 cannot inherit."""
    renewed = members(*LEAVING.values(), member(A2, 6, limit=0))

    assert seen((0.0, OLD), (1.0, LEAVING), (2.0, renewed)).drains_waiting == {A1}


def test_new_leader_tells_replacements_by_revisions() -> None:
    """Of what happened before it led it sees the order: A2 was created after A1 wished to leave, B1 before."""
    settling = seen((0.0, RENEWED))

    assert settling.drains_waiting == set()
    assert settling.capacities == {A2: 8}
    assert seen((0.0, LEAVING)).drains_waiting == {A1}


def test_waits_to_settle_names_the_moves_that_balance_would_make() -> None:
    """Where a balanced placement differs, the item waits with its reason; where it does not, nothing is said."""
    i, j = ItemId("i"), ItemId("j")

    (blocked,) = waits_to_settle({i: (A1,), j: (A1, B1)}, {i: (A2,), j: (A1, B1)}, "why")

    assert (blocked.item_id, blocked.reason, blocked.member_id) == (i, WaitReason.SETTLING, A2)


def test_cordoned_newcomer_stands_in_for_nobody() -> None:
    """A drain must not begin on account of a newcomer that takes nothing: it waits for another one."""
    leaving = member(A1, 1, exiting=True, modified=5)
    newcomer = replace(member(A2, 6), value=JsonMember(8, cordoned=True))

    settling = seen((0.0, members(member(A1, 1))), (1.0, members(leaving, newcomer)))

    assert settling.drains_waiting == {A1}
