"""Scrub: slow background verification of all sealed fragments, while backups still have what a damaged one lost.

It walks the files, so that unused journals are verified without being opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import structlog

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.disk import Disk
from broadsheet.broker.fragment_checks import FragmentChecks, Pace
from broadsheet.broker.fragments import SealedFragment, parse_fragment
from broadsheet.broker.metrics import ScrubMetrics
from broadsheet.journals.block_sums import DamagedContentError
from broadsheet.runtime.clock import Clock

_log = structlog.get_logger()


class Scrubber:
    """Verifies the fragments of one broker, pass after pass."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        journals: Path,
        checks: FragmentChecks,
        metrics: ScrubMetrics,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._journals = journals
        self._checks = checks
        self._metrics = metrics

    async def run(self, config: BrokerConfig) -> None:
        """Verify at the configured rate; never returns, unless the rate is zero."""
        if not config.scrub_bytes_per_second:
            return
        await asyncio.sleep(config.scrub_delay_seconds)
        while True:
            await self.run_pass(config.scrub_bytes_per_second)
            await asyncio.sleep(config.scrub_interval_seconds)

    async def run_pass(self, bytes_per_second: int) -> None:
        """Verify every existing sealed fragment."""

        async def pace(length: int) -> None:
            self._metrics.bytes.inc(length)
            await asyncio.sleep(length / bytes_per_second)

        damaged = 0
        for directory in await self._disk.run(_listing, self._journals):
            for fragment in await self._disk.run(_fragments, directory):
                damaged += await self._verify(fragment, pace)
        self._metrics.completed.set(self._clock.wall_seconds())
        _log.info("scrub.completed", damaged_fragments=damaged)

    async def _verify(self, fragment: SealedFragment, pace: Pace) -> bool:
        try:
            verdict = await self._checks.verify(fragment, pace)
        except FileNotFoundError:  # removed in the meantime, with its journal or by retention
            return False
        except (OSError, DamagedContentError) as error:
            _log.error("scrub.unreadable", path=str(fragment.path), detail=str(error))
            return True
        return bool(verdict.damaged)


def _listing(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_dir())


def _fragments(directory: Path) -> list[SealedFragment]:
    """Return the sealed fragments of a journal's directory; none if it is gone."""
    return list(_parsed(directory)) if directory.is_dir() else []


def _parsed(directory: Path) -> Iterator[SealedFragment]:
    for path in sorted(directory.glob("*.raw")):
        try:
            fragment = parse_fragment(path)
        except FileNotFoundError:
            continue
        if fragment is not None:
            yield fragment
