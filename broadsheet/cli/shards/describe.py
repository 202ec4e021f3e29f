"""`shardctl shards describe`: all that is known of a shard."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.durations import format_duration
from broadsheet.cli.names import ShardId
from broadsheet.cli.options import command_options
from broadsheet.cli.output.documents import Output, OutputFormat, fields_of, print_fields
from broadsheet.cli.output.tables import print_facts, print_sections, styled_state
from broadsheet.cli.shards.selection import shard_of
from broadsheet.cli.shards.source_progress import progress_of
from broadsheet.cli.shards.state import replica_state, status_of
from broadsheet.cli.shards.troubles import print_troubles, troubles_of
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.recoverylog.hints import has_recovery_log, recovery_log_of
from broadsheet.consumer.registry.move_messages import KIND_NAMES
from broadsheet.runtime.errors import BroadsheetError
from broadsheet.wire import shard_pb2
from broadsheet.wire.allocation_pb2 import ShardMove
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ReplicaStatus

MOVES_SHOWN = 10
"""Moves that a description shows, the newest."""


@command_options
class _DescribeOptions:
    shard: ShardId
    output: Output


@cluster_command("describe", _DescribeOptions)
async def describe_shard(connection: Connection, options: _DescribeOptions) -> None:
    """Show all that is known of a shard.

    What is wrong with it, its spec, replicas, sources with lag, hints, and its last moves. What cannot be asked at the
    moment is left out, with the reason.

    \b
    Examples:
      shardctl shards describe flights-000
      shardctl shards describe flights-000 -o json | jq .sources
    """
    async with connection.shards() as client:
        listed = await shard_of(client, options.shard)
        document = await _Inquiry(connection, client, listed).document()
    if options.output is not OutputFormat.TABLE:
        print_fields(document, options.output)
        return
    print_troubles(options.shard, troubles_of(listed, datetime.now(UTC)))
    _print_shard(listed, document)


class _Inquiry:
    """The questions about one shard; those that are not answered leave a note."""

    def __init__(
        self, connection: Connection, client: ShardClient, listed: shard_pb2.ListResponse.Shard
    ) -> None:
        self._connection = connection
        self._client = client
        self._listed = listed
        self._id = listed.spec.id
        self._notes: list[str] = []

    async def document(self) -> dict[str, Any]:
        """Return the answers, as JSON has them."""
        return {
            "shard": fields_of(self._listed),
            "state": status_of(self._listed),
            "troubles": [asdict(each) for each in troubles_of(self._listed, datetime.now(UTC))],
            "replicas": await self._asked("replicas", self._replicas),
            "sources": await self._asked("sources", self._sources),
            "hints": await self._asked("hints", self._hints),
            "moves": await self._asked("moves", self._moves),
            "notes": self._notes,
        }

    async def _asked(self, what: str, ask: Any) -> list[dict[str, Any]]:  # Any: JSON's values
        try:
            rows: list[dict[str, Any]] = await ask()
        except (BroadsheetError, TimeoutError) as error:
            self._notes.append(f"{what} cannot be shown: {' '.join(str(error).split())}")
            return []
        return rows

    async def _replicas(self) -> list[dict[str, Any]]:
        async with self._connection.allocation() as allocation:
            explained = await allocation.explain(self._id)
        by_member = {
            f"{member.zone}#{member.suffix}": status
            for member, status in zip(self._listed.route.members, self._listed.status, strict=True)
        }
        self._notes += [f"waits: {wait.detail or wait.member}" for wait in explained.waits] + list(
            explained.notes
        )
        return [
            {
                "slot": replica.slot,
                "member": replica.member,
                # It came, or went, between the two questions.
                "state": replica_state(by_member.get(replica.member, ReplicaStatus())),
                "behind_bytes": replica.behind_bytes,
                "why": replica.why,
            }
            for replica in explained.replicas
        ]

    async def _sources(self) -> list[dict[str, Any]]:
        async with self._connection.journals() as journals:
            found = await progress_of(self._client, journals, self._id)
        return [{**asdict(each), "lag": each.lag} for each in found]

    async def _hints(self) -> list[dict[str, Any]]:
        if not has_recovery_log(self._listed.spec):
            return []
        answer = await self._client.get_hints(self._id)
        slots = [("primary", answer.primary_hints)]
        slots += [(f"backup {number}", each) for number, each in enumerate(answer.backup_hints)]
        return [_hints_row(name, each.hints) for name, each in slots if each.HasField("hints")]

    async def _moves(self) -> list[dict[str, Any]]:
        newest: deque[ShardMove] = deque(maxlen=MOVES_SHOWN)
        async with self._connection.allocation() as allocation:
            async for move in allocation.moves(shard_id=self._id):
                newest.append(move)
        return [
            {
                "time": move.time.ToDatetime(UTC).isoformat(timespec="milliseconds"),
                "move": KIND_NAMES.get(move.kind, str(move.kind)),
                "member": move.member,
                "slot": move.slot,
                "reason": move.reason,
                "actor": move.actor,
            }
            for move in newest
        ]


def _hints_row(name: str, hints: FSMHints) -> dict[str, Any]:
    segments = [segment for node in hints.live_nodes for segment in node.segments]
    return {
        "hints": name,
        "log": hints.log,
        "files": len(hints.live_nodes),
        "from_offset": min((segment.first_offset for segment in segments), default=0),
        "to_sequence": max((segment.last_seq_no for segment in segments), default=0),
    }


def _print_shard(listed: shard_pb2.ListResponse.Shard, document: dict[str, Any]) -> None:
    spec = listed.spec
    labels = ", ".join(f"{label.name}={label.value}" for label in spec.labels.labels)
    print_facts(
        {
            "shard": spec.id,
            "state": styled_state(document["state"]),
            "labels": labels,
            "replicas": "none: it is disabled" if spec.disable else str(1 + spec.hot_standbys),
            "transactions": _lengths(spec),
            "recovery log": recovery_log_of(spec),
            "hints": f"{spec.hint_prefix}/{spec.id}, {spec.hint_backups} backups"
            if has_recovery_log(spec)
            else "",
            "revision": f"{listed.mod_revision}, created at {listed.create_revision}",
        }
    )
    print_sections(document, ("replicas", "sources", "hints", "moves"))


def _lengths(spec: shard_pb2.ShardSpec) -> str:
    shortest = format_duration(spec.min_txn_duration) or "0s"
    return f"{shortest} to {format_duration(spec.max_txn_duration) or '0s'}"
