"""A member's way to etcd: what is lost, late, cut or broken, and what the member sees of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from random import Random
from typing import TypeVar

import pytest

from broadsheet.allocator.announcement import announce
from broadsheet.allocator.errors import EtcdUnavailableError, LeaseLostError, RevisionCompactedError
from broadsheet.allocator.etcd.api import KeyPut
from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.ops import Put
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.session import Session, SessionConfig
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.allocator.kernel.etcd import FakeEtcd
from broadsheet.testing.allocator.kernel.network import REQUEST_TIMEOUT_SECONDS, FaultyEtcd, Link
from broadsheet.testing.allocator.kernel.virtual_loop import (
    Process,
    VirtualClock,
    run_virtual,
    running_loop,
)
from broadsheet.testing.allocator.values import SimulatedDecoder, SimulatedMemberValue
from tests.support.memory_cluster import ValueConsistency

T = TypeVar("T")
PUT = (Put(b"/k", b"v"),)


def _run(body: Callable[[FakeEtcd, Link, FaultyEtcd], Awaitable[T]]) -> T:
    async def connected() -> T:
        etcd, link = FakeEtcd(), Link(Random(1))
        result = await body(etcd, link, FaultyEtcd(etcd, link, author="m"))
        etcd.close()
        return result

    return run_virtual(connected())


def test_request_is_answered_and_names_its_author() -> None:
    """Observers learn who wrote, and what the writer had to say about it."""

    async def put(etcd: FakeEtcd, link: Link, client: FaultyEtcd) -> None:
        seen: list[tuple[str, object]] = []
        etcd.observers.append(lambda commit: seen.append((commit.author, commit.note)))
        noting = FaultyEtcd(etcd, link, author="m", note=lambda: "why")

        assert (await noting.txn((), PUT)).succeeded
        assert seen == [("m", "why")]

    _run(put)


def test_request_lost_on_its_way_is_not_applied() -> None:
    """Nobody answers: the member gives up after its patience, and nothing happened."""

    async def put(etcd: FakeEtcd, link: Link, client: FaultyEtcd) -> None:
        link.loss = 1.0
        with pytest.raises(EtcdUnavailableError):
            await client.txn((), PUT)

        assert running_loop().time() == pytest.approx(REQUEST_TIMEOUT_SECONDS)
        assert etcd.store.revision == 1

    _run(put)


def test_request_whose_answer_is_lost_was_applied() -> None:
    """The member cannot tell this from a lost request: it may have been applied."""

    async def put(etcd: FakeEtcd, link: Link, client: FaultyEtcd) -> None:
        # The request is under way; its answer will not be.
        etcd.observers.append(lambda _: link.cut_off(refuses=False))
        with pytest.raises(EtcdUnavailableError):
            await client.txn((), PUT)

        assert etcd.store.kvs[b"/k"].value == b"v"

    _run(put)


def test_request_may_be_applied_long_after_the_member_gave_up() -> None:
    """A proposal that was stuck is the worst case for every fence."""

    async def put(etcd: FakeEtcd, link: Link, client: FaultyEtcd) -> None:
        link.latency_seconds = (30.0, 30.0)
        with pytest.raises(EtcdUnavailableError):
            await client.txn((), PUT)

        assert etcd.store.revision == 1
        await asyncio.sleep(30.0)
        assert etcd.store.revision == 2

    _run(put)


def test_request_under_way_arrives_though_its_process_stands_still() -> None:
    """The network does not stop with those who use it; the answer waits until the process goes on."""

    async def put(etcd: FakeEtcd, link: Link, client: FaultyEtcd) -> None:
        process = Process("m")
        async with TaskGroup() as group:
            asking = process.run(lambda: group.start_soon(client.txn((), PUT), name="put"))
            await asyncio.sleep(0)
            process.stop()
            await asyncio.sleep(100.0)
            assert etcd.store.revision == 2
            assert not asking.done()
            process.go_on()

        assert asking.result().succeeded

    _run(put)


def test_cut_off_member_is_refused_at_once_or_not_answered() -> None:
    """A connection may be refused, or go nowhere: the first is known at once."""

    async def put(etcd: FakeEtcd, link: Link, client: FaultyEtcd) -> None:
        link.cut_off(refuses=True)
        with pytest.raises(EtcdUnavailableError, match="refused"):
            await client.txn((), PUT)
        assert running_loop().time() < 1.0

        link.mend()
        assert (await client.txn((), PUT)).succeeded

    _run(put)


def test_watch_that_broke_resumes_without_a_gap() -> None:
    """What was under way on the broken stream is asked for again."""

    async def watch(etcd: FakeEtcd, link: Link, client: FaultyEtcd) -> None:
        seen: list[bytes] = []
        async with aclosing(client.watch(b"/", start_revision=2)) as batches:
            for number in range(5):
                link.breaks += number % 2
                etcd.perform((), (Put(b"/k", b"%d" % number),))
            async for batch in batches:
                seen += [each.kv.value for each in batch.events if isinstance(each, KeyPut)]
                link.breaks += 1
                if len(seen) < 7:
                    etcd.perform((), (Put(b"/k", b"%d" % len(seen)),))
                else:
                    break

        assert seen == [b"%d" % number for number in range(7)]

    _run(watch)


def test_member_announced_on_a_lease_that_ended_lost_it() -> None:
    """The keep-alive may learn of it later: what the announcement raises is the same loss."""

    async def announced(etcd: FakeEtcd, link: Link, client: FaultyEtcd) -> None:
        lease = etcd.grant(6)
        etcd.revoke(lease)
        with pytest.raises(LeaseLostError):
            await announce(client, b"/member", b"value", lease=lease, timeout_seconds=10.0)

    _run(announced)


def test_watch_cut_off_past_a_compaction_is_told_so() -> None:
    """History that was forgotten while the member was away is reported, not skipped."""

    async def watch(etcd: FakeEtcd, link: Link, client: FaultyEtcd) -> None:
        etcd.perform((), PUT)
        link.cut_off(refuses=False)
        async with aclosing(client.watch(b"/", start_revision=2)) as batches:
            running_loop().call_later(5.0, link.mend)
            for _ in range(3):
                etcd.perform((), PUT)
            etcd.compact(4)

            with pytest.raises(RevisionCompactedError):
                await anext(batches)

    _run(watch)


def test_idle_watch_is_told_how_far_it_is() -> None:
    """Without news, a note of progress keeps the point to resume at fresh; it never runs ahead of what was told."""

    async def watch(etcd: FakeEtcd, link: Link, client: FaultyEtcd) -> None:
        etcd.perform((), (Put(b"/elsewhere", b""),))
        async with aclosing(client.watch(b"/w/", start_revision=1)) as batches:
            note = await anext(batches)

        assert (note.events, note.header.revision) == ((), 2)

    _run(watch)


def test_session_gives_up_announcing_by_the_clock_that_it_was_given() -> None:
    """Etcd refuses every connection: the start fails after the time that it may take, which is virtual here. By the
    machine's own clock it would go on for as long in earnest, and end at another moment on a busy machine.
    """

    async def start(etcd: FakeEtcd, link: Link, faulty: FaultyEtcd) -> float:
        link.cut_off(refuses=True)
        session = Session(
            faulty,
            KeySpace(faulty, Keys("/simulated"), SimulatedDecoder()),
            SessionConfig(member_id=MemberId("zone", "one"), announce_timeout_seconds=3000.0),
            ValueConsistency(),
            solver=FlowSolver(),
            clock=VirtualClock(running_loop()),
        )
        with pytest.raises(EtcdUnavailableError):
            await session.start(SimulatedMemberValue(4).encoded())
        return running_loop().time()

    assert 3000.0 <= _run(start) <= 3010.0
