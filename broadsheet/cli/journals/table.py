"""Journals as the table of `shardctl journals list`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.filesize import decimal

from broadsheet.cli.durations import format_duration
from broadsheet.cli.journals.selection import listed_journals
from broadsheet.cli.output.lists import ListColumns, Rows, Table
from broadsheet.journals.client import JournalClient
from broadsheet.wire import journal_pb2
from broadsheet.wire.labels import CONTENT_TYPE, values_of


@dataclass(frozen=True, slots=True)
class JournalTable(Table):
    """The journals of some names, or those that match a selector."""

    client: JournalClient
    names: Sequence[str]
    selector: str
    columns: ListColumns

    async def look(self) -> Rows:
        """Return the rows of now."""
        listing = await listed_journals(self.client, self.names, self.selector)
        asked = self.columns
        columns = ["NAME", "CONTENT-TYPE", "RF", "PRIMARY"]
        columns += ["FRAGMENT", "CODEC", "RETENTION", "SUSPENDED", "REVISION"] if asked.wide else []
        columns += [label.upper() for label in asked.labels]
        rows = [self._row(journal) for journal in listing.journals]
        nothing = (
            f"no journal matches {self.selector!r}" if self.selector else "there are no journals"
        )
        return Rows(columns, rows, nothing=nothing)

    def _row(self, journal: journal_pb2.ListResponse.Journal) -> list[str]:
        spec = journal.spec
        return [
            spec.name,
            ",".join(values_of(spec.labels, CONTENT_TYPE)),
            str(spec.replication),
            _primary_of(journal.route),
            *(_wide_cells(journal) if self.columns.wide else ()),
            *(",".join(values_of(spec.labels, label)) for label in self.columns.labels),
        ]


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
