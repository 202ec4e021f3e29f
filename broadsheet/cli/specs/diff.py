"""`diff` of shards and journals: what `apply -f` would change."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from broadsheet.cli.connection import Connection
from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.cli.options import command_options, option
from broadsheet.cli.specs.changes import compared, difference, print_difference
from broadsheet.cli.specs.documents import changes_in, read_documents
from broadsheet.cli.specs.kind import Kind, SpecT
from broadsheet.cli.specs.verb import SpecVerb


@command_options
class _DiffOptions:
    filenames: tuple[Path, ...] = option(
        "File of specs, or directory of such; - is standard input. May be repeated.",
        "-f",
        "--filename",
        multiple=True,
        required=True,
        type=click.Path(path_type=Path, allow_dash=True),
    )


async def _diff(kind: Kind[SpecT], connection: Connection, options: _DiffOptions) -> ExitStatus:
    documents = read_documents(kind, options.filenames)
    async with kind.over(connection) as client:
        made = await compared(client, changes_in(documents))
    texts = [*filter(None, (difference(kind, each) for each in made))]
    for text in texts:
        print_difference(text)
    return ExitStatus.DIFFERENT if texts else ExitStatus.DONE


DIFF: Final = SpecVerb("diff", _DiffOptions, _diff)
