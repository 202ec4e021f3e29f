"""The links of members to etcd and to other services, with every fault that they can have.

    member ──request──► (delay, or lost) ──► etcd applies it ──answer──► (delay, or lost) ──► member
       └── gives up after `request_timeout_seconds`; what was sent may still be applied, much later

Every fault of a request is a delay or loss of one of its two messages. Messages travel outside the member's process: a
stopped process has already sent its earlier messages. Other services than etcd have links in their simulators.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from contextvars import Context
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from broadsheet.allocator.errors import AllocatorError, EtcdUnavailableError
from broadsheet.allocator.etcd.api import LeaseLife, RangeResult, TxnResult, WatchBatch
from broadsheet.allocator.ops import Compare, LeaseId, Operation
from broadsheet.testing.allocator.kernel.etcd import FakeEtcd

T = TypeVar("T")

REQUEST_TIMEOUT_SECONDS = 5.0
"""The real client's default."""
LATE_SECONDS_MAX = 12.0
"""Longest delay of a late message: well past the sender's patience, and past a lease's end."""
RESUME_SECONDS = 0.05
"""Pause before a broken watch is opened again."""


@dataclass(slots=True)
class Link:
    """The current faults of a connection; none at first."""

    random: Random
    latency_seconds: tuple[float, float] = (0.0005, 0.01)
    """Drawn for each message, so messages overtake each other."""
    skew_seconds: float = 0.0
    """Each watch lags by up to this much, independently, as different servers do."""
    loss: float = 0.0
    """Share of messages that never arrive."""
    late: float = 0.0
    """Share of messages that arrive up to `LATE_SECONDS_MAX` late."""
    cut: bool = False
    """Nothing arrives, either way."""
    refuses: bool = False
    """While cut, requests fail at once, as without a listener, rather than go unanswered."""
    breaks: int = 0
    """How often watches were broken."""
    _mended: asyncio.Event = field(default_factory=asyncio.Event)

    def cut_off(self, *, refuses: bool) -> None:
        """Block all messages from now on."""
        self.cut = True
        self.refuses = refuses
        self._mended.clear()

    def mend(self) -> None:
        """Let all messages through again, with new streams."""
        if self.cut:
            self.breaks += 1
        self.cut = False
        self._mended.set()

    def heal(self, latency_seconds: tuple[float, float]) -> None:
        """Undo every fault."""
        self.loss = self.late = 0.0
        self.latency_seconds = latency_seconds
        self.mend()

    def travel_seconds(self) -> float | None:
        """Return how long the next message takes; None if it is lost."""
        seconds = self.random.uniform(*self.latency_seconds)
        if self.random.random() < self.loss:
            return None
        if self.random.random() < self.late:
            seconds += self.random.uniform(0.0, LATE_SECONDS_MAX)
        return seconds

    def carry(self, arrive: Callable[[], object]) -> None:
        """Send a message: `arrive` is called when it arrives, unless it is lost or the link is cut by then."""
        seconds = self.travel_seconds()
        if seconds is None or self.cut:
            return

        def on_arrival() -> None:
            # A cut also loses what is on its way.
            if not self.cut:
                arrive()

        # Outside any process, because the network does not stop with the processes that use it.
        asyncio.get_running_loop().call_later(seconds, on_arrival, context=Context())

    async def wait_mended(self) -> None:
        """Wait while the link is cut."""
        while self.cut:
            await self._mended.wait()


class FaultyEtcd:
    """The etcd port of one member: a `FakeEtcd` behind a `Link`."""

    def __init__(
        self,
        etcd: FakeEtcd,
        link: Link,
        *,
        author: str,
        note: Callable[[], object] = lambda: None,
    ) -> None:
        """Connect the member.

        Args:
            etcd: The etcd that answers.
            link: The faults in between.
            author: The member, as named in commits.
            note: Called when a transaction is sent; its result goes into the commit.
        """
        self._etcd = etcd
        self._link = link
        self._author = author
        self._note = note

    async def get_range(
        self, key: bytes, range_end: bytes = b"", *, revision: int = 0
    ) -> RangeResult:
        """Read keys in [key, range_end) as of one revision."""
        return await self._ask(lambda: self._etcd.read(key, range_end, revision=revision))

    async def newest_revision(self, prefix: bytes) -> int:
        """Return the newest revision among the existing keys with `prefix`."""
        return await self._ask(lambda: self._etcd.newest(prefix))

    async def txn(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TxnResult:
        """Perform a transaction."""
        note = self._note()
        return await self._ask(
            lambda: self._etcd.perform(compares, success, failure, author=self._author, note=note)
        )

    async def lease_grant(self, ttl_seconds: int) -> LeaseId:
        """Create a lease."""
        return await self._ask(lambda: self._etcd.grant(ttl_seconds))

    async def lease_revoke(self, lease: LeaseId) -> bool:
        """End a lease and delete its keys."""
        return await self._ask(lambda: self._etcd.revoke(lease, author=self._author))

    async def lease_keep_alive_once(self, lease: LeaseId) -> int:
        """Renew a lease."""
        return await self._ask(lambda: self._etcd.keep_alive(lease))

    async def lease_life(self, lease: LeaseId) -> LeaseLife | None:
        """Return how much time a lease has left."""
        return await self._ask(lambda: self._etcd.life(lease))

    async def watch(
        self, prefix: bytes, *, start_revision: int
    ) -> AsyncGenerator[WatchBatch, None]:
        """Yield every change of keys with `prefix` from `start_revision` on, resuming over broken streams."""
        next_revision = start_revision
        while True:
            await self._link.wait_mended()
            breaks = self._link.breaks
            lag_seconds = self._link.random.uniform(0.0, self._link.skew_seconds)
            stream = self._etcd.watch(prefix, start_revision=next_revision)
            async with aclosing(stream) as batches:
                async for batch in batches:
                    await self._arrival(lag_seconds)
                    if self._link.breaks != breaks:
                        # The batch was lost with its stream: the next stream starts before it.
                        break
                    next_revision = batch.header.revision + 1
                    yield batch
            await asyncio.sleep(RESUME_SECONDS)

    async def _arrival(self, lag_seconds: float) -> None:
        """Wait as long as an answer travels on a stream, which loses nothing."""
        # TCP repeats what is lost, so loss only breaks whole streams.
        await asyncio.sleep(lag_seconds + (self._link.travel_seconds() or 0.0))
        await self._link.wait_mended()

    async def _ask(self, action: Callable[[], T]) -> T:
        """Have etcd perform a request, and return its answer or raise its error."""
        # As without a listener; other cuts are found only by the timeout.
        if self._link.cut and self._link.refuses:
            await asyncio.sleep(self._link.latency_seconds[1])
            raise EtcdUnavailableError(("simulated",), "connection refused")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._link.carry(lambda: self._apply(action, answer))
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                return await answer
        except TimeoutError:
            raise EtcdUnavailableError(("simulated",), "no answer in time") from None

    def _apply(self, action: Callable[[], T], answer: asyncio.Future[T]) -> None:
        """Perform a request that has arrived, and send the answer."""
        try:
            result = action()
        except AllocatorError as error:
            refusal = error
            self._link.carry(lambda: None if answer.done() else answer.set_exception(refusal))
        else:
            self._link.carry(lambda: None if answer.done() else answer.set_result(result))
