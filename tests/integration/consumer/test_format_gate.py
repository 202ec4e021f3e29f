"""Members of two releases in one cluster, over a real etcd: what may be stored, and who may join."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broadsheet.allocator.announcement import announce
from broadsheet.allocator.errors import (
    EtcdAuthenticationError,
    EtcdUnavailableError,
    FormatLevelError,
)
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.format_gate import FormatGate
from broadsheet.allocator.format_levels import encode_level
from broadsheet.allocator.key_space import KeySpace, ObserverStage
from broadsheet.allocator.keys import AuxiliaryKeys, Keys
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.ops import Compare, Delete, KeyValue, LeaseId, Operation, Put
from broadsheet.cli.members.list import member_cells
from broadsheet.consumer.client import ElasticClient
from broadsheet.consumer.client.allocation_client import AllocationClient
from broadsheet.consumer.member.service import Service
from broadsheet.consumer.registry.key_space import ShardDecoder, level_of_member_value
from broadsheet.embedded.etcd import EmbeddedEtcd
from broadsheet.journals.client import JournalClient
from broadsheet.wire.journal_pb2 import ProcessSpec
from broadsheet.wire.key_range import KeyRange, range_labels
from broadsheet.wire.labels import FAMILY, label_set
from broadsheet.wire.shard_pb2 import ConsumerSpec, ShardSpec
from tests.support.etcd_users import call_auth
from tests.support.eventually import eventually
from tests.support.member_lives import error_of
from tests.support.members import (
    Cluster,
    client_of,
    shard,
    statuses,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import create_logs
from tests.support.splitting import CHILD, PARENT, application, spec

pytestmark = pytest.mark.etcd


def _family() -> tuple[ShardSpec, ShardSpec]:
    """Two shards that each own half of the keys."""
    specs = shard("shard-1"), shard("shard-2")
    for each, begin, end in zip(specs, (0, 2048), (2048, 4096), strict=True):
        labels = dict(range_labels(KeyRange(begin, end))) | {FAMILY: "fam-1"}
        each.labels.CopyFrom(label_set(*sorted(labels.items())))
        each.disable = True
    return specs


def _earlier() -> bytes:
    """Return a member of a release before levels, as it is announced."""
    process = ProcessSpec(
        id=ProcessSpec.ID(zone="zone-a", suffix="member-old"), endpoint="http://127.0.0.1:1"
    )
    return ConsumerSpec(process_spec=process, shard_limit=32).SerializeToString()


def _gate(etcd: Any, root: str, own: int = 2) -> FormatGate:
    return FormatGate(etcd, Keys(root), level_of=level_of_member_value, own=own)


async def _shown(service: Service) -> dict[str, list[str]]:
    """Return state and limit of each member, as `shardctl members list` shows them."""
    async with AllocationClient(service.address) as client:
        found = await client.members()
    rows = [member_cells(each, found.format_level) for each in found.members]
    return {row[0].removeprefix("zone-a#"): [row[1], row[4]] for row in rows}


async def _are_shown(service: Service, *names: str) -> bool:
    return list(await _shown(service)) == sorted(names)


async def test_range_of_keys_waits_for_the_last_earlier_member_which_then_cannot_come_back(
    cluster: Cluster, etcd: EtcdClient
) -> None:
    """A rolling upgrade: what an earlier member would misunderstand is refused by its name while it lives, and a
    downgrade is refused once it was stored.
    """
    key = AuxiliaryKeys(cluster.root).formats
    async with cluster.member("new") as service, client_of(service) as client:
        async with cluster.member("old", format_level=1):
            with pytest.raises(Exception, match=r"zone-a#member-old; replace them") as refused:
                await client.apply(upserts(*_family()))
            assert "level 2" in str(refused.value)
            assert not await statuses(client)
            assert not (await etcd.get_range(key)).kvs
            await client.apply(upserts(shard("plain")))

        await eventually(lambda: _are_shown(service, "member-new"))
        await client.apply(upserts(*_family()))
        assert len((await etcd.get_range(key)).kvs) == 1

        earlier = Service(cluster.tally(), cluster.config("old", format_level=1))
        error = await error_of(earlier)
        assert isinstance(error, FormatLevelError)
        assert "raised to level 2" in str(error)
        async with cluster.member("newer"):
            await eventually(lambda: _are_shown(service, "member-new", "member-newer"))


async def test_member_that_was_admitted_before_a_rise_is_judged_again(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """Between its look and its announcement the level may rise: its transaction compares what it saw."""
    new, old = _gate(etcd, etcd_root), _gate(etcd, etcd_root, own=1)
    looks = []

    async def admit() -> Compare:
        compare = await old.admit()
        looks.append(compare)
        await new.require(2, what="a thing")
        return compare

    lease = await etcd.lease_grant(20)
    key = Keys(etcd_root).member(MemberId("zone-a", "member-old"))
    with pytest.raises(FormatLevelError, match="raised to level 2"):
        await announce(etcd, key, _earlier(), lease=LeaseId(lease), timeout_seconds=20, admit=admit)
    assert len(looks) == 1
    assert not (await etcd.get_range(key)).kvs


class _JoinsFirst:
    """Etcd, in which an earlier member joins right before the first transaction of another."""

    def __init__(self, etcd: EtcdClient, key: bytes) -> None:
        self._etcd = etcd
        self._key = key
        self._has_joined = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._etcd, name)

    async def txn(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *others: Any
    ) -> Any:
        """Run a transaction."""
        if not self._has_joined:
            self._has_joined = True
            await self._etcd.put(self._key, _earlier())
        return await self._etcd.txn(tuple(compares), tuple(operations), *others)


async def test_rise_that_an_earlier_member_overtakes_is_judged_again(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """It was not there when all members were read: the transaction compares that no member joined since."""
    key = Keys(etcd_root).member(MemberId("zone-a", "member-old"))
    gate = _gate(_JoinsFirst(etcd, key), etcd_root)
    with pytest.raises(FormatLevelError, match="zone-a#member-old; replace them"):
        await gate.require(2, what="a thing")
    assert gate.level == 1


async def test_member_whose_record_cannot_be_read_keeps_the_level(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """It is there, whatever it is: what no mirror shows must not be taken for a member less."""
    await etcd.put(Keys(etcd_root).member(MemberId("zone-a", "member-odd")), b"\xff")
    with pytest.raises(FormatLevelError, match="zone-a#member-odd; replace them"):
        await _gate(etcd, etcd_root).require(2, what="a thing")


async def test_member_of_before_levels_gets_no_shards_after_a_rise_and_is_shown(
    cluster: Cluster, etcd: EtcdClient
) -> None:
    """It knows no level, so that it cannot refuse to join; it must not handle what it misunderstands."""
    async with cluster.member("new") as service, client_of(service) as client:
        await client.apply(upserts(*_family()))
        await etcd.txn(
            (), (Put(Keys(cluster.root).member(MemberId("zone-a", "member-old")), _earlier()),)
        )
        await eventually(lambda: _are_shown(service, "member-new", "member-old"))
        assert await _shown(service) == {
            "member-new": ["ready", "32"],
            "member-old": ["outdated", "0"],
        }


async def _only(etcd: EtcdClient, key: bytes) -> KeyValue:
    found = (await etcd.get_range(key)).kvs
    assert len(found) == 1, key
    return found[0]


async def test_member_of_before_levels_that_leads_is_superseded(
    cluster: Cluster, etcd: EtcdClient
) -> None:
    """It plans by its own limit, which is not 0: whatever it decided, a member that reads the level decides anew."""
    keys = AuxiliaryKeys(cluster.root)
    old_id = MemberId("zone-a", "member-old")
    async with cluster.member("new") as service, client_of(service) as client:
        await client.apply(upserts(*_family()))
        lease = await etcd.lease_grant(60)

        # A member is ready before it leads.
        epoch = await eventually(lambda: _only(etcd, keys.epoch))
        number = msgspec.json.decode(epoch.value)["epoch"] + 1
        record = {"member": "zone-a#member-old", "epoch": number}
        await etcd.txn(
            (),
            (
                Put(Keys(cluster.root).member(old_id), _earlier(), lease=LeaseId(lease)),
                Put(keys.candidate(old_id), b"{}", lease=LeaseId(lease)),
                Put(keys.epoch, msgspec.json.encode(record)),
                Put(keys.leader, msgspec.json.encode(record | {"beat": 0}), lease=LeaseId(lease)),
            ),
        )

        async def is_superseded() -> bool:
            leader = await _only(etcd, keys.leader)
            found = msgspec.json.decode(leader.value)
            if found["member"] == "zone-a#member-old":
                # It beats: a leader that is silent is superseded, whatever it reads.
                beat = msgspec.json.encode(found | {"beat": found["beat"] + 1})
                await etcd.txn(
                    (Compare.mod_revision(keys.leader, leader.mod_revision),),
                    (Put(keys.leader, beat, lease=LeaseId(lease)),),
                )
            assert found["member"] == "zone-a#member-new", found
            assert found["epoch"] > number
            return True

        await eventually(is_superseded)
        assert (await _shown(service))["member-old"] == ["outdated", "0"]


class _LosesAnswers:
    """Etcd that carries a transaction out, and whose first answer never comes."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd
        self._has_lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._etcd, name)

    async def txn(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *others: Any
    ) -> Any:
        """Run a transaction."""
        result = await self._etcd.txn(tuple(compares), tuple(operations), *others)
        if not self._has_lost:
            self._has_lost = True
            raise EtcdUnavailableError((), "no answer in time")
        return result


async def test_rise_whose_answer_is_lost_stands_and_is_found_by_the_next_try(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """A slow etcd: the caller does not know, and stores nothing; a level without anything at it does no harm."""
    key = AuxiliaryKeys(etcd_root).formats
    gate = _gate(_LosesAnswers(etcd), etcd_root)
    with pytest.raises(EtcdUnavailableError):
        await gate.require(2, what="a thing")
    assert gate.level == 1
    (risen,) = (await etcd.get_range(key)).kvs
    with pytest.raises(FormatLevelError, match="raised to level 2"):
        await _gate(etcd, etcd_root, own=1).admit()

    await gate.require(2, what="a thing")
    assert gate.level == 2
    assert list((await etcd.get_range(key)).kvs) == [risen]


async def test_member_that_may_not_write_the_level_stores_nothing() -> None:
    """It reads the level, and so may join; etcd refuses the rise, before anything is stored at it."""
    root = "/guarded"
    key = AuxiliaryKeys(root).formats
    async with EmbeddedEtcd(listen="tcp") as server:
        everything = b64encode(b"\0").decode()
        permission = {"permType": "READ", "key": everything, "range_end": everything}
        for path, body in (
            ("user/add", {"name": "root", "password": "secret"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": "reader", "password": "reader"}),
            ("role/add", {"name": "reader"}),
            ("role/grant", {"name": "reader", "perm": permission}),
            ("user/grant", {"user": "reader", "role": "reader"}),
            ("enable", {}),
        ):
            await asyncio.to_thread(call_auth, server.endpoint, path, body)
        endpoints = (server.endpoint,)
        async with (
            EtcdClient(
                EtcdConfig(endpoints=endpoints, username="reader", password="reader")
            ) as reader,
            EtcdClient(
                EtcdConfig(endpoints=endpoints, username="root", password="secret")
            ) as writer,
        ):
            gate = _gate(reader, root)
            assert await gate.admit() == Compare.mod_revision(key, 0)
            with pytest.raises(EtcdAuthenticationError, match="permission denied"):
                await gate.require(2, what="a thing")
            assert gate.level == 1
            assert not (await writer.get_range(key)).kvs
            # Once another member has raised it, no right is needed.
            await _gate(writer, root).require(2, what="a thing")
            await gate.require(2, what="a thing")


async def test_two_members_raise_the_level_at_once_and_one_writes_it(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """Any member may raise it, whoever leads: the loser's transaction compares what it read, and finds it risen."""
    key = AuxiliaryKeys(etcd_root).formats
    gates = [_gate(etcd, etcd_root) for _ in range(8)]
    await asyncio.gather(*(gate.require(2, what="a thing") for gate in gates))
    assert [gate.level for gate in gates] == [2] * len(gates)
    (risen,) = (await etcd.get_range(key)).kvs
    assert risen.version == 1


async def test_earlier_member_that_is_seen_before_the_rise_is_judged_again(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """The watch of the level may lag behind that of the members: the leader must not keep what it judged by the old."""
    await etcd.put(Keys(etcd_root).member(MemberId("zone-a", "member-old")), _earlier())
    gate = _gate(etcd, etcd_root)
    decoder = ShardDecoder(hot_standbys_max=0, format_level=lambda: gate.level)
    key_space = KeySpace(etcd, Keys(etcd_root), decoder)
    gate.on_rise(key_space.decode_members_again)
    await key_space.load()
    limits: list[int] = []
    seen: list[int] = []

    def on_change() -> None:
        (member,) = key_space.members.values()
        limits.append(member.value.item_limit())
        seen.append(len(key_space.changes.members))

    key_space.observe(ObserverStage.DERIVE, on_change)
    (member,) = key_space.members.values()
    assert member.value.item_limit() == 32

    await etcd.put(AuxiliaryKeys(etcd_root).formats, encode_level(2, "9.9"))
    await gate.admit()
    assert (limits, seen) == ([0], [1])
    await gate.admit()
    assert limits == [0]


async def test_split_waits_for_the_last_earlier_member_too(
    cluster: Cluster, journals: JournalClient, etcd: EtcdClient, tmp_path: Path
) -> None:
    """A split is the other way to a shard that owns a range of keys, and writes its specs by itself."""
    await create_logs(journals, PARENT)
    async with (
        cluster.member("one", application=application(), state_dir=str(tmp_path / "one")) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(spec(cluster)))
        await wait_for_primaries(client, PARENT)
        old = Keys(cluster.root).member(MemberId("zone-a", "member-old"))
        await etcd.put(old, _earlier())
        with pytest.raises(Exception, match=r"zone-a#member-old; replace them"):
            await elastic.split(PARENT, journals, at_group=2048)
        assert not await elastic.splits()
        assert not (await etcd.get_range(AuxiliaryKeys(cluster.root).formats)).kvs

        await etcd.txn((), (Delete(old),))
        plan = await elastic.split(PARENT, journals, at_group=2048)
        assert plan.child.id == CHILD
        assert (await etcd.get_range(AuxiliaryKeys(cluster.root).formats)).kvs
