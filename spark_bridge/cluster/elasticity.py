"""Scales a cluster up and down without losing a message.

A leaving member gets an order through etcd, hands its shards over, and its task returns. No process is killed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.spark_bridge.cluster.executor_problems import Unfit
from broadsheet.spark_bridge.cluster.executors import Executors
from broadsheet.spark_bridge.cluster.member_jobs import MemberJobs
from broadsheet.spark_bridge.cluster.membership import MemberInfo, Membership
from broadsheet.spark_bridge.cluster.task_failures import MemberFailures
from broadsheet.spark_bridge.errors import (
    ClusterStoppedError,
    ExecutorUnfitError,
    NotInClusterError,
    ScaleTimeoutError,
)

POLL_SECONDS = 0.05
FAILURES_LOOK_SECONDS = 0.5
"""Between two looks at failed tasks, while members are waited for: some calls into the JVM."""
NO_EXECUTOR_SECONDS = 10.0
"""Wait for a first executor after which the log says that there is none."""
SWEPT_SECONDS_MAX = 5.0
"""Longest wait for members whose job was cancelled to hand over and leave; Spark kills them after about 3 s."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A task of the cluster that has no order to leave."""

    partition: int
    """Its number."""
    executor_id: str | None
    """Executor on which its member is announced; None if it is not announced at the moment."""


def choose_leavers(seats: Collection[Seat], *, count: int) -> tuple[int, ...]:
    """Choose `count` tasks whose members leave; return their numbers.

    Tasks without a member go first, because they serve nothing. Then each choice is on the executor that has most, so
    that the rest stay spread; among several, the youngest, because it has gathered the least state.

    Requires:
        0 <= count <= len(seats).
    """
    assert 0 <= count <= len(seats), f"{count} of {len(seats)}"
    absent = sorted((one.partition for one in seats if one.executor_id is None), reverse=True)
    leavers = absent[:count]
    placed = [one for one in seats if one.executor_id is not None]
    while len(leavers) < count:
        leaver = _most_crowded(placed)
        leavers.append(leaver.partition)
        placed.remove(leaver)
    return tuple(leavers)


def _most_crowded(placed: Sequence[Seat]) -> Seat:
    members = Counter(one.executor_id for one in placed)
    return max(placed, key=lambda one: (members[one.executor_id], one.partition))


class Elasticity:
    """Changes a cluster's size. Safe to use from several threads."""

    def __init__(
        self,
        jobs: MemberJobs,
        membership: Membership,
        executors: Executors,
        failures: MemberFailures,
        *,
        slots: Callable[[], int],
    ) -> None:
        """Scale a cluster that has no member yet.

        Args:
            jobs: Submits the jobs whose tasks are members.
            membership: Knows the live members, and sends them orders.
            executors: Executors that may be drained.
            failures: Failed attempts of the members' tasks.
            slots: Returns how many tasks Spark can run at a time.
        """
        self._jobs = jobs
        self._membership = membership
        self._executors = executors
        self._failures = failures
        self._slots = slots
        self._wanted: set[int] = set()
        """Numbers of the tasks whose members have no order to leave."""
        self._lock = threading.Lock()
        jobs.on_swept_away = self._replace

    @property
    def wanted(self) -> int:
        """Number of members that the cluster is to have."""
        return len(self._wanted)

    def members(self) -> tuple[MemberInfo, ...]:
        """Return the live members, by their task's number.

        Raises:
            ClusterStoppedError: a job failed, so that members no longer come back.
        """
        # A job that ended, even without an error, starts lost members no more.
        failure = self._jobs.failure
        if failure is not None or not self._jobs.running.issuperset(self._wanted):
            # The job's own text is that of all of Spark's frames, too.
            self._failures.look()
            why = self._failures.newest() or failure or "all tasks returned"
            raise ClusterStoppedError(f"the Spark job of the members ended: {why}") from failure
        return self._membership.members()

    def set_size(self, members: int) -> None:
        """Add members, or order some to leave; return at once."""
        with self._lock:
            missing = members - len(self._wanted)
            if missing > 0:
                self._warn_of_slots(members)
                self._wanted.update(self._jobs.add(missing))
            elif missing < 0:
                self._dismiss(choose_leavers(self._seats(), count=-missing))

    def dismiss(self, member: MemberInfo) -> None:
        """Order a member to leave for good; return at once.

        Raises:
            ValueError: it is the last member, and no other application has one that could take its shards.
        """
        with self._lock:
            if self._wanted == {member.partition} and not self._membership.others_stay():
                raise ValueError("expected another member beside it: stop() ends the last one")
            self._dismiss((member.partition,))

    def drain_executor(self, executor_id: str) -> None:
        """Have Spark decommission an executor; the watch moves its members. Return at once.

        Raises:
            NotInClusterError: there is no such executor.
            SparkConfError: the session does not allow it.
        """
        alive = self._executors.alive()
        if executor_id not in alive:
            known = ", ".join(sorted(alive)) or "none that can be drained"
            raise NotInClusterError(f"executor {executor_id!r}", known=f"executors {known}")
        self._executors.decommission(executor_id, reason="drained by a ShardCluster")

    def wait_settled(self, *, timeout_seconds: float) -> None:
        """Wait until exactly the wanted members are announced.

        Raises:
            ExecutorUnfitError: no executor can run a member; what was begun goes on.
            ScaleTimeoutError: it takes longer; what was begun goes on.
            ClusterStoppedError: a job failed.
        """
        present: frozenset[int] = frozenset()
        look = UnfitExecutorWatch(self._executors, self._failures)

        def settled() -> bool:
            nonlocal present
            members = self.members()
            present = frozenset(one.partition for one in members)
            if present == self._wanted:
                return True
            if self._wanted - present:
                look.at({one.executor_id for one in members})
            return False

        if not wait_until(settled, timeout_seconds=timeout_seconds):
            raise ScaleTimeoutError(
                self.wanted,
                members=len(present),
                seconds=timeout_seconds,
                why=self._why(absent=len(self._wanted - present)),
            )

    def wait_gone_from(self, executor_id: str, *, timeout_seconds: float) -> None:
        """Wait until no live member is on the executor.

        Raises:
            ScaleTimeoutError: it takes longer; what was begun goes on.
            ClusterStoppedError: a job failed.
        """
        left: list[MemberInfo] = []

        def gone() -> bool:
            left[:] = [one for one in self.members() if one.executor_id == executor_id]
            return not left

        if not wait_until(gone, timeout_seconds=timeout_seconds):
            raise ScaleTimeoutError(
                0, members=len(left), seconds=timeout_seconds, why=f"on executor {executor_id}"
            )

    def _replace(self, partitions: range) -> None:
        """Submit others in place of members whose job was cancelled with all others, and end the cancelled ones.

        Until Spark kills them they hand over, if a slot is free for their successors; then their leases are ended.
        """
        with self._lock:
            swept = [one for one in partitions if one in self._wanted]
            _log.warning("cluster.jobs_swept_away", members=len(swept))
            if not swept:
                return
            successors = self._jobs.add(len(swept))
            self._wanted.difference_update(swept)
            self._wanted.update(successors)
        try:
            for partition in swept:
                self._membership.order_to_leave(partition)
            gone = frozenset(swept)
            wait_until(
                lambda: gone.isdisjoint(one.partition for one in self._membership.members()),
                timeout_seconds=SWEPT_SECONDS_MAX,
            )
            self._membership.bury(
                [one for one in self._membership.hosts() if one.partition in gone]
            )
        except EtcdError as error:
            # It only saves the time until their leases end.
            _log.warning("cluster.swept_not_buried", cause=str(error))

    def _dismiss(self, partitions: tuple[int, ...]) -> None:
        for partition in partitions:
            self._membership.order_to_leave(partition)
            # After the order: if etcd fails, the member is still wanted, and can be told again.
            self._wanted.discard(partition)

    def _seats(self) -> list[Seat]:
        executors = {one.partition: one.executor_id for one in self.members() if not one.exiting}
        return [
            Seat(partition=partition, executor_id=executors.get(partition))
            for partition in self._wanted
        ]

    def _warn_of_slots(self, members: int) -> None:
        if members >= (slots := self._slots()):
            _log.warning(
                "cluster.no_slot_left",
                members=members,
                slots=slots,
                problem="members take every task slot that Spark has, so DataFrames wait",
            )

    def _why(self, *, absent: int) -> str:
        if not absent:
            return "those that are to leave still hand shards over"
        if reported := self._membership.failure() or self._failures.newest():
            return reported
        if self._executors.can_be_lost and not self._executors.alive():
            return "Spark has no executor: the pages and logs of its cluster manager say why"
        return f"each needs a task slot of its own, and Spark has about {self._slots()}"


class ConnectedExecutors(Protocol):
    """The executors of a session, as a wait for members asks of them."""

    @property
    def can_be_lost(self) -> bool:
        """False where the driver is the only executor."""
        ...

    def alive(self) -> frozenset[str]:
        """Return the ids of connected executors."""
        ...


class UnfitFinder(Protocol):
    """Judges failed attempts of members."""

    def unfit(self, *, serving: Collection[str], alive: Collection[str]) -> Unfit | None:
        """Return why no executor can run a member; None if one may."""
        ...


class UnfitExecutorWatch:
    """Looks for executors that cannot run members, while some are waited for."""

    def __init__(
        self,
        executors: ConnectedExecutors,
        failures: UnfitFinder,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to wait.

        Args:
            executors: Of the session.
            failures: Of the cluster's members.
            monotonic: Returns seconds.
        """
        self._executors = executors
        self._failures = failures
        self._monotonic = monotonic
        self._began = monotonic()
        self._next = self._began + FAILURES_LOOK_SECONDS
        self._told = False

    def at(self, serving: Collection[str]) -> None:
        """Look, if it is time.

        Args:
            serving: Executors that have an announced member.

        Raises:
            ExecutorUnfitError: no executor can run a member.
        """
        now = self._monotonic()
        if now < self._next:
            return
        self._next = now + FAILURES_LOOK_SECONDS
        alive = self._executors.alive()
        if (unfit := self._failures.unfit(serving=serving, alive=alive)) is not None:
            raise ExecutorUnfitError(str(unfit))
        nothing_there = self._executors.can_be_lost and not alive
        if nothing_there and not self._told and now - self._began >= NO_EXECUTOR_SECONDS:
            self._told = True
            _log.warning(
                "cluster.no_executor",
                waited_seconds=round(now - self._began),
                problem="Spark has no executor yet: the pages and logs of its cluster manager say why",
            )


def wait_until(condition: Callable[[], bool], *, timeout_seconds: float) -> bool:
    """Poll until the condition holds or the time passes; return whether it holds."""
    deadline = time.monotonic() + timeout_seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() >= deadline:
            return False
        pause.wait(POLL_SECONDS)
    return True
