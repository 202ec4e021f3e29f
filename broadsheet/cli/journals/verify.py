"""`shardctl journals verify`: compare stored fragments with their checksums."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import JOURNAL_NAME, complete_journals
from broadsheet.cli.options import Selector, argument, command_options, flag
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.output.tables import print_table
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.fragments_pb2 import VerifyJournalResponse
from broadsheet.wire.labels import parse_selector


@command_options
class _VerifyOptions:
    journal: str | None = argument(
        required=False, type=JOURNAL_NAME, shell_complete=complete_journals
    )
    selector: Selector
    discard_damaged: bool = flag(
        "Give damaged bytes up: they become holes, and their file is quarantined."
    )


@cluster_command("verify", _VerifyOptions)
async def verify_journals(connection: Connection, options: _VerifyOptions) -> None:
    """Compare stored fragments with their checksums.

    The broker reads every sealed fragment of the journals. Exits with status 1 if anything is damaged
    and was not discarded.

    \b
    Examples:
      shardctl journals verify
      shardctl journals verify my/journal
      shardctl journals verify my/journal --discard-damaged
    """
    async with connection.journals() as client:
        if options.journal:
            names = [options.journal]
        else:
            listing = await client.list(parse_selector(options.selector))
            names = [each.spec.name for each in listing.journals]
        reports = [await _verified(client, each, options.discard_damaged) for each in names]
    print_table(["NAME", "FRAGMENTS", "BYTES", "DAMAGED"], [each.row for each in reports])
    for report in reports:
        for problem in report.problems:
            say(problem)
    left = sum(each.left for each in reports)
    if left:
        raise ValidationError("fragments", f"{counted(left, 'span')} damaged")


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
