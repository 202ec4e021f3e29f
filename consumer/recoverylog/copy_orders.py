"""Who waits for a copy of what a player has played, until the player has come far enough to make it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from consumer.recoverylog.fsm import FileStateMachine
from consumer.recoverylog.play_thread import PlayThread
from consumer.recoverylog.played_copy import live_files
from consumer.recoverylog.played_files import PlayedFiles


@dataclass(slots=True, eq=False)
class _Order:
    target: Path
    through: int
    """Offset of the log that must be played, bytes."""
    made: asyncio.Future[bool]

    def is_wanted(self) -> bool:
        # Asked on the player's thread; a future's state only ever goes one way.
        return not self.made.done()

    def is_due(self, played_to: int) -> bool:
        return self.through <= played_to and not self.made.done()

    def settle(self, made: bool) -> None:
        if not self.made.done():
            self.made.set_result(made)

    def fail(self, error: Exception) -> None:
        if not self.made.done():
            self.made.set_exception(error)


class CopyOrders:
    """Of one player; lives on the event loop."""

    def __init__(self, files: PlayedFiles, *, on_order: Callable[[], None]) -> None:
        """Begin without any.

        Args:
            files: The player's.
            on_order: Called when there is one to make.
        """
        self._files = files
        self._on_order = on_order
        self._orders: list[_Order] = []
        self._refused = False

    async def order(self, target: Path, *, through: int) -> bool:
        """Wait for a copy of what is played up to `through` at least, bytes; False if none will be made.

        Raises:
            RecoveryLogError: played files make no sense.
            OSError: as of the disk.
        """
        if self._refused:
            return False
        order = _Order(target, through, asyncio.get_running_loop().create_future())
        self._orders.append(order)
        self._on_order()
        try:
            return await order.made
        finally:
            self._orders.remove(order)
            order.settle(False)  # If we are cancelled: a copy under way ends at its next chunk.

    async def make(self, thread: PlayThread, fsm: FileStateMachine, *, played_to: int) -> None:
        """Make the copies that are due; nothing is played meanwhile, so that each is of one place in the log.

        Args:
            thread: Where the files are changed.
            fsm: As of `played_to`.
            played_to: Offset of the log, bytes.
        """
        for order in [each for each in self._orders if each.is_due(played_to)]:
            if order.made.done():
                continue  # Refused, or given up, meanwhile.
            copy = partial(
                self._files.copy_to, order.target, live_files(fsm), is_wanted=order.is_wanted
            )
            try:
                order.settle(await thread.run(copy))
            except (
                Exception
            ) as error:  # Of the copy: whoever ordered it is told, and playing goes on.
                order.fail(error)

    def refuse(self) -> None:
        """Make none any more, neither those that wait nor one under way."""
        self._refused = True
        for order in self._orders:
            order.settle(False)
