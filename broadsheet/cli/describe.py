"""Descriptions of a shard and of a journal; what is wrong with a shard, which `shardctl explain` says first."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import click

from broadsheet.cli.connection import (
    Connection,
    complete_journals,
    complete_shards,
    connection_options,
    run_command,
)
from broadsheet.cli.output import (
    OutputFormat,
    fields_of,
    format_option,
    print_fields,
    print_table,
    styled_state,
)
from broadsheet.cli.specs_file import format_duration
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.errors import ShardNotFoundError
from broadsheet.consumer.recoverylog.hints import has_recovery_log, recovery_log_of
from broadsheet.consumer.registry.failure_kind import RAISED_AT, STALLED_STATUS
from broadsheet.consumer.registry.move_messages import KIND_NAMES
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import JournalNotFoundError
from broadsheet.journals.guard import epoch_text
from broadsheet.runtime.errors import BroadsheetError
from broadsheet.wire import shard_pb2
from broadsheet.wire.allocation_pb2 import ShardMove
from broadsheet.wire.labels import ID, label_set, selector
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ReplicaStatus

UNAVAILABLE = "UNAVAILABLE"
"""Shown in place of the code of a primary that is cut off from its brokers."""
UNKNOWN_LAG = "UNKNOWN"
"""Shown for the lag behind a journal whose write head is below what was read: it is not the one that was read."""
MOVES_SHOWN = 10
"""Moves that a description shows, the newest."""


# What is wrong with a shard, read from the statuses of its replicas. Pure.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A replica that does not do its work."""

    state: str
    """FAILED, QUARANTINED, HELD BACK, STALLED or UNAVAILABLE."""
    member: str
    """`zone#suffix`, and which replica it holds."""
    cause: str
    place: str = ""
    """`FILE:LINE in FUNCTION` of the application's code; empty if it is not in it, or not known."""
    tried: str = ""
    """How often, and at what."""
    next: str
    """What will happen by itself."""
    remedy: str
    """What an operator can do."""


_ATTEMPT = re.compile(r"attempt (?P<number>\d+) failed \((?P<kind>[^)]*)\)(?P<rest>.*)", re.DOTALL)
_NEXT_AT = re.compile(r"next at (\S+)")
_STACK_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_LIBRARY_FOLDERS = ("site-packages", "dist-packages", "/lib/python")
_REMEDIES = {
    "transient": "bring back what does not answer; the shard is tried again by itself",
    "application": "correct the code or the message, then: {retry}",
    "data loss": "restore what is lost; if it is the recovery log: shardctl shards rewind {id} --backup 0",
    "journal replaced": "restore the journal, or: shardctl shards reset-source {id} --to-offset 0",
    "fenced": "nothing: another primary has the shard",
    "spec": "change the spec: shardctl shards edit {id}",
    "held back": "look for a crash or a lack of memory in these members' logs; sooner: {retry}",
}


def troubles_of(listed: shard_pb2.ListResponse.Shard, now: datetime) -> list[Trouble]:
    """Return what is wrong with a shard, its primary's first.

    Args:
        listed: The shard, as List answers.
        now: Tells how long it takes until the next attempt.
    """
    route = listed.route
    found: list[tuple[bool, Trouble]] = []
    for index, (member, status) in enumerate(zip(route.members, listed.status, strict=True)):
        is_primary = index == route.primary
        name = f"{member.zone}#{member.suffix}, {'its primary' if is_primary else 'a standby'}"
        if status.code == ReplicaStatus.FAILED:
            trouble = _failed(listed.spec.id, name, status.errors, now)
        elif status.unavailable:
            trouble = _unavailable(name, status)
        else:
            continue
        found.append((not is_primary, trouble))
    return [trouble for _, trouble in sorted(found, key=lambda each: each[0])]


def _failed(shard_id: str, member: str, errors: Sequence[str], now: datetime) -> Trouble:
    cause = errors[0] if errors else "its status does not tell"
    if cause.startswith(STALLED_STATUS):
        return _stalled(member, cause)
    attempt = next(filter(None, map(_ATTEMPT.match, errors)), None)
    kind = attempt["kind"] if attempt is not None else ""
    rest = attempt["rest"] if attempt is not None else ""
    quarantined = "HELD BACK" if kind == "held back" else "QUARANTINED"
    retry = f"shardctl shards unassign -l id={shard_id} --failed"
    remedy = _REMEDIES.get(kind, "remove the cause, then: {retry}").format(retry=retry, id=shard_id)
    what, _, way_past = rest.partition("; to go on without it, ")
    where = what.split(";")[0]
    return Trouble(
        state=quarantined if "; QUARANTINED" in rest else "FAILED",
        member=member,
        cause=cause,
        place=next((e.removeprefix(RAISED_AT) for e in errors if e.startswith(RAISED_AT)), ""),
        tried=f"attempt {attempt['number']} failed ({kind}){where}" if attempt is not None else "",
        next=_next_of(rest, now),
        remedy=f"{way_past.split('; ')[0]}; {remedy}" if way_past else remedy,
    )


def _next_of(outlook: str, now: datetime) -> str:
    letter = (
        "the message goes to the dead-letter journal, and "
        if "dead-letter journal;" in outlook
        else ""
    )
    at = _NEXT_AT.search(outlook)
    if at is None:
        return f"{letter}it is not tried again before its spec changes, or it is assigned again"
    seconds = (datetime.fromisoformat(at[1]) - now).total_seconds()
    when = f"in {seconds:.0f} s" if seconds > 0 else "that is now"
    return f"{letter}it is tried again at {at[1]} ({when})"


def _stalled(member: str, text: str) -> Trouble:
    cause, _, stack = text.partition("; its thread is at:")
    lines = [*_STACK_LINE.finditer(stack)]
    own = [each for each in lines if not any(name in each["file"] for name in _LIBRARY_FOLDERS)]
    place = (own or lines)[-1:]
    return Trouble(
        state="STALLED",
        member=member,
        cause=cause.removeprefix(STALLED_STATUS),
        place=f"{place[0]['file']}:{place[0]['line']} in {place[0]['function']}" if place else "",
        next="it is PRIMARY again once its thread goes on; with --stall-hand-over, another member gets it before",
        remedy="end what that line waits for, or restart the member",
    )


def _unavailable(member: str, status: ReplicaStatus) -> Trouble:
    return Trouble(
        state=UNAVAILABLE,
        member=member,
        cause=status.unavailable,
        next="a standby that reaches the broker takes the shard; without one, it goes on once the broker answers",
        remedy="check the broker, and the way to it from that member: shardctl doctor",
    )


def print_troubles(shard_id: str, troubles: Sequence[Trouble]) -> None:
    """Print what is wrong, with an empty line at the end; nothing if nothing is."""
    for trouble in troubles:
        click.echo(f"{styled_state(trouble.state)}: {shard_id} on {trouble.member}")
        for title, text in (
            ("cause", trouble.cause),
            ("in your code", trouble.place),
            ("so far", trouble.tried),
            ("next", trouble.next),
            ("do", trouble.remedy),
        ):
            if text:
                click.echo(f"  {title:<13} {text}")
        click.echo()


def status_of(shard: shard_pb2.ListResponse.Shard) -> str:
    """Return the state of a shard: that of its most advanced replica, FAILED before all."""
    if shard.spec.disable:
        return "DISABLED"
    code = max((status.code for status in shard.status), default=None)
    if code is None:
        return "UNASSIGNED"
    if code != ReplicaStatus.FAILED and any(each.unavailable for each in shard.status):
        return UNAVAILABLE
    return ReplicaStatus.Code.Name(code)


def replica_state(status: ReplicaStatus) -> str:
    """Return the state of a replica."""
    if status.unavailable and status.code != ReplicaStatus.FAILED:
        return UNAVAILABLE
    return ReplicaStatus.Code.Name(status.code)


# Progress in the sources, from the shard's primary and the brokers.


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """The progress of a shard in one of its sources."""

    journal: str
    read_through: int
    """Bytes."""
    write_head: int | None
    """Bytes; None: the journal is gone, or was replaced by a shorter one."""

    @property
    def lag(self) -> int | None:
        """Unread bytes; None if the head is of another journal than the one that was read."""
        if self.write_head is None or self.write_head < self.read_through:
            return None
        return self.write_head - self.read_through

    @property
    def lag_text(self) -> str:
        """The same for people."""
        return UNKNOWN_LAG if self.lag is None else str(self.lag)


async def progress_of(
    client: ShardClient, journals: JournalClient, shard_id: str
) -> list[SourceProgress]:
    """Ask a shard's primary, and the brokers, how far it has read its sources; ascending by journal.

    Raises:
        ServiceError: it has no primary, or no broker answers.
        TimeoutError: the primary does not answer.
    """
    found = []
    for journal, offset in sorted((await client.stat(shard_id)).read_through.items()):
        try:
            head: int | None = await journals.write_head(journal.partition(";")[0])
        except JournalNotFoundError:
            head = None
        found.append(SourceProgress(journal, offset, head))
    return found


async def shard_of(client: ShardClient, shard_id: str) -> shard_pb2.ListResponse.Shard:
    """Return one listed shard.

    Raises:
        ShardNotFoundError: there is no such shard.
    """
    listing = await client.list(selector(label_set((ID, shard_id))))
    if not listing.shards:
        raise ShardNotFoundError(shard_id)
    return listing.shards[0]


# The descriptions.


@click.command("describe")
@click.argument("shard", shell_complete=complete_shards)
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
@connection_options
def describe_shard(connection: Connection, shard: str, output: str) -> None:
    """Show all that is known of a shard.

    What is wrong with it, its spec, replicas, sources with lag, hints, and its last moves. What cannot be asked at the
    moment is left out, with the reason.

    \b
    Examples:
      shardctl shards describe flights-000
      shardctl shards describe flights-000 -o json | jq .sources
    """

    async def work() -> None:
        async with connection.shards() as client:
            listed = await shard_of(client, shard)
            document = await _Inquiry(connection, client, listed).document()
        if output != OutputFormat.TABLE.value:
            print_fields(document, OutputFormat(output))
            return
        print_troubles(shard, troubles_of(listed, datetime.now(UTC)))
        _print_shard(listed, document)

    run_command(work())


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
    _print_facts(
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
    _print_sections(document, ("replicas", "sources", "hints", "moves"))


def _lengths(spec: shard_pb2.ShardSpec) -> str:
    shortest = format_duration(spec.min_txn_duration) or "0s"
    return f"{shortest} to {format_duration(spec.max_txn_duration) or '0s'}"


def _print_facts(facts: dict[str, str]) -> None:
    for name, value in facts.items():
        if value:
            click.echo(f"{name:<14}{value}")


def _print_sections(document: dict[str, Any], names: Sequence[str]) -> None:
    for name in names:
        rows = document[name]
        if rows:
            click.echo()
            click.secho(name.upper(), bold=True)
            columns = [column.upper().replace("_", " ") for column in rows[0]]
            print_table(columns, [[*map(_cell, row.values())] for row in rows])
    if document["notes"]:
        click.echo()
    for note in document["notes"]:
        click.echo(f"note: {note}")


def _cell(value: object) -> str:
    return UNKNOWN_LAG if value is None else str(value)


@click.command("describe")
@click.argument("journal", shell_complete=complete_journals)
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
@connection_options
def describe_journal(connection: Connection, journal: str, output: str) -> None:
    """Show all that is known of a journal.

    Its spec, where it is served, how much it holds, and which shards read it or record into it. What cannot be asked
    at the moment is left out, with the reason.

    \b
    Examples:
      shardctl journals describe flights/part-000
      shardctl journals describe flights/part-000 -o yaml
    """

    async def work() -> None:
        async with connection.journals() as client:
            document = await _journal_document(connection, client, journal)
        if output != OutputFormat.TABLE.value:
            print_fields(document, OutputFormat(output))
            return
        _print_journal(document)

    run_command(work())


async def _journal_document(
    connection: Connection, client: JournalClient, name: str
) -> dict[str, Any]:
    listed = await client.get(name)
    notes: list[str] = []
    content: dict[str, Any] = {}
    users: list[dict[str, Any]] = []
    try:
        present = await client.present(name)
        fragments = [each.spec for each in await client.list_fragments(name)]
        content = {
            "begin": min((each.begin for each in fragments), default=present.write_head),
            "write_head": present.write_head,
            "fragments": len(fragments),
            "persisted": sum(each.mod_time > 0 for each in fragments),
            "epoch": epoch_text(present.epoch),
        }
    except (BroadsheetError, TimeoutError) as error:
        notes.append(f"its content cannot be shown: {' '.join(str(error).split())}")
    try:
        async with connection.shards() as shards:
            users = [*_users((await shards.list()).shards, listed.spec.name)]
    except (BroadsheetError, TimeoutError) as error:
        notes.append(f"shards that use it cannot be shown: {' '.join(str(error).split())}")
    return {"journal": fields_of(listed), "content": content, "shards": users, "notes": notes}


def _users(
    listed: Sequence[shard_pb2.ListResponse.Shard], journal: str
) -> Iterator[dict[str, Any]]:
    for shard in listed:
        sources = {source.journal.partition(";")[0] for source in shard.spec.sources}
        uses = ["reads it"] if journal in sources else []
        uses += ["records into it"] if recovery_log_of(shard.spec) == journal else []
        for use in uses:
            yield {"shard": shard.spec.id, "state": status_of(shard), "use": use}


def _print_journal(document: dict[str, Any]) -> None:
    spec = document["journal"]["spec"]
    route = document["journal"].get("route", {})
    members = [f"{each['zone']}#{each['suffix']}" for each in route.get("members", ())]
    fragment, suspend = spec.get("fragment", {}), spec.get("suspend", {})
    content = document["content"]
    labels = spec.get("labels", {}).get("labels", ())
    _print_facts(
        {
            "journal": spec["name"],
            "labels": ", ".join(f"{label['name']}={label['value']}" for label in labels),
            "replication": str(spec["replication"]),
            "served by": ", ".join(members) or "nobody",
            "suspended": ""
            if suspend.get("level", "NONE") == "NONE"
            else f"{suspend['level']} at offset {suspend['offset']}",
            "fragments of": f"{fragment.get('length', 0)} bytes, {fragment.get('compression_codec', '')}",
            "stores": ", ".join(fragment.get("stores", ())),
            "retention": fragment.get("retention", ""),
            "content": f"[{content['begin']}, {content['write_head']}) in {content['fragments']} fragments, "
            f"{content['persisted']} of them persisted"
            if content
            else "",
            "epoch": content.get("epoch", ""),
            "revision": f"{document['journal']['mod_revision']}, created at {document['journal']['create_revision']}",
        }
    )
    _print_sections(document, ("shards",))
