"""What stores, the broker and the staging of recovery logs keep through power cuts, with a small budget.

`make powercut` does the same for long.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.powercut.recorder import Fate, Nursery
from tests.powercut.run import cut, cut_after_promises
from tests.powercut.subject import PowerCutSubject
from tests.powercut.subjects import MODULES, SUBJECTS

CUTS = 12


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """A process that has loaded the programs."""
    with Nursery(*MODULES) as running:
        yield running


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda each: each.name)
def test_power_cut_at_any_instant_keeps_what_was_promised(
    nursery: Nursery, subject: PowerCutSubject
) -> None:
    """Killed, failing to sync, and cut off: the disk opens, and is not behind what was acknowledged or restored."""
    findings = cut(subject, nursery, seed=0, rounds=2, cuts=CUTS)
    assert [str(each) for each in findings if each is not None] == []


@pytest.mark.parametrize("fate", [Fate.KILL, Fate.FAIL], ids=lambda each: each.value)
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda each: each.name)
def test_power_cut_after_each_promise_of_a_successor_keeps_it(
    nursery: Nursery, subject: PowerCutSubject, fate: Fate
) -> None:
    """A life is killed at a sync, or the sync fails: what its successor restores from memory is on the disk first."""
    findings = cut_after_promises(subject, nursery, seed=0, fate=fate, at=3)
    assert [str(each) for each in findings if each is not None] == []
