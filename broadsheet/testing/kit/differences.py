"""Outcomes of two runs compared, and what a difference tells of the application. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

_SHOWN_MAX = 200
"""Characters of a value in a message."""
_DIFFERENCES_MAX = 5


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The results of a run, as plain values."""

    state: Any
    published: Mapping[str, Sequence[Any]]
    """Committed messages by journal."""
    effects: Sequence[Any] = ()


class Kind(Enum):
    """The kind of a difference."""

    TWICE = "twice"
    LOST = "lost"
    STATE = "state"
    EFFECT_TWICE = "effect twice"
    EFFECT_LOST = "effect lost"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class _Counted:
    values: list[Any] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, value: Any, by: int) -> None:
        """Count a value, which need not be hashable."""
        try:
            index = self.values.index(value)
        except ValueError:
            index = len(self.values)
            self.values.append(value)
            self.counts.append(0)
        self.counts[index] += by


def without(value: Any, names: Collection[str]) -> Any:
    """Return a plain value without the fields of these names, at any depth."""
    if not names:
        return value
    if isinstance(value, Mapping):
        return {key: without(each, names) for key, each in value.items() if key not in names}
    if isinstance(value, list):
        return [without(each, names) for each in value]
    return value


def differences(outcome: RunOutcome, expected: RunOutcome) -> list[Difference]:
    """Return what differs, the most telling first: messages, then effects, then the state."""
    found: list[Difference] = []
    for journal in sorted({*outcome.published, *expected.published}):
        has, wanted = outcome.published.get(journal, ()), expected.published.get(journal, ())
        for value, count, should in _unequal(has, wanted):
            kind = Kind.TWICE if count > should else Kind.LOST
            found.append(
                Difference(kind, f"{journal!r} has {_shown(value)} {_times(count, should)}")
            )
    for value, count, should in _unequal(outcome.effects, expected.effects):
        kind = Kind.EFFECT_TWICE if count > should else Kind.EFFECT_LOST
        found.append(Difference(kind, f"effect {_shown(value)} happened {_times(count, should)}"))
    found += [
        Difference(Kind.STATE, text) for text in _states(outcome.state, expected.state, "state")
    ]
    return found


def _unequal(has: Sequence[Any], wanted: Sequence[Any]) -> Iterator[tuple[Any, int, int]]:
    """Yield (value, times that it is there, times that it should be). The order of messages is not compared."""
    surplus = _Counted()
    there = _Counted()
    for value in has:
        surplus.add(value, 1)
        there.add(value, 1)
    for value in wanted:
        surplus.add(value, -1)
        there.add(value, 0)
    for value, count in zip(surplus.values, surplus.counts, strict=True):
        if count:
            times = there.counts[there.values.index(value)]
            yield value, times, times - count


def _times(count: int, should: int) -> str:
    words = {0: "not at all", 1: "once", 2: "twice"}
    return f"{words.get(count, f'{count} times')}, expected {words.get(should, f'{should} times')}"


def _states(state: Any, expected: Any, path: str) -> list[str]:
    if state == expected:
        return []
    if not (isinstance(state, Mapping) and isinstance(expected, Mapping)):
        return [f"{path} is {_shown(state)}, expected {_shown(expected)}"]
    found: list[str] = []
    for key in sorted({*state, *expected}, key=repr):
        place = f"{path}[{key!r}]"
        if key not in expected:
            found.append(f"{place} is {_shown(state[key])}, expected no such entry")
        elif key not in state:
            found.append(f"{place} is missing, expected {_shown(expected[key])}")
        else:
            found += _states(state[key], expected[key], place)
    return found


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def told(found: Sequence[Difference]) -> str:
    """Return differences as indented lines."""
    lines = [f"  {each.text}" for each in found[:_DIFFERENCES_MAX]]
    more = len(found) - _DIFFERENCES_MAX
    return "\n".join(lines + ([f"  and {more} more"] if more > 0 else []))


UNSTEADY = (
    "Two runs without any fault differ. The application uses what differs from run to run (uuid4, the time, random "
    "numbers, hash() of a text, the order of a set), or keeps something outside its store that outlives a process of "
    "the cluster: a global, a class attribute, a module's cache, a file of its own. A transaction that is run again "
    "must have the same effect: make keys from the message (its fields, envelope.begin) and keep state in the store. "
    "Fields that may differ, such as the time of processing, are left out with ignore=(…)."
)
_HINTS = {
    Kind.TWICE: (
        "A message of a transaction that was run again is visible twice, so it was not published by the transaction: "
        "use publisher.publish_uncommitted in consume_message, consume_batch or finalize_txn. publish_committed, "
        "another publisher, another client, a thread or finished_txn publish whether or not the transaction commits."
    ),
    Kind.LOST: (
        "A message is missing: either the commit became durable before what the transaction published (start_commit "
        "must write nothing before every future of wait_for has succeeded), or the application published by what it "
        "remembered outside its store, such as a cache that was not loaded again."
    ),
    Kind.STATE: (
        "The state is not that of the last commit plus what was read again: something is kept outside the store (a "
        "global, an attribute of the application, a cache in the store), or restore_checkpoint does not load all of "
        "it, or start_commit commits state and checkpoint separately."
    ),
    Kind.EFFECT_TWICE: (
        "A transaction that is run again repeats what consume_message does outside the store. Publish a message "
        "instead, and let a receiver that knows repetitions by their key perform it, or write it to the store's own "
        "database in the same transaction."
    ),
    Kind.EFFECT_LOST: (
        "An effect outside the store did not happen, although the transaction of its message is committed: it must not "
        "depend on the process that commits, such as a buffer or a callback after the commit."
    ),
}


def hint(found: Sequence[Difference]) -> str:
    """Return what the first difference tells of the application."""
    return _HINTS[found[0].kind]
