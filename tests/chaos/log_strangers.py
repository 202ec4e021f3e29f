"""Appends into recovery logs that no recorder makes: bytes that mean nothing, and operations of another author."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from broadsheet.journals.client import JournalClient
from broadsheet.wire.recorded_op_pb2 import FSMHints
from tests.chaos.patience import patient
from tests.chaos.side_shard import SEEN_SECONDS, SideShard
from tests.support.eventually import eventually
from tests.support.live_logs import recover
from tests.support.recorded_ops import OpChain

FOREIGN_BYTES = 37
"""Cuts an operation in its middle: what follows is taken for its rest."""


class LogStrangers:
    """Writes into logs beside their recorders, without asking for the fence."""

    def __init__(self, journals: JournalClient, random: Random, logs: Sequence[str]) -> None:
        """Set it up.

        Args:
            journals: Appends.
            random: Chooses logs, bytes and authors.
            logs: Of shards whose sums count.
        """
        self._journals = journals
        self._random = random
        self._logs = logs

    async def append_bytes(self) -> None:
        """Append bytes to some log: the first part of an operation, or garbage."""
        log = self._random.choice(self._logs)
        content = self._random.randbytes(FOREIGN_BYTES)
        if self._random.random() < 0.5:
            content = await self._first_bytes(log) or content
        await self._append(log, content)

    async def append_operations(self) -> None:
        """Append operations to some log whose numbers its recorder has used long ago."""
        chain = OpChain(self._author())
        operations = [chain.nothing(), chain.create("/foreign"), chain.write(2, 0, b"foreign")]
        await self._append(
            self._random.choice(self._logs), b"".join(each.framed for each in operations)
        )

    async def take_number(self, side: SideShard, unix_seconds: float) -> bool:
        """Append an operation with the next number of a log, and have its shard commit; return whether it is FAILED.

        A recorder that came in between has the number itself, and the foreign operation changes nothing.
        """
        await side.read(await side.write(self._journals, unix_seconds))
        with tempfile.TemporaryDirectory() as directory:
            hints = FSMHints(log=side.log)
            fsm = (await recover(self._journals, hints, Path(directory))).fsm
        operation = OpChain(self._author(), seq=fsm.next_seq, checksum=fsm.next_checksum).nothing()
        await self._append(side.log, operation.framed)
        end = await side.write(self._journals, unix_seconds)
        failed = False

        async def shows() -> bool:
            nonlocal failed
            failed = await side.has_failed(
                f"is of author {operation.op.author:#x}", "operations follow from others"
            )
            return failed or await side.has_read(end, timeout_seconds=0.5)

        await eventually(
            shows, timeout_seconds=SEEN_SECONDS, message=f"{side.shard} fails, or reads on"
        )
        return failed

    async def _first_bytes(self, log: str) -> bytes:
        content = b""
        async for span in self._journals.reader(log, end_offset=FOREIGN_BYTES, block=False):
            content += span.content
        return content[:FOREIGN_BYTES]

    async def _append(self, log: str, content: bytes) -> None:
        async def appended() -> bool:
            await self._journals.append(log, content)
            return True

        await eventually(
            patient(appended), timeout_seconds=SEEN_SECONDS, message=f"{log} takes an append"
        )

    def _author(self) -> int:
        return self._random.randrange(1, 1 << 32)
