"""What stores, the broker and the staging of recovery logs keep through power cuts, with a small budget.

`make powercut` does the same for long.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from tests.powercut.__main__ import main
from tests.powercut.brokers import PowerCutBroker
from tests.powercut.recorder import Fate, Nursery
from tests.powercut.run import at_data_sync, at_directory_sync, cut, cut_after_promises
from tests.powercut.subject import PowerCutSubject
from tests.powercut.subjects import SUBJECTS, modules_of

CUTS = 12


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """A process that has loaded the programs."""
    with Nursery(*modules_of(SUBJECTS)) as running:
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
    findings = cut_after_promises(subject, nursery, at_data_sync(fate, 4), seed=0)
    assert [str(each) for each in findings if each is not None] == []


def test_power_cut_of_a_broker_that_was_killed_at_the_birth_of_a_journal_keeps_its_appends(
    nursery: Nursery,
) -> None:
    """A journal's directory was made, and its name not synced: the next broker does that before it takes appends."""
    killed = at_directory_sync("broker/journals", 2)
    findings = list(cut_after_promises(PowerCutBroker(), nursery, killed, seed=0))
    assert [str(each) for each in findings if each is not None] == []
    assert findings


def test_power_cuts_of_the_long_tier_end_with_the_time() -> None:
    """`make powercut` says how many cuts it made, and with which seed they are repeated."""
    arguments = ["--seconds", "0.1", "--seed", "7", "--subject", "staging"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert result.output.endswith(" cuts from seed 7 on, 0 findings\n")
    assert int(result.output.split()[0]) > 0
