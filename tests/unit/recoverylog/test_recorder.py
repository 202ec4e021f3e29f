"""What each call of a store becomes in the log, and in the hints."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from broadsheet.consumer.errors import LogDataLossError, LogFencedError
from broadsheet.consumer.recoverylog.fence import (
    AUTHOR_MAX,
    author_from,
    author_text,
    fence_check,
    fence_of,
    holds_fence,
)
from broadsheet.consumer.recoverylog.fsm import FileStateMachine
from broadsheet.consumer.recoverylog.operation import DecodedOp, OperationDecoder
from broadsheet.consumer.recoverylog.recorder import FLUSH_BYTES, Recorder
from broadsheet.wire.journal_pb2 import LabelSet
from broadsheet.wire.labels import label_set, registers_match
from broadsheet.wire.recorded_op_pb2 import FSMHints, RecordedOp
from tests.support.memory_log import MemoryLog
from tests.support.recorded_ops import LOG


def recorder_into(log: MemoryLog, *, author: int = 7, head: int = 0) -> Recorder:
    """Return the recorder of an empty log; it holds the fence."""
    log.registers = fence_of(author)
    fsm = FileStateMachine(FSMHints(log=LOG))
    return Recorder(fsm, log, log=LOG, author=author, head=head)


async def recorded(log: MemoryLog, recorder: Recorder) -> list[str]:
    """Return, in words, what the log holds once all that was recorded is there."""
    await asyncio.wrap_future(recorder.barrier())
    told: list[str] = []
    for found in OperationDecoder(0).feed(log.content):
        assert isinstance(found, DecodedOp)
        told.append(f"{in_words(found.op)} {bytes(found.content).decode()}".strip())
    return told


def in_words(op: RecordedOp) -> str:
    """Return an operation in words."""
    if op.HasField("create"):
        return f"{op.seq_no} create {op.create.path}"
    if op.HasField("link"):
        return f"{op.seq_no} link {op.link.fnode} {op.link.path}"
    if op.HasField("unlink"):
        return f"{op.seq_no} unlink {op.unlink.fnode} {op.unlink.path}"
    if op.HasField("write"):
        return f"{op.seq_no} write {op.write.fnode} at {op.write.offset}"
    if op.HasField("property"):
        return f"{op.seq_no} property {op.property.path} {op.property.content}"
    return f"{op.seq_no} nothing"


def hinted(recorder: Recorder) -> dict[int, tuple[int, int]]:
    """Return the operations that each live file needs, by its number."""
    hints, _ = recorder.snapshot_hints()
    return {
        node.fnode: (node.segments[0].first_seq_no, node.segments[0].last_seq_no)
        for node in hints.live_nodes
    }


async def test_new_file_is_created_and_written() -> None:
    """Every operation bears our author and the next number and checksum."""
    log = MemoryLog()
    recorder = recorder_into(log)
    recorder.create("/a")
    recorder.write("/a", 0, b"one")
    recorder.write("/a", 3, b"two")

    assert await recorded(log, recorder) == [
        "1 create /a",
        "2 write 1 at 0 one",
        "3 write 1 at 3 two",
    ]
    assert hinted(recorder) == {1: (1, 3)}
    decoded = list(OperationDecoder(0).feed(log.content))
    assert {each.op.author for each in decoded if isinstance(each, DecodedOp)} == {7}


async def test_file_that_is_created_again_is_a_new_one() -> None:
    """The old one is gone, and so are its operations from the hints."""
    log = MemoryLog()
    recorder = recorder_into(log)
    recorder.create("/a")
    recorder.write("/a", 0, b"old")
    recorder.create("/a")
    recorder.write("/a", 0, b"new")

    assert (await recorded(log, recorder))[2:] == [
        "3 unlink 1 /a",
        "4 create /a",
        "5 write 4 at 0 new",
    ]
    assert hinted(recorder) == {4: (4, 5)}


async def test_removed_file_needs_nothing() -> None:
    """Hints name live files only; others between theirs are part of the run."""
    log = MemoryLog()
    recorder = recorder_into(log)
    recorder.create("/a")
    recorder.create("/b")
    recorder.write("/a", 0, b"a")
    recorder.remove("/a")
    recorder.write("/b", 0, b"b")

    assert "4 unlink 1 /a" in await recorded(log, recorder)
    assert hinted(recorder) == {2: (2, 5)}
    recorder.remove("/b")
    assert hinted(recorder) == {}


async def test_rename_links_and_unlinks() -> None:
    """What had the name before is gone; a file renamed to itself stays as it is."""
    log = MemoryLog()
    recorder = recorder_into(log)
    recorder.create("/a.next")
    recorder.rename("/a.next", "/a")
    recorder.create("/b")
    recorder.rename("/b", "/a")
    recorder.rename("/a", "/a")

    assert await recorded(log, recorder) == [
        "1 create /a.next",
        "2 link 1 /a",
        "3 unlink 1 /a.next",
        "4 create /b",
        "5 unlink 1 /a",
        "6 link 4 /a",
        "7 unlink 4 /b",
    ]
    assert hinted(recorder) == {4: (4, 7)}


async def test_property_takes_the_place_of_a_file() -> None:
    """It is in the hints as a whole."""
    log = MemoryLog()
    recorder = recorder_into(log)
    recorder.create("/p")
    recorder.set_property("/p", "1")
    recorder.set_property("/p", "2")

    assert (await recorded(log, recorder))[1:] == [
        "2 unlink 1 /p",
        "3 property /p 1",
        "4 property /p 2",
    ]
    hints, _ = recorder.snapshot_hints()
    assert [(each.path, each.content) for each in hints.properties] == [("/p", "2")]


async def test_operations_are_sent_by_barriers_or_when_they_are_many() -> None:
    """Small ones are held back, and go out together; an empty barrier sends nothing."""
    log = MemoryLog()
    recorder = recorder_into(log)
    recorder.create("/a")
    recorder.write("/a", 0, b"x" * (FLUSH_BYTES - 100))
    await asyncio.sleep(0)
    assert log.appends == []
    recorder.write("/a", 0, b"x" * 100)
    await asyncio.sleep(0)
    assert [len(each) for each in log.appends] == [recorder.recorded_bytes]
    recorder.create("/b")
    await asyncio.wrap_future(recorder.barrier())
    await asyncio.wrap_future(recorder.barrier())
    assert len(log.appends) == 2


async def test_offsets_are_lower_bounds_that_follow_the_log() -> None:
    """From where the player left off, and then from the newest append that is known."""
    log = MemoryLog()
    log.content = b"x" * 1000
    recorder = recorder_into(log, head=900)
    begins = []
    for path in ("/a", "/b"):
        recorder.create(path)
        begins.append(len(log.content))
        await asyncio.wrap_future(recorder.barrier())
    hints, _ = recorder.snapshot_hints()
    assert [each.segments[0].first_offset for each in hints.live_nodes] == [900, begins[1]]


async def test_append_below_where_one_had_ended_is_loss() -> None:
    """A broker that came back without what it had said to be durable."""
    log = MemoryLog()
    recorder = recorder_into(log)
    recorder.create("/a")
    await asyncio.wrap_future(recorder.barrier())
    log.content = log.content[:-5]
    recorder.create("/b")

    with pytest.raises(LogDataLossError, match="the broker lost data"):
        await asyncio.wrap_future(recorder.barrier())


async def test_fenced_recorder_fails_every_barrier_and_sends_nothing() -> None:
    """What it was refused does not come out of order later; the store's calls go on, to no avail."""
    log = MemoryLog()
    recorder = recorder_into(log)
    recorder.create("/a")
    await asyncio.wrap_future(recorder.barrier())
    before = log.content
    log.registers = fence_of(8)

    for _ in range(2):
        recorder.write("/a", 0, b"late")
        with pytest.raises(LogFencedError, match="another recorder took over"):
            await asyncio.wrap_future(recorder.barrier())
    log.registers = LabelSet()
    with pytest.raises(LogFencedError, match="another recorder took over"):
        await asyncio.wrap_future(recorder.barrier())
    assert log.content == before


async def test_changes_that_make_no_sense_are_the_stores_fault() -> None:
    """Crash only: a recorder that guessed would lose data later."""
    recorder = recorder_into(MemoryLog())
    recorder.set_property("/p", "1")
    with pytest.raises(KeyError):
        recorder.write("/none", 0, b"x")
    with pytest.raises(KeyError):
        recorder.remove("/none")
    with pytest.raises(KeyError):
        recorder.rename("/none", "/a")
    with pytest.raises(KeyError):
        recorder.remove("/p")
    with pytest.raises(AssertionError, match="recorded against the files there are"):
        recorder.create("/p")


def test_authors_are_never_zero_and_seldom_alike() -> None:
    """Whatever the random bits."""
    random = Random(1)
    authors = {author_from(random.getrandbits(64)) for _ in range(1000)}

    assert len(authors) > 990
    edges = (0, AUTHOR_MAX - 1, AUTHOR_MAX, (1 << 32) - 1, (1 << 64) - 1)
    assert all(0 < author_from(bits) <= AUTHOR_MAX for bits in edges)


@pytest.mark.parametrize(
    ("author", "text"), [(1, "1"), (31, "v"), (32, "10"), (0xFFFFFFFE, "3vvvvvu")]
)
def test_author_is_in_the_registers_in_base_32(author: int, text: str) -> None:
    """As Gazette writes it; registers that name nobody are no fence of ours, though a broker lets us append."""
    assert author_text(author) == text
    assert fence_of(author) == label_set(("author", text))
    assert holds_fence(fence_of(author), author)
    assert not holds_fence(LabelSet(), author)
    assert not holds_fence(label_set(("author", text), ("author", "other")), author)
    assert registers_match(fence_check(author), fence_of(author))
    assert registers_match(fence_check(author), LabelSet())
    assert not registers_match(fence_check(author), fence_of(author - 1 or 9))
