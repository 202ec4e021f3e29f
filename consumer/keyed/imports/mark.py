"""The mark of an import in a shard's state, and the decision that it leads to when the shard starts.

    nothing ──► LOADING ──► DONE          each commit of rows says how far it is
    state  ──► CLEARING ──► LOADING ──► DONE          if the import was asked to replace state

A mark is committed with the rows that it speaks of. Until it is `DONE` the shard does not start, so half of an import
is never seen; a life that ends before goes on where the last commit ended.

Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from broadsheet.runtime.documents import DocumentError, decode_msgpack

MARK: Final = b"import"
"""Name of the mark beside the state."""


class ImportPhase(Enum):
    """The part of an import that a shard is in."""

    CLEARING = "clearing"
    """Former state is removed."""
    LOADING = "loading"
    DONE = "done"


class ImportMark(msgspec.Struct, frozen=True):
    """Progress of an import."""

    place: str
    """Of its files."""
    id: str
    """Of its manifest."""
    phase: ImportPhase
    file: int = 0
    """Files that are loaded."""
    batch: int = 0
    """Batches of the next one that are loaded."""

    def encode(self) -> bytes:
        """Return the content to store."""
        return msgspec.msgpack.encode(self)


class ImportStep(Enum):
    """Decision of a start about an import."""

    NOTHING = "nothing"
    LOAD = "load"
    """From the beginning, or from the mark on."""
    CLEAR = "clear"
    """Remove the state, then load."""


class ImportRefusedError(ValueError):
    """The shard must not start like this; the text says why and what to do."""


def decoded_mark(content: bytes | None) -> ImportMark | None:
    """Return the mark that is stored; None: there is none.

    Raises:
        ImportRefusedError: it cannot be read.
    """
    if not content:
        return None
    try:
        return decode_msgpack(content, ImportMark)
    except DocumentError as error:
        raise ImportRefusedError(f"its mark of an import cannot be read: {error}") from error


def next_step(
    mark: ImportMark | None, place: str | None, *, has_state: bool, replaces: bool
) -> ImportStep:
    """Return what a start does.

    Args:
        mark: As stored.
        place: Of the import that the application names; None: it names none.
        has_state: The shard has committed anything.
        replaces: The application asks to replace state.

    Raises:
        ImportRefusedError: an import is not complete and the application does not name it, or the shard has state
            which no import was asked to replace.
    """
    if mark is not None and mark.phase is not ImportPhase.DONE:
        if place is None:
            raise ImportRefusedError(
                f"its import of {mark.place} is not complete: start it with this import, or with another one"
            )
        # Half of another import was never seen, so it may go.
        same = place == mark.place and mark.phase is ImportPhase.LOADING
        return ImportStep.LOAD if same else ImportStep.CLEAR
    if place is None or (mark is not None and mark.place == place):
        # Without a look at the place: a shard that has its state must start also when the place is gone.
        return ImportStep.NOTHING
    if not has_state:
        return ImportStep.LOAD
    if replaces:
        return ImportStep.CLEAR
    held = "state of its own" if mark is None else f"the state of another import, {mark.place}"
    raise ImportRefusedError(
        f"it has {held}: an import of {place} would replace it. Take the import out of the application, or ask for "
        "that with StateImport(…, replaces=True)"
    )
