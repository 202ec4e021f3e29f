"""Plans, explanations and cordons over real members and a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from click.testing import CliRunner

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.ops import Put, prefix_range_end
from broadsheet.cli.main import main
from broadsheet.consumer.client import AllocationClient, ShardClient
from broadsheet.consumer.errors import PlanNotAppliedError, ShardNotFoundError
from broadsheet.consumer.member.service import Service
from broadsheet.runtime.errors import EndpointError, ValidationError
from broadsheet.security.auth import Capability, Claims, KeyedAuth
from broadsheet.security.errors import NotAuthorizedError
from broadsheet.wire.allocation_pb2 import ChangeKind, NewMembers, PlanResponse, WaitReason
from broadsheet.wire.labels import WEIGHT, label_set, selector
from broadsheet.wire.progress_pb2 import Progress, ProgressKind
from broadsheet.wire.shard_pb2 import ConsumerSpec
from tests.support.eventually import eventually
from tests.support.members import Cluster, shard, statuses, upserts, wait_for_primaries

pytestmark = pytest.mark.etcd

SOURCE = "test/source"
SHARDS = tuple(f"shard-{number}" for number in range(4))
KEYS = "c2VjcmV0LWtleS1vZi1zaXh0ZWVuLWJ5dGVzLCAzMiBieXRlcyBvciBtb3Jl"


@pytest.fixture
async def members(cluster: Cluster) -> AsyncIterator[tuple[Service, Service, Service]]:
    """Three members in two zones, and four shards with a standby each, all placed."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(cluster.member("a"))
        second = await stack.enter_async_context(cluster.member("b", zone="zone-b"))
        third = await stack.enter_async_context(cluster.member("c", zone="zone-b"))
        async with ShardClient(first.address) as client:
            specs = [shard(shard_id, SOURCE, hot_standbys=1) for shard_id in SHARDS]
            await client.apply(upserts(*specs))
            await wait_for_primaries(client, *SHARDS)
            await eventually(lambda: _all_placed(client))
        yield first, second, third


async def _all_placed(client: ShardClient) -> bool:
    found = await statuses(client)
    return all(
        len(replicas) == 2 and all(status in ("PRIMARY", "STANDBY") for _, status in replicas)
        for replicas in found.values()
    )


async def _holders(client: ShardClient) -> dict[str, set[str]]:
    return {
        shard_id: {suffix for suffix, _ in replicas}
        for shard_id, replicas in (await statuses(client)).items()
    }


def _moves(plan: PlanResponse) -> set[tuple[str, str]]:
    adds = (c for c in plan.changes if c.kind == ChangeKind.CHANGE_KIND_ADD)
    return {(change.shard, change.member) for change in adds}


async def test_plan_of_a_drain_changes_nothing_and_is_carried_out_exactly(
    members: tuple[Service, Service, Service], cluster: Cluster, etcd: EtcdClient
) -> None:
    """Asked of a member that does not lead: no key below the root changes; applied, each replica goes where it said,
    and the drained member leaves by itself.
    """
    first, second, third = members
    prefix = f"{cluster.root}/".encode()
    async with AllocationClient(third.address) as client:
        before = await etcd.get_range(prefix, prefix + b"\xff")
        plan = await client.plan(drain=["zone-b#member-b"])
        after = await etcd.get_range(prefix, prefix + b"\xff")

        assert before.kvs == after.kvs
        assert plan.can_be_applied
        assert plan.leader == "zone-a#member-a"
        assert {member for _, member in _moves(plan)} == {"zone-b#member-c"}

        applied = await client.apply_plan(plan.plan_id)
    assert applied.revision > plan.revision
    async with ShardClient(first.address) as shards:
        expected = {shard_id: {"member-a", "member-c"} for shard_id in SHARDS}

        async def arrived() -> bool:
            return await _holders(shards) == expected

        await eventually(arrived)
    await eventually(lambda: not second.is_ready)


async def test_plan_is_refused_once_the_cluster_has_changed(
    members: tuple[Service, Service, Service],
) -> None:
    """A shard is added between plan and apply: nothing is drained."""
    first, second, _ = members
    async with AllocationClient(first.address) as client, ShardClient(first.address) as shards:
        plan = await client.plan(drain=["zone-b#member-b"])
        await shards.apply(upserts(shard("another", SOURCE)))

        with pytest.raises(PlanNotAppliedError, match="nothing was changed; plan again"):
            await client.apply_plan(plan.plan_id)
    assert second.is_ready


async def test_of_two_plans_applied_at_once_one_is_carried_out_and_the_other_refused(
    members: tuple[Service, Service, Service], cluster: Cluster, etcd: EtcdClient
) -> None:
    """Each was good when asked for, and they write different keys; but the second one's cluster is not the first one's
    any more: nothing of it may be done.
    """
    first, second, _ = members
    async with (
        AllocationClient(first.address) as client,
        AllocationClient(second.address) as other,
    ):
        drains = [await client.plan(drain=[f"zone-b#member-{name}"]) for name in "bc"]

        results = await asyncio.gather(
            client.apply_plan(drains[0].plan_id),
            other.apply_plan(drains[1].plan_id),
            return_exceptions=True,
        )

    (refused,) = [each for each in results if isinstance(each, BaseException)]
    assert isinstance(refused, PlanNotAppliedError)
    assert "nothing was changed" in str(refused)
    assert len(await _leaving(cluster, etcd)) == 1


async def test_plan_is_refused_for_a_change_that_the_leader_has_yet_to_see(
    members: tuple[Service, Service, Service], cluster: Cluster, etcd: EtcdClient
) -> None:
    """A shard's key is written beside every service, and the plan applied at once: the leader looks first."""
    async with AllocationClient(members[0].address) as client:
        plan = await client.plan(drain=["zone-b#member-b"])
        (kv,) = (await etcd.get_range(f"{cluster.root}/items/{SHARDS[0]}".encode())).kvs
        await etcd.txn((), (Put(kv.key, kv.value),))

        with pytest.raises(PlanNotAppliedError, match="nothing was changed; plan again"):
            await client.apply_plan(plan.plan_id)

    assert not await _leaving(cluster, etcd)


async def _leaving(cluster: Cluster, etcd: EtcdClient) -> set[str]:
    """Return members that wish to leave, or have left."""
    prefix = f"{cluster.root}/members/".encode()
    found = await etcd.get_range(prefix, prefix_range_end(prefix))
    staying = [spec for kv in found.kvs if not (spec := ConsumerSpec.FromString(kv.value)).exiting]
    return {"member-a", "member-b", "member-c"} - {spec.process_spec.id.suffix for spec in staying}


async def test_new_specs_are_planned_and_applied_in_one_transaction(
    members: tuple[Service, Service, Service],
) -> None:
    """The plan names where the new shard would go; applied, it is there."""
    first, _, _ = members
    async with AllocationClient(first.address) as client, ShardClient(first.address) as shards:
        plan = await client.plan(changes=upserts(shard("newcomer", SOURCE, hot_standbys=1)))
        planned = {member.partition("#")[2] for _, member in _moves(plan)}
        assert {shard_id for shard_id, _ in _moves(plan)} == {"newcomer"}

        await client.apply_plan(plan.plan_id)

        await wait_for_primaries(shards, "newcomer")

        async def placed() -> bool:
            return (await _holders(shards))["newcomer"] == planned

        await eventually(placed)


async def test_plan_with_members_that_are_not_there_cannot_be_applied(
    members: tuple[Service, Service, Service],
) -> None:
    """`--add` is for looking ahead."""
    first, _, _ = members
    async with AllocationClient(first.address) as client:
        plan = await client.plan(add=[NewMembers(zone="zone-a", count=2)])
        assert not plan.can_be_applied
        assert len(plan.members) == 5

        with pytest.raises(PlanNotAppliedError, match="start them, then plan again"):
            await client.apply_plan(plan.plan_id)


async def test_unknown_plan_is_refused(members: tuple[Service, Service, Service]) -> None:
    """An id of another leader, or of long ago."""
    async with AllocationClient(members[1].address) as client:
        with pytest.raises(PlanNotAppliedError, match="plan again"):
            await client.apply_plan("0123456789abcdef")


@pytest.mark.parametrize(
    ("drain", "add", "field"),
    [
        (["zone-b#nobody"], [], r"drain\[0\]"),
        (["nonsense"], [], r"drain\[0\]"),
        ([], [NewMembers(zone="zone-a", count=0)], r"add\[0\]\.count"),
        ([], [NewMembers(zone="not a zone", count=1)], r"add\[0\]\.zone"),
    ],
)
async def test_bad_request_names_its_field(
    members: tuple[Service, Service, Service], drain: list[str], add: list[NewMembers], field: str
) -> None:
    """Asked of a follower, so that the error also survives the hop to the leader."""
    async with AllocationClient(members[1].address) as client:
        with pytest.raises(ValidationError, match=field):
            await client.plan(drain=drain, add=add)


async def test_explanation_names_what_a_shard_waits_for(
    members: tuple[Service, Service, Service],
) -> None:
    """A shard that wants more replicas than there are members; asked of leader and follower alike."""
    first, second, _ = members
    async with ShardClient(first.address) as shards:
        await shards.apply(upserts(shard("wide", SOURCE, hot_standbys=3)))
        await wait_for_primaries(shards, "wide")
    for service in (first, second):
        async with AllocationClient(service.address) as client:

            async def explained(client: AllocationClient = client) -> bool:
                found = await client.explain("wide")
                reasons = {wait.reason for wait in found.waits}
                return len(found.replicas) == 3 and WaitReason.WAIT_REASON_NO_MEMBER in reasons

            await eventually(explained)
            with pytest.raises(ShardNotFoundError):
                await client.explain("nowhere")


async def test_gap_to_the_best_balance_is_told_where_weights_allow_no_better_proof(
    cluster: Cluster,
) -> None:
    """Weights 3, 3, 2 and 1 on two members: 5 and 4 is best, 4.5 is what is proven unavoidable: a ninth above it."""
    weights = {"heavy": 3, "weighty": 3, "middling": 2, "light": 1}
    async with cluster.member("a") as first, cluster.member("b"):
        async with ShardClient(first.address) as shards:
            specs = [shard(shard_id, SOURCE) for shard_id in weights]
            for spec in specs:
                spec.labels.CopyFrom(label_set({WEIGHT: str(weights[spec.id])}))
            await shards.apply(upserts(*specs))
            await wait_for_primaries(shards, *weights)
        async with AllocationClient(first.address) as client:
            assert (await client.plan()).gap == pytest.approx(1 / 9)
        printed = await asyncio.to_thread(
            CliRunner().invoke, main, ["plan"], env={"CONSUMER_ADDRESS": first.address}
        )
        assert "at most 11.11% above what is proven unavoidable" in printed.output


async def test_who_may_see_only_some_shards_may_not_plan_or_cordon(cluster: Cluster) -> None:
    """Plans and members concern every shard. An explanation is of one, and shows it to whoever may list it."""
    scoped = Claims(
        capability=Capability.ALL,
        selector=selector(label_set({"app": "mine"})),
    )
    async with cluster.member("a", auth_keys=KEYS) as service:
        auth = _Scoped(KeyedAuth(KEYS), scoped)
        async with AllocationClient(service.address, auth=KeyedAuth(KEYS)) as client:

            async def planned() -> bool:
                try:
                    return not (await client.plan()).changes
                except EndpointError:
                    return False  # Nobody leads yet.

            await eventually(planned)
        async with AllocationClient(service.address, auth=auth) as client:
            with pytest.raises(NotAuthorizedError):
                await client.plan()
            with pytest.raises(NotAuthorizedError):
                await client.members()
            with pytest.raises(NotAuthorizedError):
                await client.cordon(["zone-a#member-a"])


async def test_who_may_list_may_plan_and_who_may_apply_may_apply_also_over_a_hop(
    cluster: Cluster,
) -> None:
    """Each is asked of a member that does not lead. The hop is signed again, with what it takes and no more: a token
    that may only look is refused before it, and one that may only apply is enough for that.
    """
    async with (
        cluster.member("a", auth_keys=KEYS) as leader,
        cluster.member("b", auth_keys=KEYS) as follower,
    ):
        may_look = _Scoped(KeyedAuth(KEYS), Claims(capability=Capability.LIST))
        may_apply = _Scoped(KeyedAuth(KEYS), Claims(capability=Capability.APPLY))
        looks = AllocationClient(follower.address, auth=may_look)
        applies = AllocationClient(follower.address, auth=may_apply)
        async with looks, applies:

            async def planned() -> bool:
                try:
                    return (await looks.plan()).leader == "zone-a#member-a"
                except EndpointError:
                    return False  # Nobody leads yet.

            await eventually(planned)
            plan = await looks.plan(drain=["zone-a#member-b"])
            with pytest.raises(NotAuthorizedError):
                await looks.apply_plan(plan.plan_id)
            with pytest.raises(NotAuthorizedError):
                await applies.plan()
            assert follower.is_ready

            await applies.apply_plan(plan.plan_id)

        await eventually(lambda: not follower.is_ready)
        assert leader.is_ready


class _Scoped:
    """Signs whatever is asked with these claims only."""

    def __init__(self, auth: KeyedAuth, claims: Claims) -> None:
        self._auth = auth
        self._claims = claims

    def metadata(self, claims: Claims) -> tuple[tuple[str, str], ...]:
        """Return a token with the narrower claims."""
        narrowed = replace(self._claims, expires_at=claims.expires_at)
        return tuple(self._auth.metadata(narrowed))


async def test_cordoned_member_is_listed_keeps_its_shards_and_gets_no_others(
    members: tuple[Service, Service, Service],
) -> None:
    """Asked of a member that does not lead, about another one: what it holds serves on, what comes goes to the rest."""
    first, _, third = members
    cordoned = "zone-b#member-b"
    async with AllocationClient(third.address) as client, ShardClient(first.address) as shards:
        before = await _holders(shards)

        done = await client.cordon([cordoned])
        again = await client.cordon([cordoned])

        assert list(done.changed) == [cordoned]
        assert done.revision
        assert not again.changed
        new = tuple(f"new-{number}" for number in range(4))
        await shards.apply(upserts(*(shard(shard_id, SOURCE) for shard_id in new)))
        await wait_for_primaries(shards, *new)
        after = await _holders(shards)
        assert {shard_id: after[shard_id] for shard_id in SHARDS} == before
        assert not any("member-b" in after[shard_id] for shard_id in new)
        listed = {each.id: each for each in (await client.members()).members}
        assert {name for name, each in listed.items() if each.cordoned} == {cordoned}
        assert {name for name, each in listed.items() if each.leads} == {"zone-a#member-a"}
        assert listed[cordoned].replicas == sum("member-b" in held for held in before.values())
        assert sum(each.primaries for each in listed.values()) == len(SHARDS) + len(new)


async def test_uncordoned_member_takes_shards_again(
    members: tuple[Service, Service, Service],
) -> None:
    """With both of its zone cordoned no shard gets a standby there; without, each does."""
    first, _, _ = members
    both = ["zone-b#member-b", "zone-b#member-c"]
    async with AllocationClient(first.address) as client, ShardClient(first.address) as shards:
        await client.cordon(both)
        await shards.apply(upserts(shard("newcomer", SOURCE, hot_standbys=1)))
        await wait_for_primaries(shards, "newcomer")
        assert (await _holders(shards))["newcomer"] == {"member-a"}

        await client.cordon(both, cordoned=False)

        async def has_a_standby() -> bool:
            return len((await _holders(shards))["newcomer"]) == 2

        await eventually(has_a_standby)


async def test_cordon_of_many_changes_all_or_none_and_names_what_is_wrong(
    members: tuple[Service, Service, Service],
) -> None:
    """One name that is no member, one that is malformed, one twice, none at all: an error each, and nothing is done."""
    first, _, _ = members
    async with AllocationClient(first.address) as client:
        for wrong, message in (
            (["zone-b#member-b", "zone-b#nobody"], r"members\[1\]: expected a member of the"),
            (["zone-b#member-b", "nobody"], r"members\[1\]: expected zone#suffix"),
            (["zone-b#member-b"] * 2, r"members\[1\]: expected zone-b#member-b only once"),
            ([], r"members: expected from 1 to 64, got 0"),
        ):
            with pytest.raises(ValidationError, match=message):
                await client.cordon(wrong)

        assert not any(each.cordoned for each in (await client.members()).members)


async def test_cordon_keeps_what_a_member_says_of_itself(
    members: tuple[Service, Service, Service], cluster: Cluster, etcd: EtcdClient
) -> None:
    """A field that this version does not know must survive, and so must the member's lease."""
    first, _, _ = members
    prefix = f"{cluster.root}/members/zone-b#member-b".encode()
    before = (await etcd.get_range(prefix, prefix_range_end(prefix))).kvs[0]
    unknown = b"\xba\x3f\x03new"  # Field 1015, of some later version.
    await etcd.txn((), (Put(before.key, before.value + unknown, ignore_lease=True),))

    async with AllocationClient(first.address) as client:
        await client.cordon(["zone-b#member-b"])

    after = (await etcd.get_range(prefix, prefix_range_end(prefix))).kvs[0]
    spec = ConsumerSpec.FromString(after.value)
    assert spec.cordoned
    assert unknown in after.value
    assert after.lease == before.lease
    spec.cordoned = False
    assert spec.process_spec == ConsumerSpec.FromString(before.value).process_spec


async def _drain_of(client: AllocationClient, member_id: str) -> Progress | None:
    found = {each.id: each for each in (await client.members()).members}
    member = found.get(member_id)
    return member.drain if member is not None and member.HasField("drain") else None


async def test_drain_tells_what_is_left_until_its_member_is_gone(cluster: Cluster) -> None:
    """A member of three shards leaves, and the other has room for two: one is left, on each surface, until a third
    member joins. Then the drain is over, and is told no more.
    """
    ids = tuple(f"shard-{number}" for number in range(6))
    async with (
        cluster.member("a", shard_limit=5) as staying,
        cluster.member("b") as leaving,
        AllocationClient(staying.address) as client,
    ):
        async with ShardClient(staying.address) as shards:
            await shards.apply(upserts(*(shard(each, SOURCE) for each in ids)))
            await wait_for_primaries(shards, *ids)
        before = (await client.operations()).operations
        held = {m.id: m.replicas for m in (await client.members()).members}
        member_id = str(leaving.member_id)
        leaving.stop()

        async def is_stuck() -> Progress:
            drain = await _drain_of(client, member_id)
            assert drain is not None
            assert drain.to_do == 1, drain
            return drain

        drain = await eventually(is_stuck)
        async with AllocationClient(leaving.address) as other:
            listed = (await other.operations()).operations
        shown = await _shardctl("members", "progress", "--address", staying.address)
        metric = leaving.registry.get_sample_value("broadsheet_member_drain_shards_left")
        async with cluster.member("c"):

            async def is_over() -> bool:
                assert not leaving.is_ready
                assert not (await client.operations()).operations
                return await _drain_of(client, member_id) is None

            await eventually(is_over)

    assert not before
    assert (drain.subject, drain.done, drain.to_do) == (member_id, held[member_id] - 1, 1)
    drains = [each for each in listed if each.kind == ProgressKind.PROGRESS_KIND_DRAIN]
    assert [(each.subject, each.to_do) for each in drains] == [(member_id, 1)]
    assert metric == 1
    # The members in this process write their log there, too.
    assert any(line.split()[:2] == ["drain", member_id] for line in shown.splitlines()), shown


async def _shardctl(*args: str) -> str:
    result = await asyncio.to_thread(CliRunner().invoke, main, list(args))
    assert result.exit_code == 0, result.output
    return result.output
