"""A stranger's operation with the next number in a recovery log: the primary's commit behind it is recovered, once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broadsheet.consumer.errors import LogDataLossError
from broadsheet.consumer.recoverylog.fence import fence_check, fence_of
from broadsheet.consumer.recoverylog.operation import DecodedOp, OperationDecoder
from broadsheet.journals import read_committed
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import JsonType
from broadsheet.wire.journal_pb2 import AppendResponse
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support.eventually import eventually
from tests.support.live_logs import (
    NO_HINTS,
    create_log,
    files_in,
    recording,
    recover,
    tailing,
)
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_ops import LOG, OpChain
from tests.support.recorded_tally import LOGS, TALLIES, counts_of, create_logs, recorded

pytestmark = pytest.mark.etcd

SOURCE, SHARD, OUTPUT = "test/source", "shard-a", "test/output"
KEYS = ["a", "b", "a", "c"]
STRANGER = 0x4711


@pytest.mark.parametrize("goes_on", [False, True], ids=["one operation", "and more behind"])
@pytest.mark.parametrize("kind", ["sqlite", "json"])
async def test_commit_behind_a_strangers_operation_is_recovered_with_its_outputs_once(
    cluster: Cluster, journals: JournalClient, tmp_path: Path, kind: str, goes_on: bool
) -> None:
    """The acknowledgements of that commit went out right behind it, so a recovery without it would publish twice. The
    replica fails by name, because another recorder is at work; its successor follows what held the fence.
    """
    await create_logs(journals, SHARD)
    log = f"{LOGS}/{SHARD}"
    producer = Producer(journals)
    application = TALLIES[kind][0](cluster.directory, output=OUTPUT)
    async with (
        cluster.member("one", application=application, state_dir=str(tmp_path / "one")) as one,
        client_of(one) as client,
    ):
        await client.apply(upserts(recorded(shard(SHARD, SOURCE), cluster.root)))
        await wait_for_primaries(client, SHARD)
        end = await producer.publish(SOURCE, KEYS)
        await counts_of(one.resolver, SHARD, kind, read_through={SOURCE: end})
        fsm = (await recover(journals, FSMHints(log=log), tmp_path / "looked-at")).fsm
        stranger = OpChain(STRANGER, seq=fsm.next_seq, checksum=fsm.next_checksum)
        await journals.append(log, stranger.nothing().framed)
        end = await producer.publish(SOURCE, KEYS)

        async def failures() -> list[str]:
            return [
                error
                for listed in (await client.list()).shards
                for status in listed.status
                if status.code == ReplicaStatus.FAILED
                for error in status.errors
            ]

        assert f"author {STRANGER:#x}" in (await eventually(failures))[0]
        if goes_on:
            await journals.append(log, stranger.create("/strange").framed)
        both_recorded = await _authors_of(journals, log, fsm.next_seq) > {STRANGER}
        with capture_logs() as events:
            await client.unassign([SHARD])
            await wait_for_primaries(client, SHARD)
        counts = await counts_of(one.resolver, SHARD, kind, read_through={SOURCE: end})
        assert counts == {"a": 4, "b": 2, "c": 2}
        # A recorder that saw the stranger before it recorded the commit left nothing behind, and there is no fork.
        forked = [each["log"] for each in events if each["event"] == "recovery_log.fork"]
        assert forked == ([log] if both_recorded else [])
        # Recorded behind the fork, and recovered without a decision of the registers' present holder.
        end = await producer.publish(SOURCE, ["d"])
        await counts_of(one.resolver, SHARD, kind, read_through={SOURCE: end})
        await client.unassign([SHARD])
        await wait_for_primaries(client, SHARD)
        counts = await counts_of(one.resolver, SHARD, kind, read_through={SOURCE: end})
        assert counts == {"a": 4, "b": 2, "c": 2, "d": 1}
        published: Counter[int] = Counter()
        async for batch in read_committed(journals, OUTPUT, JsonType(), block=False):
            published.update(
                message["n"]
                for flags, message in zip(batch.flags, batch.messages(), strict=True)
                if flags != 2  # An acknowledgement.
            )
        assert published == Counter(range(1, sum(counts.values()) + 1))


async def _authors_of(journals: JournalClient, log: str, seq_no: int) -> set[int]:
    """Return the authors of all operations with a number."""
    decoder, found = OperationDecoder(0), set[int]()
    async for span in journals.reader(log, block=False):
        for each in decoder.feed(span.content):
            if isinstance(each, DecodedOp) and each.op.seq_no == seq_no:
                found.add(each.op.author)
    return found


async def _forked(journals: JournalClient, *, holder: int | None) -> tuple[OpChain, OpChain]:
    """Make a log in which 1 records, 2 goes on from it, and 1 too, behind; return the chains of both."""
    await create_log(journals)
    ours = OpChain(1)
    content = ours.create("/a").framed + ours.write(1, 0, b"a").framed
    theirs = ours.branch(2)
    content += theirs.nothing().framed + ours.write(1, 1, b"ours").framed
    if holder not in (None, 1, 2):
        content += ours.branch(holder).nothing().framed
    fence = None if holder is None else fence_of(holder)
    await journals.append(LOG, content, union_registers=fence)
    return ours, theirs


@pytest.mark.parametrize("author", [0, 7], ids=["looked at", "taken over"])
@pytest.mark.parametrize(
    ("holder", "expected"),
    [(1, b"aours"), (9, b"aours"), (2, b"a")],
    ids=["the one before", "a successor", "the one that came first"],
)
async def test_registers_tell_which_branch_of_a_fork_is_the_logs_history(
    journals: JournalClient, tmp_path: Path, author: int, holder: int, expected: bytes
) -> None:
    """Who the fence names, or its successor, is believed; and later recoveries believe the same."""
    await _forked(journals, holder=holder)
    recovered = await recover(journals, NO_HINTS, tmp_path / "first", author=author)
    files = {"/a": expected}
    assert files_in(recovered.directory) == files
    if author:
        async with recording(journals, recovered) as recorder:
            recorder.create("/b")
            await asyncio.wrap_future(recorder.barrier())
            hints, covered = recorder.snapshot_hints()
            await asyncio.wrap_future(covered)
        files["/b"] = b""
        for n, each in enumerate((NO_HINTS, hints)):
            recovered = await recover(journals, each, tmp_path / f"again-{n}", author=8 + n)
            assert files_in(recovered.directory) == files
    recovered = await recover(journals, NO_HINTS, tmp_path / "last")
    assert files_in(recovered.directory) == files


async def test_operation_that_arrives_just_before_the_hand_over_is_recovered(
    journals: JournalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork shows only once the fence is ours. What the one before recorded is not lost, and stays recovered."""
    await create_log(journals)
    ours = OpChain(1)
    content = ours.create("/a").framed + ours.write(1, 0, b"a").framed
    content += ours.branch(2).nothing().framed
    await journals.append(LOG, content, union_registers=fence_of(1))
    append, late = journals.append, [ours.write(1, 1, b"late").framed]

    async def append_late(journal: str, content: bytes, **options: Any) -> AppendResponse:
        if content and late:
            await append(journal, late.pop(), check_registers=fence_check(1))
        return await append(journal, content, **options)

    monkeypatch.setattr(journals, "append", append_late)
    recovered = await recover(journals, NO_HINTS, tmp_path / "first", author=7)
    assert not late
    assert files_in(recovered.directory) == {"/a": b"alate"}
    again = await recover(journals, NO_HINTS, tmp_path / "again", author=8)
    assert files_in(again.directory) == {"/a": b"alate"}


async def test_fork_of_two_that_both_recorded_is_refused_where_no_register_tells(
    journals: JournalClient, tmp_path: Path
) -> None:
    """Each branch may hold commits whose outputs are out, so neither is given up unasked."""
    ours, theirs = await _forked(journals, holder=None)
    await journals.append(LOG, theirs.write(1, 1, b"theirs").framed + ours.nothing().framed)
    with pytest.raises(LogDataLossError, match="authors 0x1 and 0x2 both recorded operation 3"):
        await recover(journals, NO_HINTS, tmp_path / "refused", author=7)


async def test_refusal_of_one_whose_hand_over_is_in_the_log_stays_a_refusal(
    journals: JournalClient, tmp_path: Path
) -> None:
    """Its hand-over follows from the branch that came first, and names it in the registers, though it could not tell:
    a second try that took that for a decision would lose what the holder of the fence had recorded.
    """
    _, theirs = await _forked(journals, holder=1)
    content = theirs.write(1, 1, b"theirs").framed + theirs.branch(7).nothing().framed
    await journals.append(LOG, content, union_registers=fence_of(7))
    for n in range(2):
        with pytest.raises(LogDataLossError, match="do not tell who held the log"):
            await recover(journals, NO_HINTS, tmp_path / str(n), author=8 + n)


async def test_hand_over_that_came_too_late_tells_of_the_branch_that_it_follows(
    journals: JournalClient, tmp_path: Path
) -> None:
    """Its author holds the fence, and recorded nothing more: he is no witness of the other branch, whose author had
    written on while the registers were lost.
    """
    await create_log(journals)
    before = OpChain(1)
    content = before.create("/a").framed
    taken = before.branch(2)
    content += taken.nothing().framed + taken.write(1, 0, b"taken").framed
    late = taken.branch(9)
    content += taken.write(1, 5, b" on").framed + late.nothing().framed
    content += before.write(1, 0, b"zombie").framed + before.write(1, 0, b"again").framed
    await journals.append(LOG, content, union_registers=fence_of(9))
    for n in range(2):
        recovered = await recover(journals, NO_HINTS, tmp_path / str(n), author=10 * n)
        assert files_in(recovered.directory) == {"/a": b"taken on"}


async def test_log_with_several_forks_is_recovered_as_the_fence_went(
    journals: JournalClient, tmp_path: Path
) -> None:
    """One stranger forks it twice, another goes on from the first one, and a hand-over lies between."""
    await create_log(journals)
    ours = OpChain(1)
    content = ours.create("/a").framed
    stranger = ours.branch(2)
    content += stranger.create("/s").framed
    other = stranger.branch(3)
    content += other.create("/t").framed + ours.write(1, 0, b"a").framed
    successor = ours.branch(4)
    content += successor.nothing().framed
    again = OpChain(2, seq=successor.seq, checksum=successor.checksum)
    content += again.create("/u").framed + successor.write(1, 1, b"b").framed
    content += other.create("/v").framed + successor.write(1, 2, b"c").framed
    await journals.append(LOG, content, union_registers=fence_of(4))
    for n in range(3):
        recovered = await recover(journals, NO_HINTS, tmp_path / str(n), author=10 * n)
        assert files_in(recovered.directory) == {"/a": b"abc"}


@pytest.mark.parametrize("holder", [1, 2], ids=["the one before", "the one that came first"])
async def test_standby_that_tailed_over_a_fork_follows_the_fence_before_its_promotion(
    journals: JournalClient, tmp_path: Path, holder: int
) -> None:
    """Else what it copies for others has the stranger's files, and its promotion plays all again. The stranger's claim
    to the log is no reason to fail, and its operations behind are none either.
    """
    await create_log(journals)
    ours = OpChain(1)
    await journals.append(LOG, ours.create("/a").framed, union_registers=fence_of(1))
    async with tailing(journals, NO_HINTS, tmp_path / "standby") as standby:
        await standby.player.tailing.wait()
        theirs = ours.branch(2)
        fence = fence_of(2) if holder == 2 else None
        await journals.append(LOG, theirs.create("/s").framed, union_registers=fence)
        content = ours.write(1, 0, b"a").framed + ours.write(1, 1, b"b").framed
        await journals.append(LOG, content)
        expected = {"/a": b"ab"} if holder == 1 else {"/a": b"", "/s": b""}
        copies = 0

        async def copied() -> bool:
            nonlocal copies
            copies += 1
            target = tmp_path / f"copy-{copies}"
            return await standby.player.copy_to(target) and files_in(target) == expected

        await eventually(copied)
        standby.player.hand_over(7)
        assert files_in((await standby.running).directory) == expected
