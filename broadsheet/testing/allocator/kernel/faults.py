"""Faults of a run: drawn by their weights, injected one at a time, and ended after a while."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from broadsheet.testing.allocator.kernel.cluster import MemberT, SimulatedCluster
from broadsheet.testing.allocator.kernel.network import Link
from broadsheet.testing.allocator.kernel.run import RunScenario

FaultT = TypeVar("FaultT", bound=Enum)
Action = Callable[[], str | None]
"""Injects a fault, and says what happened; None if it is impossible at the moment."""

HASTE_SECONDS_MAX = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultBounds:
    """Bounds of the faults of a simulator."""

    loss_max: float
    """Share of messages that a link loses."""
    late_max: float
    """Share of messages that a link delivers late."""
    history_kept_max: int
    """Revisions that a compaction spares: few, so that watches do fall behind."""


class FaultInjector(ABC, Generic[FaultT, MemberT]):
    """Draws faults, injects them, and undoes those that pass. Subclasses say what each one does."""

    def __init__(
        self,
        cluster: SimulatedCluster[MemberT, RunScenario],
        weights: Mapping[FaultT, float],
        bounds: FaultBounds,
    ) -> None:
        """Prepare; nothing happens yet.

        Args:
            cluster: What the faults happen to.
            weights: Relative frequency of each fault.
            bounds: Limits of how bad they are.
        """
        self.random = cluster.random
        self._cluster = cluster
        self._weights = weights
        self._bounds = bounds
        self._actions = self.actions()

    @abstractmethod
    def actions(self) -> Mapping[FaultT, Action]:
        """Return the action of each fault."""

    @abstractmethod
    def calm(self, member: MemberT) -> None:
        """End whatever passes of a member's process."""

    def count(self) -> int:
        """Draw how many faults there will be."""
        return self._cluster.draw(self._cluster.scenario.steps)

    def pause_seconds(self) -> float:
        """Draw the pause before the next one."""
        scenario = self._cluster.scenario
        # Without haste nothing is drawn for it, because each draw changes what a seed means.
        is_hasty = scenario.haste > 0.0 and self.random.random() < scenario.haste
        bounds = (0.0, HASTE_SECONDS_MAX) if is_hasty else scenario.pause_seconds
        return self.random.uniform(*bounds)

    def next(self) -> None:
        """Inject the next fault. If it is impossible at the moment, nothing changes."""
        fault = self.random.choices(list(self._weights), list(self._weights.values()))[0]
        what = self._actions[fault]()
        if what is not None:
            self._cluster.trace.add(f"{fault.value}: {what}")

    def end(self) -> None:
        """End faults that pass: from now on only members act."""
        for member in self._cluster.members:
            for link in member.links:
                link.heal(self._cluster.latency_seconds)
            self.calm(member)
        self._cluster.trace.add("quiet")

    # -- for actions

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something after a time."""
        # In no process, because it must not stop with one.
        asyncio.get_running_loop().call_later(seconds, action, context=Context())

    def passes(self, undo: Callable[[], object]) -> float:
        """Undo a fault after a while; return the time until then."""
        seconds = self.random.uniform(*self._cluster.scenario.passing_seconds)
        self.later(seconds, undo)
        return seconds

    def cut_off(self, link: Link) -> None:
        """Cut a link; whether it refuses or does not answer is drawn."""
        link.cut_off(refuses=self.random.random() < 0.5)

    def make_lossy(self, link: Link) -> float:
        """Let a link lose and delay messages for a while; return how long."""
        link.loss = self.random.uniform(0.0, self._bounds.loss_max)
        link.late = self.random.uniform(0.0, self._bounds.late_max)
        return self.passes(lambda: link.heal(self._cluster.latency_seconds))

    def compact(self) -> int | None:
        """Let etcd discard all but a few revisions; return the oldest one left, None if nothing was discarded."""
        store = self._cluster.etcd.store
        revision = store.revision - self.random.randint(0, self._bounds.history_kept_max)
        if revision <= store.compacted_revision:
            return None
        self._cluster.etcd.compact(revision)
        return revision


def mend(links: Iterable[Link]) -> None:
    """Let all messages through again."""
    for link in links:
        link.mend()
