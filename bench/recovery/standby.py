"""The time from a commit until a hot standby has played it, while the primary commits as fast as it can.

The standby is a process of its own, as in a cluster: `python -m bench.recovery.standby` plays until its input ends, and
then prints what it had played when. Both processes read the machine's one monotonic clock.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from bisect import bisect_left
from pathlib import Path

from bench.recovery.driven import (
    STORES,
    DrivenStore,
    Rows,
    create_log,
    member_journals,
    recording_into,
)
from bench.report import emit, keep_logs_apart
from broadsheet.consumer.recoverylog.playback import PlaybackProgress, PlayingTime
from broadsheet.consumer.recoverylog.player import Player
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.runtime.interpreter import serve_only
from broadsheet.runtime.op_future import OpFuture
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.recorded_op_pb2 import FSMHints

ROWS = Rows(keys=50_000, per_txn=50, value_bytes=200)
SECONDS = 10.0
WARM_UP_TXNS = 100
_MS = 1000.0

Noted = list[tuple[float, int]]
"""(monotonic seconds, offset of the log in bytes), both ascending."""


def run(bench: str) -> None:
    """Measure and print `standby_lag_p99_ms` of each store, and how much was committed meanwhile."""
    for store in STORES:
        with (
            tempfile.TemporaryDirectory() as name,
            EmbeddedBrokerProcess(Path(name) / "broker") as broker,
        ):
            committed, played = asyncio.run(_record(broker.address, Path(name), store))
        lags_ms = _lags_ms(committed, played)
        params: dict[str, str | int | float] = {
            "store": store,
            "txn_per_s": round(len(committed) / SECONDS),
            "log_mb_per_s": round((committed[-1][1] - committed[0][1]) / SECONDS / 1e6, 1),
        }
        emit(bench, "standby_lag_p99_ms", statistics.quantiles(lags_ms, n=100)[-1], "ms", **params)
        emit(bench, "standby_lag_p50_ms", statistics.median(lags_ms), "ms", **params)


async def _record(address: str, directory: Path, store: str) -> tuple[Noted, Noted]:
    log = f"bench/logs/{store}"
    committed: Noted = []
    async with member_journals(address) as journals:
        await create_log(journals, log)
        standby = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.recovery.standby", address, log),
            str(directory / "standby"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        async with recording_into(journals, log, directory / "primary") as (state, recorder):
            begin = await journals.write_head(log)

            def note(commit: OpFuture) -> None:
                # What is recorded by now is what the commit waits for, or less than that.
                offset = begin + recorder.recorded_bytes
                commit.add_done_callback(lambda _: committed.append((time.monotonic(), offset)))

            driven = await asyncio.to_thread(DrivenStore, store, state, recorded=True, rows=ROWS)
            await asyncio.to_thread(driven.run, WARM_UP_TXNS)
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                await asyncio.to_thread(driven.run, 1, note)
            await asyncio.to_thread(driven.destroy)
        output, _ = await standby.communicate(b"end\n")
    return committed, [(at, offset) for at, offset in json.loads(output)]


def _lags_ms(committed: Noted, played: Noted) -> list[float]:
    """Return, of each commit, how much later the standby had played up to there; 0 if it was earlier."""
    offsets = [offset for _, offset in played]
    return [
        max(0.0, played[bisect_left(offsets, offset)][0] - at) * _MS for at, offset in committed
    ]


class _NotingProgress(PlaybackProgress):
    """Notes when what was played."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: Noted = []

    def on_played(self, offset: int, head: int, *, played_bytes: int, time: PlayingTime) -> None:
        super().on_played(offset, head, played_bytes=played_bytes, time=time)
        self.noted.append((time.ended, offset))


async def _stand_by(address: str, log: str, directory: Path) -> Noted:
    """Play until our input ends, and what the log has by then."""
    async with member_journals(address) as journals, TaskGroup() as group:
        player = Player(journals, FSMHints(log=log), directory)
        progress = player.progress = _NotingProgress()
        playing = group.start_soon(player.run(), name="standby")
        await asyncio.to_thread(sys.stdin.readline)
        player.stop_at_head()
        await playing
        return progress.noted


def main() -> None:
    """Be the standby."""
    serve_only()
    address, log, directory = sys.argv[1:]
    keep_logs_apart()
    print(json.dumps(asyncio.run(_stand_by(address, log, Path(directory)))))


if __name__ == "__main__":
    main()
