"""Power cuts at random instants of random lives, from one seed.

A round is some lives of a program on one disk: each but the last may be killed, which leaves its successor what it had
written and not synced. Then the power is cut, at many instants of the round. A later round goes on with one of the
disks that were left.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from tests.powercut.disk import Disk, Kept
from tests.powercut.recorder import Fate, Judge, LifeFailedError, Nursery, Recorder
from tests.powercut.subject import PowerCutSubject
from tests.powercut.trace import Event, Rename, Said, Sync, Write

LIVES_MAX: Final = 4
_EARLY: Final = 25
"""Number of changes after the begin of a life in which a cut is most telling."""
_KEPT: Final = (Kept.NOTHING, Kept.NOTHING, Kept.PART, Kept.PART, Kept.ALL)
_NOTHING: Final[Event] = Said("")


@dataclass(frozen=True, slots=True)
class Finding:
    """A disk on which something does not hold."""

    subject: str
    seed: int
    round: int
    instant: int
    """Number of changes before the cut."""
    kept: Kept
    problem: str

    def __str__(self) -> str:
        """Return it for people."""
        return (
            f"{self.subject}, seed {self.seed}, round {self.round}, cut after change {self.instant}, "
            f"{self.kept.value} of the rest kept: {self.problem}"
        )


@dataclass(frozen=True, slots=True)
class _Trace:
    """What the lives of a round did."""

    events: Sequence[Event]
    begins: Sequence[int]
    """Number of changes before each life."""


def cut(
    subject: PowerCutSubject, nursery: Nursery, *, seed: int, rounds: int, cuts: int
) -> Iterator[Finding | None]:
    """Yield what each cut showed: a finding, or None if all holds.

    Args:
        subject: The program, and its checks.
        nursery: Has loaded the program.
        seed: Of everything that is random here. Threads of the program are not, so a repetition may differ.
        rounds: One after another, each on a disk that the one before left.
        cuts: Of each round.
    """
    random = Random(f"{subject.name} {seed}")
    with tempfile.TemporaryDirectory(dir=_memory()) as place:
        root, said = Path(place).resolve() / "disk", list[str]()
        root.mkdir()
        for number in range(rounds):
            start = Path(place) / f"start-{number}"
            shutil.copytree(root, start)
            try:
                trace = _lives(subject, nursery, root, random, start)
            except LifeFailedError as error:
                yield Finding(subject.name, seed, number, 0, Kept.ALL, str(error))
                return
            events = trace.events
            for instant, kept in _instants(trace, random, cuts):
                image = Path(place) / "image"
                told = [*said, *_said(events[:instant])]
                _image(start, events[:instant], image, random, kept)
                problem = _checked(subject, image, told)
                shutil.rmtree(image)
                yield (
                    Finding(subject.name, seed, number, instant, kept, problem) if problem else None
                )
            said = _go_on(start, events, root, said, random)


def cut_after_promises(
    subject: PowerCutSubject, nursery: Nursery, first: Judge, *, seed: int
) -> Iterator[Finding | None]:
    """Yield what cuts show right after each promise of a life whose predecessor was killed, or failed to sync.

    Nothing is kept of what was not synced: what the second life promises must not rest on what only memory has.

    Args:
        subject: The program, and its checks.
        nursery: Has loaded the program.
        first: Ends the first life.
        seed: Of the arguments.
    """
    random = Random(f"{subject.name} {seed}")
    with tempfile.TemporaryDirectory(dir=_memory()) as place:
        root, start, image = (Path(place).resolve() / each for each in ("disk", "start", "image"))
        root.mkdir()
        start.mkdir()
        recorder = Recorder(root)
        for judge in (first, _in_peace):
            begin = len(recorder.events)
            recorder.run(nursery, subject.module, subject.arguments(root, random), fate=judge)
            recorder.settle(
                _files(root), lambda events: _comparable(_replayed(start, events).files())
            )
        events = recorder.events
        for instant in range(begin + 1, len(events) + 1):
            if not isinstance(events[instant - 1], Said):
                continue
            _image(start, events[:instant], image, random, Kept.NOTHING)
            problem = _checked(subject, image, _said(events[:instant]))
            shutil.rmtree(image)
            yield (
                Finding(subject.name, seed, 0, instant, Kept.NOTHING, problem) if problem else None
            )


def _lives(
    subject: PowerCutSubject, nursery: Nursery, root: Path, random: Random, start: Path
) -> _Trace:
    recorder = Recorder(root)

    def files_after(events: Sequence[Event]) -> dict[str, bytes]:
        return _comparable(_replayed(start, events).files())

    begins: list[int] = []
    for _ in range(random.randrange(2, LIVES_MAX + 1)):
        begins.append(len(recorder.events))
        fate = _fate(random) if random.random() < 0.8 else _in_peace
        recorder.run(nursery, subject.module, subject.arguments(root, random), fate=fate)
        recorder.settle(_files(root), files_after)
    return _Trace(recorder.events, begins)


def _in_peace(_: Event) -> Fate:
    return Fate.GO_ON


def _fate(random: Random) -> Judge:
    """Return when a life is killed, or a sync fails: at some change of one kind.

    A life that is killed before it syncs what it has written, or whose sync fails, leaves most to doubt: its successor
    sees what the disk does not have.
    """
    kind = random.choice((None, None, None, Sync, Write, Rename, Said))
    at = random.randrange(1, 16)
    if kind is None:
        return at_data_sync(random.choice((Fate.KILL, Fate.FAIL)), at)
    left = at

    def judge(event: Event) -> Fate:
        nonlocal left
        left -= isinstance(event, kind)
        return Fate.GO_ON if left else Fate.KILL

    return judge


def at_data_sync(fate: Fate, at: int) -> Judge:
    """Return a judge for which the n-th sync of what was just written has a fate."""
    left, last = at, _NOTHING

    def judge(event: Event) -> Fate:
        nonlocal left, last
        is_meant = isinstance(event, Sync) and isinstance(last, Write) and event.path == last.path
        left, last = left - is_meant, event
        return fate if is_meant and not left else Fate.GO_ON

    return judge


def at_directory_sync(path: str, at: int) -> Judge:
    """Return a judge that kills before the n-th sync of one directory."""
    left = at

    def judge(event: Event) -> Fate:
        nonlocal left
        left -= event == Sync(path)
        return Fate.GO_ON if left else Fate.KILL

    return judge


def _instants(trace: _Trace, random: Random, cuts: int) -> list[tuple[int, Kept]]:
    """Choose when to cut: anywhere, or right after a promise, above all the first ones of each life."""
    promises = [number + 1 for number, event in enumerate(trace.events) if isinstance(event, Said)]
    first = [
        number for number in promises if any(0 < number - each <= _EARLY for each in trace.begins)
    ]
    everywhere = range(len(trace.events) + 1)
    chosen = [
        random.choice(random.choice((everywhere, promises, first, first)) or [0])
        for _ in range(cuts)
    ]
    return [(instant, random.choice(_KEPT)) for instant in sorted(chosen)]


def _go_on(
    start: Path, events: Sequence[Event], root: Path, said: Sequence[str], random: Random
) -> list[str]:
    """Cut the power once more, for the next round; return what was promised up to then."""
    instant = random.randrange(len(events) + 1)
    shutil.rmtree(root)
    _image(start, events[:instant], root, random, random.choice(tuple(Kept)))
    return [*said, *_said(events[:instant])]


def _checked(subject: PowerCutSubject, image: Path, said: Sequence[str]) -> str:
    try:
        return subject.check(image, said)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return (
            f"it does not open: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        )


def _replayed(start: Path, events: Sequence[Event]) -> Disk:
    disk = Disk()
    disk.adopt(start)
    for event in events:
        disk.replay(event)
    return disk


def _image(start: Path, events: Sequence[Event], target: Path, random: Random, kept: Kept) -> None:
    _replayed(start, events).write_image(target, random, kept)


def _said(events: Sequence[Event]) -> list[str]:
    return [event.line for event in events if isinstance(event, Said)]


def _files(root: Path) -> dict[str, bytes]:
    paths = (path for path in root.rglob("*") if path.is_file())
    return _comparable({str(path.relative_to(root)): path.read_bytes() for path in paths})


def _comparable(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return all but SQLite's shared memory, which is written through a mapping, and of which nothing is promised."""
    return {path: content for path, content in files.items() if not path.endswith("-shm")}


def _memory() -> str | None:
    """Return a place in memory, if the system has such: what a cut leaves is ours to say."""
    memory = Path("/dev/shm")
    return str(memory) if os.access(memory, os.W_OK) else None
