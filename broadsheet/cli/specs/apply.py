"""`apply` of shards and journals: the cluster as files say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import click

from broadsheet.allocator.ops import TXN_OPERATIONS_MAX
from broadsheet.cli.connection import Connection
from broadsheet.cli.options import Parameter, PerKind, command_options, option
from broadsheet.cli.output.messages import confirm, counted, say
from broadsheet.cli.specs.changes import (
    Outcome,
    apply_changes,
    compared,
    judge_changes,
    require_unused,
)
from broadsheet.cli.specs.documents import changes_in, read_document, read_documents
from broadsheet.cli.specs.kind import Document, Kind, Specs, SpecT
from broadsheet.cli.specs.verb import AnyKind, Force, SpecVerb

LOGS_NAMED_MAX = 3
"""Logs named in the question; the rest are counted."""


def _max_txn_size(kind: AnyKind) -> Parameter:
    whole = str(kind.batch_size) if kind.batch_size else "all in one"
    return click.option(
        "--max-txn-size",
        type=click.IntRange(min=0),
        default=None,
        show_default=f"{TXN_OPERATIONS_MAX} with -f; with --specs {whole}",
        help="Changes per transaction. Where there are more, each batch is atomic and the whole is not. "
        "0: all in one, or an error if etcd takes no such transaction.",
    )


def _no_verify_journals(kind: AnyKind) -> Parameter | None:
    if not kind.is_shards:
        return None
    return click.option(
        "--no-verify-journals",
        is_flag=True,
        help="Do not check at the broker that sources and recovery logs exist, and create no logs.",
    )


def _yes(kind: AnyKind) -> Parameter | None:
    if not kind.is_shards:
        return None
    text = "Create missing recovery logs without a question."
    return click.option("-y", "--yes", is_flag=True, help=text)


@command_options
class _ApplyOptions:
    filenames: tuple[Path, ...] = option(
        "Make the cluster as this file says, or a directory's files; - reads standard input. "
        "May be repeated.",
        "-f",
        "--filename",
        multiple=True,
        type=click.Path(path_type=Path, allow_dash=True),
    )
    specs: Path | None = option(
        "Apply this file as gazctl does: each revision must be what the file says; none: must not exist.",
        type=click.Path(path_type=Path, allow_dash=True, dir_okay=False),
    )
    dry_run: str | None = option(
        "Check everything and print the changes; apply nothing. With =server, a server also judges them: "
        "whether we may make them, and whether it takes them. client if no value is given.",
        type=click.Choice(["client", "server"]),
        is_flag=False,
        flag_value="client",
        default=None,
    )
    max_txn_size: Annotated[int | None, PerKind(_max_txn_size)]
    no_verify_journals: Annotated[bool, PerKind(_no_verify_journals)] = False
    yes: Annotated[bool, PerKind(_yes)] = False
    """Create missing recovery logs without a question."""
    force: Force = False

    @property
    def suffix(self) -> str:
        """The text that is printed behind each spec."""
        return {None: "", "client": " (dry run)", "server": " (server dry run)"}[self.dry_run]

    def transaction_size(self, default: int) -> int:
        """Return the changes per transaction; 0: all."""
        return default if self.max_txn_size is None else self.max_txn_size

    def say_done(self, change_count: int, revision: int) -> None:
        """Tell what became of changes."""
        changes = counted(change_count, "change")
        if self.dry_run:
            judged = "accepted by the server" if self.dry_run == "server" else "valid"
            say(f"dry run: {changes} {judged}; nothing was applied")
        else:
            say(f"applied {changes} at revision {revision}")


async def _create_missing_logs(
    client: Specs[SpecT], documents: Sequence[Document[SpecT]], options: _ApplyOptions
) -> None:
    """Check what specs refer to, and create the recovery logs that they name and that are not there.

    Raises:
        ValidationError: a spec refers to something that is not there, or is of another kind; nothing was created.
    """
    logs = await client.missing_logs(documents)
    await client.verify(documents, logs)
    if not logs:
        return
    if not options.dry_run:
        names = [log.name for log in logs[:LOGS_NAMED_MAX]]
        more = f" and {len(logs) - len(names)} more" if len(logs) > len(names) else ""
        there = "does not exist" if len(logs) == 1 else "do not exist"
        confirm(
            f"{counted(len(logs), 'recovery log')} {there}: {', '.join(names)}{more}. Create "
            f"{'it' if len(logs) == 1 else 'them'}?",
            yes=options.yes,
        )
        await client.create_logs(logs)
    for log in logs:
        click.echo(f"{log.name} created{options.suffix}")


async def _apply_files(kind: Kind[SpecT], connection: Connection, options: _ApplyOptions) -> None:
    """Make the cluster as the files say, and tell what became of each spec."""
    documents = read_documents(kind, options.filenames)
    async with kind.over(connection) as client:
        made = await compared(client, changes_in(documents))
        changing = {each.name for each in made if each.outcome is not Outcome.UNCHANGED}
        if not options.no_verify_journals:
            changed = [
                Document(each.source, [one for one in each.changes if one.name in changing])
                for each in documents
            ]
            await _create_missing_logs(client, changed, options)
        changes = [each.change for each in made if each.name in changing]
        size = options.transaction_size(TXN_OPERATIONS_MAX)
        revision = 0
        if options.dry_run and not options.force:
            await require_unused(client, changes)
        if options.dry_run == "server":
            await judge_changes(client, changes, size)
        elif not options.dry_run:
            revision = await apply_changes(client, changes, size, force=options.force)
    for each in made:
        click.echo(f"{each.name} {each.outcome.value}{options.suffix}")
    if changes or options.dry_run:
        options.say_done(len(changes), revision)
    else:
        say("nothing to change")


async def _apply_specs(
    kind: Kind[SpecT], connection: Connection, specs: Path, options: _ApplyOptions
) -> None:
    """Apply a file as it is: each revision must be what it says."""
    document = read_document(kind, specs, option="--specs")
    async with kind.over(connection) as client:
        if not options.no_verify_journals:
            await _create_missing_logs(client, [document], options)
        size, revision = options.transaction_size(kind.batch_size), 0
        if options.dry_run and not options.force:
            await require_unused(client, document.changes)
        if options.dry_run == "server":
            await judge_changes(client, document.changes, size)
        if options.dry_run:
            click.echo(kind.request_text(document.changes), nl=False)
        else:
            revision = await apply_changes(client, document.changes, size, force=options.force)
    options.say_done(len(document.changes), revision)


async def _apply(kind: Kind[SpecT], connection: Connection, options: _ApplyOptions) -> None:
    if (options.specs is not None) == bool(options.filenames):
        raise click.UsageError("expected either --filename or --specs")
    if options.specs is not None:
        await _apply_specs(kind, connection, options.specs, options)
    else:
        await _apply_files(kind, connection, options)


APPLY: Final = SpecVerb("apply", _ApplyOptions, _apply)
