"""The rollback of a transaction that a dead program left open in a journal, at an operator's wish.

    read the journal ─► it is open, no shard's, and silent ─► one append at the write head that was read:
                        the rollback, and a register that refuses whatever else its producer appends

So a program that is alive gets an error at its next append, and never loses messages without a word. What shards left
is rolled back by their primaries (`broadsheet.consumer.shard.rollback`), which know whether it is committed.
"""

from __future__ import annotations

from typing import Final

import structlog

from broadsheet.allocator.keys import SEPARATOR, AuxiliaryKeys
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import prefix_range_end
from broadsheet.consumer.errors import SplitDelayedError
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.consumer.rpc.journal_messages import LIVELY_SECONDS, OPEN_SECONDS, JournalMessages
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import WrongAppendOffsetError
from broadsheet.journals.message.open_transactions import OpenTransaction
from broadsheet.journals.message.rollback import rolled_back
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.elastic_pb2 import RollBackTransactionRequest, RollBackTransactionResponse
from broadsheet.wire.labels import PUBLISHERS, PUBLISHERS_CHECKED, value_of

TRIES_MAX: Final = 10
"""Appends that are tried while others write to the journal."""

_log = structlog.get_logger()


class TransactionRollback:
    """Rolls transactions back."""

    def __init__(
        self,
        membership: LocalMember,
        journals: JournalClient,
        messages: JournalMessages,
        *,
        clock: Clock,
    ) -> None:
        """Bind to a member.

        Args:
            membership: Of this process; its etcd tells the producers of shards.
            journals: Appends.
            messages: Reads the journal.
            clock: Time.
        """
        self._etcd = membership.etcd
        self._key_space = membership.key_space
        self._prefix = AuxiliaryKeys(membership.key_space.keys.root).prefix + b"rollbacks/"
        self._journals = journals
        self._messages = messages
        self._clock = clock

    async def roll_back(self, request: RollBackTransactionRequest) -> RollBackTransactionResponse:
        """Roll a transaction back, or only tell it.

        Raises:
            ValidationError: it is not open, or must not be rolled back so; the error says why.
            JournalNotFoundError: there is no such journal.
            SplitDelayedError: the journal was written to again and again meanwhile.
            AppendOutcomeUnknownError: it is not known whether it was rolled back: ask again.
        """
        spec = (await self._journals.get(request.journal)).spec
        if value_of(spec.labels, PUBLISHERS) != PUBLISHERS_CHECKED:
            raise ValidationError(
                "journal",
                f"journal {spec.name} has no label {PUBLISHERS}={PUBLISHERS_CHECKED}: its publishers need not see "
                "that a transaction was rolled back, and would lose it without an error",
            )
        reading = None
        for _ in range(TRIES_MAX):
            reading = await self._messages.read(spec, reading)
            since = self._clock.wall_seconds() - OPEN_SECONDS
            found = [
                each for each in reading.open.since(since) if each.producer == request.producer
            ]
            await self._check(request, found)
            (transaction,) = found
            response = RollBackTransactionResponse(
                begin=transaction.begin,
                began_unix_seconds=transaction.began_unix_seconds,
                latest_unix_seconds=transaction.latest_unix_seconds,
            )
            if request.dry_run:
                return response
            # Behind what it has acknowledged before, and before its first message that is open.
            rollback = await self._messages.acknowledgement(
                spec, request.producer, transaction.first_clock - 1
            )
            try:
                appended = await self._journals.append(
                    spec.name,
                    rollback,
                    offset=reading.head,
                    union_registers=rolled_back(request.producer),
                )
            except WrongAppendOffsetError:
                continue  # It may have been acknowledged.
            response.end = appended.commit.end
            _log.warning(
                "transaction.rolled_back",
                journal=spec.name,
                producer=f"{request.producer:012x}",
                begin=transaction.begin,
            )
            return response
        raise SplitDelayedError(
            f"journal {spec.name} was written to each time that the transaction was to be rolled back: ask again"
        )

    async def _check(
        self, request: RollBackTransactionRequest, found: list[OpenTransaction]
    ) -> None:
        producer = f"{request.producer:012x}"
        if not found:
            raise ValidationError(
                "producer",
                f"producer {producer} has no transaction open in {request.journal} of the last "
                f"{OPEN_SECONDS / 3600:.0f} hours",
            )
        if shard := await self._shard_of(producer, request.journal):
            raise ValidationError(
                "producer",
                f"producer {producer} is of shard {shard}, whose primary commits it or rolls it back: look at the "
                f"shard (`shardctl shards describe {shard}`)",
            )
        silent = self._clock.wall_seconds() - found[0].latest_unix_seconds
        if silent < LIVELY_SECONDS:
            raise ValidationError(
                "producer",
                f"producer {producer} published into {request.journal} {silent:.0f} s ago: its program may be alive; "
                f"stop it, and ask again {LIVELY_SECONDS:.0f} s after its last message",
            )

    async def _shard_of(self, producer: str, journal: str) -> str:
        """Return the shard that a producer belonged to; empty: none that there is."""
        found = await self._etcd.get_range(self._prefix, prefix_range_end(self._prefix))
        for kv in found.kvs:
            key = kv.key[len(self._prefix) :].decode(errors="replace")
            shard_id, _, rest = key.partition(SEPARATOR)
            owned = rest == f"{producer}{SEPARATOR}{journal}"
            if owned and ItemId(shard_id) in self._key_space.items:
                return shard_id
        return ""
