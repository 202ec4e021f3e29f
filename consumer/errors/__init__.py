"""Every exception that the consumer framework raises.

ConsumerError
├── ShardError(shard_id, header)
│   ├── ShardNotFoundError
│   ├── NotShardPrimaryError
│   ├── NoShardPrimaryError
│   └── ShardStoppedError(cause)
├── PlanNotAppliedError(plan_id, problem)   a plan was refused, or overtaken; says what to do
├── RewindRefusedError(shard_id, problem)   a shard's hints were left as they are; says what to do
├── SourceResetRefusedError(shard_id, journal, problem)   a shard's source was left as it is; says what to do
├── PruneIncompleteError(fragments)         dead fragments of recovery logs could not be removed
├── ApplyConflictError(header)              another writer changed a spec in between
├── ResolverStoppedError
├── NotAuthorizedError(detail)              valid credentials, but not for this
├── UnauthenticatedError(detail)            missing or bad credentials
├── ClaimsMissingError(detail)              a call that no member's server has verified
├── ProxyHeaderError(detail)                a request proxied to the wrong cluster or process
├── BoundExceededError(detail)              more than one request may carry; says how to split it
├── UnsupportedSpecError(field_path, problem)   also a ValidationError: only another spec helps
├── SourceReplacedError(journal, offset)    a source does not hold what the shard has read; says both ways on
├── ShardHeldBackError(members, seconds)    its primaries died one after another; it waits
├── AssignmentLostError                     etcd no longer has the assignment that this process believes in
├── CommitFencedError(shard_fqn, held, current)
├── RecoveryLogError(log, detail)           a recovery log cannot be played, or recorded into
│   ├── HintsError                          hints contradict themselves, or the log
│   ├── LogDataLossError                    the log lacks what its hints say it holds
│   └── LogFencedError                      another recorder took the log over
├── StoreError(shard_fqn, detail)           a store cannot be opened, read or committed
│   ├── StoreUnavailableError               its database does not answer now; nothing of it is wrong
│   └── StoreClosedError                    it was destroyed; the commit was not made
├── StateNotShownError(shard_id, detail)    a shard's state cannot be read as tables
├── ApplicationError(shard_id, operation)   wraps what the application raised
├── EndpointError(address, detail)          a server cannot be reached
├── BrokerDataError(path, detail)           a broker's data directory cannot be used
├── RpcFailedError(address, code, detail)   a server answered a request with an unexpected gRPC status
├── EmbeddedServerError(server, detail)     a server of our own cannot be found or started
├── LeasingError                            leases and checkpoints; `retryable` says whether the same call may succeed
│   ├── ThrottlingError                     back off; nothing was written
│   ├── DependencyError(detail)             the store did not answer; `outcome_unknown`: a write may have been applied
│   ├── BlockedOnParentError(key, parents)  wait
│   ├── InvalidStateError                   no store, or a record that cannot be read
│   │   └── UnreadableLeaseError            one row holds no lease that can be read
│   ├── ShutdownError                       the lease is not held: stop for good
│   ├── LeaseNotAcquiredError
│   │   └── ShardClaimedError
│   ├── SequenceIdNotFoundError             also a LookupError: no checkpoint
│   ├── ShardNotAssignedError               also a LookupError: no owner
│   ├── InvalidPositionError                also a ValueError
│   └── RecordConflictError(key, current)   a compare-and-swap that lost (consumer.leasing.core.conflict)
├── SourceError(source, detail)             a stream or topic cannot be read as it was asked for
│   ├── SourceUnavailableError              also a ConnectionError: try again
│   └── SourceDataLossError                 what should follow the checkpoint is gone
└── JournalError(journal)
    ├── JournalNotFoundError
    ├── JournalNotAllowedError              the journal's flags forbid it
    ├── JournalSuspendedError
    ├── OutOfTurnError(detail)              sent before what it depends on was answered; nothing was written
    ├── JournalUnavailableError(detail)     no broker serves it now; safe to retry
    ├── JournalReplacedError(offset, write_head)   deleted and made again, or its end is lost
    ├── JournalStoreUnhealthyError(detail)
    ├── JournalDamagedError(detail)         content fails its checksum; the detail has fragment and offsets
    ├── WrongAppendOffsetError(offset)
    ├── IndexHasGreaterOffsetError
    ├── RegisterMismatchError(registers)    fenced
    ├── OffsetNotYetAvailableError(offset, write_head)
    ├── AppendOutcomeUnknownError(detail)   the commit was sent, its answer was lost
    ├── JournalProtocolError(detail)        the broker broke the protocol
    ├── ClockAheadError(offset, producer)   the message's clock is too far ahead, and such are refused
    ├── FramingError(offset, detail)        bytes that are no message of the journal's content type
    ├── PublishError(content_type, detail)  a message cannot be written there
    └── ReplayError(detail)                 re-reading gave other messages than those asked for
"""

from __future__ import annotations

from consumer.errors.journals import (
    AppendOutcomeUnknownError as AppendOutcomeUnknownError,
)
from consumer.errors.journals import (
    BrokerDataError as BrokerDataError,
)
from consumer.errors.journals import (
    ClockAheadError as ClockAheadError,
)
from consumer.errors.journals import (
    ContentTypeError as ContentTypeError,
)
from consumer.errors.journals import (
    FramingError as FramingError,
)
from consumer.errors.journals import (
    IndexHasGreaterOffsetError as IndexHasGreaterOffsetError,
)
from consumer.errors.journals import (
    JournalDamagedError as JournalDamagedError,
)
from consumer.errors.journals import (
    JournalError as JournalError,
)
from consumer.errors.journals import (
    JournalNotAllowedError as JournalNotAllowedError,
)
from consumer.errors.journals import (
    JournalNotFoundError as JournalNotFoundError,
)
from consumer.errors.journals import (
    JournalProtocolError as JournalProtocolError,
)
from consumer.errors.journals import (
    JournalReplacedError as JournalReplacedError,
)
from consumer.errors.journals import (
    JournalStoreUnhealthyError as JournalStoreUnhealthyError,
)
from consumer.errors.journals import (
    JournalSuspendedError as JournalSuspendedError,
)
from consumer.errors.journals import (
    JournalUnavailableError as JournalUnavailableError,
)
from consumer.errors.journals import (
    NoPartitionsError as NoPartitionsError,
)
from consumer.errors.journals import (
    OffsetNotYetAvailableError as OffsetNotYetAvailableError,
)
from consumer.errors.journals import (
    OutOfTurnError as OutOfTurnError,
)
from consumer.errors.journals import (
    PublishError as PublishError,
)
from consumer.errors.journals import (
    RegisterMismatchError as RegisterMismatchError,
)
from consumer.errors.journals import (
    ReplayError as ReplayError,
)
from consumer.errors.journals import (
    WrongAppendOffsetError as WrongAppendOffsetError,
)
from consumer.errors.leasing import (
    BlockedOnParentError as BlockedOnParentError,
)
from consumer.errors.leasing import (
    DependencyError as DependencyError,
)
from consumer.errors.leasing import (
    InvalidPositionError as InvalidPositionError,
)
from consumer.errors.leasing import (
    InvalidStateError as InvalidStateError,
)
from consumer.errors.leasing import (
    LeaseNotAcquiredError as LeaseNotAcquiredError,
)
from consumer.errors.leasing import (
    LeasingError as LeasingError,
)
from consumer.errors.leasing import (
    SequenceIdNotFoundError as SequenceIdNotFoundError,
)
from consumer.errors.leasing import (
    ShardClaimedError as ShardClaimedError,
)
from consumer.errors.leasing import (
    ShardNotAssignedError as ShardNotAssignedError,
)
from consumer.errors.leasing import (
    ShutdownError as ShutdownError,
)
from consumer.errors.leasing import (
    ThrottlingError as ThrottlingError,
)
from consumer.errors.leasing import (
    UnreadableLeaseError as UnreadableLeaseError,
)
from consumer.errors.root import (
    ConsumerError as ConsumerError,
)
from consumer.errors.services import (
    BoundExceededError as BoundExceededError,
)
from consumer.errors.services import (
    ClaimsMissingError as ClaimsMissingError,
)
from consumer.errors.services import (
    EmbeddedServerError as EmbeddedServerError,
)
from consumer.errors.services import (
    EndpointError as EndpointError,
)
from consumer.errors.services import (
    NotAuthorizedError as NotAuthorizedError,
)
from consumer.errors.services import (
    ProxyHeaderError as ProxyHeaderError,
)
from consumer.errors.services import (
    ResolverStoppedError as ResolverStoppedError,
)
from consumer.errors.services import (
    RpcFailedError as RpcFailedError,
)
from consumer.errors.services import (
    UnauthenticatedError as UnauthenticatedError,
)
from consumer.errors.shards import (
    ApplicationError as ApplicationError,
)
from consumer.errors.shards import (
    ApplyConflictError as ApplyConflictError,
)
from consumer.errors.shards import (
    AssignmentLostError as AssignmentLostError,
)
from consumer.errors.shards import (
    NoShardPrimaryError as NoShardPrimaryError,
)
from consumer.errors.shards import (
    NotShardPrimaryError as NotShardPrimaryError,
)
from consumer.errors.shards import (
    PlanNotAppliedError as PlanNotAppliedError,
)
from consumer.errors.shards import (
    PruneIncompleteError as PruneIncompleteError,
)
from consumer.errors.shards import (
    RewindRefusedError as RewindRefusedError,
)
from consumer.errors.shards import (
    ShardError as ShardError,
)
from consumer.errors.shards import (
    ShardHeldBackError as ShardHeldBackError,
)
from consumer.errors.shards import (
    ShardNotFoundError as ShardNotFoundError,
)
from consumer.errors.shards import (
    ShardStoppedError as ShardStoppedError,
)
from consumer.errors.shards import (
    SourceReplacedError as SourceReplacedError,
)
from consumer.errors.shards import (
    SourceResetRefusedError as SourceResetRefusedError,
)
from consumer.errors.shards import (
    UnsupportedSpecError as UnsupportedSpecError,
)
from consumer.errors.sources import (
    SourceDataLossError as SourceDataLossError,
)
from consumer.errors.sources import (
    SourceError as SourceError,
)
from consumer.errors.sources import (
    SourceUnavailableError as SourceUnavailableError,
)
from consumer.errors.state import (
    CommitFencedError as CommitFencedError,
)
from consumer.errors.state import (
    HintsError as HintsError,
)
from consumer.errors.state import (
    LogDataLossError as LogDataLossError,
)
from consumer.errors.state import (
    LogFencedError as LogFencedError,
)
from consumer.errors.state import (
    RecoveryLogError as RecoveryLogError,
)
from consumer.errors.state import (
    StateNotShownError as StateNotShownError,
)
from consumer.errors.state import (
    StoreClosedError as StoreClosedError,
)
from consumer.errors.state import (
    StoreError as StoreError,
)
from consumer.errors.state import (
    StoreUnavailableError as StoreUnavailableError,
)
