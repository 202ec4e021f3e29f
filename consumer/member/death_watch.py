"""Has the oldest member record which primaries died young, as the key space shows it."""

from __future__ import annotations

import structlog

from allocator.core.model import Member, MemberId
from allocator.core.shedding import leadership_order
from allocator.errors import EtcdError
from allocator.key_space import KeySpace
from allocator.runtime.clock import Clock
from allocator.runtime.task_group import TaskGroup
from consumer.core.young_deaths import Life, YoungDeath, YoungDeaths
from consumer.key_space import PRIMARY_SLOT
from consumer.shard.death_records import DeathRecords

_log = structlog.get_logger()


class DeathWatch:
    """Observes the key space; register `look` as its observer."""

    def __init__(
        self,
        key_space: KeySpace,
        records: DeathRecords,
        *,
        member_id: MemberId,
        young_seconds: float,
        clock: Clock,
        group: TaskGroup,
    ) -> None:
        """Bind the watch.

        Args:
            key_space: What is observed.
            records: Where deaths are recorded.
            member_id: This process; it records only while it is the oldest, so that one does.
            young_seconds: A primary that served for so long is not suspected.
            clock: Tells when.
            group: Runs the writes.
        """
        self._key_space = key_space
        self._records = records
        self._member_id = member_id
        self._deaths = YoungDeaths(young_seconds=young_seconds)
        self._clock = clock
        self._group = group

    def look(self) -> None:
        """Take in what changed; in time proportional to that."""
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
            self._group.start_soon(self._record(deaths), name="record young deaths")

    def _is_oldest(self) -> bool:
        oldest = next(iter(leadership_order(self._key_space.members.values())), None)
        return oldest is not None and oldest.member_id == self._member_id

    async def _record(self, deaths: tuple[YoungDeath, ...]) -> None:
        for death in deaths:
            try:
                await self._records.add(death)
            except EtcdError as error:
                # A death not counted delays the hold by one more; nothing relies on the count being exact.
                _log.warning("shard.death_not_recorded", shard=death.item_id, cause=str(error))


def _life_of(member: Member | None) -> Life | None:
    return None if member is None else Life(member.kv.create_revision, member.value.is_exiting())
