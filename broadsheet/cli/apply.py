"""`apply` and `diff`: the cluster as files say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import click

from broadsheet.allocator.ops import TXN_OPERATIONS_MAX
from broadsheet.cli.connection import Connection
from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.cli.output import confirm, counted, say
from broadsheet.cli.progress import say_reading
from broadsheet.cli.spec_changes import (
    Outcome,
    apply_changes,
    compared,
    difference,
    judge_changes,
    print_difference,
)
from broadsheet.cli.spec_kind import JOURNALS, SHARDS, Change, Document, Kind, Specs, SpecT
from broadsheet.cli.spec_verb import AnyKind, Parameter, SpecVerb
from broadsheet.cli.specs_file import read_text, require_distinct, specs_files

LOGS_NAMED_MAX = 3
"""Logs named in the question; the rest are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions:
    """Options of `apply`."""

    filenames: tuple[Path, ...]
    specs: Path | None
    dry_run: str | None
    """client or server."""
    max_txn_size: int | None
    no_verify_journals: bool = False
    yes: bool = False
    """Create missing recovery logs without a question."""

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


def _read(kind: Kind[SpecT], path: Path, *, option: str) -> Document[SpecT]:
    text, source = read_text(path, option=option)
    say_reading(source, text)
    return Document(source, kind.read(text, source))


def _documents(kind: Kind[SpecT], paths: Sequence[Path]) -> list[Document[SpecT]]:
    """Read files, directories and standard input.

    Raises:
        ValidationError: one cannot be read, is wrong, or declares what another declares.
    """
    documents = [_read(kind, path, option="--filename") for path in specs_files(paths)]
    names = [change.name for document in documents for change in document.changes]
    places = [f"{each.source}: {change.place}" for each in documents for change in each.changes]
    require_distinct("--filename", names, places)
    return documents


def _asked(documents: Sequence[Document[SpecT]]) -> list[Change[SpecT]]:
    return [*chain.from_iterable(document.changes for document in documents)]


async def _create_missing_logs(
    client: Specs[SpecT], documents: Sequence[Document[SpecT]], options: ApplyOptions
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


async def _apply_files(kind: Kind[SpecT], connection: Connection, options: ApplyOptions) -> None:
    """Make the cluster as the files say, and tell what became of each spec."""
    documents = _documents(kind, options.filenames)
    async with kind.over(connection) as client:
        made = await compared(client, _asked(documents))
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
        if options.dry_run == "server":
            await judge_changes(client, changes, size)
        elif not options.dry_run:
            revision = await apply_changes(client, changes, size)
    for each in made:
        click.echo(f"{each.name} {each.outcome.value}{options.suffix}")
    if changes or options.dry_run:
        options.say_done(len(changes), revision)
    else:
        say("nothing to change")


async def _apply_specs(
    kind: Kind[SpecT], connection: Connection, specs: Path, options: ApplyOptions
) -> None:
    """Apply a file as it is: each revision must be what it says."""
    document = _read(kind, specs, option="--specs")
    async with kind.over(connection) as client:
        if not options.no_verify_journals:
            await _create_missing_logs(client, [document], options)
        size, revision = options.transaction_size(kind.batch_size), 0
        if options.dry_run == "server":
            await judge_changes(client, document.changes, size)
        if options.dry_run:
            click.echo(kind.request_text(document.changes), nl=False)
        else:
            revision = await apply_changes(client, document.changes, size)
    options.say_done(len(document.changes), revision)


async def _apply(kind: Kind[SpecT], connection: Connection, options: ApplyOptions) -> None:
    if (options.specs is not None) == bool(options.filenames):
        raise click.UsageError("expected either --filename or --specs")
    if options.specs is not None:
        await _apply_specs(kind, connection, options.specs, options)
    else:
        await _apply_files(kind, connection, options)


def _apply_parameters(kind: AnyKind) -> Sequence[Parameter]:
    default = f"{TXN_OPERATIONS_MAX} with -f; with --specs "
    default += str(kind.batch_size) if kind.batch_size else "all in one"
    return (
        click.option(
            "-f",
            "--filename",
            "filenames",
            multiple=True,
            type=click.Path(path_type=Path, allow_dash=True),
            help="Make the cluster as this file says, or a directory's files; - reads standard input. "
            "May be repeated.",
        ),
        click.option(
            "--specs",
            type=click.Path(path_type=Path, allow_dash=True, dir_okay=False),
            help="Apply this file as gazctl does: each revision must be what the file says; none: must not exist.",
        ),
        click.option(
            "--dry-run",
            type=click.Choice(["client", "server"]),
            is_flag=False,
            flag_value="client",
            default=None,
            help="Check everything and print the changes; apply nothing. With =server, a server also judges them: "
            "whether we may make them, and whether it takes them. client if no value is given.",
        ),
        click.option(
            "--max-txn-size",
            type=click.IntRange(min=0),
            default=None,
            show_default=default,
            help="Changes per transaction. Where there are more, each batch is atomic and the whole is not. "
            "0: all in one, or an error if etcd takes no such transaction.",
        ),
        *(
            [
                click.option(
                    "--no-verify-journals",
                    is_flag=True,
                    help="Do not check at the broker that sources and recovery logs exist, and create no logs.",
                ),
                click.option(
                    "-y",
                    "--yes",
                    is_flag=True,
                    help="Create missing recovery logs without a question.",
                ),
            ]
            if kind is SHARDS
            else []
        ),
    )


_APPLY = SpecVerb("apply", ApplyOptions, _apply_parameters, _apply)

apply_shards = _APPLY.command(
    SHARDS,
    """Create, update and delete shards as YAML files say.

    With -f, what is as the file says is left alone, and what is not there is created: a list written to a file is a
    backup. A file's revision guards against changes of others.

    Recovery logs that specs name and that are not there are created after a question, like another log below their
    prefix, or with the stores and the replication of the shard's first source.

    \b
    Examples:
      shardctl shards apply -f shards.yaml --dry-run
      shardctl shards apply -f shards.yaml --dry-run=server
      shardctl shards apply -f declared/
      shardctl shards list -o yaml > backup.yaml
      shardctl shards apply -f backup.yaml
      shardctl shards list -o yaml | sed s/1s/2s/ |
          shardctl shards apply --specs -
    """,
)
apply_journals = _APPLY.command(
    JOURNALS,
    """Create, update and delete journals as YAML files say.

    With -f, what is as the file says is left alone, and what is not there is created: a list written to a file is a
    backup of the specs, not of content. A file's revision guards against changes of others.

    \b
    Examples:
      shardctl journals apply -f journals.yaml --dry-run
      shardctl journals apply -f -  < journals.yaml
      shardctl journals list -o yaml > backup.yaml
      shardctl journals apply -f backup.yaml
    """,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffOptions:
    """Options of `diff`."""

    filenames: tuple[Path, ...]


async def _diff(kind: Kind[SpecT], connection: Connection, options: DiffOptions) -> ExitStatus:
    documents = _documents(kind, options.filenames)
    async with kind.over(connection) as client:
        made = await compared(client, _asked(documents))
    texts = [*filter(None, (difference(kind, each) for each in made))]
    for text in texts:
        print_difference(text)
    return ExitStatus.DIFFERENT if texts else ExitStatus.DONE


_filename = click.option(
    "-f",
    "--filename",
    "filenames",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path, allow_dash=True),
    help="File of specs, or directory of such; - is standard input. May be repeated.",
)
_DIFF = SpecVerb("diff", DiffOptions, lambda _: [_filename], _diff)

diff_shards = _DIFF.command(
    SHARDS,
    """Show what `shardctl shards apply -f` would change.

    Ends with status 6 if there is a difference.

    \b
    Examples:
      shardctl shards diff -f shards.yaml
      shardctl shards diff -f declared/ && echo as declared
    """,
)
diff_journals = _DIFF.command(
    JOURNALS,
    """Show what `shardctl journals apply -f` would change.

    Ends with status 6 if there is a difference.

    \b
    Examples:
      shardctl journals diff -f journals.yaml
      shardctl journals diff -f declared/ && echo as declared
    """,
)
