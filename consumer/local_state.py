"""Where an embedded store keeps its files, and who records them.

with a recovery log     the log is the store: the directory is a copy, made for one life of the shard in one process,
                        given to the store, and removed when the store is destroyed
without one             the directory is the store: it belongs to the application, and stays
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from consumer.errors import UnsupportedSpecError
from consumer.recoverylog.recorder import FileRecorder


@dataclass(frozen=True, slots=True)
class LocalState:
    """A directory for the files of one shard's store."""

    directory: Path
    """Absolute. With a recorder it holds what was played from the recovery log, or nothing; the store owns it."""
    recorder: FileRecorder | None = None
    """Puts every change of the files into the shard's recovery log. None: there is no log."""

    @property
    def temporary(self) -> bool:
        """Whether the directory goes with the store, because the log has it all."""
        return self.recorder is not None


class HasLocalState(Protocol):
    """The part of `consumer.application.Shard` that an embedded store asks for."""

    @property
    def id(self) -> str:
        """The shard's id."""
        ...

    @property
    def local_state(self) -> LocalState | None:
        """Set if the shard has a recovery log."""
        ...


def local_state_of(shard: HasLocalState, given: LocalState | None) -> LocalState:
    """Return where the store of `shard` keeps its files: the shard's own place, else the `given` one.

    The log comes first, so that one application serves both: recorded where the spec names a log, kept elsewhere.

    Raises:
        UnsupportedSpecError: there is neither; another spec helps.
    """
    local_state = shard.local_state or given
    if local_state is None:
        raise UnsupportedSpecError(
            "local_state",
            f"shard {shard.id} has no recovery log to keep an embedded store in: set recovery_log_prefix and "
            "hint_prefix in its spec, or give the store a LocalState(directory) on a disk that stays",
        )
    return local_state
