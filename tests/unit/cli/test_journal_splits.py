"""The table of divisions of journals."""

from __future__ import annotations

from broadsheet.cli.journals.splits import JOURNAL_SPLIT_COLUMNS, journal_split_cells
from broadsheet.wire.elastic_pb2 import JournalPart, ListJournalSplitsResponse


def test_division_is_shown_with_its_parts_and_what_it_waits_for() -> None:
    """What a later release wrote has neither, but says so."""
    split = ListJournalSplitsResponse.JournalSplit(
        journal="orders",
        parts=[
            JournalPart(journal="orders-0000", begin=0, end=0x800),
            JournalPart(journal="orders-0800", begin=0x800, end=0x1000),
        ],
        phase="draining",
        reason="producer 0a has a transaction open",
    )
    unread = ListJournalSplitsResponse.JournalSplit(journal="orders", reason="a later release")

    assert journal_split_cells(split) == [
        "orders",
        "orders-0000 0000-0800, orders-0800 0800-1000",
        "draining",
        "producer 0a has a transaction open",
    ]
    assert journal_split_cells(unread) == ["orders", "?", "?", "a later release"]
    assert len(JOURNAL_SPLIT_COLUMNS) == len(journal_split_cells(split))
