"""Exceptions of journals and the messages in them."""

from __future__ import annotations

from broadsheet.runtime.errors import ServiceError
from broadsheet.wire import journal_pb2


class NoPartitionsError(ServiceError):
    """A mapping's partitions are empty: no journal matches the topic's selector (yet)."""

    def __init__(self) -> None:
        super().__init__(
            "no journal to map the message to: the topic has no partitions; create one, or check its selector"
        )


class ContentTypeError(ServiceError):
    """A journal's content type has no message framing, or does not match the message type."""

    def __init__(self, journal: str, content_type: str, detail: str) -> None:
        named = f"content type {content_type!r}" if content_type else "missing content type"
        super().__init__(f"journal {journal or '(unnamed)'} has {named}: {detail}")
        self.journal = journal
        self.content_type = content_type
        self.detail = detail


class JournalError(ServiceError):
    """A journal operation was refused or failed."""

    problem = "failed"

    def __init__(self, journal: str, detail: str = "") -> None:
        super().__init__(f"journal {journal} {self.problem}{': ' + detail if detail else ''}")
        self.journal = journal
        self.detail = detail


class JournalNotFoundError(JournalError):
    """No such journal, or it is hidden from the caller."""

    problem = "does not exist"


class JournalNotAllowedError(JournalError):
    """The journal's flags forbid this operation."""

    problem = "does not allow this"


class JournalSuspendedError(JournalError):
    """The journal is suspended."""

    problem = "is suspended"


class PredecessorNotCommittedError(JournalError):
    """The broker cannot confirm that the preceding append was committed; nothing was written."""

    problem = "cannot append: the preceding append was not committed"


class JournalUnavailableError(JournalError):
    """No broker serves the journal right now; nothing was applied and a retry is safe."""

    problem = "is not available"


class JournalStoreUnhealthyError(JournalError):
    """The broker cannot write the journal's storage."""

    problem = "has an unhealthy store"


class JournalDamagedError(JournalError):
    """Content fails its checksum; reading it again does not help."""

    problem = "has damaged content"


class WrongAppendOffsetError(JournalError):
    """The write head is not the offset that the append required."""

    problem = "has another write head than the append demanded"


class IndexHasGreaterOffsetError(JournalError):
    """The journal's index is ahead of its broker: acknowledged bytes were lost, and an operator must confirm."""

    problem = "has a fragment index beyond its write head"


class RegisterMismatchError(JournalError):
    """The journal's registers do not match: this writer is fenced."""

    problem = "has other registers than the append demands"

    def __init__(self, journal: str, registers: journal_pb2.LabelSet) -> None:
        held = ", ".join(f"{label.name}={label.value}" for label in registers.labels)
        super().__init__(journal, f"it holds {held or 'none'}")
        self.registers = registers


class PartMissingError(JournalError):
    """A divided journal refused messages, because it has no part that takes their keys."""

    problem = (
        "is divided by key, and the part that took a message's key was deleted: apply it again, with the labels that "
        "it had"
    )


class TransactionRolledBackError(JournalError):
    """An operator rolled this writer's transaction back: readers have dropped it. Publish it again as a new one."""

    problem = "takes no more of this transaction: an operator has rolled it back"


class OffsetNotYetAvailableError(JournalError):
    """A non-blocking read reached the write head."""

    problem = "has no such offset yet"

    def __init__(self, journal: str, *, offset: int, write_head: int) -> None:
        super().__init__(journal, f"offset {offset}, write head {write_head}")
        self.offset = offset
        self.write_head = write_head


class JournalReplacedError(JournalError):
    """The journal does not hold what was read from it: it was recreated, or has lost its end."""

    problem = "does not hold what was read of it"

    def __init__(
        self, journal: str, *, offset: int, write_head: int, read_epoch: str, present_epoch: str
    ) -> None:
        super().__init__(
            journal,
            f"it was read up to offset {offset} in epoch {read_epoch}; its write head is {write_head} now, "
            f"in epoch {present_epoch}",
        )
        self.offset = offset
        self.write_head = write_head
        self.read_epoch = read_epoch
        self.present_epoch = present_epoch


class AppendOutcomeUnknownError(JournalError):
    """The commit was sent but its answer was lost: the bytes may or may not be in the journal."""

    problem = "may or may not hold the append"


class JournalProtocolError(JournalError):
    """The broker broke the protocol."""

    problem = "was answered against the protocol"


class FramingError(JournalError):
    """Bytes at `offset` are not a message of the journal's content type."""

    problem = "holds bytes that are no message"

    def __init__(self, journal: str, *, offset: int, detail: str, end: int | None = None) -> None:
        super().__init__(journal, f"at offset {offset}: {detail}")
        self.offset = offset
        self.end = end
        """Where what follows them begins, if that is known."""


class ClockAheadError(JournalError):
    """The clock of the message at `offset` is further ahead than allowed, and such messages are refused."""

    problem = "holds a message from the future"

    def __init__(self, journal: str, *, offset: int, producer: str, ahead_seconds: float) -> None:
        super().__init__(
            journal,
            f"at offset {offset}: the clock of producer {producer} is {ahead_seconds:.0f} s ahead of this process's; "
            "set the clock of the machine that wrote it, or of this one. To go on with the message, accept such clocks "
            "(refuse_clocks_ahead; refuseClocksAhead in Spark); without it, give the shard a dead-letter journal",
        )
        self.offset = offset
        self.producer = producer
        self.ahead_seconds = ahead_seconds


class PublishMessageError(JournalError):
    """A message cannot be written to the journal selected by its mapping."""

    problem = "cannot take a message"

    def __init__(self, journal: str, *, content_type: str, detail: str) -> None:
        super().__init__(journal, f"as {content_type}: {detail}")
        self.content_type = content_type


class ReplayError(JournalError):
    """Re-reading a range returned messages outside of it: the journal is not the one first read."""

    problem = "was replayed wrongly"
