"""Keeps the routes of a Python worker current: one member streams their changes to it, by `WatchShards`.

A worker has one watch at most, on a thread of its own. It starts once the worker has made calls for a moment, because
most short tasks end before any route changes; it resumes from the revision of the driver's routes, so that only
changes are sent; and it ends some seconds after the last call. Without a watch, or at members that lack `WatchShards`,
routes are looked up by List when they are refused or old.
"""

from __future__ import annotations

import time
from enum import Enum, auto
from threading import Event, Thread
from typing import Any

import grpc

from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.routing.channels import PythonWorkerCache
from broadsheet.spark_bridge.routing.lookup import (
    CAPABILITY_LIST,
    NEXT_MEMBER,
    credentials,
    members_to_ask,
)
from broadsheet.spark_bridge.routing.plan import ResolverPlan
from broadsheet.wire.watch_pb2 import WatchShardsRequest
from broadsheet.wire.watch_pb2_grpc import WatchServiceStub

WATCH_AFTER_SECONDS = 1.0
"""Age at which a worker starts to watch."""
WATCH_IDLE_SECONDS = 10.0
"""Time after the last call at which a watch ends."""
CALL_SECONDS_MIN = 1.0
TABLE_SECONDS = 50.0
"""Life of a call after one that was too short for a whole table. A credential lives for a minute."""
PAUSE_SECONDS_MAX = 2.0
"""Longest pause before another member is asked."""
REST_SECONDS = 60.0
"""Time without a watch after all members lacked WatchShards, or one refused it."""
CLOSE_SECONDS = 5.0
"""Longest wait for the thread to end; it ends at once, unless a connection is being opened."""


class _End(Enum):
    """The end of one call of a watch."""

    RESUME = auto()
    """Its life was over."""
    NEXT = auto()
    """The member is gone, leaves, or says nothing."""
    LACKING = auto()
    """The member has no WatchShards."""
    REFUSED = auto()
    """Another member would refuse it, too."""


def keep_watch(plan: ResolverPlan, worker: PythonWorkerCache) -> None:
    """Note that the routes of a plan are used, and start to watch them if it is time and no watch runs.

    The watch of another cluster, or of other shards, goes on as long as it is used; meanwhile this plan's routes are
    looked up.
    """
    now, watch = time.monotonic(), worker.watch
    if isinstance(watch, RouteWatch) and watch.holds(plan, now):
        return
    if now - worker.started_monotonic_seconds < WATCH_AFTER_SECONDS:
        return
    with worker.starting:
        # Another thread of this worker was faster.
        if worker.watch is watch:
            worker.watch = RouteWatch(plan, worker)


class RouteWatch:
    """The watch of one plan's shards, from its start until it is idle, refused or closed."""

    def __init__(
        self,
        plan: ResolverPlan,
        worker: PythonWorkerCache,
        *,
        idle_seconds: float = WATCH_IDLE_SECONDS,
    ) -> None:
        """Start.

        Args:
            plan: The shards, and how to ask members for them.
            worker: The cache of this process; its routes are kept current.
            idle_seconds: Time without a use of the plan after which the watch ends.
        """
        self._plan = plan
        self._worker = worker
        self._idle_seconds = idle_seconds
        self._used_monotonic_seconds = time.monotonic()
        self._is_partial = False
        """True after a call that ended within a state."""
        self._stopping = Event()
        self._call: Any = None  # gRPC's calls are generic in their messages only
        self._rests_until_monotonic_seconds = float("-inf")
        # A daemon, because a process that ends must not wait for it; nothing that it does has to be completed.
        self._thread = Thread(target=self._run, name="route watch", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Report whether its thread lives."""
        return self._thread.is_alive()

    def holds(self, plan: ResolverPlan, now: float) -> bool:
        """Report whether no other watch may start; note the use if the plan's shards are these."""
        mine = self._plan
        if plan is mine or (plan.cluster == mine.cluster and plan.shards == mine.shards):
            self._used_monotonic_seconds = now
        return self.is_running or now < self._rests_until_monotonic_seconds

    def close(self) -> None:
        """End the call and the thread."""
        self._stopping.set()
        call = self._call
        if call is not None:
            call.cancel()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        backoff = Backoff(max_seconds=PAUSE_SECONDS_MAX)
        endpoint, former, lacking = "", "", set[str]()
        while not self._stopping.is_set() and self._seconds_left() > 0:
            if not endpoint:
                members = members_to_ask(self._plan, self._worker, last=former)
                endpoint = next((each for each in members if each not in lacking), "")
            end = self._follow(endpoint) if endpoint else _End.REFUSED
            match end:
                case _End.RESUME:
                    backoff.reset()
                case _End.NEXT:
                    former, endpoint = endpoint, ""
                    self._stopping.wait(backoff.next_seconds())
                case _End.LACKING:
                    lacking.add(endpoint)
                    endpoint = ""
                case _End.REFUSED:
                    # No caller is told, because the next look-up meets the same refusal and raises it.
                    self._rests_until_monotonic_seconds = time.monotonic() + REST_SECONDS
                    return

    def _follow(self, endpoint: str) -> _End:
        """Apply what one member tells, until its call ends."""
        try:
            channel, release = self._worker.channels.borrow(endpoint, self._plan.access.tls)
        except ValidationError:
            return _End.REFUSED
        plan, has_heard = self._plan, False
        table = self._worker.routes(plan.cluster)
        try:
            position = table.watch_from(plan.routes, plan.revision, time.monotonic())
            self._call = call = self._begin(channel, position)
            # Closed between the loop's look and this call.
            if self._stopping.is_set():
                call.cancel()
            for response in call:
                if response.header.etcd.cluster_id != plan.cluster_id:
                    # The address belongs to another cluster by now.
                    call.cancel()
                    return _End.NEXT
                has_heard = True
                table.follow(response, time.monotonic())
                self._is_partial = response.more
                if not response.more:
                    self._worker.members.keep(plan.cluster, table.endpoints())
        except grpc.RpcError as error:
            return _end_of(error.code(), has_heard=has_heard)
        finally:
            self._call = None
            release()
        return _End.NEXT

    def _begin(self, channel: grpc.Channel, position: int) -> Any:
        plan = self._plan
        seconds = max(self._seconds_left(), CALL_SECONDS_MIN)
        if self._is_partial:
            seconds = max(seconds, TABLE_SECONDS)
        request = WatchShardsRequest(
            selector=plan.shards,
            resume_revision=position,
            resume_cluster_id=plan.cluster_id,
        )
        return WatchServiceStub(channel).WatchShards(
            request,
            timeout=seconds,
            metadata=credentials(
                plan.access.auth_keys, CAPABILITY_LIST, plan.shards, seconds=seconds
            ),
        )

    def _seconds_left(self) -> float:
        return self._used_monotonic_seconds + self._idle_seconds - time.monotonic()


def _end_of(code: grpc.StatusCode, *, has_heard: bool) -> _End:
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return _End.LACKING
    # Every member answers at once, so one that said nothing hangs.
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and has_heard:
        return _End.RESUME
    return _End.NEXT if code in NEXT_MEMBER else _End.REFUSED
