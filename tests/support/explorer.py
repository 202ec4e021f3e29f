"""Looks at every state that a small model can reach, nearest first, so that what it finds is the shortest way there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

StateT = TypeVar("StateT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Explored(Generic[StateT]):
    """What an exploration found."""

    states: int
    problem: str = ""
    """What is wrong with the last state of `path`; empty if nothing is wrong with any state."""
    path: tuple[str, ...] = ()
    """The steps that lead from the beginning to the wrong state."""
    final: tuple[StateT, ...] = ()
    """States without a successor."""

    def __str__(self) -> str:
        steps = [f"{number:3}  {step}" for number, step in enumerate(self.path, start=1)]
        return "\n".join((f"{self.states} states", *steps, self.problem))


def explore(
    initial: StateT,
    successors: Callable[[StateT], Iterable[tuple[str, StateT]]],
    problem_of: Callable[[StateT], str],
    *,
    states_max: int = 2_000_000,
) -> Explored[StateT]:
    """Visit every state that can be reached, breadth first, up to the first wrong one.

    Args:
        initial: Where to begin.
        successors: Returns each step that a state allows, and where it leads.
        problem_of: Returns what is wrong with a state; empty if nothing is.
        states_max: A model that has more is not small.
    """
    came_from: dict[StateT, tuple[StateT, str] | None] = {initial: None}
    waiting = deque([initial])
    final: list[StateT] = []
    while waiting:
        state = waiting.popleft()
        problem = problem_of(state)
        if problem:
            return Explored(len(came_from), problem, _path(came_from, state))
        steps = list(successors(state))
        if not steps:
            final.append(state)
        for step, following in steps:
            if following not in came_from:
                came_from[following] = state, step
                waiting.append(following)
        assert len(came_from) <= states_max, (
            f"more than {states_max} states: make the model smaller"
        )
    return Explored(len(came_from), final=tuple(final))


def _path(came_from: dict[StateT, tuple[StateT, str] | None], state: StateT) -> tuple[str, ...]:
    steps: list[str] = []
    while (step := came_from[state]) is not None:
        state, text = step
        steps.append(text)
    return tuple(reversed(steps))
