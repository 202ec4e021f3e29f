"""A simulated cluster of a keyed shard: every member has a clock of its own, which differs from others and jumps."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from broadsheet.consumer.application import Application, Shard
from broadsheet.runtime.clock import Clock
from broadsheet.testing.allocator.kernel.network import Link
from broadsheet.testing.allocator.kernel.run import RunContext
from broadsheet.testing.keyed.application import SHAPES, Mode, SimulatedKeyed
from broadsheet.testing.keyed.keyed_checker import KeyedChecker
from broadsheet.testing.keyed.stepped_commits import SteppedCommits
from broadsheet.testing.shards.cluster import ConsumerCluster
from broadsheet.testing.shards.scenario import ShardScenario

STEP_SECONDS_MAX = 0.02
"""Time between two steps of a commit."""


@dataclass(eq=False, slots=True)
class SkewedClock:
    """A clock that differs from the run's by some seconds. Implements `broadsheet.runtime.clock.Clock`."""

    clock: Clock
    ahead_seconds: float

    def monotonic_seconds(self) -> float:
        """Return virtual seconds, which no skew changes."""
        return self.clock.monotonic_seconds()

    def wall_seconds(self) -> float:
        """Return seconds since the Unix epoch, as this clock has them."""
        return self.clock.wall_seconds() + self.ahead_seconds


class KeyedCluster(ConsumerCluster):
    """The broker, etcd and members of one run."""

    def __init__(
        self,
        context: RunContext,
        scenario: ShardScenario,
        *,
        checker: KeyedChecker,
        mode: Mode,
        skew_seconds: float,
        directory: Path,
    ) -> None:
        """Create the journals and the shard, without members.

        Args:
            context: The run.
            scenario: Shapes and bounds of the run.
            checker: Checks the history of the run.
            mode: The kind of time of timers.
            skew_seconds: Clocks are so far ahead or behind at most.
            directory: Holds members' files.
        """
        self._checker = checker
        self._mode: Mode = mode
        self._skew_seconds = skew_seconds
        self._chance = Random(f"{context.seed} keyed")
        self._clocks: list[SkewedClock] = []
        self._lives = itertools.count(1)
        super().__init__(context, scenario, witness=checker, directory=directory)

    def jump(self) -> str:
        """Set the clock of some member; return what happened, in words."""
        ahead = self._skew()
        if not self._clocks:
            return "no clock"
        number = self._chance.randrange(len(self._clocks))
        clock = self._clocks[number]
        before, clock.ahead_seconds = clock.ahead_seconds, ahead
        return f"clock {number + 1} from {before:+.3f} to {ahead:+.3f} s"

    def _skew(self) -> float:
        return self._chance.uniform(-self._skew_seconds, self._skew_seconds)

    def _new_application(self, to_table: Link) -> Application[Any]:
        del to_table
        clock = SkewedClock(self.clock, self._skew())
        self._clocks.append(clock)
        return SimulatedKeyed(
            self._mode,
            version=self._chance.randrange(len(SHAPES)),
            clock=clock,
            whims=self,
            new_commits=self._new_commits,
            new_life=partial(next, self._lives),
            on_warm=self._checker.on_warm,
        )

    def _new_commits(self, shard: Shard) -> SteppedCommits:
        def later(action: Callable[[], None]) -> None:
            seconds = self._chance.uniform(0.0, STEP_SECONDS_MAX)
            asyncio.get_running_loop().call_later(seconds, action)

        self._checker.on_opened()
        return SteppedCommits(shard.id, later, on_durable=self._checker.on_told_durable)
