"""Answers of members as HTML: the tables that `shardctl` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from broadsheet.cli.members.list import COLUMNS as MEMBER_COLUMNS, member_cells
from broadsheet.cli.output.messages import counted
from broadsheet.cli.plan import (
    CHANGE_COLUMNS,
    LOAD_COLUMNS,
    WAIT_COLUMNS,
    change_cells,
    load_cells,
    plan_summary,
    wait_cells,
)
from broadsheet.cli.shards.stat import PROGRESS_COLUMNS, progress_cells
from broadsheet.cli.shards.state import status_of
from broadsheet.cli.shards.table import notes_of, primary_of, replica_texts
from broadsheet.consumer.client.shard_client import ShardTable
from broadsheet.notebook.html_tables import html_table
from broadsheet.wire.allocation_pb2 import ListMembersResponse, PlanResponse
from broadsheet.wire.shard_pb2 import ListResponse, StatResponse

_SHARD_COLUMNS: Final = ("SHARD", "STATUS", "PRIMARY", "REPLICAS", "SOURCES")


def _shards(shards: Sequence[ListResponse.Shard]) -> str:
    rows = [
        (
            shard.spec.id,
            status_of(shard),
            primary_of(shard),
            " ".join(replica_texts(shard)),
            " ".join(source.journal for source in shard.spec.sources),
        )
        for shard in shards
    ]
    notes = [note for shard in shards for note in notes_of(shard)]
    return html_table(counted(len(shards), "shard"), _SHARD_COLUMNS, rows, notes=notes)


def _plan(plan: PlanResponse) -> str:
    tables = (
        html_table(plan_summary(plan), CHANGE_COLUMNS, change_cells(plan)),
        html_table("Members", LOAD_COLUMNS, load_cells(plan)) if plan.members else "",
        html_table("Waiting", WAIT_COLUMNS, wait_cells(plan.waits)) if plan.waits else "",
    )
    return "".join(tables)


def _stat(answer: StatResponse) -> str:
    return html_table("Progress", PROGRESS_COLUMNS, progress_cells(answer))


def _members(found: ListMembersResponse) -> str:
    rows = [member_cells(member) for member in found.members]
    return html_table(counted(len(rows), "member"), MEMBER_COLUMNS, rows)


# `Any`: each function takes what its key says.
FORMATTERS: Final[Mapping[type, Callable[[Any], str]]] = {
    ListResponse: lambda listing: _shards(listing.shards),
    ListResponse.Shard: lambda shard: _shards([shard]),
    ShardTable: lambda table: _shards([table[shard_id] for shard_id in sorted(table)]),
    StatResponse: _stat,
    PlanResponse: _plan,
    ListMembersResponse: _members,
}
"""By type of an answer: the function that returns its HTML."""
