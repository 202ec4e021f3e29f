"""Every kill point of an application tried: state and messages must be those of a run without faults.

run twice without faults ─► steps ─► kill after each of them, fail each commit, lose each answer ─► compare
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

from broadsheet.runtime.errors import BroadsheetError, ValidationError
from broadsheet.testing.allocator.kernel.run import logs_to
from broadsheet.testing.kit.cluster import NewApplication, TestCluster
from broadsheet.testing.kit.differences import (
    UNSTEADY,
    RunOutcome,
    differences,
    hint,
    told,
    without,
)
from broadsheet.testing.kit.errors import NotExactlyOnceError
from broadsheet.testing.kit.states import plain
from broadsheet.testing.kit.steps import KillPoint, Step, StepTaken, kill_points
from broadsheet.testing.kit.topology import Journals, Shards

Inputs: TypeAlias = Mapping[str, Sequence[Any]]
"""Messages by journal."""
ROUNDS = 4
"""Rounds in which inputs are published by default: each is a transaction at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """The settings of every run."""

    new_cluster: Callable[[], TestCluster]
    rounds: Sequence[Sequence[tuple[str, Sequence[Any]]]]
    effects: Callable[[], Sequence[Any]]
    ignore: Collection[str]


@dataclass(frozen=True, slots=True)
class _CommitFault:
    """A commit that fails, or whose answer is lost."""

    loses_answer: bool
    shard: str
    times: int

    def __str__(self) -> str:
        if self.loses_answer:
            return f"shard {self.shard!r}: commit {self.times} was durable, but its answer was lost"
        return f"shard {self.shard!r}: commit {self.times} failed"


_Fault: TypeAlias = KillPoint | _CommitFault


@dataclass(slots=True)
class _Run:
    outcome: RunOutcome
    steps: list[StepTaken] = field(default_factory=list)


def assert_exactly_once(
    application: NewApplication | str,
    inputs: Inputs,
    *,
    shards: Shards = None,
    journals: Journals = None,
    standbys: int = 0,
    state: Callable[[Any], Any] | None = None,
    effects: Callable[[], Sequence[Any]] | None = None,
    ignore: Collection[str] = (),
    rounds: int = ROUNDS,
) -> int:
    """Assert that an application is exactly once, wherever its process ends.

        assert_exactly_once(Alerts, {"orders": [{"id": 1, "cents": 900}, {"id": 2, "cents": 12_000}]})

    The inputs are run without faults, twice. Then they are run again for each step that the shards took: the primary
    is killed right after it and another process takes over. Then each commit fails, and the answer to each commit is
    lost. After each run the state of the stores and the messages in all journals must be those of the first run; the
    order of a journal's messages is not compared.

    Args:
        application: As of `TestCluster`: the class, or a function; each process makes its own.
        inputs: Messages by journal.
        shards: As of `TestCluster`.
        journals: As of `TestCluster`.
        standbys: As of `TestCluster`.
        state: As of `TestCluster`: what of a store is compared.
        effects: Returns a list of what the application did outside of store and journals so far, such as the calls
            that a fake of another service has got; they must not be repeated either. The list may go on growing.
        ignore: Names of fields that may differ from run to run, in messages and states.
        rounds: Parts in which the inputs are published, each of them one transaction at least.

    Returns:
        The number of faults that were tried.

    Raises:
        NotExactlyOnceError: two runs differ, or a shard does not get over a fault; the message names the fault, tells
            what differs, and what is likely to be wrong.
        ValidationError: an argument is wrong.
    """
    trial = _Trial(
        new_cluster=lambda: TestCluster(
            application, shards=shards, journals=journals, standbys=standbys, state=state
        ),
        rounds=_rounds(inputs, rounds),
        effects=effects or tuple,
        ignore=frozenset(ignore),
    )
    __tracebackhide__ = True
    # Shards fail by the dozen: the error tells what matters of it.
    with logs_to(None):
        expected = _run(trial, None)
        again = _run(trial, None)
        found = differences(again.outcome, expected.outcome)
        if found:
            raise NotExactlyOnceError(f"in a second run:\n{told(found)}\n{UNSTEADY}")
        faults = _faults(expected.steps)
        for fault in faults:
            _try(trial, fault, expected.outcome)
    return len(faults)


def _rounds(inputs: Inputs, count: int) -> list[list[tuple[str, Sequence[Any]]]]:
    """Cut the messages of each journal into parts; round n has the n-th part of each."""
    if not inputs or not any(inputs.values()):
        raise ValidationError("inputs", "expected messages by journal; got none")
    if count < 1:
        raise ValidationError("rounds", f"expected 1 or more, got {count}")
    rounds: list[list[tuple[str, Sequence[Any]]]] = [[] for _ in range(count)]
    for journal, messages in inputs.items():
        for index, each in enumerate(rounds):
            part = messages[index * len(messages) // count : (index + 1) * len(messages) // count]
            if part:
                each.append((journal, part))
    return [each for each in rounds if each]


def _faults(steps: Sequence[StepTaken]) -> list[_Fault]:
    sent: dict[str, int] = {}
    for each in steps:
        if each.step is Step.COMMIT_SENT:
            sent[each.shard] = sent.get(each.shard, 0) + 1
    commits = [
        _CommitFault(loses_answer, shard, number)
        for shard, count in sent.items()
        for number in range(1, count + 1)
        for loses_answer in (False, True)
    ]
    return [*kill_points(steps), *commits]


def _try(trial: _Trial, fault: _Fault, expected: RunOutcome) -> None:
    __tracebackhide__ = True
    try:
        run = _run(trial, fault)
    except BroadsheetError as error:
        raise NotExactlyOnceError(f"{fault}:\n  the shard did not get over it: {error}") from error
    except AssertionError as error:
        raise NotExactlyOnceError(f"{fault}:\n  {error}\n{UNSTEADY}") from error
    found = differences(run.outcome, expected)
    if found:
        raise NotExactlyOnceError(f"{fault}:\n{told(found)}\n{hint(found)}")


def _run(trial: _Trial, fault: _Fault | None) -> _Run:
    effects_before = len(trial.effects())
    with trial.new_cluster() as cluster:
        if isinstance(fault, KillPoint):
            taken = fault.taken
            cluster.kill_primary(
                taken.shard, after=taken.step, journal=taken.detail, times=fault.times
            )
        elif fault is not None and fault.loses_answer:
            cluster.lose_answer(fault.shard, times=fault.times)
        elif fault is not None:
            cluster.fail_commit(fault.shard, times=fault.times)
        for each in trial.rounds:
            for journal, messages in each:
                cluster.publish(journal, *messages)
            cluster.read_through()
        outcome = _outcome(trial, cluster, effects_before)
        return _Run(outcome, cluster.steps)


def _outcome(trial: _Trial, cluster: TestCluster, effects_before: int) -> RunOutcome:
    def clean(value: Any) -> Any:
        return without(plain(value), trial.ignore)

    return RunOutcome(
        state=clean(cluster.states()),
        published={
            journal: [clean(message) for message in cluster.published(journal)]
            for journal in cluster.journals()
        },
        effects=[clean(effect) for effect in chain(trial.effects()[effects_before:])],
    )
