"""A stranger's operation with the next number in a recovery log: the primary's commit behind it is recovered, once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broadsheet.consumer.errors import LogDataLossError
from broadsheet.consumer.recoverylog.fence import fence_check, fence_of
from broadsheet.journals import read_committed
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.types import JsonType
from broadsheet.wire.journal_pb2 import AppendResponse
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support.eventually import eventually
from tests.support.live_logs import create_log, files_in, recover
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
        with capture_logs() as events:
            await client.unassign([SHARD])
            await wait_for_primaries(client, SHARD)
        counts = await counts_of(one.resolver, SHARD, kind, read_through={SOURCE: end})
        assert counts == {"a": 4, "b": 2, "c": 2}
        assert [each["log"] for each in events if each["event"] == "recovery_log.fork"] == [log]
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


async def _forked(journals: JournalClient, *, holder: int | None) -> tuple[OpChain, OpChain]:
    """Make a log in which 1 records, 2 goes on from it, and 1 too, behind; return the chains of both."""
    await create_log(journals)
    ours = OpChain(1)
    content = ours.create("/a").framed + ours.write(1, 0, b"a").framed
    theirs = ours.branch(2)
    content += theirs.nothing().framed + ours.write(1, 1, b"ours").framed
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
    """Who the fence names, or its successor, is believed; and a later recovery believes the same."""
    await _forked(journals, holder=holder)
    for n in range(3):
        recovered = await recover(journals, FSMHints(log=LOG), tmp_path / str(n), author=author)
        assert files_in(recovered.directory) == {"/a": expected}


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
    recovered = await recover(journals, FSMHints(log=LOG), tmp_path / "first", author=7)
    assert not late
    assert files_in(recovered.directory) == {"/a": b"alate"}
    again = await recover(journals, FSMHints(log=LOG), tmp_path / "again", author=8)
    assert files_in(again.directory) == {"/a": b"alate"}


async def test_fork_of_two_that_both_recorded_is_refused_where_no_register_tells(
    journals: JournalClient, tmp_path: Path
) -> None:
    """Each branch may hold commits whose outputs are out, so neither is given up unasked."""
    ours, theirs = await _forked(journals, holder=None)
    await journals.append(LOG, theirs.write(1, 1, b"theirs").framed + ours.nothing().framed)
    with pytest.raises(LogDataLossError, match="authors 0x1 and 0x2 both recorded operation 3"):
        await recover(journals, FSMHints(log=LOG), tmp_path / "refused", author=7)
