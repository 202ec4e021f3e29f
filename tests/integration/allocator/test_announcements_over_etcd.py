"""Members' keys over a real etcd: announced, held by another, written again, deleted by somebody."""

from __future__ import annotations

import pytest

from broadsheet.allocator.announcement import Predecessors
from broadsheet.allocator.errors import (
    AnnounceConflictError,
    EtcdUnavailableError,
    MemberKeyLostError,
)
from broadsheet.allocator.etcd.api import TxnResult
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.ops import Compare, Operation
from broadsheet.runtime.task_group import TaskGroup
from tests.support.eventually import eventually
from tests.support.json_members import JsonMemberProcess, member_value, session_config
from tests.support.json_sessions import start_all

pytestmark = pytest.mark.etcd


async def test_announce_key_held_times_out_and_leaves_nothing(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """A second process with the same identity waits as long as it was told, then says who holds the key."""
    (first,) = await start_all(etcd, etcd_root, "a#one")
    second = JsonMemberProcess.create(
        etcd,
        etcd_root,
        "a#one",
        config=session_config(first.member_id, announce_timeout_seconds=2.5),
    )

    with pytest.raises(AnnounceConflictError) as conflict:
        await second.session.start(member_value(1))

    assert conflict.value.holder_lease == first.session.lease
    assert await etcd.lease_keep_alive_once(second.session.lease) == 0
    await first.session.revoke()


async def test_announce_waits_for_a_predecessor_that_leaves(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """The key is announced as soon as its holder's lease has ended, without waiting for the deadline."""
    (first,) = await start_all(etcd, etcd_root, "a#one")
    second = JsonMemberProcess.create(etcd, etcd_root, "a#one")

    async with TaskGroup() as group:
        starting = group.start_soon(second.session.start(member_value(1)), name="start")
        await first.session.revoke()
        await starting

    assert second.key_space.members[second.member_id].kv.lease == second.session.lease
    await second.session.revoke()


async def test_predecessors_lower_attempts_are_revoked_higher_ones_stay(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """Attempt 2 of a task ends attempt 1 in any zone, and neither attempt 3 nor another task's attempts."""
    names = ("a#app-p0-1", "b#app-p0-10", "a#app-p1-1", "a#app-p0-3")
    others = await start_all(etcd, etcd_root, *names)
    member_id = MemberId("b", "app-p0-2")
    mine = JsonMemberProcess.create(
        etcd,
        etcd_root,
        str(member_id),
        config=session_config(
            member_id, predecessors=Predecessors(prefix="app-p0-", in_any_zone=True)
        ),
    )

    await mine.session.start(member_value(1))

    assert [str(m) for m in mine.key_space.members] == [
        "a#app-p0-3",
        "a#app-p1-1",
        "b#app-p0-10",
        "b#app-p0-2",
    ]
    for member in (*others, mine):
        await member.session.revoke()


async def test_session_member_key_deleted_ends_with_its_loss(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """Someone deletes the member's key while its lease lives: the session ends, for it is no member any more."""
    (member,) = await start_all(etcd, etcd_root, "a#one")
    key = Keys(etcd_root).member(member.member_id)

    with pytest.raises(MemberKeyLostError):
        async with TaskGroup() as group:
            group.start_soon(member.run(), name="member")
            await etcd.delete(key)
            await eventually(lambda: member.ended)

    with pytest.raises(MemberKeyLostError):
        await member.session.update_member(member_value(2))
    await member.session.revoke()


class _LosesAReply(EtcdClient):
    """A client whose connection may break after etcd has done what was asked."""

    loses_next = False

    async def txn(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TxnResult:
        """Perform it, and lose the reply if the test says so."""
        result = await super().txn(compares, success, failure)
        if self.loses_next:
            self.loses_next = False
            raise EtcdUnavailableError(("etcd",), "the reply was lost")
        return result


async def test_update_member_repeated_after_a_lost_reply_succeeds(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """The same value written twice, as after a lost reply, is recognised as our own and keeps its lease."""
    async with _LosesAReply(etcd.config) as lossy:
        (member,) = await start_all(lossy, etcd_root, "a#one")
        lossy.loses_next = True
        with pytest.raises(EtcdUnavailableError, match="lost"):
            await member.session.update_member(member_value(7))

        await member.session.update_member(member_value(7))

        found = await etcd.get_range(Keys(etcd_root).member(member.member_id))
        wanted = (member_value(7), member.session.lease)
        assert [(kv.value, kv.lease) for kv in found.kvs] == [wanted]
        await member.session.revoke()


class _CompactsBehindEachWrite(EtcdClient):
    """A client of an etcd that somebody compacts eagerly."""

    async def txn(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TxnResult:
        """Forget the transaction's revision at once."""
        result = await super().txn(compares, success, failure)
        await self.compact(await self.put(b"/elsewhere", b""))
        return result


async def test_session_starts_though_its_announcement_was_compacted(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """Compaction between announcing and loading is no reason to fail: what is newer has the member too."""
    async with _CompactsBehindEachWrite(etcd.config) as eager:
        (member,) = await start_all(eager, etcd_root, "a#one")
        assert member.member_id in member.key_space.members
        await member.session.revoke()
