"""Appends a recorder's frames to its log, and trusts only answers that show them where players find them.

    sent ──► answered: the registers name us, and the append begins where the one before it ended ──► settled
                 └► something stands between the two: it is read, as players read it
                        ├► our operations are found ──────────────────────────────────────────────► settled
                        └► one was swallowed: the rest of what swallowed it, and ours again ──► read once more

While that lasts nothing else is sent, and no barrier resolves: what a commit waits for is in the log for players, too.
Our own appends may stand there twice, because an answer was lost; that is found so as well, and harmless.

Everything here is on the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import structlog

from broadsheet.consumer.errors import LogDataLossError, LogFencedError
from broadsheet.consumer.recoverylog.fence import fence_check, fence_of, holds_fence
from broadsheet.consumer.recoverylog.foreign_bytes import (
    COMPLETION_BYTES_MAX,
    OwnOperations,
    examined,
)
from broadsheet.journals.errors import RegisterMismatchError
from broadsheet.journals.pipelining import TurnFuture
from broadsheet.wire.journal_pb2 import AppendResponse, LabelSelector, LabelSet

GAP_BYTES_MAX: Final = 256 << 20
"""Bytes between our appends above which they are not read, because they are held in memory; copies of ours are less."""
REPETITIONS_MAX: Final = 5
"""Repetitions of our operations after which something appends to the log without end."""
_ZEROS: Final = bytes(1 << 20)
_log = structlog.get_logger()


class Appends(Protocol):
    """The ordered appends of one log; `broadsheet.journals.append_service.AppendService`."""

    def append(
        self,
        journal: str,
        content: Sequence[bytes],
        *,
        after: Iterable[Future[object]] = (),
        check_registers: LabelSelector | None = None,
        union_registers: LabelSet | None = None,
    ) -> Future[AppendResponse]:
        """Queue an append until all of `after` have succeeded; one without content is a barrier."""
        ...

    def read_back(self, journal: str, begin: int, end: int) -> Future[list[bytes]]:
        """Read the bytes [begin, end) of a journal."""
        ...


@dataclass(slots=True)
class FramedOperations:
    """Frames that are sent together; none are a barrier. Not frozen: every commit makes one."""

    pieces: Sequence[bytes]
    size: int
    """Bytes of all pieces."""
    own: OwnOperations
    """The operations in them."""
    barrier: TurnFuture[None] | None = None
    """Settled with the result of all appends so far."""
    takes_over: bool = False
    """The append sets the fence, so it cannot require it."""
    after: Collection[Future[object]] = ()
    """What must succeed first."""


class RecoveryLogWriter:
    """The appends of one recorder."""

    def __init__(
        self,
        appends: Appends,
        *,
        log: str,
        author: int,
        head: int | None,
        on_settled: Callable[[FramedOperations], None],
    ) -> None:
        """Send nothing yet.

        Args:
            appends: Runs on the current event loop.
            log: The journal.
            author: Ours; the log's fence.
            head: Up to where players have passed the log, bytes; None: nothing is known of it.
            on_settled: Called for each of what was sent, in order, once it succeeded or failed.
        """
        self._appends = appends
        self._log = log
        self._author = author
        self._head = head
        self._on_settled = on_settled
        self.failure: BaseException | None = None
        """Ends the appends: later operations follow from those that were lost, so nothing more is sent."""
        self._newest: AppendResponse | None = None
        self._in_flight = 0
        self._gap_begin: int | None = None
        """Offset from which the log is to be read; None: every append began where the one before it had ended."""
        self._unsure: list[FramedOperations] = []
        """Answered, and perhaps swallowed."""
        self._waiting: deque[FramedOperations] = deque()
        """To be sent when that is settled."""
        self._repetitions = 0

    @property
    def head(self) -> int:
        """Lower bound of the log's write head, bytes."""
        return self._head or 0

    def send(self, frames: FramedOperations) -> None:
        """Append frames, after those of earlier calls."""
        if self.failure is not None:
            self._settle(frames)
        elif self._gap_begin is not None:
            self._waiting.append(frames)
        else:
            self._in_flight += 1
            future = self._append(frames.pieces, frames)
            future.add_done_callback(partial(self._on_appended, frames=frames))

    def _append(self, pieces: Sequence[bytes], frames: FramedOperations) -> Future[AppendResponse]:
        future = self._appends.append(
            self._log,
            pieces,
            after=frames.after,
            check_registers=None if frames.takes_over else fence_check(self._author),
            union_registers=fence_of(self._author) if frames.takes_over else None,
        )
        if frames.barrier is not None and isinstance(future, TurnFuture):
            future.when_sent(frames.barrier.sent)
        return future

    def _on_appended(self, future: Future[AppendResponse], *, frames: FramedOperations) -> None:
        self._in_flight -= 1
        self._believe(future)
        if self._gap_begin is None:
            self._settle(frames)
            return
        self._unsure.append(frames)
        # Those under way may be swallowed as well, and would come behind a repetition that lacks them.
        if not self._in_flight:
            self._look()

    def _believe(self, future: Future[AppendResponse]) -> None:
        failure = future.exception() or self._doubt(future.result())
        if self.failure is None and failure is not None:
            self.failure = self._told(failure)

    def _doubt(self, response: AppendResponse) -> BaseException | None:
        """Return the reason why a successful append must not be trusted, or None."""
        if not holds_fence(response.registers, self._author):
            return LogFencedError(
                self._log,
                f"the journal's registers no longer name author {self._author}; they were lost, or taken over",
            )
        commit = response.commit
        if response is self._newest:
            return None  # Appends that were sent together share one response.
        self._newest = response
        if self._head is not None and commit.begin < self._head:
            return LogDataLossError(
                self._log,
                f"an append landed at {commit.begin}, below {self._head} where one had ended: the broker lost data",
            )
        if self._head is not None and commit.begin > self._head and self._gap_begin is None:
            self._gap_begin = self._head
        self._head = commit.end
        return None

    def _told(self, failure: BaseException) -> BaseException:
        if isinstance(failure, RegisterMismatchError):
            fenced = LogFencedError(self._log, f"another recorder took over: {failure}")
            fenced.__cause__ = failure
            return fenced
        return failure

    # -- what stands between our appends

    def _look(self) -> None:
        if self.failure is not None or self._gap_begin is None:
            self._go_on()
            return
        if self.head - self._gap_begin > GAP_BYTES_MAX:
            self._give_up(f"{self.head - self._gap_begin} bytes")
            return
        read = self._appends.read_back(self._log, self._gap_begin, self.head)
        read.add_done_callback(self._on_read)

    def _on_read(self, read: Future[list[bytes]]) -> None:
        assert self._gap_begin is not None, "it is read because of a gap"
        first, last = self._unsure[0].own, self._unsure[-1].own
        own = OwnOperations(
            author=self._author,
            first_seq=first.first_seq,
            first_checksum=first.first_checksum,
            next_seq=last.next_seq,
        )
        try:
            found = examined(self._log, self._gap_begin, read.result(), own)
        except Exception as error:
            self.failure = error
            self._go_on()
            return
        if found.foreign and not self._repetitions:
            _log.warning(
                "recovery_log.foreign_bytes",
                log=self._log,
                begin=self._gap_begin,
                end=self.head,
                hides_operations=not found.heard,
            )
        if found.heard:
            self._go_on()
        elif found.wanted_bytes > COMPLETION_BYTES_MAX or self._repetitions == REPETITIONS_MAX:
            self._give_up("bytes")
        else:
            self._repeat(found.wanted_bytes)

    def _give_up(self, what: str) -> None:
        first, last = self._unsure[0].own.first_seq, self._unsure[-1].own.next_seq - 1
        self.failure = LogDataLossError(
            self._log,
            f"{what} that no recorder wrote, from {self._gap_begin} on, hide operations {first} to {last}: find out "
            "who else appends to this journal",
        )
        self._go_on()

    def _repeat(self, wanted_bytes: int) -> None:
        """Complete what foreign bytes began, and append our operations once more."""
        self._repetitions += 1
        whole, rest = divmod(wanted_bytes, len(_ZEROS))
        pieces = [*[_ZEROS] * whole, *([_ZEROS[:rest]] if rest else [])]
        for frames in self._unsure:
            pieces += frames.pieces
        future = self._appends.append(self._log, pieces, check_registers=fence_check(self._author))
        future.add_done_callback(self._on_repeated)

    def _on_repeated(self, future: Future[AppendResponse]) -> None:
        self._believe(future)
        self._look()

    def _go_on(self) -> None:
        """Settle what was unsure, and send what waited."""
        unsure, self._unsure = self._unsure, []
        waiting, self._waiting = self._waiting, deque()
        self._gap_begin, self._repetitions = None, 0
        for frames in unsure:
            self._settle(frames)
        for frames in waiting:
            self.send(frames)

    def _settle(self, frames: FramedOperations) -> None:
        self._on_settled(frames)
        if frames.barrier is None:
            return
        if self.failure is not None:
            frames.barrier.set_exception(self.failure)
        else:
            frames.barrier.set_result(None)
