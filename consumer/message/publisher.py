"""Write messages so that readers see them exactly once.

A publisher stamps, encodes and frames messages into buffers, and remembers which journals it touched; it does no I/O.
Its owner drains the buffers in order (`take_appends`), and at the end of a transaction takes the acknowledgements
(`build_ack_intents`): those are made durable with the transaction, then appended. Until then no reader that respects
transactions sees the transaction's messages.

One thread at a time. UUIDs are minted in the order of each journal's buffer, so clocks only grow within a journal.

Source: gazette/core message/publisher.go (PublishUncommitted, PublishCommitted, BuildAckIntents).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from allocator.errors import ValidationError
from consumer.errors import ContentTypeError, PublishError
from consumer.message.batch import MessageType
from consumer.message.clock import MessageClock
from consumer.message.framing import Framing, framing_for
from consumer.message.mapping import MappedJournal, Mapping
from consumer.message.rollback import Rollback
from consumer.message.uuid import Flags, build_uuid
from consumer.protocol.alphabet import validate_journal


@dataclass(frozen=True, slots=True)
class PendingAppend:
    """Framed messages that await their append to one journal."""

    journal: str
    content: list[bytes]
    """Whole frames, in order."""


@dataclass(frozen=True, slots=True)
class AckIntent:
    """A framed acknowledgement: append exactly this once its transaction is durable, as often as it takes."""

    journal: str
    content: bytes


@dataclass(frozen=True, slots=True)
class _Target:
    """A journal that holds uncommitted messages, and how to acknowledge them there."""

    mapped: MappedJournal
    message_type: MessageType
    first_clock: int
    """Of the first message."""


class Publisher:
    """Stamps, encodes and frames messages; knows what must be acknowledged."""

    def __init__(self, clock: MessageClock, producer_id: int) -> None:
        """Start with nothing published.

        Args:
            clock: Shared by what publishes for one shard; its owner moves it on with wall time.
            producer_id: 48 bits, as `new_producer_id` returns; never used by another publisher.
        """
        self._clock = clock
        self._producer_id = producer_id
        self._content_by_journal: dict[str, list[bytes]] = {}
        self._uncommitted: dict[str, _Target] = {}
        self._touched: set[str] = set()
        self._newly_touched: list[_Target] = []

    @property
    def producer_id(self) -> int:
        """The 48-bit id in every UUID of this publisher."""
        return self._producer_id

    def publish_uncommitted(
        self, mapping: Mapping | MappedJournal, message: Any, message_type: MessageType
    ) -> None:
        """Publish a message that becomes visible when the current transaction commits.

        Args:
            mapping: The journal, or a function of the message that chooses it.
            message: Is stamped with its UUID. If it has a method `validate()`, that is called first.
            message_type: How the message is encoded; its content type must be the journal's.

        Raises:
            PublishError: the message cannot be encoded.
            ContentTypeError: the journal's content type is not the message's, or has no framing.
            NoPartitionsError: the mapping has no journal to choose.
        """
        mapped = self._publish(mapping, message, message_type, Flags.CONTINUE_TXN)
        if mapped.journal not in self._uncommitted:
            target = _Target(mapped, message_type, self._clock.value)
            self._uncommitted[mapped.journal] = target
            if mapped.journal not in self._touched:
                self._touched.add(mapped.journal)
                self._newly_touched.append(target)

    def publish_committed(
        self, mapping: Mapping | MappedJournal, message: Any, message_type: MessageType
    ) -> None:
        """Publish a message that is visible as soon as it is appended, whatever becomes of the transaction.

        Within a shard this is at least once: a transaction that is run again publishes it again.
        Arguments and errors are those of `publish_uncommitted`.

        Raises:
            PublishError: the journal holds uncommitted messages of this transaction, which readers would discard.
        """
        self._publish(mapping, message, message_type, Flags.OUTSIDE_TXN)

    def take_appends(self) -> list[PendingAppend]:
        """Return what was published since the last call, a list a journal, journals in order of first use."""
        appends = [
            PendingAppend(journal, content) for journal, content in self._content_by_journal.items()
        ]
        self._content_by_journal = {}
        return appends

    def take_rollbacks(self) -> list[Rollback]:
        """Return a rollback of each journal that took its first uncommitted message since the last call.

        Whoever may die between the append and the acknowledgement keeps it somewhere before the append.

        Raises:
            PublishError: a message type cannot encode its own acknowledgement.
        """
        rollbacks = [
            Rollback(
                journal=target.mapped.journal,
                producer=self._producer_id,
                clock=target.first_clock - 1,
                content=self._acknowledgement(target, clock=target.first_clock - 1),
            )
            for target in self._newly_touched
        ]
        self._newly_touched = []
        return rollbacks

    def build_ack_intents(self) -> list[AckIntent]:
        """Return an acknowledgement for each journal with uncommitted messages, in order of first use, and forget them.

        For the runtime, once a transaction has published everything; applications do not call it.
        """
        intents = [
            AckIntent(journal, self._acknowledgement(target, clock=self._clock.tick()))
            for journal, target in self._uncommitted.items()
        ]
        self._uncommitted = {}
        return intents

    def _publish(
        self,
        mapping: Mapping | MappedJournal,
        message: Any,
        message_type: MessageType,
        flags: int,
    ) -> MappedJournal:
        validate: Callable[[], object] | None = getattr(message, "validate", None)
        if callable(validate):
            validate()
        mapped = mapping if isinstance(mapping, MappedJournal) else mapping(message)
        content = self._content_by_journal.get(mapped.journal)
        if content is None:
            _check_name(mapped)
        if flags == Flags.OUTSIDE_TXN and mapped.journal in self._uncommitted:
            raise PublishError(
                mapped.journal,
                content_type=mapped.content_type,
                detail="it holds uncommitted messages of this transaction, which readers would discard; "
                "use another journal, or publish_uncommitted",
            )
        framed = self._framed(mapped, message, message_type, self._clock.tick(), flags)
        if content is None:
            content = self._content_by_journal[mapped.journal] = []
        content.append(framed)
        return mapped

    def _acknowledgement(self, target: _Target, *, clock: int) -> bytes:
        message = target.message_type.new_acknowledgement(target.mapped.journal)
        return self._framed(target.mapped, message, target.message_type, clock, Flags.ACK_TXN)

    def _framed(
        self,
        mapped: MappedJournal,
        message: Any,
        message_type: MessageType,
        clock: int,
        flags: int,
    ) -> bytes:
        framing = _agreed_framing(mapped, message_type)
        uuid = build_uuid(self._producer_id, clock, flags)
        try:
            message_type.set_uuid(message, uuid)
            return framing.frame(message_type.encode(message))
        except Exception as error:  # whatever the message's own code raises
            raise PublishError(
                mapped.journal,
                content_type=mapped.content_type,
                detail=f"{type(message).__name__} cannot be encoded: {error}",
            ) from error


def _check_name(mapped: MappedJournal) -> None:
    try:
        validate_journal(mapped.journal)
    except ValidationError as error:
        raise PublishError(
            mapped.journal, content_type=mapped.content_type, detail=str(error)
        ) from error


def _agreed_framing(mapped: MappedJournal, message_type: MessageType) -> Framing:
    if mapped.content_type != message_type.content_type:
        raise ContentTypeError(
            mapped.journal,
            mapped.content_type,
            f"the message is encoded as {message_type.content_type!r}",
        )
    return framing_for(mapped.content_type, journal=mapped.journal)
