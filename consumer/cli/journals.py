"""`shardctl journals`: list, apply, append, read."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import click
from rich.filesize import decimal

from broadsheet.allocator.errors import ValidationError
from broadsheet.consumer.cli.connection import (
    Connection,
    NothingSelectedError,
    connection_options,
    run_command,
)
from broadsheet.consumer.cli.durations import format_duration
from broadsheet.consumer.cli.journal_space import (
    changes_of,
    format_journal_space,
    parse_journal_space,
    tree_of_listing,
)
from broadsheet.consumer.cli.output import (
    ListFormat,
    Rows,
    counted,
    fields_of,
    list_format_option,
    print_message,
    print_path,
    print_table,
    require_watchable,
    say,
    selector_option,
    watch_options,
    watch_rows,
)
from broadsheet.consumer.cli.specs_file import (
    errors_name_places,
    require_distinct,
)
from broadsheet.consumer.journal.client import JournalClient
from broadsheet.consumer.journal.listing import ListResult
from broadsheet.consumer.protocol import journal_pb2
from broadsheet.consumer.protocol.fragments_pb2 import VerifyJournalResponse
from broadsheet.consumer.protocol.labels import (
    CONTENT_TYPE,
    NAME,
    label_set,
    parse_selector,
    values_of,
)
from broadsheet.consumer.protocol.labels import selector as selector_of
from broadsheet.consumer.protocol.validation_journal import validate_apply_request

APPEND_BYTES_MAX = 4 * 1024 * 1024
"""Input read before it is appended; whole lines with `--lines`, so that no append splits one."""


@click.command("list")
@click.argument("journal", nargs=-1)
@selector_option
@list_format_option
@click.option("-L", "--label-columns", multiple=True, help="Also show this label; may be repeated.")
@watch_options
@connection_options
def list_journals(
    connection: Connection, journal: Sequence[str], selector: str, **options: Any
) -> None:
    """List journals.

    All of them, each JOURNAL, or those that match.

    \b
    Examples:
      shardctl journals list
      shardctl journals list -l 'name:prefix=flights/' -L my-label
      shardctl journals list -o wide
      shardctl journals list -o jsonpath='{.journals[*].spec.name}'
      shardctl journals list -o yaml > journals.yaml
    """
    output: ListFormat = options["output"]
    require_watchable(output, watch=options["watch"])

    async def work() -> None:
        async with connection.journals() as client:

            async def look() -> Rows:
                listing = await listed_journals(client, journal, selector)
                return _rows(
                    listing.journals,
                    options["label_columns"],
                    wide=output.name == "wide",
                    nothing=f"no journal matches {selector!r}"
                    if selector
                    else "there are no journals",
                )

            only_names = output.name == "name"
            if options["watch"]:
                await watch_rows(look, only_names=only_names, interval_seconds=options["interval"])
            elif output.has_rows:
                (await look()).show(only_names=only_names)
            else:
                _print_listing(await listed_journals(client, journal, selector), output)

    run_command(work())


def _print_listing(listing: ListResult, output: ListFormat) -> None:
    message = journal_pb2.ListResponse(header=listing.header, journals=listing.journals)
    if output.name == "yaml":
        click.echo(format_journal_space(tree_of_listing(listing.journals)), nl=False)
    elif output.name == "json":
        print_message(message)
    else:
        print_path(fields_of(message), output.path)


async def listed_journals(client: JournalClient, names: Sequence[str], selector: str) -> ListResult:
    """Return the journals of these names, or those that match; all if neither is given.

    Raises:
        ValidationError: both are given, or the selector is malformed.
        NothingSelectedError: there is no journal of one of the names.
    """
    if not names:
        return await client.list(parse_selector(selector))
    if selector:
        raise ValidationError("--selector", "expected either JOURNAL or --selector")
    listing = await client.list(selector_of(label_set(*((NAME, each) for each in names))))
    missing = {*names} - {listed.spec.name for listed in listing.journals}
    if missing:
        raise NothingSelectedError("JOURNAL", f"there is no journal {', '.join(sorted(missing))}")
    return listing


@click.command("append")
@click.argument("journal")
@click.option(
    "-f",
    "--file",
    "stream",
    type=click.File("rb"),
    default="-",
    help="What to append; standard input if absent.",
)
@click.option("--lines", is_flag=True, help="Never split a line over two appends.")
@connection_options
def append_journal(connection: Connection, journal: str, stream: BinaryIO, lines: bool) -> None:
    """Append bytes to a journal. Each append of at most 4 MiB is atomic.

    \b
    Examples:
      shardctl journals append my/journal -f data.bin
      generate | shardctl journals append my/journal --lines
    """

    async def work() -> None:
        async with connection.journals() as client:
            begin: int | None = None
            end = 0
            for content in _blocks(stream, whole_lines=lines):
                commit = (await client.append(journal, content)).commit
                begin = commit.begin if begin is None else begin
                end = commit.end
            say("nothing to append" if begin is None else f"appended [{begin}, {end}) to {journal}")

    run_command(work())


@click.command("read")
@click.argument("journal")
@click.option(
    "--offset", type=int, default=0, show_default=True, help="First byte; -1 is the write head."
)
@click.option("--end-offset", type=click.IntRange(min=0), default=0, help="Stop before this byte.")
@click.option("--block", is_flag=True, help="Wait for more at the write head, for ever.")
@connection_options
def read_journal(
    connection: Connection, journal: str, offset: int, end_offset: int, block: bool
) -> None:
    """Write a journal's bytes to standard output.

    \b
    Examples:
      shardctl journals read my/journal | head
      shardctl journals read my/journal --offset -1 --block   # follow it
    """

    async def work() -> None:
        async with connection.journals() as client:
            reader = client.reader(journal, offset=offset, block=block, end_offset=end_offset)
            async for span in reader:
                sys.stdout.buffer.write(span.content)
                sys.stdout.buffer.flush()

    run_command(work())


@click.command("verify")
@click.argument("journal", required=False)
@selector_option
@click.option(
    "--discard-damaged",
    is_flag=True,
    help="Give damaged bytes up: they become holes, and their file is quarantined.",
)
@connection_options
def verify_journals(
    connection: Connection, journal: str | None, selector: str, discard_damaged: bool
) -> None:
    """Compare stored fragments with their checksums.

    The broker reads every sealed fragment of the journals. Exits with status 1 if anything is damaged
    and was not discarded.

    \b
    Examples:
      shardctl journals verify
      shardctl journals verify my/journal
      shardctl journals verify my/journal --discard-damaged
    """

    async def work() -> None:
        async with connection.journals() as client:
            names = [journal] if journal else await _names(client, selector)
            reports = [await _verified(client, each, discard_damaged) for each in names]
        print_table(["NAME", "FRAGMENTS", "BYTES", "DAMAGED"], [each.row for each in reports])
        problems = [problem for each in reports for problem in each.problems]
        for problem in problems:
            say(problem)
        if problems and not discard_damaged:
            raise ValidationError("fragments", f"{counted(len(problems), 'span')} damaged")

    run_command(work())


@click.command("quarantined")
@click.option("--purge", metavar="ID", help="Remove this entry for ever instead.")
@connection_options
def quarantined(connection: Connection, purge: str | None) -> None:
    """List unknown entries that the broker moved to quarantine.

    To put an entry back, stop the broker and run it once with --restore-quarantined ID.

    \b
    Examples:
      shardctl journals quarantined
      shardctl journals quarantined --purge 20260102T030405Z-0a1b2c3d-NAME
    """

    async def work() -> None:
        async with connection.journals() as client:
            if purge is not None:
                await client.purge_quarantine(purge)
                say(f"removed {purge}")
                return
            entries = await client.list_quarantine()
            if not entries:
                say("nothing is quarantined")
                return
            rows = [
                [each.id, str(each.bytes), each.journal or "<none>", each.path, each.why]
                for each in entries
            ]
            print_table(["ID", "BYTES", "JOURNAL", "WAS", "WHY"], rows)

    run_command(work())


@dataclass(slots=True)
class _Report:
    """Result of one journal's verification."""

    journal: str
    fragments: int = 0
    bytes: int = 0
    damaged_bytes: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def row(self) -> list[str]:
        """Cells of the table."""
        return [self.journal, str(self.fragments), str(self.bytes), str(self.damaged_bytes)]

    def add(self, response: VerifyJournalResponse) -> None:
        """Add the result of one fragment."""
        fragment = response.fragment
        where = f"{self.journal}: fragment [{fragment.begin}, {fragment.end})"
        self.fragments += 1
        self.bytes += fragment.end - fragment.begin
        self.damaged_bytes += sum(span.end - span.begin for span in response.damaged)
        done = "were discarded" if response.discarded else "are damaged"
        self.problems += [
            f"{where}: bytes [{span.begin}, {span.end}) {done}" for span in response.damaged
        ]
        if response.error:
            self.problems.append(f"{where} cannot be read: {response.error}")


async def _names(client: JournalClient, selector: str) -> list[str]:
    listing = await client.list(parse_selector(selector))
    return [each.spec.name for each in listing.journals]


async def _verified(client: JournalClient, journal: str, discard_damaged: bool) -> _Report:
    report = _Report(journal)
    answers = client.verify(journal, discard_damaged=discard_damaged)
    total = (await anext(answers)).fragments
    # The bar is for terminals only: elsewhere, none of it is written.
    with click.progressbar(length=total, label=journal, file=sys.stderr) as bar:
        async for response in answers:
            report.add(response)
            bar.update(1)
    return report


def read_journal_changes(text: str, source: str) -> list[journal_pb2.ApplyRequest.Change]:
    """Return a file's changes, checked as far as possible without a server.

    Args:
        text: The file's.
        source: Its name, for error messages.

    Raises:
        ValidationError: the file is wrong; the message names the journal and the field.
    """
    changes = changes_of(parse_journal_space(text, source))
    names = [change.delete or change.upsert.name for change in changes]
    require_distinct(source, names, names)
    with errors_name_places(source, names):
        validate_apply_request(journal_pb2.ApplyRequest(changes=changes))
    return changes


def _blocks(stream: BinaryIO, *, whole_lines: bool) -> Iterator[bytes]:
    rest = b""
    while block := stream.read(APPEND_BYTES_MAX - len(rest)):
        content = rest + block
        cut = content.rfind(b"\n") + 1 if whole_lines else len(content)
        if cut == 0 and len(content) >= APPEND_BYTES_MAX:
            raise ValidationError("--lines", f"a line exceeds {APPEND_BYTES_MAX} bytes")
        if cut:
            yield content[:cut]
        rest = content[cut:]
    if rest:
        yield rest


def _rows(
    listed: Sequence[journal_pb2.ListResponse.Journal],
    label_columns: Sequence[str],
    *,
    wide: bool,
    nothing: str,
) -> Rows:
    columns = ["NAME", "CONTENT-TYPE", "RF", "PRIMARY"]
    columns += ["FRAGMENT", "CODEC", "RETENTION", "SUSPENDED", "REVISION"] if wide else []
    columns += [label.upper() for label in label_columns]
    rows = []
    for journal in listed:
        spec = journal.spec
        row = [
            spec.name,
            ",".join(values_of(spec.labels, CONTENT_TYPE)),
            str(spec.replication),
            _primary_of(journal.route),
        ]
        row += _wide_cells(journal) if wide else []
        row += [",".join(values_of(spec.labels, label)) for label in label_columns]
        rows.append(row)
    return Rows(columns, rows, nothing=nothing)


def _primary_of(route: journal_pb2.Route) -> str:
    if not route.members or route.primary < 0:
        return "<none>"
    return route.members[route.primary].suffix


def _wide_cells(journal: journal_pb2.ListResponse.Journal) -> list[str]:
    fragment = journal.spec.fragment
    return [
        decimal(fragment.length),
        journal_pb2.CompressionCodec.Name(fragment.compression_codec),
        format_duration(fragment.retention) or "<for ever>",
        journal_pb2.JournalSpec.Suspend.Level.Name(journal.spec.suspend.level),
        str(journal.mod_revision),
    ]
