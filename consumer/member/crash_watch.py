"""Lets the oldest member record primaries that died young, as the key space shows it.

The key space shows that a member's lease ended, which a network partition and a frozen process cause as well. Only the
death of the process may count against the shards that it served: its port refuses connections, or another member
already has the port. A host that does not answer proves nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.model import Member, MemberId
from broadsheet.allocator.state.alloc_state import leadership_order
from broadsheet.consumer.registry.key_space import PRIMARY_SLOT, process_of
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.consumer.shard.crash_loop import CrashHistory, CrashLoop, Life, YoungDeath
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.endpoints import parse_endpoint

PROBE_SECONDS_MAX = 1.0
"""Longest wait for a connection to a member whose lease ended."""

_log = structlog.get_logger()


class CrashWatch:
    """Crash watch of one member; register `look` as an observer of the key space."""

    def __init__(
        self,
        membership: LocalMember,
        records: CrashHistory,
        *,
        young_seconds: float,
        clock: Clock,
        group: TaskGroup,
    ) -> None:
        """Bind the watch.

        Args:
            membership: Of this process, which records only while it is the oldest, so that one does.
            records: Where deaths are recorded.
            young_seconds: A primary that served for so long is not suspected.
            clock: Tells when.
            group: Runs the writes.
        """
        self._key_space = membership.key_space
        self._records = records
        self._member_id = membership.member_id
        self._deaths = CrashLoop(young_seconds=young_seconds)
        self._endpoints: dict[MemberId, str] = {}
        """Where each member is, or was when its lease ended just now."""
        self._clock = clock
        self._group = group

    def look(self) -> None:
        """Process a change, in time proportional to its size."""
        key_space, changes = self._key_space, self._key_space.changes
        members = {
            member_id: _life_of(key_space.members.get(member_id)) for member_id in changes.members
        }
        died = self._deaths.on_members(members)
        primaries = {
            item_id: next(
                (a.member_id for a in key_space.assignments_of(item_id) if a.slot == PRIMARY_SLOT),
                None,
            )
            for item_id in {key.item_id for key in changes.assignments if key.slot == PRIMARY_SLOT}
        }
        deaths = self._deaths.on_primaries(
            primaries, died=died, now_monotonic_seconds=self._clock.monotonic_seconds()
        )
        if deaths and self._is_oldest():
            endpoints = {
                each.member_id: self._endpoints[each.member_id]
                for each in deaths
                if each.member_id in self._endpoints
            }
            record = self._record_certain(deaths, endpoints)
            self._group.start_soon(record, name="record young deaths")
        self._note_endpoints()

    def _note_endpoints(self) -> None:
        for member_id in self._key_space.changes.members:
            member = self._key_space.members.get(member_id)
            if member is None:
                self._endpoints.pop(member_id, None)
            else:
                self._endpoints[member_id] = process_of(member).process_spec.endpoint

    def _is_oldest(self) -> bool:
        oldest = next(iter(leadership_order(self._key_space.members.values())), None)
        return oldest is not None and oldest.member_id == self._member_id

    async def _record_certain(
        self, deaths: tuple[YoungDeath, ...], endpoints: Mapping[MemberId, str]
    ) -> None:
        """Record the deaths of members whose processes have ended; otherwise a partition or a pause ended the
        lease.
        """
        gone = {
            member_id: await self._is_gone(endpoint) for member_id, endpoint in endpoints.items()
        }
        await self._record(tuple(death for death in deaths if gone.get(death.member_id)))
        for member_id in (each for each, is_gone in gone.items() if not is_gone):
            _log.info(
                "shard.death_not_counted", member=str(member_id), cause="its process may live"
            )

    async def _is_gone(self, endpoint: str) -> bool:
        if endpoint in self._endpoints.values():
            return True  # A port has one process: the next life already has it.
        return await refuses_connections(endpoint)

    async def _record(self, deaths: tuple[YoungDeath, ...]) -> None:
        for death in deaths:
            try:
                await self._records.add(death)
            except EtcdError as error:
                # A death that is not counted delays the hold by one more; no decision needs an
                # exact count.
                _log.warning("shard.death_not_recorded", shard=death.item_id, cause=str(error))


async def refuses_connections(endpoint: str) -> bool:
    """Return whether an endpoint's host refuses connections; False also if it does not answer."""
    host, _, port = parse_endpoint(endpoint, may_be_tls=True).address.rpartition(":")
    try:
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError, UnicodeError, ValueError):
        return False
    writer.close()
    return False


def _life_of(member: Member | None) -> Life | None:
    return None if member is None else Life(member.kv.create_revision, member.value.is_exiting())
