"""What an acknowledgement commits, of what is in memory and of what is read again."""

from __future__ import annotations

import pytest

from broadsheet.journals.message.uuid import Flags
from broadsheet.spark_bridge.journal_source.commit_scan import CommitScan
from broadsheet.spark_bridge.journal_source.journal_state import AT_THE_BEGINNING
from tests.support.commit_scans import scan_on
from tests.support.sequencing import Log


@pytest.mark.parametrize(
    "pending_bytes", [pytest.param(1, id="read again"), pytest.param(1 << 20, id="in memory")]
)
def test_late_copy_behind_a_rolled_back_message_is_no_message(pending_bytes: int) -> None:
    """Clocks 32, 48, a late copy of 32, and an acknowledgement of 32: the copy is passed over both times, though the
    message before it is rolled back.
    """
    log = Log()
    for clock in (32, 48, 32, 64):
        log.append(1, clock, Flags.CONTINUE_TXN, size=10)
    log.append(1, 32, Flags.ACK_TXN, size=10)
    scan = CommitScan(AT_THE_BEGINNING, stretch_bytes=1, pending_bytes=pending_bytes)

    batch = scan_on(scan, log, head=50, chunk_messages=1)

    assert batch.begins.tolist() == [0]


def test_copy_of_what_was_rolled_back_before_hides_older_clocks_read_again() -> None:
    """A late copy of a rolled back message opens a transaction at clock 48; what follows at clock 32 counts as a copy,
    whether it is judged as it comes or as it is read again.
    """
    log = Log()
    log.append(1, 16, Flags.ACK_TXN, size=10)
    for clock in (48, 32, 64):
        log.append(1, clock, Flags.CONTINUE_TXN, size=10)
    log.append(1, 32, Flags.ACK_TXN, size=10)
    for pending_bytes in (1, 1 << 20):
        scan = CommitScan(AT_THE_BEGINNING, stretch_bytes=1, pending_bytes=pending_bytes)

        assert scan_on(scan, log, head=50, chunk_messages=1).begins.tolist() == []
