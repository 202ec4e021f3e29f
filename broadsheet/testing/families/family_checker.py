"""Checks the invariants of a family, beside S0 to S4 of a single shard (`broadsheet.testing.shards.history_checker`).

    S5  at every revision of etcd, the ranges of the shards that serve are disjoint and cover all groups
    S6  each input is recorded once, whichever shards divided its key; acknowledgements are made by their own shard
    S7  in the end each input is in the state of the shard that owns its group
    S9  nothing of a split or a merge that is over, or was cancelled, remains in etcd

That a child recovers from its hints over both logs (S8) is no check of its own: it is restored from them, and killed.

A *life* is a shard from the creation of its spec to its deletion: another one may have the same id, and the same log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from broadsheet.consumer.elastic.family import is_fork
from broadsheet.testing.families.application import group_of_number
from broadsheet.testing.shards.broker import Appended
from broadsheet.testing.shards.history_checker import (
    FOREIGN,
    INPUTS,
    OUTPUTS,
    HistoryChecker,
    output_of,
)
from broadsheet.testing.shards.stores import State
from broadsheet.wire.key_range import key_range_of, uncovered
from broadsheet.wire.shard_pb2 import ShardSpec


@dataclass(slots=True)
class FamilyChecker(HistoryChecker):
    """Checks the invariants of a family at each event."""

    serving: Callable[[], Mapping[str, ShardSpec]] = dict
    """The shards of the family that etcd has now, by life."""
    left_over: Callable[[], Iterable[str]] = tuple
    """What is in etcd of splits and merges, in words."""
    group_of: Callable[[int], int] = group_of_number
    """Returns the group of a number."""
    states: dict[str, State] = field(default_factory=dict)
    """By life: the newest state that is known to be durable."""
    forks: int = 0
    """Number of splits that were committed."""
    merges: int = 0
    """Number of merges that were committed."""
    _records: int = 0
    _lives: frozenset[str] = frozenset()
    """That serve."""
    _intents: dict[bytes, str] = field(default_factory=dict)
    """The life that first committed an acknowledgement."""

    def on_appended(self, appended: Appended) -> None:
        """Check an append to an input or an output: what logs amount to, stores say."""
        # Named, because a slotted dataclass is another class than the one that `super()` finds.
        if appended.journal in INPUTS or appended.journal in OUTPUTS:
            HistoryChecker.on_appended(self, appended)

    def new_record(self) -> int:
        """Return a number that no other record has."""
        self._records += 1
        return self._records

    def on_state(self, life: str, state: Mapping[str, int]) -> None:
        """Check a state of a shard that is durable: one that it restored, or was told of."""
        # Records alone: a child of a child begins with its parent's mark.
        state = {key: value for key, value in state.items() if key.isdecimal()}
        known = self.states.get(life, {})
        if state.items() <= known.items():
            return  # Of a former attempt that does not know yet.
        if not known.items() <= state.items():
            gone = sorted(known.items() - state.items())
            self.violate("S3", f"{life} lost or changed {gone}, which were durable")
        added = {key: value for key, value in state.items() if key not in known}
        self.commits += 1
        self.states[life] = state
        for key, value in added.items():
            self._on_recorded(life, int(key), value)

    def on_intents(self, life: str, intents: Mapping[str, bytes]) -> None:
        """Note the acknowledgements that a shard commits."""
        for content in intents.values():
            self._intents.setdefault(content, life)

    def on_restored_intents(self, life: str, intents: Mapping[str, bytes]) -> None:
        """Check the acknowledgements that a shard is about to make again."""
        for content in intents.values():
            owner = self._intents.get(content, life)
            if owner != life:
                self.violate("S6", f"{life} acknowledges what {owner} published")

    def on_specs(self) -> None:
        """Check the ranges of the family, whose specs have changed."""
        serving = {life: spec for life, spec in self.serving().items() if not is_fork(spec)}
        if problem := uncovered(key_range_of(spec.labels) for spec in serving.values()):
            self.violate("S5", problem)
        if self._lives:
            self.forks += len(serving.keys() - self._lives)
            self.merges += len(self._lives - serving.keys())
        self._lives = frozenset(serving)

    def missing(self) -> list[str]:
        """Return the expectations of a run's end that are not met yet, in words."""
        found = [*self.left_over(), *HistoryChecker.missing(self)]
        early = sorted(
            number
            for numbers in self.visible.values()
            for number in numbers
            if str(number) not in self.durable
        )
        if early:
            found.append(f"outputs show {early}, whose transactions are not durable")
        for life, spec in self.serving().items():
            owned = key_range_of(spec.labels)
            state = self.states.get(life, {})
            lacks = sorted(
                number
                for number in self.committed
                if self.group_of(number) in owned and str(number) not in state
            )
            if lacks:
                found.append(f"{life} of {owned} has not recorded {lacks}")
        return found

    def _on_visible(self, journal: str, numbers: list[int]) -> None:
        """Check outputs. That their transactions are durable is checked in the end: stores tell that a little later."""
        for number in numbers:
            if number >= FOREIGN:
                continue
            if number in self.visible[journal]:
                self.violate("S1", f"{journal} shows {number} twice")
            if output_of(number) != journal:
                self.violate("S1", f"{journal} shows {number}, which is not for it")
            self.visible[journal].append(number)

    def _on_recorded(self, life: str, number: int, value: int) -> None:
        if number not in self.committed:
            self.violate("S1", f"input {number} is recorded, and not committed")
        key = str(number)
        for other, state in self.states.items():
            if state.get(key, value) != value:
                self.violate("S6", f"{life} and {other} both recorded input {number}")
        self.durable[key] = value


@dataclass(frozen=True, slots=True)
class LifeObserver:
    """Tells the checker the states of one life. Implements `broadsheet.testing.shards.stores.StoreObserver`."""

    checker: FamilyChecker
    life: str

    def on_restored(self, state: Mapping[str, int]) -> None:
        """Check the state that a store restored."""
        self.checker.restores += 1
        self.checker.on_state(self.life, state)

    def on_believed(self, state: Mapping[str, int]) -> None:
        """Check a state that a store was told to be durable."""
        self.checker.on_state(self.life, state)
