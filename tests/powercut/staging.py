"""The staging of a recovery log: a player's files are a copy for one life, and the log is what lasts.

Nothing there is promised, so what must hold is the contrary: whatever a power cut leaves of an earlier life, staged or
live, complete or not, the next player has the files of its own log and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from broadsheet.consumer.recoverylog.playback import CreateFile, FileChange, RemoveFile, WriteFile
from broadsheet.consumer.recoverylog.standby_files import PlayedFiles
from tests.support.recorded_ops import LOG, FileLog, OpChain

_FILES: Final = 6
_PATHS: Final = ("/state.json", "/deep/er/table", "/CURRENT", "/000012.sst")
"""Names that lives share: a file of an earlier one must not pass for one of the log's."""


def main(arguments: Sequence[str]) -> None:
    """Play a log, and write to its files as a store does: DIRECTORY SEED."""
    directory, seed = arguments
    random = Random(seed)
    files = _played(Path(directory), random)
    print("played", flush=True)
    for path in files:
        with (Path(directory) / "shard" / path).open("r+b") as file:
            file.write(random.randbytes(3_000))
    (Path(directory) / "shard" / "next.json").write_bytes(b"half of a comm")


def _played(root: Path, random: Random) -> dict[str, bytes]:
    """Play a log of its own into a directory that an earlier life may have left; return the files that it has."""
    log, chain, changes = FileLog.empty(), OpChain(1), list[FileChange]()
    contents: dict[int, bytearray] = {}
    paths = random.sample(_PATHS, len(_PATHS)) + [f"/own-{random.random()}" for _ in range(2)]
    for path in paths[:_FILES]:
        number = chain.seq
        log.append(chain.create(path))
        changes.append(CreateFile(number))
        contents[number] = bytearray()
        for _ in range(random.randrange(4)):
            content = random.randbytes(random.randrange(1, 3_000))
            log.append(chain.write(number, len(contents[number]), content))
            changes.append(WriteFile(number, len(contents[number]), memoryview(content)))
            contents[number] += content
    gone = random.choice(list(contents))
    log.append(*(chain.unlink(gone, path) for path in list(log.fsm.fnodes[gone].links)))
    changes.append(RemoveFile(gone))
    files = PlayedFiles(root / "shard", LOG)
    files.prepare()
    files.apply(changes)
    files.make_live(log.fsm)
    return {path.lstrip("/"): bytes(contents[number]) for path, number in log.fsm.links.items()}


@dataclass(frozen=True, slots=True)
class PowerCutStaging:
    """A player's directory."""

    name: str = "staging"
    module: str = __name__

    def arguments(self, root: Path, random: Random) -> Sequence[str]:
        """Return the arguments of one life."""
        return [str(root), str(random.random())]

    def check(self, image: Path, said: Sequence[str]) -> str:
        """Play a log over what is left, and compare."""
        del said
        expected = _played(image, Random("the next life"))
        shard = image / "shard"
        found = {
            str(path.relative_to(shard)): path.read_bytes()
            for path in shard.rglob("*")
            if path.is_file()
        }
        wrong = sorted(
            path for path in {*found, *expected} if found.get(path) != expected.get(path)
        )
        return f"the next player has other files than its log: {wrong}" if wrong else ""
