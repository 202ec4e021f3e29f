"""Streams through every fault that members on plain processes can suffer; `tests/spark` has the same on executors."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.chaos.process_hosts import ProcessHosts
from tests.chaos.report import OFTEN_MADE
from tests.chaos.run import ChaosRun
from tests.chaos.services import ChaosServices

pytestmark = [pytest.mark.e2e, pytest.mark.etcd, pytest.mark.timeout(900)]

SECONDS = 22.0
PAUSE_SECONDS = 2.0
"""So that most kinds of faults strike, each once."""


async def test_every_stream_is_summed_once_whatever_befalls_processes(tmp_path: Path) -> None:
    """Two members of four shards, with recovery logs and standbys: killed, frozen, drained; etcd and the broker killed
    and restarted. Producers repeat, roll back and abandon what they write. Every sum is right, and there once.
    A failure tells the seed and the schedule, and shows the members' logs.
    """
    with ChaosServices(tmp_path) as services:
        plan = services.plan(
            tmp_path,
        )
        async with ProcessHosts(plan) as hosts:
            run = ChaosRun.planned(
                secrets.randbelow(1 << 31),
                seconds=SECONDS,
                plan=plan,
                services=services,
                hosts=hosts,
                tell=print,
                pause_seconds=PAUSE_SECONDS,
            )
            report = await run.run()

    assert report.streams > 0
    assert all(report.counts[kind] for kind in OFTEN_MADE), report
