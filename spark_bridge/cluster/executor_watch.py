"""Acts on what becomes of executors: members of a lost one are buried, those of one that leaves are moved.

    executor lost             ─► its members' leases are revoked: their shards move now, not when the leases end
    executor decommissioned   ─► its members are told to move: shards handed over, started anew elsewhere

Both only hurry: a lease ends by itself, and fences hold whatever happens.
"""

from __future__ import annotations

import threading

import structlog

from allocator.errors import EtcdError
from spark_bridge.cluster.executors import Executors
from spark_bridge.cluster.membership import Membership
from spark_bridge.errors import ClusterStoppedError

LOOK_SECONDS = 0.2
"""Between two looks at who is alive: one call into the JVM."""
LOOKS_A_LEAVING = 5
"""Looks for each one at who is leaving, which takes a call for each executor."""

log = structlog.get_logger()


class ExecutorWatch:
    """Looks from a thread of its own, from `start` to `stop`."""

    def __init__(self, executors: Executors, membership: Membership) -> None:
        """Bind the watch.

        Args:
            executors: Whom to watch.
            membership: Of the cluster, whose members are on them.
        """
        self._executors = executors
        self._membership = membership
        self._settled: frozenset[str] = frozenset()
        """Who was alive when all members of others had been buried."""
        self._moved: set[tuple[int, int]] = set()
        """Task and attempt of members that were told to move."""
        self._looks = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="executor-watch", daemon=True)

    def start(self) -> None:
        """Start to look, if there is anything to be seen."""
        if self._executors.can_be_lost:
            self._thread.start()

    def stop(self) -> None:
        """Look no more. Idempotent, and safe before `start`."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Look once.

        Raises:
            EtcdError: etcd did not answer; the next look does what this one could not.
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
        # Read after the hosts: whoever hosted a member then is in it, unless lost.
        alive = self._executors.alive()
        lost = [host for host in hosts if host.executor_id not in alive]
        for member_id in self._membership.bury(lost):
            log.warning("cluster.executor_lost", member=str(member_id))

    def _move_from(self, leaving: frozenset[str]) -> None:
        if not leaving:
            return
        for host in self._membership.hosts():
            life = (host.partition, host.attempt)
            if host.executor_id in leaving and life not in self._moved:
                log.info(
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
                log.warning("cluster.executor_watch_waits", cause=str(error))
            except ClusterStoppedError as error:
                log.info("cluster.executor_watch_ended", cause=str(error))
                return
