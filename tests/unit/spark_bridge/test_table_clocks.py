"""What the journal source does about messages whose clocks are ahead of the driver's."""

from __future__ import annotations

import pytest
import structlog

from broadsheet.journals.errors import ClockAheadError
from broadsheet.journals.message.uuid import Flags, clock_at
from broadsheet.spark_bridge.journal_source.options import read_options
from broadsheet.spark_bridge.journal_source.planner import TableClocks
from tests.support.commit_scans import table_of_batch
from tests.support.sequencer_logs import A, B, log_of

NEEDED = {"address": "http://127.0.0.1:8081", "selector": "name=a/journal"}
NOW = 1_800_000_000.0


def clocks_of(**options: str) -> TableClocks:
    """Return what looks at clocks at the time `NOW`."""
    return TableClocks(read_options({**NEEDED, **options}), wall_seconds=lambda: NOW)


TABLE = table_of_batch(
    log_of(
        (A, clock_at(int(NOW * 1e9)), Flags.OUTSIDE_TXN),
        (B, clock_at(int((NOW + 7200) * 1e9)), Flags.OUTSIDE_TXN),
        (B, clock_at(int((NOW + 7201) * 1e9)), Flags.OUTSIDE_TXN),
    ).batch()
)


def test_clock_ahead_is_told_of_once() -> None:
    """Two messages two hours ahead, looked at twice, at the default of an hour: one line."""
    clocks = clocks_of()
    with structlog.testing.capture_logs() as logs:
        clocks.on_table("a/journal", TABLE)
        clocks.on_table("a/journal", TABLE)

    (told,) = logs
    assert told["event"] == "sequencer.clock_ahead"
    assert (told["journal"], told["offset"], told["producer"]) == ("a/journal", 10, f"{B:012x}")
    assert told["ahead_seconds"] == 7200


def test_clock_ahead_is_refused_by_option() -> None:
    """The read ends with the documented error, which names offset and option; within the bound, nothing does."""
    clocks_of(refuseClocksAhead="true", clockAheadSeconds="7300").on_table("a/journal", TABLE)

    with pytest.raises(ClockAheadError, match=r"at offset 10.*refuseClocksAhead in Spark"):
        clocks_of(refuseClocksAhead="true").on_table("a/journal", TABLE)
