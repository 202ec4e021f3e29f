"""What the driver's JVM knows of executors, asked over Py4J.

Asked for, not listened to: a listener in Python costs the JVM's event bus a call into Python for every event of every
task, and a bus that cannot keep up drops events. To ask takes well under a millisecond, sees a lost executor as soon as
its connection breaks, and there is no event at all for one that is being decommissioned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark import SparkContext

from spark_bridge.errors import ClusterStoppedError, SparkConfError

DECOMMISSION_CONF = "spark.decommission.enabled"
_CLIENT_CLASS = "org.apache.spark.ExecutorAllocationClient"
_SEPARATOR = ","


class Executors:
    """Executors of a session, as of now. Safe to use from several threads."""

    def __init__(self, context: SparkContext) -> None:
        """Bind them.

        Args:
            context: Whose executors.
        """
        self._context = context
        # `Any` here and below: what Py4J returns has the JVM's types.
        self._jvm_context: Any = context._jsc.sc()  # noqa: SLF001 - pyspark has no other way there
        self._backend: Any = self._jvm_context.schedulerBackend()
        gateway = context._gateway  # noqa: SLF001 - as above
        self.can_be_lost: bool = is_instance_of(gateway, self._backend, _CLIENT_CLASS)
        """False with a local master, whose one executor is the driver."""

    def alive(self) -> frozenset[str]:
        """Return the ids of those that are connected.

        Raises:
            ClusterStoppedError: the session was stopped.
        """
        if not self.can_be_lost:
            return frozenset()
        try:
            joined = str(self._jvm_context.getExecutorIds().mkString(_SEPARATOR))
        except Py4JError as error:
            raise ClusterStoppedError("the Spark session was stopped") from error
        return frozenset(filter(None, joined.split(_SEPARATOR)))

    def leaving(self, executor_ids: Iterable[str]) -> frozenset[str]:
        """Return which of these Spark is decommissioning.

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
        except Py4JError as error:
            raise ClusterStoppedError("the Spark session was stopped") from error

    def decommission(self, executor_id: str, *, reason: str) -> None:
        """Have Spark start no more tasks there, and end the executor once it has none left.

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
        jvm: Any = self._context._jvm  # noqa: SLF001 - as above
        info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo(
            reason, jvm.scala.Option.empty()
        )
        self._backend.decommissionExecutor(executor_id, info, False, False)
