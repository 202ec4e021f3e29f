"""Queue of the waiting appends of one journal: first in, first out, merged where the result is the same.

Pure bookkeeping. An append joins the newest waiting group if the group is not being sent, demands and changes the same
registers, already waits for everything the append waits for, and has room.

Source: gazette/core broker/client/append_service.go (chaining of async appends).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broadsheet.journals.pipelining import (
    Pipelined,
    TurnFuture,
)
from broadsheet.wire.journal_pb2 import AppendRequest, AppendResponse

if TYPE_CHECKING:
    from opentelemetry.context import Context
from broadsheet.journals.append_dependencies import AnyFuture

GROUP_BYTES_MAX = 64 << 20
"""Group size above which no further append joins, bytes."""


def new_future() -> TurnFuture[AppendResponse]:
    """Return a future that cannot be cancelled, because all appends of a group share it."""
    future: TurnFuture[AppendResponse] = TurnFuture()
    future.set_running_or_notify_cancel()
    return future


@dataclass(slots=True)
class AppendGroup:
    """Appends that are sent as one."""

    request: AppendRequest
    """All parameters except the content."""
    after: set[AnyFuture] = field(default_factory=set)
    """Futures that must succeed first."""
    content: list[bytes] = field(default_factory=list)
    size: int = 0
    """Bytes of `content`."""
    future: TurnFuture[AppendResponse] = field(default_factory=new_future)
    in_turn: Pipelined | None = None
    """Place of its first copy in the pipelined order."""
    under_way: bool = False
    """True while it is being sent, and therefore closed to further appends."""
    landed: bool = False
    """True if it is known to be in the journal although no answer told its position."""
    trace: Context | None = None
    """Context of its first append that is part of a trace."""

    def takes(self, request: AppendRequest, after: set[AnyFuture]) -> bool:
        """Tell whether an append may join the group."""
        return (
            not self.under_way
            and self.size <= GROUP_BYTES_MAX
            and after <= self.after
            and request == self.request
        )

    def add(self, content: Iterable[bytes], size: int) -> None:
        """Add an append's content of `size` bytes."""
        self.content.extend(content)
        self.size += size


@dataclass(slots=True)
class AppendQueue:
    """Groups of one journal, oldest first; the first one may be in progress."""

    groups: deque[AppendGroup] = field(default_factory=deque)
    poison: BaseException | None = None
    """Failure because of which this journal takes no more appends."""
    draining: bool = False
    """True while a task works on the groups."""
    under_way_since: float | None = None
    """Time when the first group was first sent, seconds of the event loop; None while none is in progress."""

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
        """Tell whether the newest group has exactly these parameters."""
        return bool(self.groups) and self.groups[-1].request == request

    def newest(self) -> Future[AppendResponse] | None:
        """Return the future that resolves last, if any append is unfinished."""
        return self.groups[-1].future if self.groups else None
