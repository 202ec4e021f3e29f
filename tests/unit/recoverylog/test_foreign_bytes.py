"""Foreign bytes between a recorder's appends: found, completed, and told from our own copies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from broadsheet.consumer.errors import LogDataLossError
from broadsheet.consumer.recoverylog.fence import fence_of
from broadsheet.consumer.recoverylog.foreign_bytes import OwnOperations, completion_bytes, examined
from broadsheet.consumer.recoverylog.fsm import FileStateMachine
from broadsheet.consumer.recoverylog.operation import OperationDecoder, framed
from broadsheet.consumer.recoverylog.recorder import Recorder
from broadsheet.wire.journal_pb2 import AppendResponse
from broadsheet.wire.recorded_op_pb2 import FSMHints, RecordedOp
from tests.support.memory_log import MemoryLog
from tests.support.recorded_ops import LOG, OpChain

AUTHOR = 7


class DisturbedLog(MemoryLog):
    """A log into which a stranger appends before each of our appends, as long as there is something left to append."""

    def __init__(self, *foreign: bytes) -> None:
        super().__init__()
        self.registers = fence_of(AUTHOR)
        self.foreign = list(foreign)

    def append(
        self, journal: str, content: Sequence[bytes], **parameters: Any
    ) -> Future[AppendResponse]:
        """Append behind the stranger; `Any`: the parameters are the log's."""
        if self.foreign:
            self.content += self.foreign.pop(0)
        return super().append(journal, content, **parameters)


def _recorder(log: MemoryLog) -> Recorder:
    return Recorder(FileStateMachine(FSMHints(log=LOG)), log, log=LOG, author=AUTHOR, head=0)


def _played(log: MemoryLog) -> Any:
    """Return whether players find operations 1 to 3, and what they would wait for."""
    own = OwnOperations(author=AUTHOR, first_seq=1, first_checksum=0, next_seq=4)
    return examined(LOG, 0, [log.content], own)


async def _record(recorder: Recorder) -> None:
    recorder.create("/a")
    recorder.write("/a", 0, b"some bytes")
    await asyncio.wrap_future(recorder.barrier())
    recorder.write("/a", 10, b"and more")
    await asyncio.wrap_future(recorder.barrier())


def _stranger() -> bytes:
    chain = OpChain(3, seq=100, checksum=9)
    return chain.create("/b").framed + chain.write(1, 0, b"x" * 300).framed


@pytest.mark.parametrize("length", range(1, len(_stranger()) + 1, 7))
async def test_operations_behind_a_part_of_another_are_repeated_where_players_find_them(
    length: int,
) -> None:
    """Cut in the magic number, the length, the payload or the raw bytes: a barrier means that players have it."""
    log = DisturbedLog(_stranger()[:length], b"", _stranger()[:length])
    recorder = _recorder(log)

    await _record(recorder)

    found = _played(log)
    assert found.heard
    assert found.foreign


async def test_own_appends_that_stand_there_twice_are_no_foreign_bytes() -> None:
    """An answer that was lost has an append repeated; nothing is repeated because of that, and nothing is said."""
    log = DisturbedLog()
    recorder = _recorder(log)
    recorder.create("/a")
    await asyncio.wrap_future(recorder.barrier())
    recorder.write("/a", 0, b"some bytes")
    await asyncio.wrap_future(recorder.barrier())
    copies = log.appends[0] + log.appends[1]
    log.foreign = [copies]
    recorder.write("/a", 10, b"and more")
    await asyncio.wrap_future(recorder.barrier())

    assert len(log.appends) == 3
    found = _played(log)
    assert (found.heard, found.foreign) == (True, False)


async def test_operation_of_another_author_that_takes_our_number_fails_the_barrier() -> None:
    """Players follow the other: what we record then is lost to them, however often it is repeated."""
    log = DisturbedLog(OpChain(3).create("/b").framed)
    recorder = _recorder(log)
    recorder.create("/a")

    with pytest.raises(LogDataLossError, match="operation 1 at 0 is of author 0x3"):
        await asyncio.wrap_future(recorder.barrier())


async def test_log_that_is_disturbed_without_end_fails_the_barrier() -> None:
    """A commit does not wait for ever, and is not believed."""
    log = DisturbedLog(*[_stranger()[:37]] * 50)
    recorder = _recorder(log)
    recorder.create("/a")

    with pytest.raises(LogDataLossError, match="hide operations 1 to 1: find out who"):
        await asyncio.wrap_future(recorder.barrier())


def test_completion_is_bounded_by_what_a_recorder_may_write() -> None:
    """A length of a gigabyte is believed, and named, but no zeros are made for it."""
    op = framed(RecordedOp(write=RecordedOp.Write(length=1 << 30)).SerializeToString())
    decoder = OperationDecoder(0)
    list(decoder.feed(op))

    assert completion_bytes(decoder) == 1 << 30
