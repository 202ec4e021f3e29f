"""A simulated cluster of a family: shards are split, splits are cancelled, and members die meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Delete, Put, TxnCheckpoint
from broadsheet.consumer.application import Application, Shard
from broadsheet.consumer.elastic.family import Ownership, family_key, is_fork
from broadsheet.consumer.elastic.flip import Rest, begin_txn, cancel_txn
from broadsheet.consumer.elastic.fork import ForkHold, forks_prefix, hold_key
from broadsheet.consumer.elastic.split_plan import SplitWish, plan_split
from broadsheet.consumer.errors import SplitDelayedError
from broadsheet.consumer.recoverylog.hints import recovery_log_of
from broadsheet.consumer.shard.holding import HoldOrder
from broadsheet.runtime.errors import EndpointError
from broadsheet.testing.allocator.kernel.network import Link
from broadsheet.testing.allocator.kernel.run import RunContext
from broadsheet.testing.families.application import DividedKeeper, DividedStore
from broadsheet.testing.families.family_checker import FamilyChecker, ShardObserver
from broadsheet.testing.shards.cluster import SHARD, ConsumerCluster, new_journal
from broadsheet.testing.shards.member import SimulatedConsumer
from broadsheet.testing.shards.scenario import ShardScenario
from broadsheet.wire.elastic_pb2 import PrepareForkRequest
from broadsheet.wire.labels import CONTENT_TYPE_RECOVERY_LOG, FORK_OF, value_of
from broadsheet.wire.shard_pb2 import ShardSpec

LOST_SHARE: Final = 0.04
"""Share of messages between members that are lost, and as many that are late, until the run calms down."""


class FamilyCluster(ConsumerCluster):
    """The broker, etcd and members of one run, and the operator who splits."""

    def __init__(
        self,
        context: RunContext,
        scenario: ShardScenario,
        *,
        checker: FamilyChecker,
        directory: Path,
    ) -> None:
        """Create the journals and the first shard, without members.

        Args:
            context: The run.
            scenario: Shapes and bounds of the run.
            checker: Checks the history of the run.
            directory: Holds members' files.
        """
        self._checker = checker
        super().__init__(context, scenario, witness=checker, directory=directory)
        self._surroundings = replace(self._surroundings, new_parents=partial(LinkedParents, self))
        checker.serving = lambda: [spec for spec, _ in self.specs().values()]
        checker.left_over = self.left_over
        self.peers = Link(Random(f"{context.seed} peers"), self.latency_seconds)
        """Between members."""
        self.peers.loss = self.peers.late = LOST_SHARE

    # -- the operator's part

    def specs(self) -> dict[str, tuple[ShardSpec, int]]:
        """Return the family's specs, each with the revision that wrote it."""
        found = [(ShardSpec.FromString(kv.value), kv) for kv in self.kvs(self.keys.items_prefix)]
        return {spec.id: (spec, kv.mod_revision) for spec, kv in found}

    def shards(self) -> list[ItemId]:
        """Return all shards, forks among them."""
        return [ItemId(shard_id) for shard_id in sorted(self.specs())]

    def put_spec(self) -> None:
        """Write the first shard's spec; later another spec of one shard, which keeps its labels."""
        stored = self.specs()
        if not stored:
            super().put_spec()
            return
        spec, _ = stored[self.random.choice(sorted(stored))]
        milliseconds = self.draw(self.scenario.max_txn_milliseconds)
        spec.max_txn_duration.FromMilliseconds(milliseconds)
        spec.min_txn_duration.FromMilliseconds(
            min(milliseconds, self.draw(self.scenario.min_txn_milliseconds))
        )
        self.write(
            Put(self.keys.item(ItemId(spec.id)), spec.SerializeToString(deterministic=True)),
            Put(family_key(self.keys.root, Ownership.of(spec).family), b""),
        )

    def split(self) -> str | None:
        """Begin a split of a shard; return which, or None if none can be split now."""
        stored = self.specs()
        forks = [spec for spec, _ in stored.values() if is_fork(spec)]
        taken = {value_of(spec.labels, FORK_OF) for spec in forks}
        able = sorted(
            shard_id
            for shard_id, (spec, _) in stored.items()
            if not is_fork(spec) and shard_id not in taken
        )
        if not able:
            return None
        parent, revision = stored[self.random.choice(able)]
        owned = Ownership.of(parent).owned
        if owned.end - owned.begin < 2:
            return None
        number = next(each for each in range(2, 99) if f"shard-{each}" not in stored)
        wish = SplitWish(
            at_group=self.random.randrange(owned.begin + 1, owned.end), child=f"shard-{number}"
        )
        plan = plan_split(parent, wish, ids=stored, members=forks)
        log = recovery_log_of(plan.child)
        if log not in self.broker.journals:
            self.broker.create(new_journal(log, CONTENT_TYPE_RECOVERY_LOG))
        family = family_key(self.keys.root, Ownership.of(parent).family)
        begun = begin_txn(
            plan,
            self.keys,
            parent_revision=revision,
            family_revision=next((kv.mod_revision for kv in self.kvs(family)), 0),
        )
        self._perform(begun)
        return f"{parent.id} at {plan.given.begin} into {plan.child.id}"

    def cancel(self) -> str | None:
        """Cancel a split; return which, or None if there is none."""
        forks = [each for each in self.specs().values() if is_fork(each[0])]
        if not forks:
            return None
        child, revision = self.random.choice(forks)
        parent = value_of(child.labels, FORK_OF)
        self._perform(cancel_txn(child, revision, parent, self.keys))
        return f"{child.id} of {parent}"

    def left_over(self) -> list[str]:
        """Return what is in etcd of splits, in words."""
        root = self.keys.root
        prefixes = (forks_prefix(root), hold_key(root, ""))
        return [f"etcd has {kv.key!r}" for prefix in prefixes for kv in self.kvs(prefix)]

    def shut_down(self) -> None:
        """End the run: requests between members that are on their way are lost."""
        self.peers.cut_off(refuses=True)
        super().shut_down()

    def _perform(self, checkpoint: TxnCheckpoint) -> None:
        done = self.etcd.perform(checkpoint.compares, checkpoint.operations, author=self.AUTHOR)
        assert done.succeeded, "nothing changes between a look and a transaction of the operator"

    # -- the allocator's part

    def _bury(self) -> None:
        """Make deaths known, and end assignments of shards that were deleted."""
        super()._bury()
        items = {str(each) for each in self.shards()}
        for kv in self.kvs(self.keys.assignments_prefix):
            parsed = self.keys.parse(kv.key)
            if str(getattr(parsed, "item_id", SHARD)) not in items:
                self.write(Delete(kv.key))

    # -- the members' part

    def serve(self, request: PrepareForkRequest, target: SimulatedConsumer) -> asyncio.Future[Rest]:
        """Have a member serve a request, in its own process; return the future of its answer, which may be lost."""
        answer: asyncio.Future[Rest] = asyncio.get_running_loop().create_future()

        async def handle() -> None:
            try:
                held = await _prepared(
                    self.keys.item(ItemId(request.child)).decode(), request, target
                )
            except Exception as error:  # the caller's
                delayed = SplitDelayedError(f"{target.member_id}: {error}")
                self.peers.carry(lambda: None if answer.done() else answer.set_exception(delayed))
            else:
                self.peers.carry(lambda: None if answer.done() else answer.set_result(held))

        def arrive() -> None:
            target.process.run(lambda: self._group.start_soon(handle(), name="prepare fork"))

        self.peers.carry(arrive)
        return answer

    def _new_application(self, to_table: Link) -> Application[Any]:
        del to_table
        return DividedKeeper(self._open_divided, self._checker, self)

    def _open_divided(self, shard: Shard) -> DividedStore:
        return DividedStore(
            shard,
            observer=ShardObserver(self._checker, shard.id),
            witness=self._checker,
            piecewise=self.piecewise,
        )


class LinkedParents:
    """Reaches the primaries of parents for one member; implements `ParentCaller`."""

    def __init__(self, cluster: FamilyCluster, member_id: MemberId) -> None:
        """Keep the arguments; no call is made yet.

        Args:
            cluster: Has the members.
            member_id: Who asks.
        """
        self._cluster = cluster
        self._member_id = member_id

    async def prepare(self, request: PrepareForkRequest, *, timeout_seconds: float) -> Rest:
        """Have it rest; return its assignment."""
        key_space = self._cluster.by_id(self._member_id).key_space
        assert key_space is not None, "it runs"
        for assignment in key_space.assignments_of(ItemId(request.parent)):
            if assignment.slot == 0:
                target = self._cluster.by_id(assignment.member_id)
                async with asyncio.timeout(timeout_seconds):
                    return await self._cluster.serve(request, target)
        raise EndpointError(request.parent, "it has no primary now")


async def _prepared(child_fqn: str, request: PrepareForkRequest, target: SimulatedConsumer) -> Rest:
    """Do what the service of a member does."""
    assert target.key_space is not None, "it runs"
    await target.key_space.wait_for_revision(request.child_revision)
    for shard in reversed(target.shards):
        if shard.id == request.parent:
            hold = ForkHold(child=request.child, attempt=request.attempt)
            return await shard.prepare_fork(
                HoldOrder(hold, mark_content=child_fqn, child_revision=request.child_revision)
            )
    raise SplitDelayedError(f"shard {request.parent} has no primary here")
