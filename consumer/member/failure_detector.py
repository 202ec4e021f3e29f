"""Detects at once that a peer's process has ended, and ends its lease, so that fail-over need not wait for it.

A connection to the peer's port is held open. When it breaks, and the port then *refuses* connections, the machine is
up but no process listens: the process has ended. A pause, a partition or a lost machine refuses nothing: those are
detected by `broadsheet.consumer.member.silence_watch`, or by the lease's expiry. A peer that has told etcd that it
leaves ends its lease itself. A wrong verdict is harmless: a primary that still lives is fenced by its successor.

A port that was never open proves nothing by refusing: its address may be unreachable from here. A peer that dies
before this member has connected to it, as within the moment in which this member starts, therefore waits for its
lease, unless its other watcher has connected; `peer.watched` in the log marks the end of that time.

    hold ──broken──► connect ──accepted──► hold
                        ├──── refused, twice ─► revoke the lease
                        └──── no answer ──────► try again, rarely
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

import structlog
from google.protobuf.message import DecodeError
from prometheus_client import CollectorRegistry

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.model import Member, MemberId
from broadsheet.allocator.ops import LeaseId
from broadsheet.consumer.member.accrual import SUSPICION_PHI
from broadsheet.consumer.member.metrics import PeerMetrics
from broadsheet.consumer.member.silence_watch import HeartbeatListener, SilenceWatch, WitnessPanel
from broadsheet.consumer.registry.key_space import process_of
from broadsheet.consumer.resolver.hearing import Hearing
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.endpoints import parse_endpoint
from broadsheet.wire.shard_pb2 import ConsumerSpec

CONNECT_SECONDS_MAX = 2.0
HELD_SECONDS_MIN = 1.0
"""A connection that broke sooner is not opened again at once: a server may disconnect every client."""
REFUSALS = 2
"""Refusals in a row that are believed."""
REFUSAL_PAUSE_SECONDS = 0.02
RECONNECT_SECONDS_MAX = 5.0
_log = structlog.get_logger()
_Life = tuple[MemberId, int]
"""A member and the revision that created it."""

WATCHED_PER_MEMBER = 2
"""Two witnesses for each: if one dies together with the member that it watches, the other is left."""


def watched_by(member_id: MemberId, members: Iterable[MemberId]) -> tuple[MemberId, ...]:
    """Return the members that `member_id` watches: the next few in the order of ids, around the end.

    So everyone in the ring is watched, and the number of connections stays small.
    """
    others = sorted(other for other in members if other != member_id)
    after = [other for other in others if other > member_id]
    ring = after + others[: len(others) - len(after)]
    return tuple(ring[:WATCHED_PER_MEMBER])


class _Outcome(Enum):
    REFUSED = "refused"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class _Address:
    host: str
    port: int


class FailureDetector:
    """Watches the next members in the ring. `run` until cancelled."""

    def __init__(
        self,
        membership: LocalMember,
        *,
        clock: Clock,
        registry: CollectorRegistry,
        hearing: Hearing | None = None,
        suspicion_phi: float = SUSPICION_PHI,
    ) -> None:
        """Bind the detector; nothing is connected yet.

        Args:
            membership: Of this process; register `look` as an observer of its key space.
            clock: Tells how long connections last.
            registry: Of Prometheus metrics.
            hearing: Hears peers beat; without it none is suspected because it is silent.
            suspicion_phi: How sure to be that a silent peer will beat no more before others are asked; 0: none is.
        """
        self._etcd = membership.etcd
        self._key_space = membership.key_space
        self._member_id = membership.member_id
        self._clock = clock
        self._hearing = hearing
        self._suspicion_phi = suspicion_phi
        self._changed = asyncio.Event()
        self._changed.set()
        self._metrics = PeerMetrics(registry)

    def look(self) -> None:
        """Record that members have changed."""
        if self._key_space.changes.members:
            self._changed.set()

    async def run(self) -> None:
        """Watch the present members of the ring, until cancelled."""
        async with TaskGroup() as group:
            watches: dict[_Life, list[asyncio.Task[None]]] = {}
            while True:
                await self._changed.wait()
                self._changed.clear()
                wanted = self._wanted()
                for life in watches.keys() - wanted.keys():
                    for task in watches.pop(life):
                        task.cancel()
                for life in wanted.keys() - watches.keys():
                    watches[life] = [
                        group.start_soon(watch, name=f"watch {life[0]}")
                        for watch in self._watches(wanted[life])
                    ]

    def _wanted(self) -> dict[_Life, Member]:
        # A leaving peer ends its lease itself, and its server does not stop before our connection
        # is closed.
        members = {
            member_id: member
            for member_id, member in self._key_space.members.items()
            if not member.value.is_exiting()
        }
        watched = (members[member_id] for member_id in watched_by(self._member_id, members))
        return {_life(member): member for member in watched}

    def _watches(self, member: Member) -> list[Coroutine[Any, Any, None]]:
        try:
            parse_endpoint(process_of(member).process_spec.endpoint, may_be_tls=True)
        except ValidationError as error:
            # Any writer to etcd may register an unusable endpoint; that must not end this watch.
            _log.warning("peer.unwatchable", member=str(member.member_id), cause=str(error))
            return []
        watches = [self._watch(member)]
        if self._hearing is not None and self._suspicion_phi:
            silence = SilenceWatch(
                HeartbeatListener(
                    member, self._hearing, threshold=self._suspicion_phi, clock=self._clock
                ),
                WitnessPanel(self._hearing, self._witnesses),
                self._etcd,
                revoke=lambda: self._revoke(member, silent=True),
                on_suspected=self._metrics.suspected.inc,
            )
            watches.append(silence.run())
        return watches

    def _witnesses(self, suspect: MemberId) -> list[Member]:
        """Return the members that can be asked about a suspect."""
        return [
            member
            for member_id, member in self._key_space.members.items()
            if member_id not in (self._member_id, suspect) and not member.value.is_exiting()
        ]

    async def _watch(self, member: Member) -> None:
        try:
            address = _address_of(member)
        except (ValidationError, ValueError) as error:
            _log.warning("peer.unwatchable", member=str(member.member_id), cause=str(error))
            return
        backoff = Backoff(max_seconds=RECONNECT_SECONDS_MAX)
        refusals, was_connected = 0, False
        while True:
            opened = await _open(address)
            if isinstance(opened, _Held):
                if not was_connected:
                    _log.info("peer.watched", member=str(member.member_id))
                # From here on only this address of the name counts: a refusal by another one would
                # prove nothing.
                address, refusals, was_connected = opened.address, 0, True
                began = self._clock.monotonic_seconds()
                with self._metrics.held.track_inprogress():
                    await opened.broken()
                if self._clock.monotonic_seconds() - began > HELD_SECONDS_MIN:
                    backoff.reset()
                else:
                    await backoff.sleep()
                continue
            refusals = refusals + 1 if opened is _Outcome.REFUSED else 0
            if was_connected and 0 < refusals < REFUSALS:
                await asyncio.sleep(REFUSAL_PAUSE_SECONDS)
                continue
            if was_connected and refusals >= REFUSALS and await self._revoke(member):
                return
            await backoff.sleep()

    async def _revoke(self, member: Member, *, silent: bool = False) -> bool:
        """End a dead or silent peer's lease; False if it must be tried again, or must not be ended."""
        try:
            now = await self._etcd.get_range(member.kv.key)
            if not now.kvs or now.kvs[0].create_revision != member.kv.create_revision:
                return True
            if _is_exiting(now.kvs[0].value):
                # A leaving peer closes its port before its shards are torn down, and ends its lease
                # itself. Etcd is asked whether it leaves, because our mirror may show that a moment
                # later than its port closes.
                return False
            await self._etcd.lease_revoke(LeaseId(member.kv.lease))
        except EtcdError as error:
            _log.warning("peer.not_revoked", member=str(member.member_id), cause=str(error))
            return False
        except asyncio.CancelledError:
            # The mirror showed that the peer has left, and ended this watch, before etcd's answer
            # came.
            if member.member_id not in self._key_space.members:
                self._tell_found_dead(member, silent=silent)
            raise
        self._tell_found_dead(member, silent=silent)
        return True

    def _tell_found_dead(self, member: Member, *, silent: bool) -> None:
        (self._metrics.silenced if silent else self._metrics.revoked).inc()
        event = "peer.found_silent" if silent else "peer.found_dead"
        _log.warning(event, member=str(member.member_id), lease=f"{member.kv.lease:x}")


@dataclass(frozen=True, slots=True)
class _Held:
    """An open connection."""

    address: _Address
    """Of the machine that it leads to; names may lead to several."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def broken(self) -> None:
        """Return once the connection breaks."""
        try:
            # The server's data is ignored; it also disconnects a silent client after some minutes.
            while await self.reader.read(1024):
                pass
        except OSError:
            pass
        finally:
            self.writer.close()
            with suppress(OSError):
                await self.writer.wait_closed()


async def _open(address: _Address) -> _Held | _Outcome:
    """Connect, or return the kind of failure."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(address.host, address.port)
    except ConnectionRefusedError:
        return _Outcome.REFUSED
    except (OSError, TimeoutError, UnicodeError):  # The last: a name that cannot be resolved.
        return _Outcome.SILENT
    # Absent if it is broken already.
    peer = writer.get_extra_info("peername")
    return _Held(address if peer is None else _Address(*peer[:2]), reader, writer)


def _is_exiting(value: bytes) -> bool:
    """Return whether a member is leaving; a member with an unreadable spec is treated as leaving."""
    try:
        return ConsumerSpec.FromString(value).exiting
    except DecodeError:
        return True


def _life(member: Member) -> _Life:
    """Return an identity that distinguishes a member from its successor of the same name."""
    return member.member_id, member.kv.create_revision


def _address_of(member: Member) -> _Address:
    target = parse_endpoint(process_of(member).process_spec.endpoint, may_be_tls=True).address
    host, _, port = target.rpartition(":")
    return _Address(host.strip("[]"), int(port))
