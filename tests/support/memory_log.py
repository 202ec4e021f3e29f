"""A recovery log in memory, which takes a recorder's appends: at once, in order, and under the fence.

It implements `broadsheet.consumer.recoverylog.recorder.Appends` as `AppendService` does over a journal whose broker
answers at once, registers included. It can have appends stand in the log twice, as when an answer was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from random import Random

from broadsheet.journals.errors import RegisterMismatchError
from broadsheet.wire.journal_pb2 import AppendResponse, Fragment, LabelSelector, LabelSet
from broadsheet.wire.labels import registers_match, union


class MemoryLog:
    """One log's content and registers."""

    def __init__(self, random: Random | None = None) -> None:
        """Start empty; with `random`, some appends stand twice in the log, and some have garbage before them."""
        self.content = b""
        self.registers = LabelSet()
        self.appends: list[bytes] = []
        """Each append as it was asked for, barriers left out."""
        self._random = random
        self._poison: Exception | None = None

    def append(
        self,
        journal: str,
        content: Sequence[bytes],
        *,
        after: Iterable[Future[object]] = (),
        check_registers: LabelSelector | None = None,
        union_registers: LabelSet | None = None,
    ) -> Future[AppendResponse]:
        """Append, unless the registers say otherwise."""
        assert all(each.done() and each.exception() is None for each in after), "waits for nothing"
        future: Future[AppendResponse] = Future()
        if check_registers is not None and not registers_match(check_registers, self.registers):
            future.set_exception(RegisterMismatchError(journal, self.registers))
            return future
        if union_registers is not None:
            self.registers = union(self.registers, union_registers)
        whole = b"".join(content)
        if whole:
            self.appends.append(whole)
        begin = self._written(whole)
        future.set_result(
            AppendResponse(
                commit=Fragment(journal=journal, begin=begin, end=len(self.content)),
                registers=self.registers,
            )
        )
        return future

    def read_back(self, journal: str, begin: int, end: int) -> Future[list[bytes]]:
        """Return a part of the content."""
        del journal
        future: Future[list[bytes]] = Future()
        future.set_result([self.content[begin:end]])
        return future

    def _written(self, whole: bytes) -> int:
        random = self._random
        if random is not None and whole:
            if random.random() < 0.2:
                self.content += random.randbytes(random.randrange(1, 20))
            if random.random() < 0.2:
                self.content += whole
        begin = len(self.content)
        self.content += whole
        return begin
