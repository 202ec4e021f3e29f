"""Decoding of the consumer's key space, and which replicas count as consistent."""

from __future__ import annotations

import pytest

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import KeyValue
from broadsheet.consumer.registry.key_space import (
    ReplicaConsistency,
    ShardDecoder,
    ShardItem,
    process_of,
)
from broadsheet.consumer.rpc.shard_listing import list_shards
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import LabelSelector
from broadsheet.wire.labels import label_set, parse_selector, selector
from broadsheet.wire.shard_pb2 import ReplicaStatus, ShardSpec
from tests.support.key_space_values import (
    assignment,
    item,
    key_space,
    member,
    member_id,
    shard_spec,
)

DECODER = ShardDecoder(hot_standbys_max=2)
SHARD = ItemId("shard-1")
NOT_PROTOBUF = b"\xff\xff\xff"


def kv(value: bytes) -> KeyValue:
    """A key with this value."""
    return KeyValue(key=b"/k", value=value, create_revision=1, mod_revision=1, version=1, lease=0)


@pytest.mark.parametrize(
    ("disable", "hot_standbys", "replicas"),
    [(False, 0, 1), (False, 1, 2), (False, 9, 3), (True, 1, 0)],
)
def test_decode_item_wants_primary_and_bounded_standbys(
    disable: bool, hot_standbys: int, replicas: int
) -> None:
    """A disabled shard is assigned to nobody; the process bounds the standbys of every shard."""
    spec = shard_spec("shard-1")
    spec.disable, spec.hot_standbys = disable, hot_standbys

    decoded = DECODER.decode_item(SHARD, kv(spec.SerializeToString()))

    assert decoded.spec == spec
    assert decoded.desired_replication() == replicas


def test_decode_item_of_another_id_is_refused() -> None:
    """The key is authoritative: a value copied below another key must not run as that shard."""
    value = shard_spec("shard-2").SerializeToString()

    with pytest.raises(KeyDecodeError, match=r"expected 'shard-1'.*got 'shard-2'"):
        DECODER.decode_item(SHARD, kv(value))


def test_decode_item_breaking_a_rule_names_the_field() -> None:
    """A spec without a bound on its transactions cannot run."""
    with pytest.raises(ValidationError, match="max_txn_duration"):
        DECODER.decode_item(SHARD, kv(ShardSpec(id="shard-1").SerializeToString()))


def test_decode_item_that_is_no_protobuf_is_refused() -> None:
    """Rubbish is told from a spec."""
    with pytest.raises(KeyDecodeError, match=r"expected a consumer\.ShardSpec"):
        DECODER.decode_item(SHARD, kv(NOT_PROTOBUF))


def test_decode_member_agrees_with_its_key() -> None:
    """A process's value names the process of its key."""
    value = process_of(member("a")).SerializeToString()

    decoded = DECODER.decode_member(member_id("a"), kv(value))

    assert decoded.item_limit() == 10
    assert not decoded.is_exiting()
    with pytest.raises(KeyDecodeError, match="expected zone#member-b"):
        DECODER.decode_member(member_id("b"), kv(value))


def test_decode_assignment_empty_is_idle() -> None:
    """The allocator writes assignments empty; the assigned process fills them."""
    status = DECODER.decode_assignment(SHARD, member_id("a"), 0, kv(b""))

    assert status == ReplicaStatus(code=ReplicaStatus.IDLE)


def test_decode_assignment_failed_without_reason_is_refused() -> None:
    """FAILED must say why."""
    value = ReplicaStatus(code=ReplicaStatus.FAILED).SerializeToString()

    with pytest.raises(ValidationError, match="errors"):
        DECODER.decode_assignment(SHARD, member_id("a"), 0, kv(value))


@pytest.mark.parametrize(
    ("code", "primary", "consistent"),
    [
        (ReplicaStatus.IDLE, ReplicaStatus.PRIMARY, False),
        (ReplicaStatus.BACKFILL, ReplicaStatus.PRIMARY, False),
        (ReplicaStatus.STANDBY, ReplicaStatus.PRIMARY, True),
        (ReplicaStatus.STANDBY, ReplicaStatus.IDLE, True),
        (ReplicaStatus.FAILED, ReplicaStatus.PRIMARY, False),
        (ReplicaStatus.FAILED, ReplicaStatus.FAILED, True),
    ],
)
def test_consistency_of_a_standby(
    code: ReplicaStatus.Code.ValueType, primary: ReplicaStatus.Code.ValueType, consistent: bool
) -> None:
    """A replica counts once it is ready; a failed one counts only beside a failed primary."""
    standby = assignment("shard-1", "b", 1, code=code)
    replicas = [assignment("shard-1", "a", 0, code=primary), standby]

    assert (
        ReplicaConsistency().is_consistent(item(shard_spec("shard-1")), standby, replicas)
        is consistent
    )


def test_consistency_of_a_failed_primary_alone() -> None:
    """A shard that fails everywhere must not keep its member from leaving."""
    primary = assignment("shard-1", "a", 0, code=ReplicaStatus.FAILED)

    assert ReplicaConsistency().is_consistent(item(shard_spec("shard-1")), primary, [primary])


async def test_list_shards_applies_both_selectors_and_joins_statuses() -> None:
    """What the request asks for, within what the caller may see, each with its replicas in route order."""
    values = key_space(
        items=[
            item(shard_spec("shard-1", team="a", kind="x")),
            item(shard_spec("shard-2", team="a", kind="y")),
            item(shard_spec("shard-3", team="b", kind="x")),
        ],
        members=["a", "b"],
        replicas=[
            assignment("shard-1", "b", 0, code=ReplicaStatus.PRIMARY),
            assignment("shard-1", "a", 1, code=ReplicaStatus.STANDBY),
        ],
    )

    (listed,) = (
        await list_shards(
            values, wanted=parse_selector("kind=x"), allowed=selector(label_set(("team", "a")))
        )
    ).shards

    assert listed.spec.id == "shard-1"
    assert listed.mod_revision == listed.create_revision == 5
    assert listed.route.primary == 1
    assert list(listed.route.endpoints) == ["http://a:1", "http://b:1"]
    assert [status.code for status in listed.status] == [
        ReplicaStatus.STANDBY,
        ReplicaStatus.PRIMARY,
    ]


async def test_list_shards_by_id_prefix() -> None:
    """The meta-label `id` selects shards by their names."""
    values = key_space(items=[item(shard_spec(name)) for name in ("app/one", "app/two", "else")])

    listed = (
        await list_shards(values, wanted=parse_selector("id:prefix=app/"), allowed=LabelSelector())
    ).shards

    assert [shard.spec.id for shard in listed] == ["app/one", "app/two"]


async def test_listed_shard_says_that_its_standbys_are_capped() -> None:
    """A list names the cap beside the one shard that it holds for."""
    many, few = shard_spec("many"), shard_spec("some")
    many.hot_standbys, few.hot_standbys = 5, 3
    values = key_space(items=[item(many), item(few)])

    capped, within = (
        await list_shards(values, wanted=LabelSelector(), allowed=LabelSelector())
    ).shards

    assert "5 are wanted, capped to 3" in capped.standbys_refused
    assert within.standbys_refused == ""


def test_item_says_that_its_standbys_are_capped() -> None:
    """Five are wanted and the bound is two, which is why there are two; within the bound there is nothing to say."""
    capped = ShardItem.of(ShardSpec(id="i", hot_standbys=5), hot_standbys_max=2)
    within = ShardItem.of(ShardSpec(id="i", hot_standbys=2), hot_standbys_max=2)
    disabled = ShardItem.of(ShardSpec(id="i", hot_standbys=5, disable=True), hot_standbys_max=2)

    assert "5 are wanted, capped to 2 by --max-hot-standbys" in capped.standbys_refused
    assert (within.standbys_refused, disabled.standbys_refused) == ("", "")


@pytest.mark.parametrize("revision", [1, 127, 128, 300, 2**31, 2**62])
async def test_listed_rows_have_revisions_of_any_size(revision: int) -> None:
    """Rows are encoded here, so a revision of each length must be what a reader of protobuf finds."""
    values = key_space(items=[item(shard_spec("shard-1"), mod_revision=revision)])

    (listed,) = (await list_shards(values, wanted=LabelSelector(), allowed=LabelSelector())).shards

    assert (listed.mod_revision, listed.create_revision) == (revision, revision)
    assert listed.spec == shard_spec("shard-1")


def test_decoded_items_keep_no_decoded_spec_and_replicas_share_statuses() -> None:
    """At 100,000 shards, the decoded messages took more than half of a member's memory."""
    value = shard_spec("shard-1").SerializeToString()
    status = ReplicaStatus(code=ReplicaStatus.STANDBY).SerializeToString()
    replica = (SHARD, member_id("a"), 0)

    assert DECODER.decode_item(SHARD, kv(value)).encoded is value
    assert DECODER.decode_assignment(*replica, kv(status)) is DECODER.decode_assignment(
        *replica, kv(bytes(bytearray(status)))
    )


def test_former_primary_counts_only_once_it_has_caught_up() -> None:
    """A member of Gazette's never lowers what it said: as a standby it would stay PRIMARY, and count at once."""
    consistency, spec = ReplicaConsistency(), item(shard_spec("shard-1"))
    primary = assignment("shard-1", "m-1", 0, code=ReplicaStatus.PRIMARY)
    value = consistency.standby_value(primary)
    status = DECODER.decode_assignment(SHARD, member_id("m-1"), 1, kv(value))

    standby = assignment("shard-1", "m-1", 1, code=status.code)

    assert status.code == ReplicaStatus.IDLE
    assert not consistency.is_consistent(spec, standby, [standby])
