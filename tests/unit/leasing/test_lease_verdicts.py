"""What a writer may do after it met another record than expected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from broadsheet.leases import rules
from broadsheet.leases.compare_and_swap import (
    SwapAttempt,
    SwapOutcome,
    verdict_of_anybody,
    verdict_of_holder,
    verdict_of_overseer,
    verdict_of_taker,
)
from broadsheet.leases.record import LeaseRecord, Version, Versioned

HELD = LeaseRecord(key="a", owner="w1", epoch=2, counter=5, write_id="before")
SEEN = Versioned(record=HELD, version=Version("10"), fence=7)

LANDED, APPLY_AGAIN, LOST = SwapOutcome.LANDED, SwapOutcome.APPLY_AGAIN, SwapOutcome.LOST
MINE = "mine"


def _attempt(written: LeaseRecord) -> SwapAttempt:
    return SwapAttempt(
        seen=SEEN, written=written, write_id=MINE if written.counter != HELD.counter else None
    )


def _current(record: LeaseRecord, *, fence: int = 7, version: str = "11") -> Versioned:
    return Versioned(record=record, version=Version(version), fence=fence)


def _written(record: LeaseRecord) -> LeaseRecord:
    return replace(record, write_id=MINE)


RENEWED = replace(rules.renew(HELD), write_id="theirs")


@pytest.mark.parametrize(
    ("current", "verdict"),
    [
        (_current(_written(rules.renew(HELD))), LANDED),
        (_current(rules.claim(HELD, "w2")), APPLY_AGAIN),
        (_current(rules.begin_hand_off(HELD, "w2")), APPLY_AGAIN),
        (_current(rules.note_children(HELD, children=frozenset({"b"}))), APPLY_AGAIN),
        (SEEN, APPLY_AGAIN),
        (_current(RENEWED), LOST),
        (_current(HELD, fence=0), LOST),
        (_current(HELD, fence=8), LOST),
        (_current(rules.take(HELD, "w1"), fence=8), LOST),
        (_current(rules.evict(HELD), fence=0), LOST),
        (_current(replace(HELD, handoff_from="w1")), LOST),
    ],
    ids=[
        *("own write", "claimed", "handed off", "children", "not applied", "written elsewhere"),
        *("owner key expired", "owner key of another", "lost and regained", "evicted", "corrupt"),
    ],
)
def test_verdict_of_holder(current: Versioned, verdict: SwapOutcome) -> None:
    """A holder's write is made on top of what anybody may change, and of nothing else."""
    assert verdict_of_holder(_attempt(rules.renew(HELD)), current) is verdict


@pytest.mark.parametrize(
    ("current", "verdict"),
    [
        (_current(_written(rules.take(HELD, "w2"))), LANDED),
        (SEEN, APPLY_AGAIN),
        (_current(rules.claim(HELD, "w3")), LOST),
        (_current(HELD, fence=0, version="10"), LOST),
        (_current(RENEWED), LOST),
    ],
    ids=["own write", "not applied", "claimed", "owner key expired", "renewed"],
)
def test_verdict_of_taker(current: Versioned, verdict: SwapOutcome) -> None:
    """Whoever takes decided on all that it saw; anything new may have changed its mind."""
    assert verdict_of_taker(_attempt(rules.take(HELD, "w2")), current) is verdict


def _hand_off(record: LeaseRecord) -> LeaseRecord:
    return rules.begin_hand_off(record, "w2")


@pytest.mark.parametrize(
    ("rule", "current", "verdict"),
    [
        (rules.evict, _current(RENEWED), APPLY_AGAIN),
        (rules.evict, _current(_written(rules.evict(HELD)), fence=0), LANDED),
        (rules.evict, _current(rules.evict(RENEWED), fence=0), LOST),
        (rules.evict, _current(rules.take(HELD, "w1"), fence=8), LOST),
        (_hand_off, _current(_hand_off(HELD)), LANDED),
        (_hand_off, _current(_hand_off(RENEWED)), LANDED),
        (_hand_off, _current(rules.begin_hand_off(HELD, "w3")), LOST),
        (_hand_off, _current(RENEWED), APPLY_AGAIN),
    ],
    ids=[
        *("renewed", "own write", "evicted by another", "taken again"),
        *("own hand-off", "own hand-off, renewed", "another hand-off", "renewed too"),
    ],
)
def test_verdict_of_overseer(
    rule: Callable[[LeaseRecord], LeaseRecord], current: Versioned, verdict: SwapOutcome
) -> None:
    """Whoever decides about owners compares owners: the holder's writes are no reason to give up."""
    assert verdict_of_overseer(_attempt(rule(HELD)), current) is verdict


def test_verdict_of_anybody_is_to_try_again() -> None:
    """What it adds it may add twice."""
    attempt = _attempt(rules.note_children(HELD, children=frozenset({"b"})))

    assert verdict_of_anybody(attempt, _current(rules.take(HELD, "w2"), fence=8)) is APPLY_AGAIN
