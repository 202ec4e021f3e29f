"""Queries the driver's JVM for executors, over Py4J.

Polled, not listened to: a listener in Python costs the JVM's event bus a call into Python for every event of every
task, and a bus that cannot keep up drops events. A query takes well under a millisecond and sees a lost executor as
soon as its connection breaks; for one that is being decommissioned there is no event at all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import structlog
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark import SparkContext

from broadsheet.allocator.errors import EtcdError
from broadsheet.spark_bridge.cluster.membership import Membership
from broadsheet.spark_bridge.errors import ClusterStoppedError, SparkConfError
from broadsheet.spark_bridge.jvm import gateway_of, jvm_context_of, jvm_of

DECOMMISSION_CONF = "spark.decommission.enabled"
_SESSION_STOPPED = (Py4JError, AttributeError, TypeError, OSError)
"""Errors of calls into a session that was stopped: by the JVM, by what PySpark has set to None, by the connection."""
_CLIENT_CLASS = "org.apache.spark.ExecutorAllocationClient"
_SEPARATOR = ","


class Executors:
    """The current executors of a session. Safe to use from several threads."""

    def __init__(self, context: SparkContext) -> None:
        """Query the executors of one session.

        Args:
            context: The session's.
        """
        self._context = context
        self._jvm_context = jvm_context_of(context)
        self._backend = self._jvm_context.schedulerBackend()
        self.can_be_lost: bool = is_instance_of(gateway_of(context), self._backend, _CLIENT_CLASS)
        """False with a local master, because its only executor is the driver."""

    def alive(self) -> frozenset[str]:
        """Return the ids of connected executors.

        Raises:
            ClusterStoppedError: the session was stopped.
        """
        if not self.can_be_lost:
            return frozenset()
        try:
            joined = str(self._jvm_context.getExecutorIds().mkString(_SEPARATOR))
        except _SESSION_STOPPED as error:
            raise ClusterStoppedError("the Spark session was stopped") from error
        return frozenset(filter(None, joined.split(_SEPARATOR)))

    def leaving(self, executor_ids: Iterable[str]) -> frozenset[str]:
        """Return the executors among these that Spark is decommissioning.

        Raises:
            ClusterStoppedError: the session was stopped.
        """
        try:
            scheduler = self._jvm_context.taskScheduler()
            return frozenset(
                one
                for one in executor_ids
                if scheduler.getExecutorDecommissionState(one).isDefined()
            )
        except _SESSION_STOPPED as error:
            raise ClusterStoppedError("the Spark session was stopped") from error

    def decommission(self, executor_id: str, *, reason: str) -> None:
        """Make Spark start no more tasks there, and end the executor once its tasks have ended.

        Raises:
            SparkConfError: the session does not allow it.
        """
        allowed = self._context.getConf().get(DECOMMISSION_CONF, "false") or ""
        if allowed.lower() != "true":
            raise SparkConfError(
                DECOMMISSION_CONF,
                value=allowed,
                needed="true to drain executors",
                why="Spark would start a member that leaves an executor on it again",
            )
        jvm = jvm_of(self._context)
        info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo(
            reason, jvm.scala.Option.empty()
        )
        self._backend.decommissionExecutor(executor_id, info, False, False)


LOOK_SECONDS = 0.2
"""Between two polls of the live executors: one call into the JVM."""
LOOKS_A_LEAVING = 5
"""Polls of the live executors for each poll of the leaving ones, which takes a call for each executor."""
_log = structlog.get_logger()


class ExecutorWatch:
    """Moves shards off lost and decommissioned executors, from a background thread.

        executor lost             ─► its members' leases are revoked: their shards move now, not when the leases end
        executor decommissioned   ─► its members are ordered to move: shards handed over, members restarted elsewhere

    Both only save time: a lease ends by itself, and the stores' fences hold whatever happens.
    """

    def __init__(self, executors: Executors, membership: Membership) -> None:
        """Watch the executors of a cluster.

        Args:
            executors: The executors to watch.
            membership: The cluster's members.
        """
        self._executors = executors
        self._membership = membership
        self._settled: frozenset[str] = frozenset()
        """Executors alive at the last poll; the members of all others have been buried."""
        self._moved: set[tuple[int, int]] = set()
        """Task and attempt of members that were ordered to move."""
        self._looks = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="executor-watch", daemon=True)

    def start(self) -> None:
        """Start to poll, unless there is nothing to observe."""
        if self._executors.can_be_lost:
            self._thread.start()

    def stop(self) -> None:
        """Stop polling. Idempotent, and safe before `start`."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Poll once.

        Raises:
            EtcdError: etcd did not answer; the next poll does what this one could not.
            ClusterStoppedError: the session was stopped.
        """
        alive = self._executors.alive()
        if alive != self._settled:
            self._bury()
            self._settled = alive
        if self._looks % LOOKS_A_LEAVING == 0:
            self._move_from(self._executors.leaving(alive))
        self._looks += 1

    def _bury(self) -> None:
        hosts = self._membership.hosts()
        # Read after the hosts: it has every executor that hosted a member then, unless that was
        # lost.
        alive = self._executors.alive()
        lost = [host for host in hosts if host.executor_id not in alive]
        for member_id in self._membership.bury(lost):
            _log.warning("cluster.executor_lost", member=str(member_id))

    def _move_from(self, leaving: frozenset[str]) -> None:
        if not leaving:
            return
        for host in self._membership.hosts():
            life = (host.partition, host.attempt)
            # Ordered once: the key of an order stays, so a repetition would only write.
            if host.executor_id in leaving and life not in self._moved:
                _log.info(
                    "cluster.executor_leaving",
                    executor=host.executor_id,
                    task=host.partition,
                    attempt=host.attempt,
                )
                self._membership.order_to_move(host)
                self._moved.add(life)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                self.look()
            except EtcdError as error:
                _log.warning("cluster.executor_watch_retries", cause=str(error))
            except ClusterStoppedError as error:
                _log.info("cluster.executor_watch_ended", cause=str(error))
                return
