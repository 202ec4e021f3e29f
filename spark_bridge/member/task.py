"""The function that Spark ships to executors, one task a member.

    the task starts ─► leases of earlier attempts revoked ─► member code imported ─► `serving.be_member`

It runs in the main thread of a Python worker, a process that Spark forked for this task alone. gRPC must not be used
both before a fork and after it. So the driver only pickles the task, and nothing that Spark's daemon imports leads
here.

Earlier leases are revoked before the slow step: importing the consumer and the application takes most of a second, and
shards of the earlier attempt are unserved until its lease is gone.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from broadsheet.allocator.announcement import Predecessors, revoke_predecessors
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.ops import LeaseId
from broadsheet.spark_bridge.errors import ApplicationLoadError
from broadsheet.spark_bridge.member.identity import Incarnation

_NO_LEASE = LeaseId(0)
_ANY_ZONE = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    """The result of a task whose member has left."""

    member: str
    """The member's suffix in etcd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTask:
    """The function of one member's task; pickled as a whole."""

    application_id: str
    etcd: EtcdConfig
    root: str
    log_file: str
    """File for what the member's process writes; empty: the executor's own files."""
    plan: bytes = field(repr=False)
    """A pickled `broadsheet.spark_bridge.member.serving.MemberPlan`, because unpickling it imports slow modules. It has
    secrets.
    """

    def __call__(self, rows: Iterable[int]) -> Iterator[MemberResult]:
        """Run the member whose number is the partition's only row, until it is ordered to leave."""
        from pyspark import TaskContext

        (partition,) = rows
        context = TaskContext.get()
        assert context is not None, "runs in a task"
        incarnation = Incarnation(
            application_id=self.application_id,
            partition=partition,
            attempt=context.attemptNumber(),
        )
        # A first attempt has no predecessors, and is spared a connection to etcd.
        if incarnation.attempt > 0:
            asyncio.run(self._bury_predecessors(incarnation))
        from broadsheet.runtime.event_loop import run
        from broadsheet.runtime.log_output import flush_lines
        from broadsheet.spark_bridge.member.executor import log_to_stderr, redirect_output
        from broadsheet.spark_bridge.member.serving import be_member

        if self.log_file:
            redirect_output(self.log_file)
        log_to_stderr(task=incarnation.suffix)
        try:
            plan = self._load_plan()
            run(be_member(plan, incarnation))
        finally:
            # Spark ends its Python workers by `os._exit`.
            flush_lines()
        yield MemberResult(member=incarnation.suffix)

    def _load_plan(self) -> Any:  # `Any`: a `MemberPlan`, which this module does not import
        try:
            return pickle.loads(self.plan)  # noqa: S301 - pickled by our own driver
        except OSError:
            raise
        # Unpickling a factory imports its module, which raises anything.
        except Exception as error:
            raise ApplicationLoadError.of("", error) from error

    async def _bury_predecessors(self, incarnation: Incarnation) -> None:
        """Revoke the leases of earlier attempts, which Spark has taken for failed."""
        async with EtcdClient(self.etcd) as etcd:
            await revoke_predecessors(
                etcd,
                Keys(self.root),
                MemberId(_ANY_ZONE, incarnation.suffix),
                Predecessors(prefix=incarnation.attempts_prefix, in_any_zone=True),
                own_lease=_NO_LEASE,
            )
