"""Publisher of messages that readers see exactly once.

A publisher stamps, encodes and frames messages into buffers, and records which journals it touched; it does no I/O.
Its owner drains the buffers in order (`take_appends`), and at the end of a transaction takes the acknowledgements
(`build_ack_intents`): those are made durable with the transaction, then appended. Until then no reader that respects
transactions sees the transaction's messages.

    large transaction    append messages ─► commit, with the acknowledgement ─► append the acknowledgement
    small transaction                       commit, with both                ─► append both

The intents of a small transaction *carry* its messages, if so configured: that saves an append and the wait for it, and
leaves nothing in a journal if the transaction fails. Appending an intent again changes nothing, because readers drop
messages up to a producer's last acknowledgement. Two kinds of messages are not carried: the first messages for a
journal, because only their append tells, before the commit, whether the journal exists; and messages whose
acknowledgement a rollback could not tell from another (`broadsheet.journals.message.rollback`).

One thread at a time. UUIDs are created in the order of each journal's buffer, so clocks only grow within a journal.

Source: gazette/core message/publisher.go (PublishUncommitted, PublishCommitted, BuildAckIntents; intents that carry
messages are ours; to a Gazette consumer that recovers them they are as opaque as any other intent).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

from broadsheet.journals.content.message_type import CarriesTrace
from broadsheet.journals.content.registry import framing_for, registered
from broadsheet.journals.errors import ContentTypeError, PublishMessageError
from broadsheet.journals.message.batch import MessageType
from broadsheet.journals.message.division import DividedJournals, knows_any
from broadsheet.journals.message.framing import Framing
from broadsheet.journals.message.partitioning import (
    BatchMapping,
    KeyColumn,
    MappedJournal,
    Mapping,
    key_bytes_of,
)
from broadsheet.journals.message.rollback import Rollback
from broadsheet.journals.message.row_errors import RowValueError
from broadsheet.journals.message.uuid import Bytes, Flags, MessageClock, build_uuid, uuid_bytes
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.libraries import needing
from broadsheet.serving.tracing import tracing
from broadsheet.wire.alphabet import validate_journal

if TYPE_CHECKING:
    import pyarrow as pa

    from broadsheet.journals.message.column_texts import Indices


CARRIED_BYTES_MAX = 16 << 10
"""Maximum of one transaction, all journals together. Each carried byte is written twice, with the commit and into its
journal; so the bound is a few disk pages, which a commit writes anyway."""

_ROWS_AT_ONCE: Final = 1 << 14
_BYTES_AT_ONCE: Final = 4 << 20
"""Rows, and bytes of their columns, that `publish_batch` encodes in one go, as one piece of an append; a larger row is
one alone.
"""


@dataclass(frozen=True, slots=True)
class PendingAppend:
    """Framed messages that await their append to one journal."""

    journal: str
    content: list[bytes]
    """Whole frames, in order."""


@dataclass(frozen=True, slots=True)
class AckIntent:
    """A framed acknowledgement, to append unchanged once its transaction is durable; retrying is safe."""

    journal: str
    content: bytes
    """The carried messages, if any, and the acknowledgement."""
    acknowledgement: bytes
    """The last frame of `content`."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A journal that holds uncommitted messages, and the means to acknowledge them there."""

    mapped: MappedJournal
    message_type: MessageType
    first_clock: int
    """Clock of the first message."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Framed messages of one journal, encoded at once."""

    mapped: MappedJournal
    content: bytes
    first_clock: int


class _Stamps:
    """The UUIDs of uncommitted messages of one journal, and their trace context."""

    def __init__(self, clock: MessageClock, producer_id: int, traceparent: str) -> None:
        self._clock = clock
        self._producer_id = producer_id
        self.traceparent = traceparent
        self.first_clock = 0
        """Clock of the first message; 0 before there is one."""

    def take(self, count: int) -> Bytes:
        """See `Stamps.take`."""
        clocks = self._clock.tick_many(count)
        self.first_clock = self.first_clock or int(clocks[0])
        return uuid_bytes(self._producer_id, clocks, Flags.CONTINUE_TXN)


class RecordBuffer(Protocol):
    """Takes messages for other systems than journals. `Any`: the output, and the message, are the application's."""

    def add(
        self,
        output: Any,
        message: Any,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        """Add a message to the running transaction."""
        ...


class Publisher:
    """Buffer of stamped, encoded and framed messages, and of the acknowledgements they need."""

    def __init__(
        self,
        clock: MessageClock,
        producer_id: int,
        *,
        carried_bytes_max: int = 0,
        records: RecordBuffer | None = None,
        divided: DividedJournals | None = None,
    ) -> None:
        """Create a publisher.

        Args:
            clock: Shared by all publishers of one shard; its owner advances it with wall time.
            producer_id: 48 bits, as `new_producer_id` returns; never used by another publisher.
            carried_bytes_max: Maximum frame bytes of a transaction that its intents carry; larger transactions are
                appended before the commit; 0 carries none. The first messages into a journal are never carried.
            records: Takes what is published into other systems; None: there are none.
            divided: Journals that are divided, which others may learn of at any time; None: none is.
        """
        self._records = records
        self._divided = divided or DividedJournals()
        self._divided_parts = self._divided.parts
        self._clock = clock
        self._producer_id = producer_id
        self._content_by_journal: dict[str, list[bytes]] = {}
        self._uncommitted: dict[str, _Target] = {}
        self._touched: set[str] = set()
        self._newly_touched: list[_Target] = []
        self._rollbacks: dict[str, Rollback] = {}
        """The rollbacks already taken, by journal."""
        self._carried_bytes_max = carried_bytes_max
        self._acknowledged: set[str] = set()
        """Journals that took messages of an earlier transaction."""
        self._uncarried: set[str] = set()
        """Journals whose buffer has other messages before those of this transaction."""
        self._is_large = False
        """Whether this transaction has outgrown the bound on carried bytes."""
        self._tracing = tracing()
        self.has_published = False
        """Whether this transaction published anything: if not, there is nothing to take, and no intent to build."""

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
            message_type: Encoding of the message; its content type must be the journal's.

        Raises:
            PublishError: the message cannot be encoded.
            ContentTypeError: the journal's content type is not the message's, or has no framing.
            NoPartitionsError: the mapping has no journal to choose.
        """
        mapped = self._publish(mapping, message, message_type, Flags.CONTINUE_TXN)
        self._touch(mapped, message_type, self._clock.value)

    def publish_record(
        self,
        output: Any,  # A `RecordOutput`, of which this package knows nothing.
        message: Any,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Send a message into another system, where it is visible once, when the current transaction has committed.

        Args:
            output: One of the application's `record_outputs`, such as a `KafkaOutput`.
            message: Is encoded at once, without a UUID; bytes, and None, a tombstone, are sent as they are.
            key: Of the record; None: as the output makes it of the message.
            headers: In their order.

        Raises:
            ValidationError: the application does not name this output, the system would not take a record of this
                length, or the transaction would hold too much.
            StoreUnavailableError: there is no such topic, or its system does not answer.
        """
        if self._records is None:
            raise ValidationError(
                "output", "expected one that the application's record_outputs name; they name none"
            )
        self._records.add(output, message, key, headers)

    def publish_batch(
        self,
        mapping: BatchMapping | MappedJournal,
        rows: pa.Table | pa.RecordBatch,
        message_type: MessageType,
    ) -> None:
        """Publish rows of columns, which become visible when the current transaction commits.

        As JSON lines, each row becomes the message that `publish_uncommitted` makes of it as a dict
        (`pyarrow.Table.to_pylist`), encoded by columns instead of one by one; what has no writer of columns, such as
        durations, is encoded one by one. As messages of rows (Arrow, Avro), the rows of each journal become one
        message, or several if they are many. In each journal the rows keep their order. Needs `broadsheet[spark]`.

        Args:
            mapping: The journal, or what chooses it for each row: `KeyColumn`.
            rows: N of them.
            message_type: `JsonType`, `JsonStructType`, `ArrowType`, or `AvroType` with a schema.

        Raises:
            PublishError: a value cannot be encoded, or a row is longer than readers take: the error names column and
                row; or `message_type` is of another class. Nothing of these rows was published.
            ContentTypeError: a journal's content type is not the messages'.
            NoPartitionsError: the mapping has no journal to choose.
            ValidationError: the mapping finds no key in a row.
            ExtraMissingError: pyarrow or orjson is missing.
        """
        with needing("Publisher.publish_batch"):
            self._publish_batch(mapping, rows, message_type)

    def _publish_batch(
        self,
        mapping: BatchMapping | MappedJournal,
        rows: pa.Table | pa.RecordBatch,
        message_type: MessageType,
    ) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        runs: list[_Run] = []
        content = registered(message_type.content_type)
        encode = None if content is None else content.rows_encoder(message_type)
        begin = 0
        for batch in table.to_batches(max_chunksize=_rows_at_once(table)):
            for mapped, part, places in _parts(mapping, batch, self._divided):
                if encode is None:
                    raise _cannot_encode(mapped, f"rows as {type(message_type).__name__}")
                _agreed_framing(mapped, message_type)
                _check_name(mapped)
                stamps = _Stamps(self._clock, self._producer_id, self._traceparent())
                try:
                    frames = encode(part, stamps)
                except RowValueError as error:
                    row = begin + (error.row if places is None else int(places[error.row]))
                    raise _cannot_encode(mapped, f"rows: {error.at(row)}") from error
                except ModuleNotFoundError:
                    raise  # Nothing is wrong with the rows.
                # Message types and libraries of columns raise errors of any class.
                except Exception as error:
                    raise _cannot_encode(mapped, f"rows: {error}") from error
                runs.append(_Run(mapped, frames, stamps.first_clock))
            begin += batch.num_rows
        for run in runs:
            self._content_by_journal.setdefault(run.mapped.journal, []).append(run.content)
            self._touch(run.mapped, message_type, run.first_clock)
            self.has_published = True

    def _traceparent(self) -> str:
        return "" if self._tracing is None else self._tracing.traceparent()

    def _touch(self, mapped: MappedJournal, message_type: MessageType, first_clock: int) -> None:
        """Note that a journal holds uncommitted messages, the first of which has this clock."""
        if mapped.journal in self._uncommitted:
            return
        target = _Target(mapped, message_type, first_clock)
        self._uncommitted[mapped.journal] = target
        # Once in this publisher's life, because one rollback per producer and journal suffices.
        if mapped.journal not in self._touched:
            self._touched.add(mapped.journal)
            self._newly_touched.append(target)

    def publish_committed(
        self, mapping: Mapping | MappedJournal, message: Any, message_type: MessageType
    ) -> None:
        """Publish a message that is visible as soon as it is appended, even if the transaction fails.

        Within a shard this is at least once, because a transaction that is run again publishes the message again.
        Arguments and errors are those of `publish_uncommitted`.

        Raises:
            PublishError: the journal holds uncommitted messages of this transaction, which readers would discard.
        """
        mapped = self._publish(mapping, message, message_type, Flags.OUTSIDE_TXN)
        # This message is appended now, so carrying later ones of the transaction would change the order.
        self._uncarried.add(mapped.journal)

    def take_appends(self) -> list[PendingAppend]:
        """Remove and return the buffered messages that are not carried, by journal, in order of first use."""
        carried = self._carried()
        appends = [
            PendingAppend(journal, content)
            for journal, content in self._content_by_journal.items()
            if journal not in carried
        ]
        self._content_by_journal = carried
        return appends

    def take_rollbacks(self) -> list[Rollback]:
        """Return a rollback of each journal that took its first uncommitted message since the last call.

        A caller that may die between the append and the acknowledgement must store it before the append.

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
        self._rollbacks.update((rollback.journal, rollback) for rollback in rollbacks)
        return rollbacks

    def build_ack_intents(self) -> list[AckIntent]:
        """Remove and return an acknowledgement for each journal with uncommitted messages, in order of first use.

        The runtime calls it once a transaction has published everything; applications do not. Messages still in the
        buffers afterwards are not carried: take them, and append them before the transaction commits.
        """
        self.has_published = False
        carried = self._carried()
        intents = [
            self._intent(target, carried.get(journal, []))
            for journal, target in self._uncommitted.items()
        ]
        self._acknowledged.update(self._uncommitted)
        self._uncommitted = {}
        self._uncarried.clear()
        self._is_large = False
        return intents

    def _intent(self, target: _Target, held: list[bytes]) -> AckIntent:
        """Return the acknowledgement of a journal, with the messages held for it if it can carry them."""
        journal, clock = target.mapped.journal, self._clock.tick()
        acknowledgement = self._acknowledgement(target, clock=clock)
        rollback = self._rollbacks.get(journal)
        # Messages are not carried if a rollback could not find the clock of their acknowledgement.
        if not held or rollback is None or rollback.clock_in(acknowledgement) != clock:
            return AckIntent(journal, acknowledgement, acknowledgement)
        del self._content_by_journal[journal]
        return AckIntent(journal, b"".join((*held, acknowledgement)), acknowledgement)

    def _carried(self) -> dict[str, list[bytes]]:
        """Return the buffers that intents are to carry, by journal; none if they are too large."""
        # A transaction that was too large stays so, because a part of it is appended already.
        if self._is_large or not self._carried_bytes_max:
            return {}
        carried = {
            journal: content
            for journal, content in self._content_by_journal.items()
            if journal in self._uncommitted
            and journal in self._acknowledged
            and journal not in self._uncarried
        }
        size = sum(map(len, chain.from_iterable(carried.values())))
        self._is_large = size > self._carried_bytes_max
        return {} if self._is_large else carried

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
        if self._divided_parts:
            mapped = self._divided.mapped(mapped, mapping, message)
        content = self._content_by_journal.get(mapped.journal)
        if content is None:
            _check_name(mapped)
        if flags == Flags.OUTSIDE_TXN and mapped.journal in self._uncommitted:
            raise PublishMessageError(
                mapped.journal,
                content_type=mapped.content_type,
                detail="it holds uncommitted messages of this transaction, which readers would discard; "
                "use another journal, or publish_uncommitted",
            )
        framed = self._framed(mapped, message, message_type, self._clock.tick(), flags)
        # Only after the framing, which may fail, so that no empty buffer is left behind.
        if content is None:
            content = self._content_by_journal[mapped.journal] = []
            self.has_published = True
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
            if self._tracing is not None and flags != Flags.ACK_TXN:
                self._set_trace(message, message_type, self._tracing.traceparent())
            return framing.frame(message_type.encode(message))
        except Exception as error:  # The message's own code raises errors of any class.
            raise PublishMessageError(
                mapped.journal,
                content_type=mapped.content_type,
                detail=f"{type(message).__name__} cannot be encoded: {error}",
            ) from error

    @staticmethod
    def _set_trace(message: Any, message_type: MessageType, traceparent: str) -> None:
        if traceparent and isinstance(message_type, CarriesTrace):
            message_type.set_traceparent(message, traceparent)


def _check_name(mapped: MappedJournal) -> None:
    try:
        validate_journal(mapped.journal)
    except ValidationError as error:
        raise PublishMessageError(
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


def _rows_at_once(table: pa.Table) -> int:
    """Return how many rows of a table, of average size, are within both bounds."""
    row_bytes = table.nbytes / max(table.num_rows, 1)
    return max(1, min(_ROWS_AT_ONCE, int(_BYTES_AT_ONCE / max(row_bytes, 1))))


def _parts(
    mapping: BatchMapping | MappedJournal, rows: pa.RecordBatch, divided: DividedJournals
) -> Iterator[tuple[MappedJournal, pa.RecordBatch, Indices | None]]:
    """Yield the rows of each journal, in their order, and their places among all, if they differ; none without rows."""
    if not rows.num_rows:
        return
    if isinstance(mapping, MappedJournal):
        yield divided.mapped(mapping, mapping, None), rows, None
        return
    import numpy as np
    import pyarrow as pa

    from broadsheet.journals.message.partitioning import stable_order
    from broadsheet.journals.message.plain_columns import taken

    choices, indices = mapping.journals_of(rows)
    if divided.parts and knows_any(divided.parts, choices):
        keys = None
        if isinstance(mapping, KeyColumn):
            keys = key_bytes_of(rows.column(mapping.column))
        choices, indices = divided.divide_choices(choices, indices, keys)
    order = stable_order(indices)
    bounds = np.cumsum(np.bincount(indices, minlength=len(choices)))
    begin = 0
    for mapped, end in zip(choices, bounds.tolist(), strict=True):
        if end > begin:
            places = order[begin:end]
            yield mapped, taken(rows, pa.array(places)), places
        begin = end


def _cannot_encode(mapped: MappedJournal, what: str) -> PublishMessageError:
    return PublishMessageError(
        mapped.journal, content_type=mapped.content_type, detail=f"cannot encode {what}"
    )
