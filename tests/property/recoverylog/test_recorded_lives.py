"""A log plays to what was recorded: from hints of any moment, over any number of owners, whatever else is in it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings, strategies as st

from broadsheet.consumer.recoverylog.fence import fence_of
from broadsheet.consumer.recoverylog.hints import decode_hints, encode_hints
from broadsheet.consumer.recoverylog.operation import DecodedOp, OperationDecoder
from broadsheet.consumer.recoverylog.recorder import Recorder
from broadsheet.testing.stores.recorded_log import MirroredFiles
from broadsheet.wire.recorded_op_pb2 import FSMHints
from tests.support.live_logs import NO_HINTS, TwinRecorder
from tests.support.memory_log import MemoryLog
from tests.support.played_logs import PlayedLogs
from tests.support.recorded_ops import LOG, OpChain

STEPS = st.lists(
    st.sampled_from(
        (
            "change",
            "change",
            "changes",
            "barrier",
            "hints",
            "hints",
            "take over",
            "zombie",
            "foreign",
        )
    ),
    min_size=1,
    max_size=25,
)


@dataclass
class Lives:
    """Owners of one log, one after the other, and what their files should be."""

    random: Random
    piece_bytes: int
    log: MemoryLog = field(init=False)
    files: MirroredFiles = field(default_factory=MirroredFiles)
    hints: list[FSMHints] = field(default_factory=lambda: [NO_HINTS])
    zombies: list[OpChain] = field(default_factory=list)
    owners: int = 0

    def __post_init__(self) -> None:
        self.log = MemoryLog(self.random)

    async def take_over(self) -> None:
        """Play the log from hints of some moment, and become its next owner."""
        played = self.played(self.random.choice(self.hints))
        fsm = played.playback.fsm
        self.zombies.append(OpChain(self.owners, seq=fsm.next_seq, checksum=fsm.next_checksum))
        self.owners += 1
        frame = bytes(played.playback.completion) + played.playback.hand_over_to(self.owners)
        begin = len(self.log.content)
        await asyncio.wrap_future(
            self.log.append(LOG, [frame], union_registers=fence_of(self.owners))
        )
        played.perform(played.playback.feed(begin, self.log.content[begin:]))
        assert played.playback.handed_over
        head = played.playback.whole_to
        self.recorder = Recorder(fsm, self.log, log=LOG, author=self.owners, head=head)
        self.twin = TwinRecorder(self.recorder, self.files, seed=self.random.randrange(1 << 30))

    async def step(self, step: str) -> None:
        """Do one thing."""
        if step == "change":
            self.twin.record(1)
        elif step == "changes":
            self.twin.record(self.random.randrange(2, 15))
        elif step == "hints":
            hints, covered = self.recorder.snapshot_hints()
            await asyncio.wrap_future(covered)
            self.hints.append(decode_hints(encode_hints(hints)))
        elif step == "zombie":
            self.write_as_zombie()
        elif step == "foreign":
            self.write_a_part()
        else:
            await asyncio.wrap_future(self.recorder.barrier())
            if step == "take over":
                await self.take_over()

    def write_as_zombie(self) -> None:
        """Have an owner of before write on, as can be when the registers are lost."""
        zombie = self.random.choice(self.zombies)
        kind = self.random.randrange(4)
        fnode = self.random.randrange(1, zombie.seq + 1)
        if kind == 0:
            op = zombie.create(self.random.choice(("/zombie", *self.files.paths())))
        elif kind == 1:
            op = zombie.unlink(fnode, self.random.choice(("/zombie", *self.files.paths())))
        else:
            op = zombie.write(fnode, 0, self.random.randbytes(self.random.randrange(50)))
        self.log.content += op.framed

    def write_a_part(self) -> None:
        """Have a stranger append the first part of some operation, which takes what follows for its own rest."""
        begins = [
            found.begin
            for found in OperationDecoder(0).feed(self.log.content)
            if isinstance(found, DecodedOp)
        ]
        begin = self.random.choice(begins)
        self.log.content += self.log.content[begin : begin + self.random.randrange(1, 200)]

    def played(self, hints: FSMHints) -> PlayedLogs:
        """Play the log."""
        played = PlayedLogs(hints, {LOG: [(0, self.log.content)]})
        return played.play(piece_bytes=self.piece_bytes)

    def check(self) -> None:
        """Play from all hints there are, and from those that each playback comes to."""
        for hints in self.hints:
            played = self.played(hints)
            assert played.playback.complete
            assert played.files == self.twin.contents
            exact = self.played(played.playback.fsm.hints(LOG))
            assert exact.files == self.twin.contents


@settings(max_examples=60, deadline=None)
@given(
    steps=STEPS,
    seed=st.integers(0, 1 << 32),
    piece_bytes=st.sampled_from((13, 500, 1 << 20)),
)
def test_log_plays_to_the_files_of_a_dictionary(
    steps: list[str], seed: int, piece_bytes: int
) -> None:
    """Also where appends stand twice in it, with garbage and parts of operations between them, and operations of owners
    that were fenced.
    """

    async def live() -> None:
        lives = Lives(Random(seed), piece_bytes)
        await lives.take_over()
        for step in (*steps, "barrier"):
            await lives.step(step)
        lives.check()

    asyncio.run(live())
