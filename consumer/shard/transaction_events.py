"""The words between the transaction machine and what performs it: events go in, instructions come out.

All of it is data. Events are things that happened (past tense), instructions are orders (imperative). At most one of
`BeginTxn`, `Deliver`, `Finalize` and `StartCommit` is under way at a time; its answer is the event named beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from broadsheet.consumer.direct.record_intents import INTENT_BYTES_MAX
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.producers import ProducerCounts
from broadsheet.journals.message.sequence_rules import SequenceOutcome
from broadsheet.wire import shard_pb2
from broadsheet.wire.identity_pb2 import JournalEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnLimits:
    """Bounds on when a transaction may and must close; read from the spec at its start."""

    min_seconds: float
    """It stays open at least so long after its begin, and longer while input is ready."""
    max_seconds: float
    """It takes no more input after so long."""
    wait_for_ack: bool
    """It stays open while a producer's messages have been read but not its acknowledgement."""
    intent_bytes_max: int = INTENT_BYTES_MAX
    """It takes no more input once its intents hold so many bytes of records for other systems, such as Kafka."""


class Activity(Enum):
    """The event that the machine waits for."""

    WORKING = "working"
    """For a callback, a commit, its acknowledgements, or input that it asked for once more."""
    READING = "reading"
    """For input, whenever it comes, and perhaps for a producer or for time."""
    WAITING = "waiting"
    """For time alone: it takes no input before its transaction may close."""


class InputDemand(Enum):
    """The input that the machine can take now."""

    NOTHING = "nothing"
    BATCH = "batch"
    """Hand over the next batch whenever there is one."""
    BATCH_IF_READY = "batch if ready"
    """Hand over a batch that is ready now; if none is, say `InputIdle` at once."""
    REPLAY = "replay"
    """Hand over the next batch of the replay that was asked for."""


# -- events


@dataclass(frozen=True, slots=True)
class BatchRead:
    """Messages arrived from a source."""

    batch: MessageBatch
    is_behind: bool = False
    """More waits than may be read ahead: the transactions are slower than the sources, or catch up with them."""


@dataclass(frozen=True, slots=True)
class SourceIdentified:
    """The epoch of all that is read of a source, before this and from now on."""

    journal: str
    epoch: JournalEpoch


@dataclass(frozen=True, slots=True)
class InputIdle:
    """No batch is ready; answers `Demand.BATCH_IF_READY`."""


@dataclass(frozen=True, slots=True)
class SourcesClosed:
    """No more batches will come."""


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """A replay cannot be read."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class ReplayRead:
    """Messages of a replay arrived; answers `Demand.REPLAY`."""

    batch: MessageBatch


@dataclass(frozen=True, slots=True)
class ReplayEnded:
    """The replay reached its end; answers `Demand.REPLAY`."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """The timer fired."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Said now and then, also while nothing is read: what has been pending for long leaves memory."""


@dataclass(frozen=True, slots=True)
class TxnBegan:
    """Answers `BeginTxn`."""


@dataclass(frozen=True, slots=True)
class BatchDelivered:
    """Answers `Deliver`: the application consumed the first `consumed` messages and defers the others."""

    consumed: int
    record_bytes: int = 0
    """Of all records for other systems that the transaction has published."""


@dataclass(frozen=True, slots=True)
class TxnFinalized:
    """Answers `Finalize`, with what is left to append of what the transaction published, framed, by journal.

    Intents under other keys than journals' names hold records for other systems.
    """

    ack_intents: Mapping[str, bytes]
    last_acknowledgement: Mapping[str, bytes]
    """Of the intents' last, the acknowledgement alone; empty if there are none."""
    checkpoint: shard_pb2.Checkpoint | None = None
    """The transaction's, if its commit was started already."""
    wake_at: float | None = None
    """When the next transaction begins though nothing is read, monotonic seconds; None: only with input."""


@dataclass(frozen=True, slots=True)
class CommitStarted:
    """Answers `StartCommit`."""


@dataclass(frozen=True, slots=True)
class CallbackFailed:
    """Answers any of the four: the application or its store raised."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class CommitResolved:
    """The commit is durable, or has failed."""

    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class AckResolved:
    """One acknowledgement was appended, was dropped with its journal, or has failed; or records were sent elsewhere."""

    journal: str
    """Or the key of the intent."""
    committed_end: int | None = None
    """End of the append in the journal, bytes; None if it was dropped or failed."""
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """Something the application published cannot be appended, and never will be."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class LimitsChanged:
    """The spec changed; holds from the next transaction on."""

    limits: TxnLimits


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Take no more input, commit what was consumed, then finish."""


@dataclass(frozen=True, slots=True)
class HoldRequested:
    """Commit what was consumed, then begin no transaction until `HoldReleased`. Answered by `Held`, once it is so."""


@dataclass(frozen=True, slots=True)
class HoldReleased:
    """Go on. Without a hold it changes nothing."""


@dataclass(frozen=True, slots=True)
class WakeRequested:
    """Begin a transaction, though nothing may be read: there is other work for the application."""


Event = (
    BatchRead
    | SourceIdentified
    | InputIdle
    | SourcesClosed
    | SourceFailed
    | ReplayRead
    | ReplayEnded
    | Ticked
    | TimePassed
    | TxnBegan
    | BatchDelivered
    | TxnFinalized
    | CommitStarted
    | CallbackFailed
    | CommitResolved
    | AckResolved
    | AppendFailed
    | LimitsChanged
    | StopRequested
    | HoldRequested
    | HoldReleased
    | WakeRequested
)


# -- instructions


@dataclass(frozen=True, slots=True)
class BeginTxn:
    """Tell the application that a transaction begins. Answer: `TxnBegan`."""


@dataclass(frozen=True, slots=True)
class Deliver:
    """Have the application consume a run of committed messages. Answer: `BatchDelivered`."""

    batch: MessageBatch
    first: bool
    """The transaction consumed nothing yet, so that at least one message must be consumed."""


@dataclass(frozen=True, slots=True)
class Finalize:
    """Have the application finish the transaction; then build its acknowledgements. Answer: `TxnFinalized`.

    `StartCommit` will follow, with a checkpoint that can be known before: who has nothing to append until then may
    start the commit at once, and has an answer to `StartCommit` ready.
    """

    sources: Mapping[str, shard_pb2.Checkpoint.Source]
    """What the transaction has consumed."""
    prior_acknowledgement: Mapping[str, bytes]
    """The last one of the transactions before, for the checkpoint (`broadsheet.journals.message.checkpoint`)."""


@dataclass(frozen=True, slots=True)
class StartCommit:
    """Have the store start to commit, after every append now pending.

    Answer: `CommitStarted`, then `CommitResolved`; or `CommitResolved` alone, if the commit has already failed.
    """

    checkpoint: shard_pb2.Checkpoint
    record: RecordCheckpoint


@dataclass(frozen=True, slots=True)
class AppendAcks:
    """Append acknowledgements, one `AckResolved` each: once the commit is durable, or at once if `recovered`."""

    intents: Mapping[str, bytes]
    recovered: bool
    """They are of the transaction that the restored checkpoint ended; a journal deleted since is no error."""


@dataclass(frozen=True, slots=True)
class StartReplay:
    """Read [begin, end) of a journal once more, and hand its batches over when `Demand.REPLAY` asks."""

    journal: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Say `Ticked` at this time; replaces the timer set before."""

    at_monotonic_seconds: float


@dataclass(frozen=True, slots=True)
class RecordSequenced:
    """Count what became of the messages of one batch that was read."""

    journal: str
    outcomes: Mapping[SequenceOutcome, int]
    begin: int
    """Offset of the batch's first message, bytes."""
    end: int


@dataclass(frozen=True, slots=True)
class PublishProgress:
    """Make progress visible to those who wait for it."""

    read_through: Mapping[str, int]
    """Offsets that completed transactions have read, bytes by journal."""
    publish_at: Mapping[str, int]
    """Ends of acknowledgements written, bytes by journal."""
    checkpointed: Mapping[str, int] | None = None
    """Offsets that the last committed checkpoint has read, bytes by journal: without what was read since, and is never
    delivered. None: no checkpoint was committed since they were told."""


@dataclass(frozen=True, slots=True)
class RecordCheckpoint:
    """Count a checkpoint that is being committed."""

    checkpoint_bytes: int
    """With what it brings the store of silent producers."""
    producers: ProducerCounts
    evicted: int
    """Producers forgotten for lack of room since the checkpoint before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnTimings:
    """Times at which a completed transaction passed its stations, monotonic seconds, in this order."""

    prior_prepared: float
    """The transaction before it had started its commit."""
    began: float
    stalled: float
    """It took no more input but had to wait for the transaction before it."""
    finalizing: float
    prepared: float
    """Its commit had started."""
    committed: float
    acknowledged: float


@dataclass(frozen=True, slots=True)
class RecordTxn:
    """Count a completed transaction."""

    messages: int
    message_bytes: int
    timings: TxnTimings


@dataclass(frozen=True, slots=True)
class Finish:
    """The loop ended: input is closed (or a stop was asked for), and everything consumed is committed."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The loop ended with an error."""

    cause: BaseException


@dataclass(frozen=True, slots=True)
class Held:
    """All that was consumed is durable and acknowledged, and nothing begins before the hold is released."""


Instruction = (
    BeginTxn
    | Deliver
    | Finalize
    | StartCommit
    | AppendAcks
    | StartReplay
    | SetTimer
    | RecordSequenced
    | PublishProgress
    | RecordTxn
    | Held
    | Finish
    | Fail
)
