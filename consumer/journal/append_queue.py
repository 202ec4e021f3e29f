"""The appends of one journal that wait their turn: first in, first out, merged where nobody can tell.

Pure bookkeeping. An append joins the newest waiting group if the group is not under way, demands and changes the same
registers, already waits for everything the append waits for, and has room.

Source: gazette/core broker/client/append_service.go (chaining of async appends).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from consumer.journal.in_turn import InTurn
from consumer.op_future import TurnFuture
from consumer.protocol.journal_pb2 import AppendRequest, AppendResponse

GROUP_BYTES_MAX = 64 << 20
"""A group larger than this takes no more appends, bytes."""

# `Any`: futures are invariant in their result, and what a dependency resolves to is nobody's business here.
AnyFuture: TypeAlias = "Future[Any]"


def new_future() -> TurnFuture[AppendResponse]:
    """Return a future that nobody can cancel: it is shared by all appends of a group."""
    future: TurnFuture[AppendResponse] = TurnFuture()
    future.set_running_or_notify_cancel()
    return future


@dataclass(slots=True)
class AppendGroup:
    """Appends that go out as one."""

    request: AppendRequest
    """Parameters, all but the content."""
    after: set[AnyFuture] = field(default_factory=set)
    """What must succeed first."""
    content: list[bytes] = field(default_factory=list)
    size: int = 0
    """Bytes of `content`."""
    future: TurnFuture[AppendResponse] = field(default_factory=new_future)
    in_turn: InTurn | None = None
    """The place of its first copy among other appends."""
    under_way: bool = False
    """Being sent, so closed to further appends."""
    landed: bool = False
    """Known to be in the journal, though no answer told where."""

    def takes(self, request: AppendRequest, after: set[AnyFuture]) -> bool:
        """Tell whether an append may join."""
        return (
            not self.under_way
            and self.size <= GROUP_BYTES_MAX
            and after <= self.after
            and request == self.request
        )

    def add(self, content: Iterable[bytes], size: int) -> None:
        """Take an append's content, `size` bytes of it."""
        self.content.extend(content)
        self.size += size


@dataclass(slots=True)
class AppendQueue:
    """One journal's groups, oldest first; the first one may be under way."""

    groups: deque[AppendGroup] = field(default_factory=deque)
    poison: BaseException | None = None
    """Why this journal takes no appends any more."""
    draining: bool = False
    """A task works on the groups."""
    under_way_since: float | None = None
    """When the first group was sent for the first time, seconds of the event loop; None while none is under way."""

    def put(
        self,
        request: AppendRequest,
        content: Iterable[bytes],
        size: int,
        after: set[AnyFuture],
    ) -> Future[AppendResponse]:
        """Add an append to the newest group if that takes it, else to a new one; return the group's future."""
        if not self.groups or not self.groups[-1].takes(request, after):
            self.groups.append(AppendGroup(request, after))
        group = self.groups[-1]
        group.add(content, size)
        return group.future

    def knows(self, request: AppendRequest) -> bool:
        """Tell whether the newest group has these very parameters."""
        return bool(self.groups) and self.groups[-1].request == request

    def newest(self) -> Future[AppendResponse] | None:
        """Return the future that resolves last, if any append is unfinished."""
        return self.groups[-1].future if self.groups else None
