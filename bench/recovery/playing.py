"""The rate at which a log plays into files, beside a plain read of the same log."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path

from bench.recovery.driven import STORES, Rows, fill, member_journals
from bench.report import alternate, emit
from broadsheet.consumer.recoverylog.playback import Playback
from broadsheet.consumer.recoverylog.player import Player
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.wire.recorded_op_pb2 import FSMHints

MEGABYTE = 1_000_000
ROUNDS = 5
VALUE_BYTES = 1000
ROWS_PER_TXN = 500


def run(bench: str, state_mb: int) -> None:
    """Measure and print `playback_mb_per_s` and `broker_read_mb_per_s`, of log bytes, in turn."""
    with (
        tempfile.TemporaryDirectory() as name,
        EmbeddedBrokerProcess(Path(name) / "broker") as broker,
        asyncio.Runner() as runner,
    ):
        for store in STORES:
            side = _Sides(broker.address, Path(name), store)
            log_bytes = runner.run(side.prepare(state_mb))
            played, read = alternate(
                partial(_run, runner, side.play), partial(_run, runner, side.read), ROUNDS
            )
            params: dict[str, str | int | float] = {
                "store": store,
                "state_mb": state_mb,
                "log_mb": round(log_bytes / MEGABYTE),
            }
            emit(bench, "playback_mb_per_s", played, "MB/s", **params)
            emit(bench, "broker_read_mb_per_s", read, "MB/s", **params)
            emit(bench, "playback_ratio", played / read, "ratio", **params)


class _Sides:
    """Of one store's log."""

    def __init__(self, address: str, directory: Path, store: str) -> None:
        self._address = address
        self._directory = directory
        self._store = store
        self._log = f"bench/logs/{store}"
        self._hints = FSMHints()
        self._plays = 0

    async def prepare(self, state_mb: int) -> int:
        """Record a store of that size; return how many bytes its playback reads."""
        keys = state_mb * MEGABYTE // VALUE_BYTES
        rows = Rows(keys=keys, per_txn=ROWS_PER_TXN, value_bytes=VALUE_BYTES)
        async with member_journals(self._address) as journals:
            self._hints = await fill(
                journals,
                self._store,
                self._log,
                self._directory / f"{self._store}-store",
                rows=rows,
                txns=keys // ROWS_PER_TXN,
            )
            head = await journals.write_head(self._log)
        return head - Playback(self._hints).position.offset

    async def play(self) -> float:
        """Return megabytes a second of a playback, from nothing to files at their paths."""
        self._plays += 1
        directory = self._directory / f"{self._store}-{self._plays}"
        async with member_journals(self._address) as journals:
            player = Player(journals, self._hints, directory)
            player.stop_at_head()
            began = time.perf_counter()
            await player.run()
            seconds = time.perf_counter() - began
        shutil.rmtree(directory)
        return player.progress.played_bytes / MEGABYTE / seconds

    async def read(self) -> float:
        """Return megabytes a second of a plain read of what playback reads."""
        offset = Playback(self._hints).position.offset
        async with member_journals(self._address) as journals:
            length = 0
            began = time.perf_counter()
            async for span in journals.reader(self._log, offset=offset, block=False):
                length += len(span.content)
            return length / MEGABYTE / (time.perf_counter() - began)


def _run(runner: asyncio.Runner, side: Callable[[], Coroutine[object, object, float]]) -> float:
    return runner.run(side())
