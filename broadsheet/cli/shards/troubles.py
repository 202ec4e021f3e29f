"""Troubles of a shard, read from the statuses of its replicas: causes, places in the code, and remedies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import click

from broadsheet.cli.output.tables import styled_state
from broadsheet.cli.shards.state import UNAVAILABLE
from broadsheet.consumer.registry.failure_kind import RAISED_AT, STALLED_STATUS
from broadsheet.wire import shard_pb2
from broadsheet.wire.shard_pb2 import ReplicaStatus


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
