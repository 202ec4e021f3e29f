"""What a plan supposes against what comes of it: the demand planned for is the one that the leader then sees.

Only then is an applied plan carried out as it is. Otherwise its changes would be made, and another plan after them.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import example, given, strategies as st

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.leader.state import PacingPolicy
from broadsheet.allocator.model import Assignment, Item, ItemId, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.policy import AllocationPolicy, LoadPolicy, TransitionPolicy
from broadsheet.allocator.state.derived_state import DerivedState
from broadsheet.allocator.state.failed_replicas import FailedSince
from broadsheet.allocator.state.mirror import Mirror
from broadsheet.allocator.whatif.leader_snapshot import Hypothesis, LeaderSnapshot, supposed
from tests.support.memory_cluster import ValueConsistency
from tests.support.plain_values import PlainDecoder, PlainItem

KEYS = Keys("/r")
ITEMS = tuple(ItemId(name) for name in ("one", "two", "three"))
NEW = ItemId("zzz-new")
MEMBERS = tuple(MemberId(zone, name) for zone in ("a", "b") for name in ("p", "q"))
POLICIES = (
    AllocationPolicy(transition=TransitionPolicy(settle_seconds=0.0)),
    AllocationPolicy(),
    AllocationPolicy(loads=LoadPolicy(measure=True)),
    AllocationPolicy(transition=TransitionPolicy(settle_seconds=4.0, drain_patience_seconds=8.0)),
)
SPECS = (b"R=0", b"R=1", b"R=2", b"R=2,w=500", b"R=1,w=2000", b"R=2,w=1250")


@dataclass(frozen=True, slots=True)
class WeighedItem(PlainItem):
    """Wants replicas, and declares what one weighs."""

    weight_thousandths: int | None = None


class WeighedDecoder(PlainDecoder):
    """Decodes `R=2,w=500`, too."""

    def decode_item(self, item_id: ItemId, kv: KeyValue) -> PlainItem:
        """Decode `R=2` or `R=2,w=500`."""
        replication, _, weight = kv.value.decode().partition(",w=")
        number = replication.removeprefix("R=")
        if not number.isdigit():
            raise KeyDecodeError(kv.key, f"expected R=number, got {kv.value!r}")
        return WeighedItem(int(number), int(weight) if weight else None)


@dataclass(frozen=True)
class Course:
    """A cluster, and what is to change in it."""

    policy: AllocationPolicy
    items: dict[ItemId, bytes]
    members: dict[MemberId, bytes]
    newcomers: dict[MemberId, bytes]
    measured: dict[ItemId, int]
    changed: dict[ItemId, bytes]
    deleted: frozenset[ItemId]
    drained: frozenset[MemberId]


@st.composite
def courses(draw: st.DrawFn) -> Course:
    """Draw one."""
    items = draw(st.dictionaries(st.sampled_from(ITEMS), st.sampled_from(SPECS), min_size=1))
    values = st.sampled_from((b"limit=2", b"limit=5", b"limit=5,exiting", b"limit=5,cordoned"))
    members = draw(st.dictionaries(st.sampled_from(MEMBERS), values, min_size=1))
    newcomers = {
        m: draw(values) for m in draw(st.frozensets(st.sampled_from(MEMBERS))) - {*members}
    }
    deleted = draw(st.frozensets(st.sampled_from(sorted(items))))
    changed = draw(
        st.dictionaries(st.sampled_from((*sorted(items), NEW)), st.sampled_from(SPECS), max_size=2)
    )
    return Course(
        policy=draw(st.sampled_from(POLICIES)),
        items=items,
        members=members,
        newcomers=newcomers,
        measured=draw(st.dictionaries(st.sampled_from(ITEMS), st.integers(1, 900))),
        changed={i: value for i, value in changed.items() if i not in deleted},
        deleted=deleted,
        drained=draw(st.frozensets(st.sampled_from(sorted({**members, **newcomers})))),
    )


class Leader:
    """A derived state over a mirror, paced as a leader's is."""

    def __init__(self, course: Course) -> None:
        self.mirror = Mirror(KEYS, WeighedDecoder())
        self.revision = 1
        self._course = course
        for member_id, value in course.members.items():
            self.put(KEYS.member(member_id), value)
        for item_id, value in course.items.items():
            self.put(KEYS.item(item_id), value)
        self.mirror.take_changes()
        self.derived = DerivedState(
            self.mirror,
            local_id=MEMBERS[0],
            failed=FailedSince(never, ValueConsistency(), after_seconds=1.0),
        )
        self.pacing = PacingPolicy(course.policy)
        self.look(10.0)
        for member_id, value in course.newcomers.items():
            self.put(KEYS.member(member_id), value)
        self.look(15.0)

    def put(self, key: bytes, value: bytes) -> None:
        """Show the mirror a key."""
        self.revision += 1
        known = self.mirror.kv_or_none(key)
        created = known.create_revision if known is not None else self.revision
        self.mirror.put(
            KeyValue(
                key=key,
                value=value,
                create_revision=created,
                mod_revision=self.revision,
                version=1,
                lease=0,
            )
        )

    def look(self, now_monotonic_seconds: float) -> None:
        """Take over what changed, and what time makes of it."""
        policy = self._course.policy.loads
        measured = self._course.measured if policy.measure else None
        self.derived.apply(self.mirror.take_changes())
        self.derived.set_loads(measured, {}, policy)
        self.pacing.observe(self.derived, now_monotonic_seconds)

    def snapshot(self, now_monotonic_seconds: float) -> LeaderSnapshot:
        """Return what the leader knows."""
        return LeaderSnapshot(
            snapshot=self.derived.whole(revision=self.revision),
            plan=None,
            policy=self._course.policy,
            settling=self.pacing.settling,
            now_monotonic_seconds=now_monotonic_seconds,
            quarantined=frozenset(),
            epoch=1,
            solver=FlowSolver(),
            consistency=ValueConsistency(),
            keys=KEYS,
        )


def never(_: Assignment) -> bool:
    """No replica fails here."""
    return False


STARTING = Course(
    policy=POLICIES[-1],
    items={ITEMS[0]: b"R=0"},
    members={MEMBERS[0]: b"limit=5,exiting", MEMBERS[1]: b"limit=2"},
    newcomers={},
    measured={},
    changed={},
    deleted=frozenset(),
    drained=frozenset(),
)
"""A cluster that starts while somebody leaves: its start is over by the time of the second look."""


@example(STARTING)
@given(courses())
def test_demand_that_is_supposed_is_the_one_that_comes(course: Course) -> None:
    """Shards are added, changed and deleted, members drain, old ones and newcomers; weights are declared, measured, or
    neither.
    """
    leader = Leader(course)
    decoder = WeighedDecoder()
    changed = []
    for item_id, value in course.changed.items():
        kv = KeyValue(
            key=KEYS.item(item_id),
            value=value,
            create_revision=0,
            mod_revision=0,
            version=0,
            lease=0,
        )
        changed.append(Item(item_id=item_id, value=decoder.decode_item(item_id, kv), kv=kv))
    hypothesis = Hypothesis(drained=course.drained, changed=tuple(changed), deleted=course.deleted)

    state, settling = supposed(leader.snapshot(20.0), hypothesis)

    for item_id, value in course.changed.items():
        leader.put(KEYS.item(item_id), value)
    for item_id in course.deleted:
        leader.mirror.delete(KEYS.item(item_id))
    for member_id in course.drained:
        value = leader.mirror.members[member_id].kv.value
        leader.put(KEYS.member(member_id), value + b",exiting")
    leader.look(20.0)
    real = leader.derived.whole(revision=leader.revision).state()
    assert state.demand() == real.demand()
    assert state.objective == real.objective
    assert settling.drains_waiting == leader.pacing.drains_waiting
