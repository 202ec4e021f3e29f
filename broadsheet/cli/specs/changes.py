"""Changes of specs: compared with what the cluster has, and made.

A file says what shall be. Each spec in it is compared with what the cluster has, and only what differs is written, at
the revision that was read, so that no other change is lost:

    not there                              create it, whatever revision the file says
    the same                               leave it
    another, at the file's revision        update it; also if the file says none
    another, at another revision           refuse
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Generic

import click

from broadsheet.allocator.ops import TXN_OPERATIONS_MAX
from broadsheet.cli.errors import StaleRevisionError
from broadsheet.cli.output.progress import Unit, progress_display
from broadsheet.cli.specs.files import describe_conflicts
from broadsheet.cli.specs.kind import Change, Kind, Specs, SpecT, Stored
from broadsheet.wire.errors import ApplyConflictError

NEVER: Final = 1 << 62
"""A revision that no spec has: a change that expects it is judged, and never done."""
ANY_REVISION = -1
"""Of a change that is made whatever is there."""


class Outcome(Enum):
    """The outcome for one spec."""

    CREATED = "created"
    CONFIGURED = "configured"
    DELETED = "deleted"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class SpecChange(Generic[SpecT]):
    """The change that a file asks for, of one spec."""

    name: str
    outcome: Outcome
    stored: SpecT | None
    """The spec that is there; None: none is."""
    change: Change[SpecT]
    """What to apply, at the revision that was read."""


def compare(
    kind: Kind[SpecT], asked: Iterable[Change[SpecT]], listed: Iterable[Stored[SpecT]]
) -> tuple[list[SpecChange[SpecT]], str]:
    """Return what each asked change comes to, and the conflicts, empty if there are none.

    Args:
        kind: Of the specs.
        asked: Changes as the file has them.
        listed: What there is.
    """
    stored = {each.name: each for each in listed}
    found, stale = [], []
    for change in asked:
        present = stored.get(change.name)
        outcome = _outcome_of(kind, change, present)
        revision = present.revision if present is not None else 0
        is_stale = change.revision not in (0, ANY_REVISION, revision)
        if present is not None and outcome is not Outcome.UNCHANGED and is_stale:
            stale.append((change.name, change.revision))
        spec = None if present is None else present.spec
        found.append(SpecChange(change.name, outcome, spec, replace(change, revision=revision)))
    revisions = {name: each.revision for name, each in stored.items()}
    return found, describe_conflicts(stale, revisions)


def _outcome_of(kind: Kind[SpecT], change: Change[SpecT], present: Stored[SpecT] | None) -> Outcome:
    if change.spec is None:
        return Outcome.UNCHANGED if present is None else Outcome.DELETED
    if present is None:
        return Outcome.CREATED
    # Messages may differ in what means the same, such as a duration of zero and none.
    same = change.spec == present.spec or _text(kind, change.name, change.spec) == _text(
        kind, change.name, present.spec
    )
    return Outcome.UNCHANGED if same else Outcome.CONFIGURED


def _text(kind: Kind[SpecT], name: str, spec: SpecT) -> str:
    """Return the file of one spec, without its revision."""
    return kind.text([Stored(name, spec)])


def difference(kind: Kind[SpecT], made: SpecChange[SpecT]) -> str:
    """Return the unified diff from the stored spec to the asked one; empty if there is none."""
    if made.outcome is Outcome.UNCHANGED:
        return ""
    before, after = (
        "" if spec is None else _text(kind, made.name, spec)
        for spec in (made.stored, made.change.spec)
    )
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        fromfile=f"stored/{made.name}",
        tofile=f"asked/{made.name}",
    )
    return "".join(lines)


def print_difference(text: str) -> None:
    """Print a unified diff in colours."""
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for line in text.splitlines():
        click.secho(line, fg=colours.get(line[:1]))


async def compared(client: Specs[SpecT], asked: Iterable[Change[SpecT]]) -> list[SpecChange[SpecT]]:
    """Return what each asked change comes to.

    Raises:
        StaleRevisionError: somebody else has changed a spec since the file was written.
    """
    made, conflicts = compare(type(client), asked, await client.listed())
    if conflicts:
        raise StaleRevisionError("revision", conflicts)
    return made


async def judge_changes(client: Specs[SpecT], changes: Sequence[Change[SpecT]], size: int) -> None:
    """Have a server authorise and validate changes that it cannot make.

    The first change of each transaction expects a revision that no spec has. A server judges the whole request before
    its transaction fails, so nothing is written, whichever implementation answers.

    Raises:
        StaleRevisionError: a spec is not at the expected revision.
        BroadsheetError: what the server answered.
    """
    conflicts = await _conflicts_of(client, changes)
    if conflicts:
        raise StaleRevisionError("revision", conflicts)
    size = size or max(len(changes), 1)
    for begin in range(0, len(changes), size):
        first, *others = changes[begin : begin + size]
        try:
            await client.apply([replace(first, revision=NEVER), *others])
        except ApplyConflictError:
            continue
        raise AssertionError(f"a server ignored the expected revision of {first.name}")


async def require_unused(client: Specs[SpecT], changes: Iterable[Change[SpecT]]) -> None:
    """Refuse changes that delete what is in use.

    Raises:
        InUseError: one does, or that cannot be told.
    """
    await client.require_unused([each.name for each in changes if each.spec is None])


async def apply_changes(
    client: Specs[SpecT],
    changes: Sequence[Change[SpecT]],
    size: int = TXN_OPERATIONS_MAX,
    *,
    force: bool = False,
) -> int:
    """Apply changes in batches, with progress; return the last revision.

    Args:
        client: Of the changes' kind.
        changes: At the revisions that the specs must have.
        size: Changes per transaction; 0: all.
        force: Delete also what is in use.

    Raises:
        InUseError: a change deletes what is in use.
        StaleRevisionError: a spec is not at the expected revision.
    """
    if not force:
        await require_unused(client, changes)
    size = size or max(len(changes), 1)
    revision = applied = 0
    async with _conflicts_named(client, changes):
        with progress_display("applying changes", Unit.PIECES) as display:
            for begin in range(0, len(changes), size):
                batch = changes[begin : begin + size]
                try:
                    revision = await client.apply(batch)
                except Exception as error:
                    if applied:
                        error.add_note(
                            f"the first {applied} of {len(changes)} changes were applied"
                        )
                    raise
                applied += len(batch)
                display.show(applied, len(changes))
    return revision


@asynccontextmanager
async def _conflicts_named(
    client: Specs[SpecT], changes: Sequence[Change[SpecT]]
) -> AsyncIterator[None]:
    """Tell which specs somebody else has changed, if a transaction was refused because of that."""
    try:
        yield
    except ApplyConflictError as error:
        stale = StaleRevisionError("revision", await _conflicts_of(client, changes) or str(error))
        for note in getattr(error, "__notes__", ()):
            stale.add_note(note)
        raise stale from error


async def _conflicts_of(client: Specs[SpecT], changes: Sequence[Change[SpecT]]) -> str:
    """Say which specs are not at the revisions that changes expect; empty if all are."""
    stored = {each.name: each.revision for each in await client.listed()}
    return describe_conflicts([(each.name, each.revision) for each in changes], stored)
