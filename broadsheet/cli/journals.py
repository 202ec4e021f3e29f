"""`shardctl journals`: list, apply, append, read."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, BinaryIO

import click
from rich.filesize import decimal

from broadsheet.cli.connection import (
    Connection,
    complete_journals,
    connection_options,
    fragment_options,
    run_command,
    take_fragments,
)
from broadsheet.cli.journal_messages import message_lines, open_messages
from broadsheet.cli.journal_space import (
    changes_of,
    format_journal_space,
    parse_journal_space,
    tree_of_listing,
)
from broadsheet.cli.line_check import LineCheck, line_check
from broadsheet.cli.output import (
    ListFormat,
    ListOptions,
    NothingSelectedError,
    OutputFormat,
    Rows,
    counted,
    fields_of,
    format_option,
    list_format_option,
    print_message,
    print_messages,
    print_path,
    print_table,
    require_watchable,
    say,
    selector_option,
    watch_options,
)
from broadsheet.cli.specs_file import (
    errors_name_places,
    format_duration,
    parse_duration,
    require_distinct,
)
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import JournalNotFoundError, WrongAppendOffsetError
from broadsheet.journals.listing import ListResult
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire import journal_pb2
from broadsheet.wire.fragments_pb2 import VerifyJournalResponse
from broadsheet.wire.labels import (
    CONTENT_TYPE,
    NAME,
    label_set,
    parse_selector,
    selector as selector_of,
    values_of,
)
from broadsheet.wire.validation_journal import validate_apply_request

APPEND_BYTES_MAX = 4 * 1024 * 1024
"""Input read before it is appended; whole lines with `--lines`, so that no append splits one."""
SIGNED_SECONDS = 3600.0
"""Life of the URLs of fragments."""


@click.command("list")
@click.argument("journal", nargs=-1, shell_complete=complete_journals)
@selector_option
@list_format_option
@click.option("-L", "--label-columns", multiple=True, help="Also show this label; may be repeated.")
@watch_options
@connection_options
def list_journals(
    connection: Connection, journal: Sequence[str], selector: str, **values: Any
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
    options = ListOptions(**values)
    require_watchable(options.output, watch=options.watch)

    async def work() -> None:
        async with connection.journals() as client:

            async def look() -> Rows:
                listing = await listed_journals(client, journal, selector)
                return _rows(
                    listing.journals,
                    options.label_columns,
                    wide=options.output.name == "wide",
                    nothing=f"no journal matches {selector!r}"
                    if selector
                    else "there are no journals",
                )

            async def print_whole() -> None:
                listing = await listed_journals(client, journal, selector)
                _print_listing(listing, options.output)

            await options.show(look, print_whole)

    run_command(work(), endless=options.watch)


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
@click.argument("journal", shell_complete=complete_journals)
@click.option(
    "-f",
    "--file",
    "stream",
    type=click.File("rb"),
    default="-",
    help="What to append; standard input if absent.",
)
@click.option(
    "--lines",
    is_flag=True,
    help="Never split a line over two appends, and refuse lines that readers of the journal's content type refuse.",
)
@connection_options
def append_journal(connection: Connection, journal: str, stream: BinaryIO, lines: bool) -> None:
    """Append bytes to a journal. Each append of at most 4 MiB is atomic.

    Bytes are appended as they are. `shardctl journals publish` writes messages with UUIDs, of any content type.

    \b
    Examples:
      shardctl journals append my/journal -f data.bin
      generate | shardctl journals append my/journal --lines
    """

    async def work() -> None:
        async with connection.journals() as client:
            check = await _check_of(client, journal) if lines else None
            appended = ""
            try:
                for content in _blocks(stream, whole_lines=lines):
                    checked = content if check is None else check.checked(content)
                    if not checked:
                        continue
                    commit = (await client.append(journal, checked)).commit
                    begin = appended.partition(",")[0] or f"[{commit.begin}"
                    appended = f"{begin}, {commit.end})"
                if check is not None:
                    check.require_complete()
            except ValidationError as error:
                error.add_note(f"appended before it: {appended or 'nothing'}")
                raise
            say(f"appended {appended} to {journal}" if appended else "nothing to append")

    run_command(work())


async def _check_of(client: JournalClient, journal: str) -> LineCheck | None:
    try:
        return line_check((await client.get(journal)).spec)
    except JournalNotFoundError:
        # It may be hidden from a token that may only append; if it is not there, the append says so.
        return None


@click.command("read")
@click.argument("journal", shell_complete=complete_journals)
@click.option(
    "--offset", type=int, default=0, show_default=True, help="First byte; -1 is the write head."
)
@click.option("--end-offset", type=click.IntRange(min=0), default=0, help="Stop before this byte.")
@click.option("--block", is_flag=True, help="Wait for more at the write head, for ever.")
@click.option(
    "--messages", is_flag=True, help="Committed messages as JSON lines, instead of the bytes."
)
@click.option(
    "--message-type",
    metavar="MODULE:CLASS",
    help="Class of the messages: needed for protobuf with --messages.",
)
@fragment_options
@connection_options
def read_journal(
    connection: Connection,
    journal: str,
    offset: int,
    end_offset: int,
    block: bool,
    messages: bool,
    message_type: str | None,
    **options: Any,
) -> None:
    """Write a journal's bytes to standard output.

    With --messages, write its committed messages instead, each once and as JSON, whatever the
    journal's content type: JSON, CSV, protobuf, Arrow or Avro. A message of rows gives a line for each row.

    What is in a fragment store is read there, if it can be, and does not pass through the broker.

    \b
    Examples:
      shardctl journals read my/journal | head
      shardctl journals read my/journal --fragment-root /srv/fragments > copy
      shardctl journals read my/journal --offset -1 --block   # follow it
      shardctl journals read my/rows --messages | jq .delay
    """
    fragments = take_fragments(options)
    if message_type is not None and not messages:
        raise click.UsageError("--message-type needs --messages")

    async def work() -> None:
        async with connection.journals(fragments) as client:
            if messages:
                source, content = await open_messages(client, journal, message_type)
                read = source.committed(offset=offset, end_offset=end_offset, block=block)
                async with aclosing(read) as batches:
                    async for line in message_lines(batches, content):
                        sys.stdout.buffer.write(line)
                        if block:
                            sys.stdout.buffer.flush()
                sys.stdout.buffer.flush()
                return
            reader = client.reader(journal, offset=offset, block=block, end_offset=end_offset)
            async for span in reader:
                sys.stdout.buffer.write(span.content)
                sys.stdout.buffer.flush()

    run_command(work())


@click.command("verify")
@click.argument("journal", required=False, shell_complete=complete_journals)
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
        left = sum(each.left for each in reports)
        if left:
            raise ValidationError("fragments", f"{counted(left, 'span')} damaged")

    run_command(work())


@click.command("fragments")
@click.argument("journal", shell_complete=complete_journals)
@click.option(
    "--since", default="", show_default=False, help="Only those stored in the last 90s, 2h, ..."
)
@click.option(
    "--signed-urls",
    is_flag=True,
    help="Also the URLs to fetch stored fragments with, for an hour; brokers of Gazette have them.",
)
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
@connection_options
def list_fragments(
    connection: Connection, journal: str, since: str, signed_urls: bool, output: str
) -> None:
    """List the fragments of a journal.

    \b
    Examples:
      shardctl journals fragments flights/part-000
      shardctl journals fragments flights/part-000 --since 24h -o json
    """

    async def work() -> None:
        begin = 0
        if since:
            age = parse_duration(since, "--since").ToTimedelta()
            begin = int((datetime.now(UTC) - age).timestamp())
        async with connection.journals() as client:
            found = await client.list_fragments(
                journal,
                begin_mod_time=begin,
                signature_ttl_seconds=SIGNED_SECONDS if signed_urls else 0.0,
            )
        if output != OutputFormat.TABLE.value:
            print_messages("fragments", found, OutputFormat(output))
            return
        columns = [
            "BEGIN",
            "END",
            "BYTES",
            "CODEC",
            "STORED",
            "STORE",
            *(["URL"] if signed_urls else []),
        ]
        print_table(columns, [_fragment_row(each, signed_urls=signed_urls) for each in found])

    run_command(work())


def _fragment_row(
    listed: journal_pb2.FragmentsResponse.ListedFragment, *, signed_urls: bool
) -> list[str]:
    spec = listed.spec
    stored = (
        datetime.fromtimestamp(spec.mod_time, UTC).isoformat() if spec.mod_time else "<not yet>"
    )
    row = [
        str(spec.begin),
        str(spec.end),
        decimal(spec.end - spec.begin),
        journal_pb2.CompressionCodec.Name(spec.compression_codec),
        stored,
        spec.backing_store or "<broker>",
    ]
    return [*row, listed.signed_url] if signed_urls else row


@click.command("suspend")
@click.argument("journal", nargs=-1, shell_complete=complete_journals)
@selector_option
@click.option(
    "--force", is_flag=True, help="Also those whose content was stored too short a time ago."
)
@connection_options
def suspend_journals(
    connection: Connection, journal: Sequence[str], selector: str, force: bool
) -> None:
    """Suspend journals that nobody appends to.

    An empty journal is suspended fully; any other can still be read. The next append resumes it. Without --force, only
    journals whose content has been in fragments for their flush interval (a day, if they have none) are suspended.

    \b
    Examples:
      shardctl journals suspend flights/part-000
      shardctl journals suspend -l 'name:prefix=old/' --force
    """

    async def work() -> None:
        async with connection.journals() as client:
            for name in await _named(client, journal, selector):
                suspended = await client.suspend(name, force=force)
                click.echo(f"{name} {'suspended' if suspended else 'in use'}")

    run_command(work())


@click.command("reset-head")
@click.argument("journal", nargs=-1, shell_complete=complete_journals)
@selector_option
@connection_options
def reset_head(connection: Connection, journal: Sequence[str], selector: str) -> None:
    """Accept that the end of journals was lost.

    For journals whose appends are refused because of "a fragment index beyond its write head": they continue at the
    end of the index, and the lost bytes become a hole, which readers skip. Journals that lost nothing are left alone.

    \b
    Examples:
      shardctl journals reset-head flights/part-000
      shardctl journals reset-head -l 'name:prefix=flights/'
    """

    async def work() -> None:
        async with connection.journals() as client:
            for name in await _named(client, journal, selector):
                try:
                    head = await client.reset_head(name)
                except WrongAppendOffsetError:
                    click.echo(f"{name} in use: it needs no reset")
                else:
                    click.echo(f"{name} continues at {head}")

    run_command(work())


@click.command("prune")
@click.argument("journal", nargs=-1, shell_complete=complete_journals)
@selector_option
@click.option("--dry-run", is_flag=True, help="Print what would go; change nothing.")
@connection_options
def prune_journals(
    connection: Connection, journal: Sequence[str], selector: str, dry_run: bool
) -> None:
    """Remove fragments that are older than their journal's retention.

    A journal without a retention keeps everything, and the newest fragment always stays. Only this project's brokers
    remove fragments, from their store first, and with --retention they do so by themselves; for Gazette's, use gazctl
    journals prune.

    \b
    Examples:
      shardctl journals prune --dry-run
      shardctl journals prune -l 'name:prefix=flights/'
    """

    async def work() -> None:
        async with connection.journals() as client:
            listed = (await listed_journals(client, journal, selector)).journals
            rows = [await _pruned(client, each.spec, dry_run=dry_run) for each in listed]
        removed = "WOULD GO" if dry_run else "REMOVED"
        print_table(["NAME", "RETENTION", "FRAGMENTS", removed, "BYTES"], rows)

    run_command(work())


async def _pruned(
    client: JournalClient, spec: journal_pb2.JournalSpec, *, dry_run: bool
) -> list[str]:
    retention = spec.fragment.retention.ToTimedelta()
    if not retention:
        return [spec.name, "<for ever>", "", "0", ""]
    fragments = [each.spec for each in await client.list_fragments(spec.name)]
    horizon = (datetime.now(UTC) - retention).timestamp()
    # From the beginning, so that no hole is left; those without a time are not stored yet.
    expired = list(takewhile(lambda each: 0 < each.mod_time <= horizon, fragments[:-1]))
    gone = expired if dry_run or not expired else await client.delete_fragments(spec.name, expired)
    return [
        spec.name,
        format_duration(spec.fragment.retention),
        str(len(fragments)),
        str(len(gone)),
        decimal(sum(each.end - each.begin for each in gone)),
    ]


async def _named(client: JournalClient, names: Sequence[str], selector: str) -> list[str]:
    """Return the names of what is named or selected; something is.

    Raises:
        NothingSelectedError: nothing is.
    """
    if not names and not selector:
        raise click.UsageError("expected names of journals, or --selector")
    listed = (await listed_journals(client, names, selector)).journals
    if not listed:
        raise NothingSelectedError("--selector", f"no journal matches {selector!r}")
    return [each.spec.name for each in listed]


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
    left: int = 0
    """Number of problems that were not discarded."""

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
        if not response.discarded:
            self.left += len(response.damaged) + bool(response.error)


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
