"""The function that Spark ships to executors, one task a member.

    the task starts ─► leases of earlier attempts revoked ─► member code imported ─► `serving.be_member`

It runs in the main thread of a Python worker, a process that Spark forked for this task alone. gRPC must not be used
before a fork and after it: the driver only pickles the task, and nothing that Spark's daemon imports leads here.

The first step comes before what takes time: importing the consumer and the application takes most of a second,
and until the lease of the attempt before is gone nobody serves its shards.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from broadsheet.allocator.announcement import revoke_predecessors
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.ops import LeaseId
from broadsheet.spark_bridge.member.identity import Incarnation

_NO_LEASE = LeaseId(0)
_ANY_ZONE = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    """What a task says when its member is gone."""

    member: str
    """Its suffix in etcd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTask:
    """Everything in it is pickled."""

    application_id: str
    etcd: EtcdConfig
    root: str
    plan: bytes = field(repr=False)
    """With secrets in it. A pickled `broadsheet.spark_bridge.member.serving.MemberPlan`: unpickling it imports what
    takes time.
    """

    def __call__(self, rows: Iterable[int]) -> Iterator[MemberResult]:
        """Be the member whose number is the one row, until told to leave."""
        from pyspark import TaskContext

        (partition,) = rows
        context = TaskContext.get()
        assert context is not None, "runs in a task"
        incarnation = Incarnation(
            application_id=self.application_id,
            partition=partition,
            attempt=context.attemptNumber(),
        )
        if incarnation.attempt > 0:
            asyncio.run(self._bury_predecessors(incarnation))
        from broadsheet.allocator.runtime.event_loop import run
        from broadsheet.spark_bridge.member.executor import log_to_stderr
        from broadsheet.spark_bridge.member.serving import be_member

        log_to_stderr(task=incarnation.suffix)
        plan = pickle.loads(self.plan)  # noqa: S301 - our own driver's
        run(be_member(plan, incarnation))
        yield MemberResult(member=incarnation.suffix)

    async def _bury_predecessors(self, incarnation: Incarnation) -> None:
        """Revoke the leases of earlier attempts: Spark starts one once it holds the one before for failed."""
        async with EtcdClient(self.etcd) as etcd:
            await revoke_predecessors(
                etcd,
                Keys(self.root),
                MemberId(_ANY_ZONE, incarnation.suffix),
                prefix=incarnation.attempts_prefix,
                own_lease=_NO_LEASE,
            )
