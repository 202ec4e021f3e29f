"""Iterator of a source's batches that settles where reading begins before it brings any."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Self

from broadsheet.journals.message.batch import MessageBatch, MessageType


class SettledBatches:
    """Implements `broadsheet.consumer.application.SettlingMessages` for one reading.

    The positions that were settled are a note, which comes first and is committed by itself:

        settle ──► note, if anything is new ──► batches
    """

    def __init__(
        self,
        name: str,
        message_type: MessageType,
        *,
        settle: Callable[[], Awaitable[Mapping[str, bytes]]],
        batches: Callable[[], AsyncGenerator[MessageBatch, None]],
        close: Callable[[], None],
    ) -> None:
        """Create the iterator; nothing is read yet.

        Args:
            name: Of the source, which its note has.
            message_type: Of its messages.
            settle: Settles where reading begins, and returns what the checkpoint must know of it.
            batches: Returns the batches that follow.
            close: Called once, at the end.
        """
        self._name = name
        self._message_type = message_type
        self._settle = settle
        self._batches = batches
        self._close = close
        self._is_closed = False
        self._is_settled = False
        self._notes: Mapping[str, bytes] = {}
        self._reading: AsyncGenerator[MessageBatch, None] | None = None

    async def settle(self) -> bool:
        """Settle where reading begins; return whether the first batch is a note.

        Raises:
            SourceError: the source cannot be read.
        """
        if not self._is_settled:
            try:
                self._notes = await self._settle()
            except BaseException:
                self._end()
                raise
            self._is_settled = True
        return bool(self._notes)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageBatch:
        if self._is_closed:
            raise StopAsyncIteration
        # An application may pass the batches on by an iterator of its own, which settles nothing.
        await self.settle()
        if self._notes:
            notes, self._notes = self._notes, {}
            return MessageBatch.note(self._name, self._message_type, notes)
        if self._reading is None:
            self._reading = self._batches()
        try:
            return await anext(self._reading)
        except BaseException:
            self._end()
            raise

    async def aclose(self) -> None:
        """End the reading. Idempotent."""
        try:
            if self._reading is not None:
                await self._reading.aclose()
        finally:
            self._end()

    def _end(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._close()
