"""The files of a journal against a model: commits, rolls, jumps and crashes in any order."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broadsheet.broker.commit_log import UNIT_BYTES
from broadsheet.broker.recovery import open_journal
from broadsheet.broker.segment_recycler import SegmentRecycler
from broadsheet.broker.store import Rolled
from broadsheet.wire.journal_pb2 import LabelSet
from tests.support.journal_files import (
    UnsyncedDisk,
    commit,
    content_by_span,
    crash,
    marks,
    opening,
)


class JournalFiles(RuleBasedStateMachine):
    """Drives a store and, beside it, a plain mapping of what a journal must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="broker-model-"))
        self.disk = UnsyncedDisk()
        self.content: dict[int, bytes] = {}
        self.head = 0
        self.registers = LabelSet()
        self.opened = open_journal(self.disk, self.directory / "j", opening())
        spare = self.directory / "spare"
        spare.mkdir()
        self.spares = SegmentRecycler(self.disk, spare, bytes_max=1_000_000, file_bytes_min=1)

    @rule(contents=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4))
    def commit_batch(self, contents: list[bytes]) -> None:
        """Commit a batch without touching the registers."""
        commit(self.opened.store, *contents)
        self._extend(b"".join(contents))

    @rule(used=st.integers(1, 300_000))
    def retire_file(self, used: int) -> None:
        """Have a file to be written over, of somebody else's content."""
        path = self.directory / "retired"
        path.write_bytes(b"\xee" * used)
        self.spares.retire([path])

    @rule(size=st.integers(130_000, 140_000), number=st.integers(0, 99))
    def commit_large(self, size: int, number: int) -> None:
        """Commit around the size at which content leaves the log, with registers; in a spare file, if there is one."""
        store, before = self.opened.store, self.opened.store.file
        if self.spares and store.gains_by_spare(size):
            store.use_spare(self.spares)
            assert store.file is not before
            before.release()
        content = bytes([number]) * size
        commit(self.opened.store, content, registers=marks(number))
        self._extend(content)
        self.registers = marks(number)

    @rule(distance=st.integers(0, 1000))
    def roll(self, distance: int) -> None:
        """Seal the open fragment, and jump ahead if asked to."""
        self._note(self.opened.store.roll())
        if distance:
            self._note(self.opened.store.roll(begin=self.head + distance))
            self.head += distance

    @rule(content=st.binary(min_size=1, max_size=40))
    def adopt(self, content: bytes) -> None:
        """Commit a staged file as a fragment of its own."""
        self._note(self.opened.store.roll())
        spool = self.directory / "spool"
        spool.write_bytes(content)
        digest = hashlib.sha1(content, usedforsecurity=False).digest()
        self._note(
            self.opened.store.adopt(
                spool, length=len(content), digest=digest, registers=None, confirms=False
            )
        )
        self._extend(content)

    @rule(torn=st.binary(max_size=30))
    def crash_and_recover(self, torn: bytes) -> None:
        """Die with half a record at the end of the log, and start again."""
        log_path, end = self.opened.store.log_path, self.opened.store.log_bytes
        crash(self.opened)
        with log_path.open("r+b") as log:
            log.seek(end)
            log.write(torn)
            log.truncate(-(-max(log.tell(), log_path.stat().st_size) // UNIT_BYTES) * UNIT_BYTES)
        self.opened = open_journal(self.disk, self.directory / "j", opening())
        assert not self.opened.damage
        spans = content_by_span(self.opened.index)
        held = {begin: content for (begin, _), content in spans.items()}
        assert _runs(held) == _runs(self.content)

    @invariant()
    def state_agrees(self) -> None:
        """Head, registers and confirmation are the model's."""
        state = self.opened.store.state
        assert (state.head, state.unconfirmed) == (self.head, False)
        assert LabelSet.FromString(state.registers) == self.registers

    def teardown(self) -> None:
        """Give the files back."""
        crash(self.opened)
        self.disk.close()
        shutil.rmtree(self.directory)

    def _extend(self, content: bytes) -> None:
        self.content[self.head] = content
        self.head += len(content)

    def _note(self, rolled: Rolled) -> None:
        if rolled.sealed is not None:
            self.opened.index.add(rolled.sealed)
        rolled.retired.release()


def _runs(content: dict[int, bytes]) -> dict[int, bytes]:
    """Join what is contiguous: fragments and batches are cut differently."""
    runs: dict[int, bytearray] = {}
    end = run = -1
    for begin, part in sorted(content.items()):
        if begin != end:
            run = begin
        runs.setdefault(run, bytearray()).extend(part)
        end = begin + len(part)
    return {begin: bytes(part) for begin, part in runs.items()}


TestJournalFiles = JournalFiles.TestCase
TestJournalFiles.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
