"""Recovery logs at a real broker: made, recorded into, played, and compared with what they should come to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from broadsheet.consumer.recoverylog.player import Player, Recovered
from broadsheet.consumer.recoverylog.recorder import Recorder
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.stores.recorded_log import MirroredFiles, RecordedChange
from broadsheet.wire.journal_pb2 import ApplyRequest
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, label_set
from broadsheet.wire.recorded_op_pb2 import FSMHints
from tests.support.broker import journal_spec
from tests.support.recorded_ops import LOG

NO_HINTS = FSMHints(log=LOG)


async def create_log(journals: JournalClient, name: str = LOG) -> None:
    """Create a journal that is a recovery log."""
    labels = label_set((CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG))
    await journals.apply([ApplyRequest.Change(upsert=journal_spec(name, labels=labels))])


def files_in(directory: Path) -> dict[str, bytes]:
    """Return all files below a directory, by their paths in a log."""
    found = [each for each in directory.rglob("*") if each.is_file()]
    return {f"/{each.relative_to(directory)}": each.read_bytes() for each in found}


async def recover(
    journals: JournalClient, hints: FSMHints, directory: Path, *, author: int = 0
) -> Recovered:
    """Play a log to its end, and have it handed over to `author`, if there is one."""
    player = Player(journals, hints, directory)
    if author:
        player.hand_over(author)
    else:
        player.stop_at_head()
    return await player.run()


@dataclass(slots=True)
class Tailing:
    """A player that runs."""

    player: Player
    running: asyncio.Task[Recovered]


@asynccontextmanager
async def tailing(
    journals: JournalClient, hints: FSMHints, directory: Path
) -> AsyncIterator[Tailing]:
    """Run a player; cancel it in the end."""
    player = Player(journals, hints, directory)
    async with TaskGroup() as group:
        yield Tailing(player, group.start_soon(player.run(), name="tailing"))
        group.stop()


@asynccontextmanager
async def recording(
    journals: JournalClient, recovered: Recovered, *, log: str = LOG
) -> AsyncIterator[Recorder]:
    """Record where a player left off, as whom it handed the log over to."""
    async with AppendService(journals) as appends:
        yield Recorder(
            recovered.fsm, appends, log=log, author=recovered.author, head=recovered.head
        )


class TwinRecorder:
    """Records what a store might do, at random, and does the same to files in memory."""

    def __init__(self, recorder: Recorder, files: MirroredFiles, *, seed: int = 1) -> None:
        self._recorder = recorder
        self.files = files
        self._random = Random(seed)
        self._names = [f"/dir-{number % 3}/file-{number}" for number in range(30)]

    @property
    def contents(self) -> dict[str, bytes]:
        """The files as they are now."""
        return {path: self.files.content_of(path) for path in self.files.paths()}

    def record(self, changes: int) -> None:
        """Make so many changes; call it on a thread."""
        for _ in range(changes):
            self.record_one()

    def record_one(self) -> None:
        """Make a change: mostly a write, at times a new file, a rename, a removal or a property."""
        paths = [path for path in self.files.paths() if not path.startswith("/p-")]
        kind = self._random.choices(
            ("write", "create", "rename", "remove", "property"), (40, 15, 8, 14, 8)
        )[0]
        if not paths or kind == "create":
            self.create(self._random.choice(self._names))
        elif kind == "property":
            self.set_property(
                f"/p-{self._random.randrange(3)}", str(self._random.randrange(1 << 30))
            )
        elif kind == "rename":
            self.rename(self._random.choice(paths), self._random.choice([*paths, "/renamed"]))
        elif kind == "remove":
            self.remove(self._random.choice(paths))
        else:
            path = self._random.choice(paths)
            offset = self._random.randrange(self.files.size_of(path) + 1)
            self.write(path, offset, self._random.randbytes(self._random.randrange(1, 3000)))

    def create(self, path: str) -> None:
        """Create a file, perhaps in place of another one."""
        if path in self.files.paths():
            self.files.apply(RecordedChange("remove", path))
        self.files.apply(RecordedChange("create", path))
        self._recorder.create(path)

    def write(self, path: str, offset: int, content: bytes) -> None:
        """Write to a file."""
        self.files.apply(RecordedChange("write", path, offset, content))
        self._recorder.write(path, offset, content)

    def rename(self, path: str, to: str) -> None:
        """Rename a file, perhaps over another one."""
        self.files.apply(RecordedChange("rename", path, to=to))
        self._recorder.rename(path, to)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self.files.apply(RecordedChange("remove", path))
        self._recorder.remove(path)

    def set_property(self, path: str, content: str) -> None:
        """Replace a small file."""
        self.files.apply(RecordedChange("property", path, content=content.encode()))
        self._recorder.set_property(path, content)
