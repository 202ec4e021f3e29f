"""Writes, prunes and reads the move log of one root (`broadsheet.allocator.leader.move_records`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.keys import AuxiliaryKeys, Keys
from broadsheet.allocator.leader.move_records import (
    Cause,
    DecisionRecord,
    MoveLogEntry,
    encoded,
    entry_key,
    first_key,
    keys_to_prune,
    moves_of,
)
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.ops import Compare, Delete, KeyValue, Put, TxnCheckpoint, prefix_range_end
from broadsheet.allocator.policy import MoveLogPolicy
from broadsheet.runtime.clock import Clock

PRUNE_ENTRIES = 256
"""Entries written between two clean-ups, because each reads the whole log."""
PRUNE_SECONDS = 3600.0
"""Longest time between two clean-ups, so that old entries are removed even if nothing moves."""

_log = structlog.get_logger()


class MoveLog:
    """The move log, as one member uses it; only the leader prunes."""

    def __init__(
        self,
        etcd: Etcd,
        keys: Keys,
        *,
        member_id: MemberId,
        policy: MoveLogPolicy,
        clock: Clock,
    ) -> None:
        """Prepare the log.

        Args:
            etcd: Where the log is stored.
            keys: The syntax of the root.
            member_id: The member whose transactions are logged.
            policy: The retention.
            clock: Time of the entries.
        """
        self._etcd = etcd
        self._root_keys = keys
        self._keys = AuxiliaryKeys(keys.root)
        self._writer = str(member_id)
        self._policy = policy
        self._clock = clock
        self._written = 0
        self._unpruned = 0
        """Entries since the last clean-up."""
        self._pruned_at_monotonic_seconds = clock.monotonic_seconds()

    @property
    def is_kept(self) -> bool:
        """True if moves are logged at all."""
        return self._policy.entries_max > 0

    def note(
        self,
        checkpoints: Sequence[TxnCheckpoint],
        *,
        reasons: Mapping[str, str],
        cause: Cause,
        epoch: int = 0,
    ) -> Put | None:
        """Return the additional write that logs a transaction; None if the transaction moves nothing.

        Args:
            checkpoints: The parts of the transaction.
            reasons: The reasons, by the checkpoints' subjects.
            cause: The origin of the moves.
            epoch: The number of the leadership that writes; 0: none.
        """
        if not self.is_kept:
            return None
        moves = tuple(
            move
            for each in checkpoints
            for move in moves_of(each.operations, self._root_keys, reasons.get(each.subject, ""))
        )
        if not moves:
            return None
        return self._put(
            MoveLogEntry(
                at_milliseconds=self._now_milliseconds(),
                writer=self._writer,
                epoch=epoch,
                actor=cause.actor,
                plan_id=cause.plan_id,
                moves=moves,
            )
        )

    def note_decision(self, decision: DecisionRecord, *, epoch: int) -> Put | None:
        """Return the write that logs a decision; None if nothing is logged.

        Args:
            decision: To log.
            epoch: The number of the leadership that decides.
        """
        if not self.is_kept:
            return None
        return self._put(
            MoveLogEntry(
                at_milliseconds=self._now_milliseconds(),
                writer=self._writer,
                epoch=epoch,
                moves=(),
                decision=decision,
            )
        )

    def _now_milliseconds(self) -> int:
        return int(self._clock.wall_seconds() * 1000)

    def _put(self, entry: MoveLogEntry) -> Put:
        # Counted even if the transaction is refused, because the number need only be unique.
        self._written += 1
        self._unpruned += 1
        return Put(entry_key(self._keys, entry, number=self._written), encoded(entry))

    async def prune_if_due(self, fence: tuple[Compare, ...]) -> None:
        """Remove entries that are too old or too many, if pruning is due. A failure is only logged.

        Args:
            fence: The comparisons of the leader's writes.
        """
        now = self._clock.monotonic_seconds()
        is_old = now - self._pruned_at_monotonic_seconds >= PRUNE_SECONDS
        if not self.is_kept or not (is_old or self._unpruned >= PRUNE_ENTRIES):
            return
        # Before the attempt, so that a failure is not repeated in every round.
        self._unpruned, self._pruned_at_monotonic_seconds = 0, now
        try:
            removed = await self._prune(fence)
        except EtcdError as error:
            _log.warning("move_log.prune_failed", cause=str(error))
            return
        if removed:
            _log.info("move_log.pruned", entries=removed)

    def is_key(self, key: bytes) -> bool:
        """Return whether a key is one of the log's."""
        return key.startswith(self._keys.moves_prefix)

    async def entries(
        self, *, after: bytes = b"", since_milliseconds: int = 0
    ) -> tuple[KeyValue, ...]:
        """Return the log's entries as they are stored, oldest first.

        Args:
            after: A key; only later ones are returned.
            since_milliseconds: Since the Unix epoch; only entries written then or later are returned.
        """
        prefix = self._keys.moves_prefix
        begin = max(
            after + b"\0" if after else prefix,
            first_key(self._keys, since_milliseconds) if since_milliseconds > 0 else prefix,
        )
        found = await self._etcd.get_range(begin, prefix_range_end(prefix))
        return found.kvs

    async def _prune(self, fence: tuple[Compare, ...]) -> int:
        prefix = self._keys.moves_prefix
        found = await self._etcd.get_range(prefix, prefix_range_end(prefix))
        oldest = self._clock.wall_seconds() - self._policy.age_seconds_max
        doomed = keys_to_prune(
            found.kvs,
            entries_max=self._policy.entries_max,
            oldest_milliseconds=int(oldest * 1000),
        )
        if not doomed:
            return 0
        # The deleted entries are the first ones.
        await self._etcd.txn(fence, (Delete(doomed[0], doomed[-1] + b"\0"),))
        return len(doomed)
