"""Shards as the table of `shardctl shards list`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from broadsheet.cli.connection import Connection
from broadsheet.cli.output.lists import ListColumns, Rows, Seen, Table
from broadsheet.cli.shards.selection import listed_shards, wanted_shards
from broadsheet.cli.shards.source_progress import progress_of
from broadsheet.cli.shards.state import UNAVAILABLE, has_primary, replica_state, status_of
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.errors import ShardError
from broadsheet.consumer.recoverylog.hints import recovery_log_of
from broadsheet.runtime.errors import EndpointError
from broadsheet.wire import shard_pb2
from broadsheet.wire.labels import values_of

LOST_SECONDS = 15.0
"""Silence of all members after which a watch says so; one that lives sends something every ten seconds."""


@dataclass(frozen=True, slots=True)
class ShardListTable(Table):
    """The shards of some ids, or those that match a selector."""

    connection: Connection
    client: ShardClient
    shard_ids: Sequence[str]
    selector: str
    columns: ListColumns

    async def look(self) -> Rows:
        """Return the rows of now."""
        listing = await listed_shards(self.client, self.shard_ids, self.selector)
        nothing = f"no shard matches {self.selector!r}" if self.selector else "there are no shards"
        return await self._rows(listing.shards, nothing=nothing)

    async def follow(self, *, interval_seconds: float) -> AsyncGenerator[Seen, None]:
        """Yield the rows as members tell of changes, without end."""
        if self.columns.lag:
            # The lag is no part of the table that members keep, so it has to be asked for.
            async with aclosing(Table.follow(self, interval_seconds=interval_seconds)) as states:
                async for seen in states:
                    yield seen
        wanted = wanted_shards(self.shard_ids, self.selector)
        # First as a list, which says at once if no member answers, or a named shard is not there.
        yield await self.look()
        while True:
            tables = self.client.watch(
                wanted, unreachable_seconds=LOST_SECONDS, poll_seconds=interval_seconds
            )
            try:
                async with aclosing(tables):
                    async for shown in tables:
                        rows = [shown[shard_id] for shard_id in sorted(shown)]
                        yield await self._rows(rows, nothing="there are no shards")
            except EndpointError as error:
                yield error

    async def _rows(self, listed: Sequence[shard_pb2.ListResponse.Shard], *, nothing: str) -> Rows:
        asked = self.columns
        columns = ["ID", "STATUS", "RF", "PRIMARY", *(["REPLICAS"] if asked.replicas else [])]
        columns += ["SOURCES", "RECOVERY-LOG", "REVISION"] if asked.wide else []
        columns += [label.upper() for label in asked.labels]
        columns += ["LAG"] if asked.lag else []
        lags = await self._lags(listed) if asked.lag else {}
        return Rows(
            columns,
            [self._row(shard, lags) for shard in listed],
            notes={shard.spec.id: notes_of(shard) for shard in listed},
            nothing=nothing,
        )

    def _row(self, shard: shard_pb2.ListResponse.Shard, lags: Mapping[str, str]) -> list[str]:
        spec, asked = shard.spec, self.columns
        row = [spec.id, status_of(shard), _replication_of(spec), primary_of(shard)]
        if asked.replicas:
            row.append(" ".join(replica_texts(shard)))
        if asked.wide:
            row.append(" ".join(source.journal for source in spec.sources) or "<none>")
            row += [recovery_log_of(spec) or "<none>", str(shard.mod_revision)]
        row += [",".join(values_of(spec.labels, label)) for label in asked.labels]
        return [*row, lags.get(spec.id, "")] if asked.lag else row

    async def _lags(self, listed: Sequence[shard_pb2.ListResponse.Shard]) -> dict[str, str]:
        lags: dict[str, str] = {}
        async with self.connection.journals() as journals:
            for shard in listed:
                if not has_primary(shard):
                    lags[shard.spec.id] = "<no primary>"
                    continue
                try:
                    found = await progress_of(self.client, journals, shard.spec.id)
                except ShardError:
                    # It was handed over, or failed, after it was listed.
                    lags[shard.spec.id] = "<no primary>"
                else:
                    lags[shard.spec.id] = " ".join(f"{e.journal}:{e.lag_text}" for e in found)
        return lags


def notes_of(shard: shard_pb2.ListResponse.Shard) -> list[str]:
    """Return the errors of a shard's replicas, and why they are not available."""
    notes = [shard.standbys_refused] if shard.standbys_refused else []
    for status in shard.status:
        notes += status.errors
        notes += [f"{UNAVAILABLE}: {status.unavailable}"] if status.unavailable else []
    return [f"{shard.spec.id}: {note}" for note in notes]


def _replication_of(spec: shard_pb2.ShardSpec) -> str:
    return "0" if spec.disable else str(1 + spec.hot_standbys)


def replica_texts(shard: shard_pb2.ListResponse.Shard) -> list[str]:
    """Return each replica's member and state."""
    return [
        f"{member.zone}#{member.suffix}:{replica_state(status)}"
        for member, status in zip(shard.route.members, shard.status, strict=True)
    ]


def primary_of(shard: shard_pb2.ListResponse.Shard) -> str:
    """Return the holder of slot 0, with its status unless that is PRIMARY: it may still be restoring, or have
    failed.
    """
    primary = shard.route.primary
    if primary < 0 or not shard.route.members:
        return "<none>"
    return replica_texts(shard)[primary].removesuffix(":PRIMARY")
