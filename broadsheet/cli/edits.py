"""Changes of specs, of shards and of journals alike: `apply`, `diff`, `edit`, `label` and `delete`.

A file says what shall be. Each spec in it is compared with what the cluster has, and only what differs is written, at
the revision that was read, so that no other change is lost:

    not there                              create it, whatever revision the file says
    the same                               leave it
    another, at the file's revision        update it; also if the file says none
    another, at another revision           refuse
"""

from __future__ import annotations

import difflib
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Generic, TypeVar

import click
from google.protobuf import text_format

from broadsheet.allocator.ops import TXN_OPERATIONS_MAX
from broadsheet.cli.access import NEVER
from broadsheet.cli.connection import (
    Connection,
    complete_journals,
    complete_shards,
    connection_options,
    run_command,
)
from broadsheet.cli.journal_space import format_journal_space, tree_of_listing
from broadsheet.cli.journals import listed_journals, read_journal_changes
from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.cli.output import NothingSelectedError, StaleRevisionError, confirm, counted, say
from broadsheet.cli.progress import Unit, progress_display, say_reading
from broadsheet.cli.shard_space import format_shard_space, push_down, space_of_listing
from broadsheet.cli.shards import listed_shards, places_of, read_shard_changes
from broadsheet.cli.specs_file import (
    describe_conflicts,
    errors_name_places,
    read_text,
    require_distinct,
    specs_files,
)
from broadsheet.consumer.client import ShardClient
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire import journal_pb2, shard_pb2
from broadsheet.wire.errors import ApplyConflictError
from broadsheet.wire.labels import label_set, values_of

ANY_REVISION = -1
"""Of a change that is made whatever is there."""
NAMES_SHOWN = 10
"""Names in a question; the rest are counted."""

ClientT = TypeVar("ClientT")


class SpecKind(ABC, Generic[ClientT]):
    """Shards or journals, as far as their specs are changed alike.

    Messages of the two kinds have the same fields under other names, and no common type.
    """

    noun: str
    batch_size: int
    """Changes per transaction where a whole file is in one; 0: all."""

    @abstractmethod
    def client(self, connection: Connection) -> AbstractAsyncContextManager[ClientT]:
        """Connect."""

    @abstractmethod
    async def listed(self, client: ClientT, names: Sequence[str], selector: str) -> Sequence[Any]:
        """Return what is there: messages with `spec` and `mod_revision`."""

    @abstractmethod
    def name_of(self, spec: Any) -> str:
        """Return the name of a spec."""

    @abstractmethod
    def change(self, revision: int, *, upsert: Any = None, delete: str = "") -> Any:
        """Return a change of one spec."""

    @abstractmethod
    def read(self, text: str, source: str) -> list[Any]:
        """Return the changes of a file.

        Raises:
            ValidationError: the file is wrong.
        """

    @abstractmethod
    def text(self, listed: Sequence[Any]) -> str:
        """Return the file of what is listed."""

    @abstractmethod
    async def apply(self, client: ClientT, changes: Sequence[Any]) -> int:
        """Apply changes in one transaction; return its revision."""

    def places(self, changes: Sequence[Any]) -> list[str]:
        """Return where in its file each change is, for error messages."""
        return [self.name_of(each.upsert) if not each.delete else each.delete for each in changes]

    async def verify(
        self, client: ClientT, connection: Connection, documents: Sequence[Document]
    ) -> None:
        """Check what changes refer to."""

    def spec_text(self, spec: Any) -> str:
        """Return the file of one spec, without its revision."""
        listed = self._listing_of(spec)
        return self.text([listed])

    @abstractmethod
    def _listing_of(self, spec: Any) -> Any:
        """Return a listed message with this spec and no revision."""


@dataclass(frozen=True, slots=True)
class Document:
    """The changes of one file."""

    source: str
    changes: list[Any]
    places: list[str]


class _Shards(SpecKind[ShardClient]):
    noun = "shard"
    batch_size = TXN_OPERATIONS_MAX

    def client(self, connection: Connection) -> AbstractAsyncContextManager[ShardClient]:
        return connection.shards()

    async def listed(
        self, client: ShardClient, names: Sequence[str], selector: str
    ) -> Sequence[shard_pb2.ListResponse.Shard]:
        return (await listed_shards(client, names, selector)).shards

    def name_of(self, spec: shard_pb2.ShardSpec) -> str:
        return spec.id

    def change(
        self, revision: int, *, upsert: Any = None, delete: str = ""
    ) -> shard_pb2.ApplyRequest.Change:
        return shard_pb2.ApplyRequest.Change(
            expect_mod_revision=revision, upsert=upsert, delete=delete
        )

    def read(self, text: str, source: str) -> list[shard_pb2.ApplyRequest.Change]:
        return read_shard_changes(text, source)

    def places(self, changes: Sequence[Any]) -> list[str]:
        return places_of(changes)

    def text(self, listed: Sequence[shard_pb2.ListResponse.Shard]) -> str:
        space = space_of_listing(listed)
        # Nothing is shared by one shard.
        return format_shard_space(push_down(space) if len(listed) == 1 else space)

    async def apply(
        self, client: ShardClient, changes: Sequence[shard_pb2.ApplyRequest.Change]
    ) -> int:
        return (await client.apply(changes, batch_size=0)).header.etcd.revision

    async def verify(
        self, client: ShardClient, connection: Connection, documents: Sequence[Document]
    ) -> None:
        async with connection.journals() as journals:
            for document in documents:
                with errors_name_places(document.source, document.places):
                    await client.verify_referenced_journals(document.changes, journals)

    def _listing_of(self, spec: Any) -> Any:
        return shard_pb2.ListResponse.Shard(spec=spec)


class _Journals(SpecKind[JournalClient]):
    noun = "journal"
    batch_size = 0

    def client(self, connection: Connection) -> AbstractAsyncContextManager[JournalClient]:
        return connection.journals()

    async def listed(
        self, client: JournalClient, names: Sequence[str], selector: str
    ) -> Sequence[journal_pb2.ListResponse.Journal]:
        return (await listed_journals(client, names, selector)).journals

    def name_of(self, spec: journal_pb2.JournalSpec) -> str:
        return spec.name

    def change(
        self, revision: int, *, upsert: Any = None, delete: str = ""
    ) -> journal_pb2.ApplyRequest.Change:
        return journal_pb2.ApplyRequest.Change(
            expect_mod_revision=revision, upsert=upsert, delete=delete
        )

    def read(self, text: str, source: str) -> list[journal_pb2.ApplyRequest.Change]:
        return read_journal_changes(text, source)

    def text(self, listed: Sequence[journal_pb2.ListResponse.Journal]) -> str:
        return format_journal_space(tree_of_listing(listed))

    async def apply(
        self, client: JournalClient, changes: Sequence[journal_pb2.ApplyRequest.Change]
    ) -> int:
        return (await client.apply(changes)).header.etcd.revision

    def _listing_of(self, spec: Any) -> Any:
        return journal_pb2.ListResponse.Journal(spec=spec)


SHARDS = _Shards()
JOURNALS = _Journals()


# What a file asks for, compared with what there is. Pure.


class Outcome(Enum):
    """The outcome for one spec."""

    CREATED = "created"
    CONFIGURED = "configured"
    DELETED = "deleted"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class SpecChange:
    """The change that a file asks for, of one spec."""

    name: str
    outcome: Outcome
    stored: Any
    """The spec that is there; None: none is."""
    change: Any
    """What to apply, at the revision that was read."""


def compare(
    kind: SpecKind[Any], asked: Iterable[Any], listed: Iterable[Any]
) -> tuple[list[SpecChange], str]:
    """Return what each asked change comes to, and the conflicts, empty if there are none.

    Args:
        kind: Of the specs.
        asked: Changes as the file has them.
        listed: What there is.
    """
    stored = {kind.name_of(each.spec): each for each in listed}
    found, stale = [], []
    for change in asked:
        name = change.delete or kind.name_of(change.upsert)
        present = stored.get(name)
        outcome = _outcome_of(kind, change, present)
        revision = present.mod_revision if present is not None else 0
        is_stale = change.expect_mod_revision not in (0, ANY_REVISION, revision)
        if present is not None and outcome is not Outcome.UNCHANGED and is_stale:
            stale.append((name, change.expect_mod_revision))
        made = (
            kind.change(revision, delete=change.delete)
            if change.delete
            else kind.change(revision, upsert=change.upsert)
        )
        found.append(SpecChange(name, outcome, getattr(present, "spec", None), made))
    revisions = {name: each.mod_revision for name, each in stored.items()}
    return found, describe_conflicts(stale, revisions)


def _outcome_of(kind: SpecKind[Any], change: Any, present: Any) -> Outcome:
    if change.delete:
        return Outcome.UNCHANGED if present is None else Outcome.DELETED
    if present is None:
        return Outcome.CREATED
    # Messages may differ in what means the same, such as a duration of zero and none.
    same = change.upsert == present.spec or kind.spec_text(change.upsert) == kind.spec_text(
        present.spec
    )
    return Outcome.UNCHANGED if same else Outcome.CONFIGURED


def difference(kind: SpecKind[Any], made: SpecChange) -> str:
    """Return the unified diff from the stored spec to the asked one; empty if there is none."""
    if made.outcome is Outcome.UNCHANGED:
        return ""
    before = kind.spec_text(made.stored) if made.stored is not None else ""
    after = "" if made.change.delete else kind.spec_text(made.change.upsert)
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        fromfile=f"stored/{made.name}",
        tofile=f"asked/{made.name}",
    )
    return "".join(lines)


def _print_difference(text: str) -> None:
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for line in text.splitlines():
        click.secho(line, fg=colours.get(line[:1]))


# Performing.


@asynccontextmanager
async def _conflicts_named(
    kind: SpecKind[ClientT], client: ClientT, changes: Sequence[Any]
) -> AsyncIterator[None]:
    """Tell which specs somebody else has changed, if a transaction was refused because of that."""
    try:
        yield
    except ApplyConflictError as error:
        conflicts = await _conflicts_of(kind, client, changes)
        stale = StaleRevisionError("revision", conflicts or str(error))
        for note in getattr(error, "__notes__", ()):
            stale.add_note(note)
        raise stale from error


async def _conflicts_of(kind: SpecKind[ClientT], client: ClientT, changes: Sequence[Any]) -> str:
    """Say which specs are not at the revisions that changes expect; empty if all are."""
    stored = {
        kind.name_of(each.spec): each.mod_revision for each in await kind.listed(client, (), "")
    }
    expected = [
        (each.delete or kind.name_of(each.upsert), each.expect_mod_revision) for each in changes
    ]
    return describe_conflicts(expected, stored)


async def _judge(
    kind: SpecKind[ClientT], client: ClientT, changes: Sequence[Any], size: int
) -> None:
    """Have a server authorise and validate changes that it cannot make.

    The first change of each transaction expects a revision that no spec has. A server judges the whole request before
    its transaction fails, so nothing is written, whichever implementation answers.

    Raises:
        StaleRevisionError: a spec is not at the expected revision.
        BroadsheetError: what the server answered.
    """
    conflicts = await _conflicts_of(kind, client, changes)
    if conflicts:
        raise StaleRevisionError("revision", conflicts)
    size = size or max(len(changes), 1)
    for begin in range(0, len(changes), size):
        first, *others = changes[begin : begin + size]
        guard = type(first)()
        guard.CopyFrom(first)
        guard.expect_mod_revision = NEVER
        try:
            await kind.apply(client, [guard, *others])
        except ApplyConflictError:
            continue
        name = first.delete or kind.name_of(first.upsert)
        raise AssertionError(f"a server ignored the expected revision of {name}")


async def _apply(
    kind: SpecKind[ClientT], client: ClientT, changes: Sequence[Any], size: int
) -> int:
    """Apply changes in batches, with progress; return the last revision."""
    size = size or max(len(changes), 1)
    revision = applied = 0
    async with _conflicts_named(kind, client, changes):
        with progress_display("applying changes", Unit.PIECES) as display:
            for begin in range(0, len(changes), size):
                batch = changes[begin : begin + size]
                try:
                    revision = await kind.apply(client, batch)
                except Exception as error:
                    if applied:
                        error.add_note(
                            f"the first {applied} of {len(changes)} changes were applied"
                        )
                    raise
                applied += len(batch)
                display.show(applied, len(changes))
    return revision


def _documents(kind: SpecKind[Any], paths: Sequence[Path]) -> list[Document]:
    """Read files, directories and standard input.

    Raises:
        ValidationError: one cannot be read, is wrong, or declares what another declares.
    """
    documents = []
    for path in specs_files(paths):
        text, source = read_text(path, option="--filename")
        say_reading(source, text)
        changes = kind.read(text, source)
        documents.append(Document(source, changes, kind.places(changes)))
    names = [each.delete or kind.name_of(each.upsert) for d in documents for each in d.changes]
    places = [f"{document.source}: {place}" for document in documents for place in document.places]
    require_distinct("--filename", names, places)
    return documents


_filename = click.option(
    "-f",
    "--filename",
    "filenames",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path, allow_dash=True),
    help="File of specs, or directory of such; - is standard input. May be repeated.",
)
_selector = click.option(
    "-l", "--selector", default="", show_default=False, help="Label selector, in place of names."
)
_yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


async def _compared(
    kind: SpecKind[ClientT], client: ClientT, documents: Sequence[Document]
) -> list[SpecChange]:
    listed = await kind.listed(client, (), "")
    asked = [change for document in documents for change in document.changes]
    made, conflicts = compare(kind, asked, listed)
    if conflicts:
        raise StaleRevisionError("revision", conflicts)
    return made


async def _apply_files(
    kind: SpecKind[ClientT], connection: Connection, options: dict[str, Any]
) -> None:
    """Make the cluster as the files say, and tell what became of each spec."""
    documents = _documents(kind, options["filenames"])
    async with kind.client(connection) as client:
        made = await _compared(kind, client, documents)
        changing = {each.name for each in made if each.outcome is not Outcome.UNCHANGED}
        if not options.get("no_verify_journals"):
            await kind.verify(client, connection, _only(kind, documents, changing))
        changes = [each.change for each in made if each.name in changing]
        size = TXN_OPERATIONS_MAX if options["max_txn_size"] is None else options["max_txn_size"]
        revision = 0
        if options["dry_run"] == "server":
            await _judge(kind, client, changes, size)
        elif not options["dry_run"]:
            revision = await _apply(kind, client, changes, size)
    suffix = _DRY_RUN_SUFFIXES[options["dry_run"]]
    for each in made:
        click.echo(f"{each.name} {each.outcome.value}{suffix}")
    if options["dry_run"]:
        say(_dry_run_summary(changes, options))
    elif changes:
        say(f"applied {counted(len(changes), 'change')} at revision {revision}")
    else:
        say("nothing to change")


_DRY_RUN_SUFFIXES = {None: "", "client": " (dry run)", "server": " (server dry run)"}


def _dry_run_summary(changes: Sequence[Any], options: dict[str, Any]) -> str:
    judged = "accepted by the server" if options["dry_run"] == "server" else "valid"
    return f"dry run: {counted(len(changes), 'change')} {judged}; nothing was applied"


def _only(kind: SpecKind[Any], documents: Sequence[Document], names: set[str]) -> list[Document]:
    kept = []
    for document in documents:
        pairs = [
            (change, place)
            for change, place in zip(document.changes, document.places, strict=True)
            if (change.delete or kind.name_of(change.upsert)) in names
        ]
        kept.append(Document(document.source, [c for c, _ in pairs], [p for _, p in pairs]))
    return kept


async def _apply_specs(
    kind: SpecKind[ClientT], connection: Connection, specs: Path, options: dict[str, Any]
) -> None:
    """Apply a file as it is: each revision must be what it says."""
    text, source = read_text(specs)
    say_reading(source, text)
    changes = kind.read(text, source)
    async with kind.client(connection) as client:
        if not options.get("no_verify_journals"):
            document = Document(source, changes, kind.places(changes))
            await kind.verify(client, connection, [document])
        size = kind.batch_size if options["max_txn_size"] is None else options["max_txn_size"]
        if options["dry_run"] == "server":
            await _judge(kind, client, changes, size)
        if options["dry_run"]:
            request = shard_pb2 if kind is SHARDS else journal_pb2
            click.echo(text_format.MessageToString(request.ApplyRequest(changes=changes)), nl=False)
            say(_dry_run_summary(changes, options))
            return
        revision = await _apply(kind, client, changes, size)
    say(f"applied {counted(len(changes), 'change')} at revision {revision}")


async def _run_apply(
    kind: SpecKind[ClientT], connection: Connection, options: dict[str, Any]
) -> None:
    specs: Path | None = options["specs"]
    if (specs is not None) == bool(options["filenames"]):
        raise click.UsageError("expected either --filename or --specs")
    if specs is not None:
        await _apply_specs(kind, connection, specs, options)
    else:
        await _apply_files(kind, connection, options)


def _apply_options(kind: SpecKind[Any]) -> Callable[[Any], Any]:
    """Return the options of `apply` as one decorator."""
    default = f"{TXN_OPERATIONS_MAX} with -f; with --specs "
    default += str(kind.batch_size) if kind.batch_size else "all in one"
    options = (
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
    )

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command("apply")
@_apply_options(SHARDS)
@click.option(
    "--no-verify-journals",
    is_flag=True,
    help="Do not check at the broker that sources and recovery logs exist.",
)
@connection_options
def apply_shards(connection: Connection, **options: Any) -> None:
    """Create, update and delete shards as YAML files say.

    With -f, what is as the file says is left alone, and what is not there is created: a list written to a file is a
    backup. A file's revision guards against changes of others.

    \b
    Examples:
      shardctl shards apply -f shards.yaml --dry-run
      shardctl shards apply -f shards.yaml --dry-run=server
      shardctl shards apply -f declared/
      shardctl shards list -o yaml > backup.yaml
      shardctl shards apply -f backup.yaml
      shardctl shards list -o yaml | sed s/1s/2s/ |
          shardctl shards apply --specs -
    """
    run_command(_run_apply(SHARDS, connection, options))


@click.command("apply")
@_apply_options(JOURNALS)
@connection_options
def apply_journals(connection: Connection, **options: Any) -> None:
    """Create, update and delete journals as YAML files say.

    With -f, what is as the file says is left alone, and what is not there is created: a list written to a file is a
    backup of the specs, not of content. A file's revision guards against changes of others.

    \b
    Examples:
      shardctl journals apply -f journals.yaml --dry-run
      shardctl journals apply -f -  < journals.yaml
      shardctl journals list -o yaml > backup.yaml
      shardctl journals apply -f backup.yaml
    """
    run_command(_run_apply(JOURNALS, connection, options))


async def _run_diff(
    kind: SpecKind[ClientT], connection: Connection, paths: Sequence[Path]
) -> ExitStatus:
    documents = _documents(kind, paths)
    async with kind.client(connection) as client:
        made = await _compared(kind, client, documents)
    texts = [*filter(None, (difference(kind, each) for each in made))]
    for text in texts:
        _print_difference(text)
    return ExitStatus.DIFFERENT if texts else ExitStatus.DONE


def _diff(kind: SpecKind[Any], connection: Connection, paths: Sequence[Path]) -> None:
    status: list[ExitStatus] = []

    async def work() -> None:
        status.append(await _run_diff(kind, connection, paths))

    run_command(work())
    sys.exit(status[0])


@click.command("diff")
@_filename
@connection_options
def diff_shards(connection: Connection, filenames: Sequence[Path]) -> None:
    """Show what `shardctl shards apply -f` would change.

    Ends with status 6 if there is a difference.

    \b
    Examples:
      shardctl shards diff -f shards.yaml
      shardctl shards diff -f declared/ && echo as declared
    """
    _diff(SHARDS, connection, filenames)


@click.command("diff")
@_filename
@connection_options
def diff_journals(connection: Connection, filenames: Sequence[Path]) -> None:
    """Show what `shardctl journals apply -f` would change.

    Ends with status 6 if there is a difference.

    \b
    Examples:
      shardctl journals diff -f journals.yaml
      shardctl journals diff -f declared/ && echo as declared
    """
    _diff(JOURNALS, connection, filenames)


async def _selected(
    kind: SpecKind[ClientT], client: ClientT, names: Sequence[str], selector: str
) -> Sequence[Any]:
    """Return what is named or selected; something is.

    Raises:
        NothingSelectedError: nothing is.
    """
    if not names and not selector:
        raise click.UsageError(f"expected names of {kind.noun}s, or --selector")
    listed = await kind.listed(client, names, selector)
    if not listed:
        raise NothingSelectedError("--selector", f"no {kind.noun} matches {selector!r}")
    return listed


def _names(kind: SpecKind[Any], listed: Sequence[Any]) -> str:
    names = [kind.name_of(each.spec) for each in listed]
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


async def _run_delete(
    kind: SpecKind[ClientT], connection: Connection, names: Sequence[str], options: dict[str, Any]
) -> None:
    async with kind.client(connection) as client:
        listed = await _selected(kind, client, names, options["selector"])
        if not options["dry_run"]:
            what = f"{counted(len(listed), kind.noun)}: {_names(kind, listed)}"
            confirm(f"Delete {what}?", yes=options["yes"])
            changes = [
                kind.change(each.mod_revision, delete=kind.name_of(each.spec)) for each in listed
            ]
            await _apply(kind, client, changes, TXN_OPERATIONS_MAX)
    suffix = " (dry run)" if options["dry_run"] else ""
    for each in listed:
        click.echo(f"{kind.name_of(each.spec)} deleted{suffix}")


_dry_run = click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")


@click.command("delete")
@click.argument("shard", nargs=-1, shell_complete=complete_shards)
@_selector
@_dry_run
@_yes
@connection_options
def delete_shards(connection: Connection, shard: Sequence[str], **options: Any) -> None:
    """Delete shards: each SHARD, or those that match.

    Their stores, hints and recovery logs stay.

    \b
    Examples:
      shardctl shards delete flights-000 flights-001
      shardctl shards delete -l app=flights --dry-run
      shardctl shards delete -l app=flights --yes
    """
    run_command(_run_delete(SHARDS, connection, shard, options))


@click.command("delete")
@click.argument("journal", nargs=-1, shell_complete=complete_journals)
@_selector
@_dry_run
@_yes
@connection_options
def delete_journals(connection: Connection, journal: Sequence[str], **options: Any) -> None:
    """Delete journals: each JOURNAL, or those that match.

    The embedded broker removes their content, too. `shardctl journals describe` tells which shards read one.

    \b
    Examples:
      shardctl journals delete flights/part-000
      shardctl journals delete -l 'name:prefix=flights/' --dry-run
      shardctl journals delete -l 'name:prefix=flights/' --yes
    """
    run_command(_run_delete(JOURNALS, connection, journal, options))


# Labels.


@dataclass(frozen=True, slots=True)
class LabelEdits:
    """Labels to set, and to take away."""

    wanted: dict[str, str]
    unwanted: frozenset[str]

    def applied(self, name: str, labels: journal_pb2.LabelSet, *, overwrite: bool) -> Any:
        """Return a set of labels with the edits.

        Raises:
            ValidationError: a label has another value, and may not be overwritten.
        """
        for label, value in self.wanted.items():
            present = values_of(labels, label)
            if present and present != [value] and not overwrite:
                said = ",".join(present)
                raise ValidationError(
                    label, f"{name} has it with the value {said!r}; --overwrite replaces that"
                )
        edited = self.unwanted | self.wanted.keys()
        kept = [(each.name, each.value) for each in labels.labels if each.name not in edited]
        return label_set(*kept, *self.wanted.items())


def parse_label_edits(words: Sequence[str]) -> LabelEdits:
    """Return the edits that words such as `app=flights` and `stage-` ask for.

    Raises:
        ValidationError: a word is neither, or two are about one label.
    """
    wanted: dict[str, str] = {}
    unwanted: set[str] = set()
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and word.endswith("-"):
            name = word[:-1]
        elif not equals:
            raise ValidationError("LABEL", f"expected NAME=VALUE or NAME-, got {word!r}")
        if not name or name in wanted or name in unwanted:
            raise ValidationError("LABEL", f"expected each label once, and named, got {word!r}")
        if equals:
            wanted[name] = value
        else:
            unwanted.add(name)
    if not wanted and not unwanted:
        raise ValidationError("LABEL", "expected at least one NAME=VALUE or NAME-")
    return LabelEdits(wanted, frozenset(unwanted))


async def _run_label(
    kind: SpecKind[ClientT], connection: Connection, words: Sequence[str], options: dict[str, Any]
) -> None:
    selector: str = options["selector"]
    names, edits = (words[:0], words) if selector else (words[:1], words[1:])
    wanted = parse_label_edits(edits)
    async with kind.client(connection) as client:
        listed = await _selected(kind, client, names, selector)
        changes = []
        for each in listed:
            labels = wanted.applied(
                kind.name_of(each.spec), each.spec.labels, overwrite=options["overwrite"]
            )
            if labels != each.spec.labels:
                change = kind.change(each.mod_revision, upsert=each.spec)
                change.upsert.labels.CopyFrom(labels)
                changes.append(change)
        if not options["dry_run"] and changes:
            await _apply(kind, client, changes, TXN_OPERATIONS_MAX)
    suffix = " (dry run)" if options["dry_run"] else ""
    changed = {kind.name_of(change.upsert) for change in changes}
    for each in listed:
        name = kind.name_of(each.spec)
        click.echo(f"{name} {'labelled' if name in changed else 'unchanged'}{suffix}")


_overwrite = click.option(
    "--overwrite", is_flag=True, help="Also replace values that labels have already."
)


@click.command("label")
@click.argument(
    "words",
    nargs=-1,
    required=True,
    metavar="[SHARD] NAME=VALUE|NAME-...",
    shell_complete=complete_shards,
)
@_selector
@_overwrite
@_dry_run
@connection_options
def label_shards(connection: Connection, words: Sequence[str], **options: Any) -> None:
    """Set and remove labels of a shard, or of those that match.

    \b
    Examples:
      shardctl shards label flights-000 stage=test
      shardctl shards label flights-000 stage=live --overwrite
      shardctl shards label -l app=flights stage-
    """
    run_command(_run_label(SHARDS, connection, words, options))


@click.command("label")
@click.argument(
    "words",
    nargs=-1,
    required=True,
    metavar="[JOURNAL] NAME=VALUE|NAME-...",
    shell_complete=complete_journals,
)
@_selector
@_overwrite
@_dry_run
@connection_options
def label_journals(connection: Connection, words: Sequence[str], **options: Any) -> None:
    """Set and remove labels of a journal, or of those that match.

    \b
    Examples:
      shardctl journals label flights/part-000 stage=test
      shardctl journals label -l 'name:prefix=flights/' stage-
    """
    run_command(_run_label(JOURNALS, connection, words, options))


# Editing.


async def _run_edit(
    kind: SpecKind[ClientT], connection: Connection, names: Sequence[str], options: dict[str, Any]
) -> None:
    async with kind.client(connection) as client:
        listed = await _selected(kind, client, names, options["selector"])
        text = kind.text(listed)
        edited = click.edit(text, extension=".yaml", require_save=False)
        if edited is None or edited == text:
            say("nothing was edited")
            return
        try:
            await _apply_edited(kind, client, edited, listed, yes=options["yes"])
        except ValidationError as error:
            error.add_note(f"the edited text is kept in {_kept(edited)}")
            raise


async def _apply_edited(
    kind: SpecKind[ClientT], client: ClientT, text: str, listed: Sequence[Any], *, yes: bool
) -> None:
    changes = kind.read(text, "the edited text")
    known = {kind.name_of(each.spec) for each in listed}
    for change in changes:
        name = change.delete or kind.name_of(change.upsert)
        if name not in known:
            problem = f"{name!r} is not among what is edited; shardctl {kind.noun}s apply creates"
            raise ValidationError("the edited text", problem)
    made, conflicts = compare(kind, changes, await kind.listed(client, (), ""))
    if conflicts:
        raise StaleRevisionError("revision", conflicts)
    made = [each for each in made if each.outcome is not Outcome.UNCHANGED]
    for each in made:
        _print_difference(difference(kind, each))
    if made and sys.stdin.isatty() and not yes:
        click.confirm("Apply this?", abort=True, default=True, err=True)
    await _apply(kind, client, [each.change for each in made], TXN_OPERATIONS_MAX)
    say(f"{counted(len(made), kind.noun)} changed")


def _kept(text: str) -> str:
    with NamedTemporaryFile(
        "w", prefix="shardctl-edit-", suffix=".yaml", delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    return file.name


@click.command("edit")
@click.argument("shard", nargs=-1, shell_complete=complete_shards)
@_selector
@_yes
@connection_options
def edit_shards(connection: Connection, shard: Sequence[str], **options: Any) -> None:
    """Edit specs of shards in $EDITOR.

    The difference is shown and, on a terminal, confirmed. What somebody else changed in the meantime is not
    overwritten.

    \b
    Examples:
      shardctl shards edit flights-000
      EDITOR='code --wait' shardctl shards edit -l app=flights
    """
    run_command(_run_edit(SHARDS, connection, shard, options))


@click.command("edit")
@click.argument("journal", nargs=-1, shell_complete=complete_journals)
@_selector
@_yes
@connection_options
def edit_journals(connection: Connection, journal: Sequence[str], **options: Any) -> None:
    """Edit specs of journals in $EDITOR.

    The difference is shown and, on a terminal, confirmed. What somebody else changed in the meantime is not
    overwritten.

    \b
    Examples:
      shardctl journals edit flights/part-000
      shardctl journals edit -l 'name:prefix=flights/'
    """
    run_command(_run_edit(JOURNALS, connection, journal, options))


# Pausing.


async def _run_pause(
    connection: Connection, names: Sequence[str], selector: str, *, paused: bool
) -> None:
    async with SHARDS.client(connection) as client:
        listed = await _selected(SHARDS, client, names, selector)
        changes = []
        for each in listed:
            if each.spec.disable != paused:
                change = SHARDS.change(each.mod_revision, upsert=each.spec)
                change.upsert.disable = paused
                changes.append(change)
        await _apply(SHARDS, client, changes, TXN_OPERATIONS_MAX)
    changed = {change.upsert.id for change in changes}
    word = "paused" if paused else "resumed"
    for each in listed:
        click.echo(f"{each.spec.id} {word if each.spec.id in changed else 'unchanged'}")


@click.command("pause")
@click.argument("shard", nargs=-1, shell_complete=complete_shards)
@_selector
@connection_options
def pause_shards(connection: Connection, shard: Sequence[str], selector: str) -> None:
    """Pause shards: they keep their state, and no member serves them.

    Sets `disable` in their specs. A paused shard finishes its transaction, and goes on from there when it is resumed;
    recovery logs, stores and hints stay.

    \b
    Examples:
      shardctl shards pause flights-000
      shardctl shards pause -l app=flights
    """
    run_command(_run_pause(connection, shard, selector, paused=True))


@click.command("resume")
@click.argument("shard", nargs=-1, shell_complete=complete_shards)
@_selector
@connection_options
def resume_shards(connection: Connection, shard: Sequence[str], selector: str) -> None:
    """Let members serve paused shards again.

    \b
    Examples:
      shardctl shards resume flights-000
      shardctl shards resume -l app=flights
    """
    run_command(_run_pause(connection, shard, selector, paused=False))
