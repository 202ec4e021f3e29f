"""A look at membership that finds nothing new against one that looks at everything: what follows is the same."""

from __future__ import annotations

from hypothesis import example, given, strategies as st

from broadsheet.allocator.model import Member, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.allocator.policy import Objective, TransitionPolicy
from broadsheet.allocator.transition.membership_settling import Settling
from tests.support.memory_cluster import JsonMember

MEMBERS = tuple(MemberId("a", name) for name in ("p", "q", "r"))
POLICIES = (
    TransitionPolicy(settle_seconds=0.0),
    TransitionPolicy(settle_seconds=4.0),
    TransitionPolicy(settle_seconds=4.0, settle_seconds_max=7.0),
    TransitionPolicy(settle_seconds=0.0, drain_patience_seconds=6.0),
    TransitionPolicy(settle_seconds=4.0, drain_patience_seconds=8.0),
)

steps = st.tuples(
    st.sampled_from((0.0, 2.5, 10.0)),
    st.none() | st.tuples(st.sampled_from(MEMBERS), st.sampled_from(("join", "exit", "leave"))),
)


def _member(member_id: MemberId, revision: int, *, exiting: bool) -> Member:
    kv = KeyValue(
        key=str(member_id).encode(),
        value=b"",
        create_revision=revision,
        mod_revision=revision,
        version=1,
        lease=0,
    )
    return Member(member_id=member_id, value=JsonMember(5, exiting), kv=kv)


def _changed(
    members: dict[MemberId, Member], member_id: MemberId, what: str, revision: int
) -> dict[MemberId, Member]:
    known = members.get(member_id)
    match what:
        case "join" if known is None:
            return {**members, member_id: _member(member_id, revision, exiting=False)}
        case "exit" if known is not None:
            leaving = _member(member_id, known.kv.create_revision, exiting=True)
            return {**members, member_id: leaving}
        case "leave":
            return {m: member for m, member in members.items() if m != member_id}
    return members


LONG_AFTER_A_JOIN = [
    (0.0, (MEMBERS[0], "join")),
    (2.5, (MEMBERS[1], "join")),
    (10.0, None),
    (2.5, (MEMBERS[0], "exit")),
]


@example(POLICIES[2], LONG_AFTER_A_JOIN)
@given(st.sampled_from(POLICIES), st.lists(steps, max_size=25))
def test_settling_told_that_nothing_changed_knows_what_it_would_have_found(
    policy: TransitionPolicy, course: list[tuple[float, tuple[MemberId, str] | None]]
) -> None:
    """Members join, wish to leave and go, or nothing happens but time. One is given the members themselves, which are
    the same while nothing changes, the other a copy every time, which it has to look at.
    """
    quick = thorough = Settling(policy=policy)
    members: dict[MemberId, Member] = {}
    now = 100.0
    for revision, (seconds, event) in enumerate(course, start=1):
        now += seconds
        if event is not None:
            members = _changed(members, *event, revision)
        quick, thorough = quick.observed(members, now), thorough.observed(dict(members), now)

        assert quick.is_settled == thorough.is_settled
        assert quick.drains_waiting == thorough.drains_waiting
        assert quick.capacities == thorough.capacities
        assert quick.objective(Objective()) == thorough.objective(Objective())
        assert quick.next_change_seconds(now) == thorough.next_change_seconds(now)
