"""Source journals that are divided under faults: the real runtime, on virtual time. Broken rules are seen.

A few seeds and rules run always; `make test-sim` runs two thousand seeds, and `make nightly-elastic` breaks all rules.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from broadsheet.consumer.member import journal_splitter
from broadsheet.consumer.member.journal_splitter import JournalSplitter
from broadsheet.consumer.shard import transaction_loop
from broadsheet.consumer.shard.sources import Sources
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.division import DividedJournals
from broadsheet.journals.message.open_transactions import OpenTransaction, OpenTransactions
from broadsheet.testing.allocator.kernel.command import run_seed
from broadsheet.testing.divisions.run import DivisionScenario, divisions, simulate
from broadsheet.wire.journal_pb2 import LabelSelector
from broadsheet.wire.shard_pb2 import Checkpoint, ShardSpec

# Many runs a test: on a busy machine they take their time.
pytestmark = pytest.mark.timeout(900)

Break = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(2))
def test_messages_of_a_key_are_read_once_and_in_order_while_journals_are_divided(seed: int) -> None:
    """D1 to D3, and what holds of families, whatever stops at a step of a division."""
    outcome = run_seed(seed, divisions())

    assert outcome.ok, outcome.text


def _reader_begins_a_part_before_the_journal_is_read(patch: pytest.MonkeyPatch) -> None:
    def at_once(
        sources: Sources,
        source: ShardSpec.Source,
        checkpoint: Checkpoint,
        loop: Any,
        batches: AsyncGenerator[MessageBatch, None],
    ) -> AsyncGenerator[MessageBatch, None]:
        del sources, source, checkpoint, loop
        return batches

    patch.setattr(Sources, "behind_seal", at_once)


def _publisher_does_not_look_at_the_register(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction_loop, "UNDIVIDED", LabelSelector())


def _publishers_are_not_asked_to_leave(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None:
        pass

    patch.setattr(JournalSplitter, "have_publishers_leave", nothing)


def _seal_awaits_no_open_transaction(patch: pytest.MonkeyPatch) -> None:
    def none_open(transactions: OpenTransactions, seconds: float) -> list[OpenTransaction]:
        del transactions, seconds
        return []

    patch.setattr(OpenTransactions, "since", none_open)


def _journal_leaves_the_sources_unread(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None:
        pass

    async def none_unread(*_: object) -> Mapping[str, str]:
        return {}

    patch.setattr(JournalSplitter, "require_read", nothing)
    patch.setattr(Sources, "unread", none_unread)


def _part_is_chosen_without_the_key(patch: pytest.MonkeyPatch) -> None:
    """Every other message of a key goes to the part of another key."""
    part_of = DividedJournals.part_of
    calls: list[bytes] = []

    def any_part(journals: DividedJournals, journal: str, key: bytes) -> str:
        calls.append(key)
        return part_of(journals, journal, key + b"!" if len(calls) % 2 else key)

    patch.setattr(DividedJournals, "part_of", any_part)


def _part_leaves_the_sources_before_its_journal(patch: pytest.MonkeyPatch) -> None:
    """Together with the look for sealed sources, which repairs it later."""

    async def nothing(*_: object) -> None:
        pass

    patch.setattr(journal_splitter, "read_before", lambda *_: "")
    patch.setattr(JournalSplitter, "find_sealed", nothing)


OFTEN_DIVIDED = DivisionScenario(
    struck=0.7,
    divide_seconds=(0.3, 2.0),
    split_seconds=(2.0, 10.0),
    write_seconds=(0.02, 0.2),
    settle_seconds_max=60.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A rule that does not hold, and the invariants of which one is broken by it."""

    by: Break
    invariants: str
    seeds: int = 40
    """Within so many it is caught."""
    is_quick: bool = False
    """It is caught so soon that each run of the tests can afford it."""


BROKEN = [
    Broken(by=_reader_begins_a_part_before_the_journal_is_read, invariants="D1", is_quick=True),
    Broken(by=_publisher_does_not_look_at_the_register, invariants="D1 D2", is_quick=True),
    Broken(by=_publishers_are_not_asked_to_leave, invariants="D1 D2", seeds=240),
    Broken(by=_seal_awaits_no_open_transaction, invariants="D1 D2"),
    Broken(by=_journal_leaves_the_sources_unread, invariants="D1 S1", is_quick=True),
    Broken(by=_part_is_chosen_without_the_key, invariants="D1", is_quick=True),
    Broken(by=_part_leaves_the_sources_before_its_journal, invariants="S1"),
]
_ALL = os.environ.get("BROKEN_RULES", "") == "all"


@pytest.mark.parametrize(
    "broken",
    [each for each in BROKEN if _ALL or each.is_quick],
    ids=lambda broken: broken.by.__name__.strip("_"),
)
def test_rule_of_divisions_that_is_broken_on_purpose_is_caught(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not seen here would not be seen in the product either."""
    broken.by(monkeypatch)
    reports = (simulate(seed, OFTEN_DIVIDED) for seed in range(broken.seeds))
    failed = next((report for report in reports if not report.ok), None)
    assert failed is not None, "no seed shows it"
    assert failed.violation is not None
    assert failed.violation.invariant in broken.invariants.split(), str(failed)
