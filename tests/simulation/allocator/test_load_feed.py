"""What members report of their loads, on its way to the leader's derived state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from broadsheet.allocator.config import Runtime
from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.keys import AuxiliaryKeys, Keys
from broadsheet.allocator.leader.load_feed import LOOK_SECONDS, LoadFeed
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Put
from broadsheet.allocator.policy import LoadPolicy
from broadsheet.allocator.state.derived_state import DerivedState
from broadsheet.allocator.state.failed_replicas import FailedSince
from broadsheet.allocator.state.load import MemberReport, ReplicaLoad
from broadsheet.runtime.errors import ValidationError
from broadsheet.testing.allocator.kernel.etcd import FakeEtcd
from broadsheet.testing.allocator.kernel.virtual_loop import VirtualClock, run_virtual, running_loop
from broadsheet.testing.allocator.values import (
    SimulatedConsistency,
    SimulatedDecoder,
    SimulatedItem,
)

T = TypeVar("T")
KEYS = Keys("/simulated")
ITEM = ItemId("item")
MEMBER, OTHER = MemberId("zone", "one"), MemberId("zone", "two")
POLICY = LoadPolicy(measure=True, cpu_weight=1000.0, persist_seconds=0.0, bucket_ratio=2.0)


class Elsewhere:
    """Runs work, and knows whether it is at it."""

    def __init__(self) -> None:
        self.is_working = False

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Run `work`."""
        self.is_working = True
        try:
            return work()
        finally:
            self.is_working = False


class Bench:
    """A feed over an etcd in memory."""

    def __init__(self) -> None:
        self.etcd = FakeEtcd()
        self.elsewhere = Elsewhere()
        self.key_space = KeySpace(self.etcd, KEYS, SimulatedDecoder())
        self.put(KEYS.item(ITEM), SimulatedItem(1).encoded())
        self.feed = LoadFeed(
            self.etcd,
            self.key_space,
            policy=POLICY,
            decode=self._decode,
            runtime=Runtime(clock=VirtualClock(running_loop()), offload=self.elsewhere),
        )

    def put(self, key: bytes, value: bytes) -> None:
        """Write a key."""
        self.etcd.perform((), (Put(key, value),))

    def report(self, member_id: MemberId, text: bytes) -> None:
        """Let a member report."""
        self.put(AuxiliaryKeys(KEYS.root).load(member_id), text)

    def derived(self) -> DerivedState:
        """Return the derived state of what is there."""
        return DerivedState(
            self.key_space,
            local_id=MEMBER,
            failed=FailedSince(lambda _: False, SimulatedConsistency(), after_seconds=60.0),
        )

    def _decode(self, value: bytes) -> MemberReport:
        assert self.elsewhere.is_working, "reports are read away from the event loop"
        if not value:
            raise ValidationError("load", "expected a number")
        return MemberReport(capacity=0, replicas={ITEM: ReplicaLoad(cpu_ratio=float(value))})


def _load(derived: DerivedState) -> int:
    return derived.whole(revision=1).state().item_loads.get(ITEM, 1)


def _run(body: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench()
        await bench.key_space.load()
        await body(bench)
        bench.etcd.close()

    run_virtual(main())


def test_reports_are_read_away_from_the_event_loop_and_before_the_first_plan() -> None:
    """The busiest replica counts; a report that cannot be read counts as none."""

    async def feed(bench: Bench) -> None:
        bench.report(MEMBER, b"0.5")
        bench.report(OTHER, b"")
        derived = bench.derived()

        await bench.feed.update(derived)

        assert _load(derived) == 512

    _run(feed)


def test_reports_are_read_again_after_a_while_and_not_before() -> None:
    """A load that changed shows at the next look, and asks for another plan only then."""

    async def feed(bench: Bench) -> None:
        bench.report(MEMBER, b"0.5")
        derived = bench.derived()
        await bench.feed.update(derived)
        demand = derived.plan_version
        bench.report(MEMBER, b"64")

        await bench.feed.update(derived)
        assert (_load(derived), derived.plan_version) == (512, demand)

        while _load(derived) == 512:
            await asyncio.sleep(LOOK_SECONDS)
            await bench.feed.update(derived)
        assert derived.plan_version > demand

    _run(feed)


def test_new_leadership_reads_reports_at_their_word() -> None:
    """Another derived is another leadership: what is reported now is what its predecessor went by."""

    async def feed(bench: Bench) -> None:
        bench.report(MEMBER, b"0.5")
        await bench.feed.update(bench.derived())
        bench.report(MEMBER, b"4")
        derived = bench.derived()

        await bench.feed.update(derived)

        assert _load(derived) == 4096

    _run(feed)
