"""What becomes of each fragment, and for how long the dead wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from broadsheet.consumer.recoverylog.liveness import ENDLESS, LogNeeds
from broadsheet.consumer.recoverylog.prune_plan import (
    SPANS_MAX,
    LogListing,
    LogPlan,
    QuarantineRecord,
    SegmentFate,
    decode_quarantine,
    encode_quarantine,
    plan_log,
    quarantine_record,
)
from broadsheet.wire.journal_pb2 import Fragment

NEEDS = LogNeeds(log="logs/a", shards=("a",), intervals=((20, 30), (50, ENDLESS)))
DAY = 86_400
NOW = 100 * DAY


def fragment(begin: int, end: int, *, age: int = 0, persisted: bool = True) -> Fragment:
    """Return one that was last modified `age` seconds ago."""
    return Fragment(begin=begin, end=end, mod_time=NOW - age if persisted else 0)


def plan(
    fragments: Sequence[Fragment],
    known: QuarantineRecord | None = None,
    *,
    needs: LogNeeds = NEEDS,
    now: int = NOW,
    delay_seconds: float = DAY,
) -> LogPlan:
    """Return the plan of a prune of a log that ends in another fragment, which is needed."""
    return plan_log(
        needs,
        LogListing(7, [*fragments, fragment(90, 91)]),
        known or QuarantineRecord(create_revision=7),
        now=now,
        delay_seconds=delay_seconds,
    )


def counts(made: LogPlan) -> dict[str, tuple[int, int]]:
    """Return fragments and bytes by fate, where there are any, without the end of the log."""
    found = {fate.value: (tally.fragments, tally.bytes) for fate, tally in made.tallies.items()}
    fragments, length = found["needed"]
    found["needed"] = (fragments - 1, length - 1)
    return {fate: each for fate, each in found.items() if each[0]}


def test_each_fragment_has_one_fate() -> None:
    """Without a delay: needed, unpersisted, in somebody else's store, and the rest goes."""
    elsewhere = fragment(30, 34)
    elsewhere.backing_store = "s3://bucket/"
    made = plan(
        [
            fragment(0, 10),
            fragment(10, 20, persisted=False),
            fragment(18, 21),
            elsewhere,
            fragment(34, 50),
            fragment(50, 60),
        ],
        delay_seconds=0,
    )
    assert counts(made) == {
        "needed": (2, 13),
        "unpersisted": (1, 10),
        "elsewhere": (1, 4),
        "dead": (2, 26),
    }
    assert [(each.begin, each.end) for each in made.dead] == [(0, 10), (34, 50)]
    assert made.quarantined_until == 0


def test_newest_persisted_fragment_stays() -> None:
    """Dead as it is: a journal without it would begin at 0 again. What the broker still writes to does not count."""
    made = plan_log(
        NEEDS,
        LogListing(7, [fragment(0, 10), fragment(30, 40), fragment(40, 45, persisted=False)]),
        QuarantineRecord(),
        now=NOW,
        delay_seconds=0,
    )
    assert [each.begin for each in made.dead] == [0]
    assert made.tallies[SegmentFate.NEEDED].bytes == 10
    assert made.tallies[SegmentFate.UNPERSISTED].bytes == 5


def test_dead_wait_for_the_delay_after_the_first_prune_that_found_them_dead() -> None:
    """Old as they may be. The second prune comes a second too early, the third removes them, and forgets them."""
    dead = [fragment(0, 10, age=9 * DAY), fragment(10, 20, age=9 * DAY)]
    first = plan(dead)
    assert counts(first) == {"quarantined": (2, 20)}
    assert first.quarantined_until == NOW + DAY
    known = first.quarantine_after(set())
    assert known == QuarantineRecord(create_revision=7, spans=((0, 20, NOW),))

    second = plan(dead, known, now=NOW + DAY - 1)
    assert counts(second) == {"quarantined": (2, 20)}
    known = second.quarantine_after(set())

    third = plan(dead, known, now=NOW + DAY)
    assert counts(third) == {"dead": (2, 20)}
    assert third.quarantine_after({(0, 10), (10, 20)}).spans == ()
    assert third.quarantine_after({(0, 10)}).spans == ((10, 20, NOW),)


def test_old_fragments_go_at_once_where_a_backup_stands_for_all_later_hints() -> None:
    """Only those that are older than the delay by themselves."""
    based = replace(NEEDS, based=True)
    made = plan([fragment(0, 10, age=DAY), fragment(10, 20, age=DAY - 1)], needs=based)
    assert counts(made) == {"dead": (1, 10), "quarantined": (1, 10)}
    assert made.quarantined_until == NOW + 1


def test_what_came_alive_in_between_waits_anew() -> None:
    """Dead, then needed, then dead: the time before does not count."""
    known = plan([fragment(0, 10)]).quarantine_after(set())
    alive = plan([fragment(0, 10)], known, needs=replace(NEEDS, intervals=((0, ENDLESS),)))
    known = alive.quarantine_after(set())
    assert counts(plan([fragment(0, 10)], known, now=NOW + DAY)) == {"quarantined": (1, 10)}


def test_journal_made_anew_begins_without_a_past() -> None:
    """The record of another incarnation is about other bytes."""
    known = replace_revision(plan([fragment(0, 10)]).quarantine_after(set()), 6)
    assert counts(plan([fragment(0, 10)], known, now=NOW + 9 * DAY)) == {"quarantined": (1, 10)}


def replace_revision(record: QuarantineRecord, revision: int) -> QuarantineRecord:
    """Return the record of another incarnation."""
    return QuarantineRecord(create_revision=revision, spans=record.spans)


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, 10, 5),
        (0, 20, 8),
        (5, 25, 9),
        (0, 31, None),
        (40, 50, 9),
        (30, 40, None),
        (60, 61, None),
    ],
)
def test_span_is_dead_since_its_youngest_part(begin: int, end: int, expected: int | None) -> None:
    """Spans that touch are one, with several ages; a byte outside of all makes it unknown."""
    record = QuarantineRecord(spans=((0, 10, 5), (10, 20, 8), (20, 30, 9), (40, 60, 9)))
    assert record.dead_since(begin, end) == expected


def test_record_is_bounded_and_survives_its_encoding() -> None:
    """The longest dead are kept; garbage knows nothing."""
    spans = [(n * 10, n * 10 + 5, 1000 - n % 2) for n in range(SPANS_MAX + 10)]
    record = quarantine_record(3, spans)
    assert len(record.spans) == SPANS_MAX
    assert sum(since == 999 for _, _, since in record.spans) == (SPANS_MAX + 10) // 2
    assert list(record.spans) == sorted(record.spans)
    assert decode_quarantine(encode_quarantine(record)) == record
    assert decode_quarantine(b"garbage") == QuarantineRecord()
