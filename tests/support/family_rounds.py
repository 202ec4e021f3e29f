"""One split or merge of keyed shards under traffic, in which a member is killed at a step of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broadsheet.consumer.client import ElasticClient, ShardClient
from broadsheet.consumer.keyed.application import RowOutput
from broadsheet.consumer.member.service import Service
from broadsheet.consumer.shard.absorbing import Absorbing
from broadsheet.consumer.shard.forking import Forking
from broadsheet.consumer.shard.holding import ForkHolding
from broadsheet.journals.client import JournalClient
from broadsheet.wire.key_range import ALL_KEYS, KeyRange, range_labels
from broadsheet.wire.labels import FAMILY, label_set, union
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    shard,
    statuses,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import create_logs, recorded
from tests.support.splitting import (
    CHILD,
    KEYS,
    PARENT,
    SOURCE,
    TO_JOURNAL,
    Echoes,
    StandStill,
    application,
    check_merged,
    check_split,
    in_journal,
    ranges,
    spec,
    traffic,
)

FIRST, SECOND = "shard-a", "shard-b"
LOW, HIGH = KeyRange(0, 2048), KeyRange(2048, 4096)


class Step(NamedTuple):
    """Where one of the two shards stands still, and whose member is killed then."""

    owner: type
    method: str
    behind: bool
    """Whether the call was made."""
    victim: str


SPLIT_STEPS: Mapping[str, Step] = {
    "child-follows": Step(Forking, "catch_up", False, "child"),
    "child-before-its-log": Step(Forking, "own_log", False, "child"),
    "child-before-the-flip": Step(Forking, "flip", False, "child"),
    "child-behind-the-flip": Step(Forking, "flip", True, "child"),
    "parent-before-the-hold": Step(ForkHolding, "hold", False, "parent"),
    "parent-before-the-mark": Step(ForkHolding, "mark", False, "parent"),
    "parent-behind-the-mark": Step(ForkHolding, "mark", True, "parent"),
    "parent-before-the-flip": Step(Forking, "flip", False, "parent"),
    "parent-behind-the-flip": Step(Forking, "flip", True, "parent"),
}
MERGE_STEPS: Mapping[str, Step] = {
    "survivor-copies": Step(Absorbing, "copy", False, "survivor"),
    "survivor-has-copied": Step(Absorbing, "copy", True, "survivor"),
    "survivor-before-it-asks": Step(Absorbing, "stand", False, "survivor"),
    "survivor-before-the-hold": Step(ForkHolding, "hold", False, "survivor"),
    "survivor-before-the-mark": Step(ForkHolding, "mark", False, "survivor"),
    "survivor-behind-the-mark": Step(ForkHolding, "mark", True, "survivor"),
    "survivor-before-the-last-rows": Step(Absorbing, "take_last", False, "survivor"),
    "survivor-before-the-flip": Step(Absorbing, "flip", False, "survivor"),
    "survivor-behind-the-flip": Step(Absorbing, "flip", True, "survivor"),
    "absorbed-is-copied": Step(Absorbing, "copy", False, "absorbed"),
    "absorbed-before-the-hold": Step(ForkHolding, "hold", False, "absorbed"),
    "absorbed-before-the-mark": Step(ForkHolding, "mark", False, "absorbed"),
    "absorbed-behind-the-mark": Step(ForkHolding, "mark", True, "absorbed"),
    "absorbed-before-the-last-rows": Step(Absorbing, "take_last", False, "absorbed"),
    "absorbed-before-the-flip": Step(Absorbing, "flip", False, "absorbed"),
    "absorbed-behind-the-flip": Step(Absorbing, "flip", True, "absorbed"),
}


def asked_of(steps: Mapping[str, Step], names: Sequence[str]) -> list[str]:
    """Return the steps of these names; `all` names each."""
    return [each for each in steps if each in names or "all" in names]


def family(cluster: Cluster) -> list[ShardSpec]:
    """Return two shards that divide the keys."""
    specs = []
    for shard_id, owned in ((FIRST, LOW), (SECOND, HIGH)):
        each = recorded(shard(shard_id, SOURCE), cluster.root)
        labels = label_set((FAMILY, FIRST), *range_labels(owned))
        each.labels.CopyFrom(union(each.labels, labels))
        specs.append(each)
    return specs


async def merged(elastic: ElasticClient) -> None:
    """Wait until no merge is under way."""

    async def over() -> bool:
        return not await elastic.merges()

    await eventually(over)


@dataclass
class FamilyRound:
    """What a round needs: each has a cluster of its own."""

    cluster: Cluster
    journals: JournalClient
    directory: Path
    to: RowOutput = TO_JOURNAL
    echoes: Echoes | None = None
    """Where `to` is read; None: in the journal."""
    _producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        self._producer = Producer(self.journals)

    async def split(self, step: Step) -> None:
        """Split a shard, and check what comes of it.

        Raises:
            AssertionError: a row was not handled once, by the shard that owns its key.
        """
        await create_logs(self.journals, PARENT)
        async with self._member("one") as one:
            async with client_of(one) as client:
                await client.apply(upserts(spec(self.cluster)))
                await wait_for_primaries(client, PARENT)
            async with self._member("two") as two:
                async with traffic(self._producer) as sent:
                    with standing_still(step) as still:
                        where = await self._split_begins(two, still)
                        assert where == {PARENT: "member-one", CHILD: "member-two"}
                        killed, survivor = (one, two) if step.victim == "parent" else (two, one)
                        killed.force_stop()
                        still.released.set()
                        await _both_serve(survivor)
                        at_split = sent.total()
                        await eventually(lambda: sent.total() > at_split + 200)
                        async with ElasticClient(survivor.address) as elastic:
                            await _split_is_over(elastic)
                end = await self._producer.publish(SOURCE, KEYS)
                sent.update(KEYS)
                await check_split([survivor.resolver], self._echoes(), sent, end)

    async def merge(self, step: Step) -> None:
        """Merge two shards, and check what comes of it.

        Raises:
            AssertionError: a row was not handled once, by the shard that owns its key.
        """
        await create_logs(self.journals, FIRST, SECOND)
        async with self._member("one") as one, self._member("two") as two:
            by_name = {"member-one": one, "member-two": two}
            async with client_of(one) as client:
                await client.apply(upserts(*family(self.cluster)))
                await wait_for_primaries(client, FIRST, SECOND)
            async with traffic(self._producer) as sent:
                await eventually(lambda: sent.total() > 200)
                with standing_still(step) as still:
                    async with ElasticClient(one.address) as elastic, client_of(one) as client:
                        await elastic.merge(FIRST, SECOND)
                        await eventually(still.reached.is_set)
                        where = _primaries(await statuses(client))
                    killed_name = _killed_by(step, where)
                    ((left_name, left),) = (
                        each for each in by_name.items() if each[0] != killed_name
                    )
                    by_name[killed_name].force_stop()
                    still.released.set()
                    async with ElasticClient(left.address) as elastic, client_of(left) as client:
                        await merged(elastic)
                        await _alone(client, left_name)
                    at_merge = sent.total()
                    await eventually(lambda: sent.total() > at_merge + 200)
            end = await self._producer.publish(SOURCE, KEYS)
            sent.update(KEYS)
            await check_merged(left.resolver, self._echoes(), FIRST, sent, end)

    def _member(self, name: str) -> Any:
        state_dir = str(self.directory / name)
        return self.cluster.member(name, application=application(self.to), state_dir=state_dir)

    def _echoes(self) -> Echoes:
        return self.echoes or in_journal(self.journals)

    async def _split_begins(self, member: Service, still: StandStill) -> dict[str, str]:
        """Split, and return the member of each shard when the step is reached."""
        async with ElasticClient(member.address) as elastic, client_of(member) as client:
            await elastic.split(PARENT, self.journals, at_group=2048)
            await eventually(still.reached.is_set)
            return _primaries(await statuses(client))


@contextmanager
def standing_still(step: Step) -> Iterator[StandStill]:
    """Have the first call of a step's method stand still, until it is let go."""
    still = StandStill(step.owner, step.method, behind=step.behind)

    async def called(*args: Any) -> Any:
        return await still(*args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(step.owner, step.method, called)
        yield still


def _primaries(replicas: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, str]:
    return {shard_id: found[0][0] for shard_id, found in replicas.items()}


def _killed_by(step: Step, where: Mapping[str, str]) -> str:
    """Return the member that a merge's step kills; `where`: that of each shard's primary."""
    if SECOND in where:
        assert len(set(where.values())) == 2, "each has a member of its own"
    elif step.victim == "absorbed":
        # It is gone already: the member that had it is the other one.
        return "member-two" if where[FIRST] == "member-one" else "member-one"
    return where.get(FIRST if step.victim == "survivor" else SECOND, "member-one")


async def _both_serve(member: Service) -> None:
    """Wait until parent and child have a primary each, on one member."""
    async with client_of(member) as client:

        async def serve() -> bool:
            found = await statuses(client)
            replicas = [found.get(each, []) for each in (PARENT, CHILD)]
            return all([status for _, status in each] == ["PRIMARY"] for each in replicas)

        await eventually(serve)


async def _split_is_over(elastic: ElasticClient) -> None:
    async def over() -> bool:
        return not await elastic.splits()

    await eventually(over)


async def _alone(client: ShardClient, member: str) -> None:
    """Wait until the survivor has all keys and its primary on a member, and the other shard is gone."""

    async def serves() -> bool:
        return await statuses(client) == {FIRST: [(member, "PRIMARY")]}

    await eventually(serves)
    assert await ranges(client) == {FIRST: ALL_KEYS}
