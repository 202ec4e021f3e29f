"""What an application does with the replicas assigned to it: each catches up after a while, or fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random

from allocator.errors import EtcdRequestError, EtcdUnavailableError
from allocator.etcd.api import Etcd
from allocator.key_space import KeySpace
from allocator.model import Assignment, ItemId, MemberId
from allocator.ops import Compare, Put
from allocator.simulation.values import CONSISTENT, FAILED


class Replicas:
    """Reports the state of one member's replicas."""

    def __init__(
        self,
        etcd: Etcd,
        key_space: KeySpace,
        member_id: MemberId,
        *,
        catch_up_seconds: tuple[float, float],
        is_cursed: Callable[[ItemId, MemberId], bool],
        random: Random,
    ) -> None:
        """Prepare.

        Args:
            etcd: Where to report.
            key_space: Shows what is assigned.
            member_id: The member.
            catch_up_seconds: Bounds of the time from one state to the next.
            is_cursed: Tells which replicas fail instead.
            random: Source of delays.
        """
        self._etcd = etcd
        self._key_space = key_space
        self._member_id = member_id
        self._catch_up_seconds = catch_up_seconds
        self._is_cursed = is_cursed
        self._random = random
        self._due_seconds: dict[ItemId, float] = {}

    async def run(self) -> None:
        """Report for ever."""
        while True:
            seen = self._key_space.header.revision
            pending = self._pending()
            now = asyncio.get_running_loop().time()
            for item_id, assignment in pending.items():
                if self._due_seconds[item_id] <= now:
                    await self._report(assignment)
                    self._due_seconds[item_id] = now + self._draw_seconds()
            first_due = min(self._due_seconds.values(), default=now + 60.0)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.01, min(5.0, first_due - now))):
                    await self._key_space.wait_for_update(after_revision=seen)

    def _pending(self) -> dict[ItemId, Assignment]:
        """Return replicas that are to say something else, and give each new one its time."""
        now = asyncio.get_running_loop().time()
        pending = {
            assignment.item_id: assignment
            for assignment in self._key_space.assignments.values()
            if assignment.member_id == self._member_id
            and assignment.kv.value != self._word(assignment)
        }
        self._due_seconds = {
            item_id: self._due_seconds.get(item_id, now + self._draw_seconds())
            for item_id in pending
        }
        return pending

    def _word(self, assignment: Assignment) -> bytes:
        cursed = self._is_cursed(assignment.item_id, assignment.member_id)
        return FAILED if cursed else CONSISTENT

    async def _report(self, assignment: Assignment) -> None:
        kv = assignment.kv
        with suppress(EtcdUnavailableError, EtcdRequestError):
            await self._etcd.txn(
                (Compare.mod_revision(kv.key, kv.mod_revision),),
                (Put(kv.key, self._word(assignment), ignore_lease=True),),
            )

    def _draw_seconds(self) -> float:
        return self._random.uniform(*self._catch_up_seconds)
