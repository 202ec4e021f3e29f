"""A simulated cluster of a family: shards are split and merged, also in vain, and members die meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Delete, Put, TxnCheckpoint
from broadsheet.consumer.application import Application, Shard
from broadsheet.consumer.elastic.family import Ownership, absorbed_by, family_key, is_fork
from broadsheet.consumer.elastic.flip import (
    Rest,
    begin_merge_txn,
    begin_txn,
    cancel_merge_txn,
    cancel_txn,
)
from broadsheet.consumer.elastic.fork import decode_fork, forks_prefix, hold_key
from broadsheet.consumer.elastic.merge import merges_prefix
from broadsheet.consumer.elastic.merge_plan import MergePlan, plan_merge
from broadsheet.consumer.elastic.split_plan import SplitWish, plan_split
from broadsheet.consumer.errors import SplitDelayedError
from broadsheet.consumer.recoverylog.hints import (
    decode_hints,
    history_of,
    primary_hints_key,
    recovery_log_of,
)
from broadsheet.consumer.shard.holding import order_of
from broadsheet.runtime.errors import EndpointError, ValidationError
from broadsheet.testing.allocator.kernel.network import Link
from broadsheet.testing.allocator.kernel.run import RunContext
from broadsheet.testing.families.application import DividedKeeper, DividedStore
from broadsheet.testing.families.family_checker import FamilyChecker, LifeObserver
from broadsheet.testing.shards.cluster import SHARD, ConsumerCluster, new_journal
from broadsheet.testing.shards.member import SimulatedConsumer
from broadsheet.testing.shards.scenario import ShardScenario
from broadsheet.wire.elastic_pb2 import PrepareForkRequest
from broadsheet.wire.labels import CONTENT_TYPE_RECOVERY_LOG, FORK_OF, value_of
from broadsheet.wire.shard_pb2 import ShardSpec

AnswerT = TypeVar("AnswerT")

LOST_SHARE: Final = 0.04
"""Share of messages between members that are lost, and as many that are late, until the run calms down."""


class FamilyCluster(ConsumerCluster):
    """The broker, etcd and members of one run, and the operator who splits and merges."""

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
        checker.serving = lambda: {
            self.life_of(shard_id): spec for shard_id, (spec, _) in self.specs().items()
        }
        checker.left_over = self.left_over
        self.peers = Link(Random(f"{context.seed} peers"), self.latency_seconds)
        """Between members."""
        self.peers.loss = self.peers.late = LOST_SHARE

    # -- the operator's part

    def specs(self) -> dict[str, tuple[ShardSpec, int]]:
        """Return the family's specs, each with the revision that wrote it."""
        found = [(ShardSpec.FromString(kv.value), kv) for kv in self.kvs(self.keys.items_prefix)]
        return {spec.id: (spec, kv.mod_revision) for spec, kv in found}

    def life_of(self, shard_id: str) -> str:
        """Return what names the shard that has an id now among all that ever had it."""
        created = [kv.create_revision for kv in self.kvs(self.keys.item(ItemId(shard_id)))]
        return f"{shard_id}@{created[0] if created else 0}"

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
        members = [spec for spec, _ in stored.values()]
        parent, revision = stored[self.random.choice(sorted(stored))]
        owned = Ownership.of(parent).owned
        if owned.end - owned.begin < 2:
            return None
        # Of absorbed shards, too: their logs are there still.
        number = next(each for each in range(1, 99) if f"shard-{each}" not in stored)
        wish = SplitWish(
            at_group=self.random.randrange(owned.begin + 1, owned.end), child=f"shard-{number}"
        )
        try:
            plan = plan_split(
                parent, wish, ids=stored, members=members, history=self._history_of(parent)
            )
        except ValidationError:
            return None
        log = recovery_log_of(plan.child)
        if log not in self.broker.journals:
            self.broker.create(new_journal(log, CONTENT_TYPE_RECOVERY_LOG))
        self._perform(
            begin_txn(
                plan,
                self.keys,
                parent_revision=revision,
                family_revision=self._family_revision(parent),
            )
        )
        return f"{parent.id} at {plan.given.begin} into {plan.child.id}"

    def merge(self) -> str | None:
        """Begin a merge of two neighbours; return which, or None if none can be merged now."""
        stored = self.specs()
        plan = self._merge_plan(stored)
        if plan is None:
            return None
        survivor, absorbed = plan.survivor.id, plan.absorbed.id
        self._perform(
            begin_merge_txn(
                plan,
                self.keys,
                survivor_revision=stored[survivor][1],
                absorbed_revision=stored[absorbed][1],
                family_revision=self._family_revision(plan.survivor),
            )
        )
        return f"{absorbed} into {survivor}"

    def cancel(self) -> str | None:
        """Cancel a split or a merge; return which, or None if there is none."""
        under_way = [
            each for each in self.specs().values() if is_fork(each[0]) or absorbed_by(each[0])
        ]
        if not under_way:
            return None
        spec, revision = self.random.choice(under_way)
        if absorbed_by(spec):
            self._perform(cancel_merge_txn(spec, revision, self.keys))
            return f"{absorbed_by(spec)} into {spec.id}"
        parent = value_of(spec.labels, FORK_OF)
        self._perform(cancel_txn(spec, revision, parent, self.keys))
        return f"{spec.id} of {parent}"

    def left_over(self) -> list[str]:
        """Return what is in etcd of splits and merges, in words."""
        root = self.keys.root
        prefixes = (forks_prefix(root), merges_prefix(root), hold_key(root, ""))
        return [f"etcd has {kv.key!r}" for prefix in prefixes for kv in self.kvs(prefix)]

    def _merge_plan(self, stored: dict[str, tuple[ShardSpec, int]]) -> MergePlan | None:
        specs = [spec for spec, _ in stored.values()]
        prefix = forks_prefix(self.keys.root)
        splitting = [
            shard_id
            for kv in self.kvs(prefix)
            for shard_id in (kv.key[len(prefix) :].decode(), decode_fork(kv.value).parent)
        ]
        for first in self.random.sample(specs, len(specs)):
            for second in specs:
                survivor = self.random.choice((first.id, second.id))
                try:
                    return plan_merge(
                        first, second, survivor=survivor, others=specs, splitting=splitting
                    )
                except ValidationError:
                    continue
        return None

    def _history_of(self, parent: ShardSpec) -> frozenset[str]:
        hints = [decode_hints(kv.value) for kv in self.kvs(primary_hints_key(parent))]
        return frozenset(log for each in hints for log in history_of(each))

    def _family_revision(self, spec: ShardSpec) -> int:
        key = family_key(self.keys.root, Ownership.of(spec).family)
        return next((kv.mod_revision for kv in self.kvs(key)), 0)

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
        """Have a member rest a shard; return the future of its answer, which may be lost."""
        return self.call(target, lambda: _prepared(self.keys, request, target))

    def call(
        self, target: SimulatedConsumer, serve: Callable[[], Awaitable[AnswerT]]
    ) -> asyncio.Future[AnswerT]:
        """Have a member serve a request, in its own process; return the future of its answer, which may be lost."""
        answer: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()

        async def handle() -> None:
            try:
                held = await serve()
            except Exception as error:  # the caller's
                delayed = SplitDelayedError(f"{target.member_id}: {error}")
                self.peers.carry(lambda: None if answer.done() else answer.set_exception(delayed))
            else:
                self.peers.carry(lambda: None if answer.done() else answer.set_result(held))

        def arrive() -> None:
            target.process.run(lambda: self._group.start_soon(handle(), name="serve a peer"))

        self.peers.carry(arrive)
        return answer

    def _new_application(self, to_table: Link) -> Application[Any]:
        del to_table
        return DividedKeeper(self._open_divided, self._checker, self)

    def _open_divided(self, shard: Shard) -> DividedStore:
        life = self.life_of(shard.id)
        return DividedStore(
            shard,
            life,
            observer=LifeObserver(self._checker, life),
            witness=self._checker,
            piecewise=self.piecewise,
        )


class LinkedParents:
    """Reaches the primaries that are to rest for one member; implements `ParentCaller`."""

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
                try:
                    async with asyncio.timeout(timeout_seconds):
                        return await self._cluster.serve(request, target)
                except TimeoutError as error:
                    raise SplitDelayedError(f"{target.member_id} does not answer") from error
        raise EndpointError(request.parent, "it has no primary now")


async def _prepared(keys: Keys, request: PrepareForkRequest, target: SimulatedConsumer) -> Rest:
    """Do what the service of a member does."""
    assert target.key_space is not None, "it runs"
    await target.key_space.wait_for_revision(request.child_revision)
    child = ItemId(request.child)
    item = target.key_space.items.get(child)
    asking = ShardSpec() if item is None else ShardSpec.FromString(item.kv.value)
    order = order_of(request, asking, keys.item(child).decode())
    for shard in reversed(target.shards):
        if shard.id == request.parent:
            return await shard.prepare_fork(order)
    raise SplitDelayedError(f"shard {request.parent} has no primary here")
