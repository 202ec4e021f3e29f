"""What time allows: here, when primaries are asked about, which costs a look at everything."""

from __future__ import annotations

import pytest

from broadsheet.allocator.keys import Keys
from broadsheet.allocator.leader.state import PacingPolicy
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.allocator.placement.primaries import wanted_hand_overs
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.policy import AllocationPolicy, PrimaryPolicy, TransitionPolicy
from broadsheet.allocator.state.derived_state import DerivedState
from broadsheet.allocator.state.failed_replicas import FailedSince
from broadsheet.allocator.state.mirror import Mirror
from tests.support.memory_cluster import ValueConsistency
from tests.support.plain_values import PlainDecoder

KEYS = Keys("/r")
MEMBERS = tuple(MemberId("zone", name) for name in ("p", "q", "r"))
POLICY = AllocationPolicy(
    transition=TransitionPolicy(settle_seconds=0.0),
    primaries=PrimaryPolicy(hand_over_above_spread=2),
)


def _derived(limits: tuple[bytes, ...], primaries: tuple[int, ...]) -> DerivedState:
    """Return the derived state of members with these limits and primaries; items have standbys on all others."""
    mirror = Mirror(KEYS, PlainDecoder())
    revision = 1

    def put(key: bytes, value: bytes) -> None:
        nonlocal revision
        revision += 1
        mirror.put(
            KeyValue(
                key=key,
                value=value,
                create_revision=revision,
                mod_revision=revision,
                version=1,
                lease=0,
            )
        )

    members = MEMBERS[: len(limits)]
    for member_id, limit in zip(members, limits, strict=True):
        put(KEYS.member(member_id), b"limit=" + limit)
    holders = [m for m, count in zip(members, primaries, strict=True) for _ in range(count)]
    for number, holder in enumerate(holders):
        item_id = ItemId(f"item-{number:02}")
        put(KEYS.item(item_id), b"R=%d" % len(members))
        others = [m for m in members if m != holder]
        for slot, member_id in enumerate((holder, *others)):
            put(KEYS.assignment(item_id, member_id, slot), b"consistent")
    mirror.take_changes()
    return DerivedState(
        mirror,
        local_id=members[0],
        failed=FailedSince(lambda _: False, ValueConsistency(), after_seconds=60.0),
    )


@pytest.mark.parametrize(
    ("limits", "primaries"),
    [
        ((b"100", b"100"), (6, 6)),
        ((b"100", b"100"), (9, 3)),
        ((b"100", b"20"), (10, 2)),
        ((b"100", b"20"), (6, 6)),
        ((b"100", b"100", b"0"), (6, 6, 0)),
        ((b"100", b"100", b"100,exiting"), (6, 6, 0)),
    ],
    ids=["level", "uneven", "level-by-capacity", "uneven-by-capacity", "takes-nothing", "leaves"],
)
def test_hand_overs_are_asked_about_where_there_are_any_and_only_there(
    limits: tuple[bytes, ...], primaries: tuple[int, ...]
) -> None:
    """Whether to ask is told by the same measure as whether to hand over. By another one, a cluster that is level would
    be looked at as a whole every few seconds, or one that is not would never be.
    """
    derived = _derived(limits, primaries)
    pacing = PacingPolicy(POLICY)
    pacing.observe(derived, 0.0)
    problem = derived.whole(revision=1).state().problem()
    wanted = wanted_hand_overs(problem, FlowSolver().solve(problem), policy=POLICY.primaries)

    assert bool(pacing.hand_overs_allowed(derived, 100.0)) == bool(wanted)
