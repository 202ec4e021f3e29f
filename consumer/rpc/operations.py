"""Moves and drains as messages: what `ListOperations` answers, and what a leaving member shows of its drain."""

from __future__ import annotations

import math
from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.state.drains import DrainProgress, Drains
from broadsheet.allocator.whatif.moves import MovePhase, MoveUnderWay
from broadsheet.consumer.rpc.metrics import register_drain
from broadsheet.runtime.clock import Clock
from broadsheet.wire.allocation_pb2 import ListOperationsResponse
from broadsheet.wire.progress_pb2 import Progress, ProgressKind, ProgressUnit

MOVES_LISTED_MAX = 1_000
"""Moves of one answer, about 100 kB: the most urgent ones; their number is told besides."""
UNKNOWN = -1


class DrainWatch:
    """The drains that a member's mirror shows, and the metrics of its own."""

    def __init__(
        self, key_space: KeySpace, member_id: MemberId, *, clock: Clock, registry: CollectorRegistry
    ) -> None:
        """Create the watch; `look` must then observe the key space.

        Args:
            key_space: The mirror.
            member_id: Of this process, whose drain the metrics show.
            clock: Tells how long hand-overs take.
            registry: Of Prometheus metrics.
        """
        self._key_space = key_space
        self._member_id = member_id
        self._clock = clock
        self._drains = Drains()
        register_drain(registry, self._own)

    def look(self) -> None:
        """Take a step of the mirror; an observer of the key space."""
        key_space = self._key_space
        self._drains.look(
            key_space.members,
            key_space.assignments,
            key_space.changes,
            now_monotonic_seconds=self._clock.monotonic_seconds(),
        )

    def progress(self) -> Mapping[MemberId, Progress]:
        """Return the progress of each drain, by member."""
        now = self._clock.monotonic_seconds()
        return {m: drain_progress(drain) for m, drain in self._drains.progress(now).items()}

    def _own(self) -> Progress:
        return self.progress().get(self._member_id, Progress())


def drain_progress(drain: DrainProgress) -> Progress:
    """Return the message of a drain, shards."""
    seconds = drain.eta_seconds
    return Progress(
        kind=ProgressKind.PROGRESS_KIND_DRAIN,
        subject=str(drain.member_id),
        phase="handing over" if drain.left else "ending",
        done=drain.done,
        to_do=drain.left,
        unit=ProgressUnit.PROGRESS_UNIT_SHARDS,
        rate=1 / drain.seconds_each if drain.seconds_each else 0.0,
        eta_s=UNKNOWN if seconds is None else seconds,
        member=str(drain.member_id),
    )


def move_progress(move: MoveUnderWay) -> Progress:
    """Return the message of a move, bytes: only a replica that catches up has any, as its member last reported."""
    progress = Progress(
        kind=ProgressKind.PROGRESS_KIND_MOVE,
        subject=move.item_id,
        phase=move.phase.value,
        to_do=UNKNOWN,
        unit=ProgressUnit.PROGRESS_UNIT_BYTES,
        eta_s=UNKNOWN,
        member=str(move.member_id),
    )
    if move.phase is MovePhase.CATCHING_UP and move.lag is not None:
        progress.to_do = move.lag.behind_bytes
        # Infinite: it makes no progress at present.
        if move.lag.seconds > 0 and math.isfinite(move.lag.seconds):
            progress.eta_s = move.lag.seconds
            progress.rate = move.lag.behind_bytes / move.lag.seconds
    return progress


def operations_response(
    moves: list[MoveUnderWay] | None, drains: Mapping[MemberId, Progress], *, revision: int
) -> ListOperationsResponse:
    """Return the answer: drains, then moves.

    Args:
        moves: The most urgent first; None: unknown, as there is no plan.
        drains: By member.
        revision: Of etcd, as of which the moves hold.
    """
    listed = moves or []
    return ListOperationsResponse(
        revision=revision,
        operations=[*drains.values(), *map(move_progress, listed[:MOVES_LISTED_MAX])],
        moves=len(listed),
        moves_unknown=moves is None,
    )
