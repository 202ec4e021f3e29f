"""`shardctl journals publish`: JSON lines as messages with UUIDs, in the encoding of their journals."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, get_args

import click
import msgspec

from broadsheet.cli.application_name import load_attribute
from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.journals.line_input import LineBlock, line_blocks, size_of
from broadsheet.cli.names import complete_journals
from broadsheet.cli.options import argument, command_options, flag, option
from broadsheet.cli.output.documents import Output, OutputFormat, print_fields
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.output.progress import Unit, progress_display
from broadsheet.cli.output.tables import print_table
from broadsheet.journals.errors import PublishMessageError
from broadsheet.journals.message.json_errors import why_not_json
from broadsheet.journals.message.partitioning import MappedJournal, Mapping
from broadsheet.journals.message_writer import MessageWriter, PublishedRange
from broadsheet.journals.topic import Rule, Topic, open_topic
from broadsheet.runtime.errors import BroadsheetError, ServiceError, ValidationError

ROWS_MAX: Final = 10_000
"""Rows of one message, where messages hold rows."""


@command_options
class _PublishOptions:
    name: str = argument(required=False, default="", shell_complete=complete_journals)
    selector: str = option(
        "Label selector, in place of NAME.", "-l", default="", show_default=False
    )
    stream: BinaryIO = option(
        "JSON lines to publish; standard input if absent.",
        "-f",
        "--file",
        type=click.File("rb"),
        default="-",
        show_default=False,
    )
    key: str | None = option(
        "Field whose value chooses the journal; f1, f2 ... of CSV.", metavar="FIELD"
    )
    rule: Rule = option(
        "How the key chooses among several journals: as the application's own mapping does. random needs no key.",
        "--mapping",
        type=click.Choice(get_args(Rule)),
        default="modulo",
    )
    atomic: bool = flag("In one transaction: readers see all lines, or none.")
    message_type: str | None = option(
        "Class of the messages: needed for protobuf.", metavar="MODULE:CLASS"
    )
    output: Output


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the input, decoded."""

    number: int
    value: Any  # as JSON has it
    mapped: MappedJournal


class LineError(ValidationError):
    """A line that is no message of its journal; the lines before it may have been published."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"line {number}", problem)
        self.number = number


def parse_lines(block: LineBlock, mapping: Mapping) -> tuple[list[Line], LineError | None]:
    """Return the lines before the first that is no JSON or has no journal, and the error of that one.

    Blank lines are passed over.
    """
    found: list[Line] = []
    for number, text in enumerate(block.lines, block.first):
        if not text.strip():
            continue
        try:
            value = msgspec.json.decode(text)
            found.append(Line(number, value, mapping(value)))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            return found, LineError(number, f"not JSON: {why_not_json(text, error)}")
        except ValidationError as error:
            return found, LineError(number, error.problem)
    return found, None


def buffer_lines(writer: MessageWriter, topic: Topic, lines: Sequence[Line]) -> LineError | None:
    """Buffer lines up to the first that is no message of its journal; return the error of that one.

    Raises:
        BroadsheetError: a line is a message, and cannot be published all the same.
    """
    if topic.content.holds_rows:
        return _buffer_rows(writer, topic, lines)
    for line in lines:
        try:
            message = topic.content.made_of(topic.message_type, [line.value])
            writer.publish(line.mapped, message, topic.message_type)
        except (ValueError, PublishMessageError) as error:
            return LineError(line.number, _reason(error))
    return None


def _buffer_rows(writer: MessageWriter, topic: Topic, lines: Sequence[Line]) -> LineError | None:
    """Buffer the rows of each journal as few messages. Nothing is buffered that stands behind a bad line."""
    good = _count_of_rows(topic, lines)
    for group in _groups(lines[:good]):
        message = topic.content.made_of(topic.message_type, [line.value for line in group])
        writer.publish(group[0].mapped, message, topic.message_type)
    if good == len(lines):
        return None
    bad = lines[good]
    problem = _row_problem(topic, [bad]) or _row_problem(topic, lines[: good + 1])
    return LineError(bad.number, problem or "does not fit the rows before it")


def _count_of_rows(topic: Topic, lines: Sequence[Line]) -> int:
    """Return the number of lines before the first that makes its message impossible."""
    if not _row_problem(topic, lines):
        return len(lines)
    good, bad = 0, len(lines)
    # Lines up to `good` fit, and lines up to `bad` do not: a prefix of what fits does.
    while bad - good > 1:
        middle = (good + bad) // 2
        if _row_problem(topic, lines[:middle]):
            bad = middle
        else:
            good = middle
    return good


def _row_problem(topic: Topic, lines: Sequence[Line]) -> str:
    for group in _groups(lines):
        try:
            message = topic.content.made_of(topic.message_type, [line.value for line in group])
            topic.message_type.encode(message)
        except ValueError as error:
            return _reason(error)
    return ""


def _groups(lines: Sequence[Line]) -> list[Sequence[Line]]:
    """Return the lines of each journal, in pieces of as many rows as a message takes."""
    by_journal: dict[MappedJournal, list[Line]] = {}
    for line in lines:
        by_journal.setdefault(line.mapped, []).append(line)
    return [
        group[begin : begin + ROWS_MAX]
        for group in by_journal.values()
        for begin in range(0, len(group), ROWS_MAX)
    ]


def _reason(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, PublishMessageError) else None
    return " ".join(str(cause or error).split())


class _Publication:
    """The publication of one input, and what became of it so far."""

    def __init__(self, writer: MessageWriter, topic: Topic, options: _PublishOptions) -> None:
        self._writer = writer
        self._topic = topic
        self._mapping = topic.mapping(options.key, options.rule)
        self._atomic = options.atomic
        self._committing = False
        self.lines = 0
        """Lines that readers show, or will at the end of the transaction."""

    async def run(self, stream: BinaryIO) -> Sequence[PublishedRange]:
        """Publish all lines; return the ranges.

        Raises:
            LineError: a line is no message. The notes of this and of any other error tell what is published.
        """
        size = size_of(stream)
        try:
            with progress_display("publishing", Unit.BYTES) as display:
                async with aclosing(line_blocks(stream, option="--file")) as blocks:
                    async for block in blocks:
                        await self._take(block)
                        display.show(block.end, size)
            self._committing = True
            return await self._writer.commit()
        except BaseException as error:
            await self._tell(error)
            raise

    async def _take(self, block: LineBlock) -> None:
        lines, unread = parse_lines(block, self._mapping)
        refused = buffer_lines(self._writer, self._topic, lines) or unread
        if refused is not None and self._atomic:
            raise refused
        await self._writer.flush()
        self.lines += sum(refused is None or line.number < refused.number for line in lines)
        if refused is not None:
            raise refused

    async def _tell(self, error: BaseException) -> None:
        """Add to an error what became of the lines before it; say it if the error is not one of ours."""
        text = f"published before it: {counted(self.lines, 'line')}"
        if self._atomic:
            # A broker that failed may fail once more, and readers never show what lacks its acknowledgement.
            if not self._committing and not isinstance(error, ServiceError):
                await self._writer.roll_back()
            text = (
                _unacknowledged(self._writer.published)
                if self._committing
                else "nothing is published"
            )
        if isinstance(error, BroadsheetError):
            error.add_note(text)
        else:
            say(text)


def _unacknowledged(published: MappingOf[str, PublishedRange]) -> str:
    journals = ", ".join(sorted(published)) or "no journal"
    return (
        f"the transaction may be shown in a part of {journals}: read them with --messages before you publish the "
        "lines once more"
    )


@cluster_command("publish", _PublishOptions)
async def publish_messages(connection: Connection, options: _PublishOptions) -> None:
    """Publish JSON lines as messages.

    NAME is a journal, or, up to and with a slash, the beginning of journals' names. Each line is a message as
    `shardctl journals read --messages` prints it, and is written as the journal's content type says, with a UUID, by
    which readers count it once. Rows of Arrow and Avro share messages.

    Lines are published as they come. A line that is no message ends the command: the error names it, and tells how
    many are published before it. With --atomic, none is.

    \b
    Examples:
      echo '{"key":"a"}' | shardctl journals publish my/events/part-000
      shardctl journals publish my/events/ --key user -f events.jsonl
      shardctl journals publish my/events/ --key user --atomic \\
          -f events.jsonl -o json
      tail -F app.log.jsonl | shardctl journals publish my/logs --key host
    """
    if bool(options.name) == bool(options.selector):
        raise click.UsageError("expected either NAME or --selector")
    async with connection.journals() as client:
        topic = await open_topic(
            client, options.name, selector=options.selector, message_class=_message_class(options)
        )
        writer = MessageWriter(client, transaction=options.atomic)
        published = await _Publication(writer, topic, options).run(options.stream)
    _print(published, options.output)


def _message_class(options: _PublishOptions) -> type[Any] | None:
    if options.message_type is None:
        return None
    found: type[Any] = load_attribute(options.message_type, option="--message-type")
    return found


def _print(published: Sequence[PublishedRange], output: OutputFormat) -> None:
    ranges = sorted(published, key=lambda each: each.journal)
    if output is not OutputFormat.TABLE:
        print_fields({"journals": [msgspec.to_builtins(each) for each in ranges]}, output)
        return
    if not ranges:
        say("nothing to publish")
        return
    rows = [[each.journal, str(each.messages), str(each.begin), str(each.end)] for each in ranges]
    print_table(["JOURNAL", "MESSAGES", "BEGIN", "END"], rows)
