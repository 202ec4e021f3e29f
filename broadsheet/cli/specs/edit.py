"""`edit` of shards and journals, in $EDITOR."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from tempfile import NamedTemporaryFile
from typing import Final

import click

from broadsheet.cli.connection import Connection
from broadsheet.cli.options import Yes, command_options
from broadsheet.cli.output.messages import ask, counted, say
from broadsheet.cli.specs.changes import (
    Outcome,
    apply_changes,
    compared,
    difference,
    print_difference,
)
from broadsheet.cli.specs.kind import Kind, Specs, SpecT, Stored
from broadsheet.cli.specs.verb import Force, Selection, SpecVerb
from broadsheet.runtime.errors import ValidationError


@command_options
class _EditOptions(Selection):
    yes: Yes
    force: Force = False


async def _edit(kind: Kind[SpecT], connection: Connection, options: _EditOptions) -> None:
    async with kind.over(connection) as client:
        listed = await options.of(client)
        text = kind.text(listed)
        edited = click.edit(text, extension=".yaml", require_save=False)
        if edited is None or edited == text:
            say("nothing was edited")
            return
        try:
            await _apply_edited(client, edited, listed, options)
        except ValidationError as error:
            error.add_note(f"the edited text is kept in {_kept(edited)}")
            raise


async def _apply_edited(
    client: Specs[SpecT], text: str, listed: Sequence[Stored[SpecT]], options: _EditOptions
) -> None:
    kind = type(client)
    asked = kind.read(text, "the edited text")
    known = {each.name for each in listed}
    for change in asked:
        if change.name not in known:
            problem = (
                f"{change.name!r} is not among what is edited; shardctl {kind.noun}s apply creates"
            )
            raise ValidationError("the edited text", problem)
    made = [each for each in await compared(client, asked) if each.outcome is not Outcome.UNCHANGED]
    for each in made:
        print_difference(difference(kind, each))
    if made and sys.stdin.isatty() and not options.yes:
        ask("Apply this?", default=True)
    await apply_changes(client, [each.change for each in made], force=options.force)
    say(f"{counted(len(made), kind.noun)} changed")


def _kept(text: str) -> str:
    with NamedTemporaryFile(
        "w", prefix="shardctl-edit-", suffix=".yaml", delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    return file.name


EDIT: Final = SpecVerb("edit", _EditOptions, _edit)
