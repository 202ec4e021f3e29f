"""The clock that leases go by does not stand still while the machine is suspended."""

from __future__ import annotations

import time

import pytest

from broadsheet.runtime.clock import SystemClock


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the system has no such clock")
def test_leases_go_by_a_clock_that_counts_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended laptop or a paused virtual machine wakes with `CLOCK_MONOTONIC` where it stood; etcd has ended the
    lease meanwhile, and a holder that goes by that clock would write on.
    """
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    before = time.clock_gettime(time.CLOCK_BOOTTIME)

    now = SystemClock().monotonic_seconds()

    assert before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME)
