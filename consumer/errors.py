"""Exceptions that the consumer framework raises.

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
│   └── CannotListenError(address, reason)  a server of this process cannot listen
├── ServerEndedError(cause)                 the gRPC server of this process has ended by itself
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
│   └── RecordConflictError(key, current)   a compare-and-swap that lost (broadsheet.consumer.leasing.record)
├── SourceError(source, detail)             a stream or topic cannot be read as it was asked for
│   ├── SourceUnavailableError              also a ConnectionError: try again
│   └── SourceDataLossError                 what should follow the checkpoint is gone
└── JournalError(journal)
    ├── JournalNotFoundError
    ├── JournalNotAllowedError              the journal's flags forbid it
    ├── JournalSuspendedError
    ├── PredecessorNotCommittedError(detail)   the append that it depends on is not committed; nothing was written
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
    ├── PublishMessageError(content_type, detail)   a message cannot be written there
    └── ReplayError(detail)                 re-reading gave other messages than those asked for
"""

from __future__ import annotations

import errno
from typing import ClassVar

from broadsheet.allocator.errors import ValidationError
from broadsheet.consumer.protocol import journal_pb2


class ConsumerError(Exception):
    """Root of the consumer framework's exceptions."""


class NoPartitionsError(ConsumerError):
    """A mapping's partitions are empty: no journal matches the topic's selector (yet)."""

    def __init__(self) -> None:
        super().__init__(
            "no journal to map the message to: the topic has no partitions; create one, or check its selector"
        )


class ContentTypeError(ConsumerError):
    """A journal's content type has no message framing, or does not match the message type."""

    def __init__(self, journal: str, content_type: str, detail: str) -> None:
        named = f"content type {content_type!r}" if content_type else "missing content type"
        super().__init__(f"journal {journal or '(unnamed)'} has {named}: {detail}")
        self.journal = journal
        self.content_type = content_type
        self.detail = detail


class BrokerDataError(ConsumerError):
    """A broker's data directory is in use, damaged, or of another version; `path` names it."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"broker data at {path}: {detail}")
        self.path = path
        self.detail = detail


class JournalError(ConsumerError):
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


class LeasingError(ConsumerError):
    """A lease or a checkpoint could not be read, written or kept."""

    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later, with nothing else done."""


class ThrottlingError(LeasingError):
    """The store has no capacity, or its locks are held: back off and retry. Nothing was written."""

    retryable = True


class DependencyError(LeasingError):
    """The store did not answer, or gave an unexpected answer."""

    retryable = True

    def __init__(self, detail: str, *, outcome_unknown: bool = False) -> None:
        """Say what failed.

        Args:
            detail: What the store, or its client, said.
            outcome_unknown: A write may have been applied: read before writing again.
        """
        doubt = " (a write may have been applied: read it again)" if outcome_unknown else ""
        super().__init__(f"{detail}{doubt}")
        self.detail = detail
        self.outcome_unknown = outcome_unknown


class BlockedOnParentError(LeasingError):
    """A shard must wait until its parents are finished."""

    retryable = True

    def __init__(self, key: str, parents: tuple[str, ...]) -> None:
        super().__init__(f"lease {key} waits for its parents: {', '.join(parents)}")
        self.key = key
        self.parents = parents


class InvalidStateError(LeasingError):
    """The store is missing or unreadable; `detail` says what to do about it."""


class UnreadableLeaseError(InvalidStateError):
    """A row of the store holds no readable lease. The other leases are not affected.

    Attributes:
        key: Of the lease.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


class ShutdownError(LeasingError):
    """The lease is not held: this processor must stop for good, because another may already run."""


class LeaseNotAcquiredError(LeasingError):
    """Another worker holds the lease."""


class ShardClaimedError(LeaseNotAcquiredError):
    """Another worker has claimed the lease and will get it next."""


class SequenceIdNotFoundError(LeasingError, LookupError):
    """No checkpoint is stored for the shard."""


class ShardNotAssignedError(LeasingError, LookupError):
    """The shard has no owner."""


class InvalidPositionError(LeasingError, ValueError):
    """A position is malformed, or outside what may be checkpointed."""


class ResolverStoppedError(ConsumerError):
    """This process is shutting down and no longer serves shards."""


class NotAuthorizedError(ConsumerError):
    """The caller's token is valid but does not allow this."""


class UnauthenticatedError(ConsumerError):
    """The caller's token is missing, malformed, expired or signed with an unknown key."""


class ClaimsMissingError(ConsumerError):
    """A call's context has no claims: the call did not come through a member's server."""


class ProxyHeaderError(ConsumerError):
    """A proxied request names another etcd cluster or another process."""


class BoundExceededError(ConsumerError):
    """A request exceeds the service's limit; the message names the bound and how to stay below it."""


class EndpointError(ConsumerError):
    """A server cannot be reached; `address` is the address that was tried."""

    def __init__(self, address: str, detail: str, *, never_connected: bool = False) -> None:
        super().__init__(f"cannot reach {address}: {detail}")
        self.address = address
        self.detail = detail
        self.never_connected = never_connected
        """Nothing of the request can have been seen by the server, so repeating it is safe."""


class CannotListenError(EndpointError):
    """A server of this process cannot listen at its address."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.args = (
            f"cannot listen at {address}: {reason}; end what listens there, or choose another address",
        )


class ServerEndedError(ConsumerError):
    """The gRPC server of this process has ended, and nothing of ours stopped it."""

    def __init__(self, cause: BaseException | None) -> None:
        super().__init__(
            f"the gRPC server ended by itself ({cause!r})"
            if cause
            else "the gRPC server ended by itself"
        )


_ADVICE = {
    errno.ENOSPC: "free some space, or choose another directory",
    errno.EDQUOT: "free some space, or choose another directory",
    errno.EROFS: "choose a directory that can be written",
    errno.EACCES: "choose a directory that this user may write, or change its mode",
    errno.EPERM: "choose a directory that this user may write",
    errno.EEXIST: "expected a directory there: choose another",
    errno.ENOTDIR: "expected a directory there: choose another",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files (fs.file-max)",
}


def os_error_text(error: OSError) -> str:
    """Return the system's error as one line: what of, why, and what to do."""
    what = f"{error.filename}: " if error.filename is not None else ""
    reason = error.strerror or str(error) or type(error).__name__
    advice = _ADVICE.get(error.errno or 0)
    return f"{what}{reason}{f'; {advice}' if advice else ''}"


class RpcFailedError(ConsumerError):
    """A server was reached but failed the request; `code` is the name of the gRPC status."""

    def __init__(self, address: str, code: str, detail: str) -> None:
        super().__init__(f"{address} failed the request: {code}: {detail}")
        self.address = address
        self.code = code
        self.detail = detail


class EmbeddedServerError(ConsumerError):
    """An embedded server was not found, did not start, or died; `detail` says why and what to do."""

    def __init__(self, server: str, detail: str) -> None:
        super().__init__(f"embedded {server}: {detail}")
        self.server = server
        self.detail = detail


class ShardError(ConsumerError):
    """A shard cannot be served here and now; `header.route` names the processes to ask."""

    problem = "cannot be served"

    def __init__(
        self, shard_id: str, header: journal_pb2.Header | None = None, detail: str = ""
    ) -> None:
        super().__init__(f"shard {shard_id} {self.problem}{': ' + detail if detail else ''}")
        self.shard_id = shard_id
        self.header = header
        self.detail = detail


class ShardNotFoundError(ShardError):
    """No such shard, or it is hidden from the caller."""

    problem = "does not exist"


class NotShardPrimaryError(ShardError):
    """Another process is the primary, and proxying was not allowed."""

    problem = "has its primary elsewhere"


class NoShardPrimaryError(ShardError):
    """The shard has no primary yet."""

    problem = "has no primary"


class ShardStoppedError(ShardError):
    """The shard failed or was taken away while we waited; `detail` is the cause."""

    problem = "stopped"


class PlanNotAppliedError(ConsumerError):
    """A plan was refused, or could not be followed exactly; `problem` says why and what to do."""

    def __init__(self, plan_id: str, problem: str) -> None:
        super().__init__(f"plan {plan_id}: {problem}")
        self.plan_id = plan_id
        self.problem = problem


class RewindRefusedError(ConsumerError):
    """A shard's hints were not rewound; `problem` says why and what to do."""

    def __init__(self, shard_id: str, problem: str) -> None:
        super().__init__(f"shard {shard_id} was not rewound: {problem}")
        self.shard_id = shard_id
        self.problem = problem


class SourceResetRefusedError(ConsumerError):
    """A source of a shard was not reset; `problem` says why and what to do."""

    def __init__(self, shard_id: str, journal: str, problem: str) -> None:
        super().__init__(f"source {journal} of shard {shard_id} was not reset: {problem}")
        self.shard_id = shard_id
        self.journal = journal
        self.problem = problem


class PruneIncompleteError(ConsumerError):
    """Some fragments of recovery logs should have been removed, and were not."""

    def __init__(self, fragments: int, size_bytes: int) -> None:
        super().__init__(
            f"{fragments} dead fragments of {size_bytes} bytes together could not be removed; the notes say why, and "
            "the next prune tries again"
        )
        self.fragments = fragments
        self.size_bytes = size_bytes


class ApplyConflictError(ConsumerError):
    """A spec's revision is not the expected one: read again, then apply again."""

    def __init__(self, header: journal_pb2.Header | None = None) -> None:
        super().__init__(
            "a spec was changed by another writer: its revision is not the expected one; list and apply again"
        )
        self.header = header


class UnsupportedSpecError(ConsumerError, ValidationError):
    """The spec requires something unsupported by this version: only another spec helps."""


class SourceReplacedError(ConsumerError):
    """A source does not hold what the shard's checkpoint has read: continuing would skip messages."""

    def __init__(self, shard_id: str, replaced: JournalReplacedError) -> None:
        super().__init__(
            f"shard {shard_id} cannot go on: {replaced}. Restore the journal's content, or have the shard read what "
            f"is there now: shardctl shards reset-source {shard_id} --journal {replaced.journal} --to-offset 0"
        )
        self.shard_id = shard_id
        self.journal = replaced.journal
        self.offset = replaced.offset
        self.write_head = replaced.write_head


class ShardHeldBackError(ConsumerError):
    """The shard's primaries died one after another: it is not restarted before `seconds` have passed."""

    def __init__(self, shard_id: str, *, members: tuple[str, ...], seconds: float) -> None:
        super().__init__(
            f"shard {shard_id} is held back for {seconds:.0f} s: its last {len(members)} primaries died soon after "
            f"they took it ({', '.join(members)}); look at their logs, then unassign it or wait"
        )
        self.shard_id = shard_id
        self.members = members
        self.seconds = seconds


class AssignmentLostError(ConsumerError):
    """Etcd no longer has this process's assignment: it must not touch the store."""


class ApplicationError(ConsumerError):
    """The application raised; `operation` names the callback."""

    def __init__(self, shard_id: str, operation: str, error: BaseException) -> None:
        super().__init__(f"{operation} of shard {shard_id}: {type(error).__name__}: {error}")
        self.shard_id = shard_id
        self.operation = operation


class SourceError(ConsumerError):
    """A stream or topic cannot be read as requested."""

    def __init__(self, source: str, detail: str) -> None:
        """Say which source failed, and how.

        Args:
            source: Name of the stream, topic, or part of it.
            detail: What was met, and what to do if that is known.
        """
        super().__init__(f"source {source}: {detail}")
        self.source = source
        self.detail = detail


class SourceUnavailableError(SourceError, ConnectionError):
    """The system does not answer now, or refuses for a while; nothing is wrong with the request."""


class SourceDataLossError(SourceError):
    """The data that follows the checkpoint is gone or was replaced."""


class SourceRecreatedError(SourceDataLossError):
    """A topic or stream was deleted and created again under its name: the checkpoint's offsets are of another one."""

    def __init__(self, source: str, *, known: str, found: str) -> None:
        """Say which one the checkpoint is of.

        Args:
            source: Name of the topic or stream.
            known: Identity in the checkpoint.
            found: Identity of the present one.
        """
        super().__init__(
            source,
            f"it was deleted and created again: the checkpoint is of {known}, the present one is {found}. "
            "Messages of the old one that were not read are lost. To read the new one from its beginning, give the "
            "source read_recreated=True; to count everything again, remove state and checkpoint",
        )
        self.known = known
        self.found = found


class CommitFencedError(ConsumerError):
    """A newer primary restored this shard; this one must never commit again."""

    def __init__(self, shard_fqn: str, held: int, current: int | None) -> None:
        now = "gone" if current is None else str(current)
        super().__init__(
            f"shard {shard_fqn} is fenced: this primary holds fence {held}, the store has {now}"
        )
        self.shard_fqn = shard_fqn
        self.held = held
        self.current = current


class RecoveryLogError(ConsumerError):
    """A recovery log cannot be played, or recorded into; `detail` says why."""

    def __init__(self, log: str, detail: str) -> None:
        super().__init__(f"recovery log {log}: {detail}")
        self.log = log
        self.detail = detail


class HintsError(RecoveryLogError):
    """Hints contradict themselves or their log: recover from a backup of them."""


class LogDataLossError(RecoveryLogError):
    """The log lacks data that its hints refer to; continuing would lose committed state."""


class ForeignLogError(RecoveryLogError):
    """The log belongs to another shard, or holds the files of another store: another spec, or application, helps."""


class LogFencedError(RecoveryLogError):
    """Another recorder took the log over; this recorder's operations are ignored."""


class StoreError(ConsumerError):
    """A shard's store cannot be opened, read or committed; `detail` says what to do about it."""

    def __init__(self, shard_fqn: str, detail: str) -> None:
        super().__init__(f"store of shard {shard_fqn}: {detail}")
        self.shard_fqn = shard_fqn
        self.detail = detail


class StoreUnavailableError(StoreError):
    """The database behind a store does not answer, or its locks are held: retrying helps, however long it takes."""


class ForeignStoreError(StoreError):
    """The files are of another store, or of another shard: opening them as empty would apply everything again."""


class StateNotShownError(ConsumerError):
    """A shard's state cannot be read as tables; `detail` says why."""

    def __init__(self, shard_id: str, detail: str) -> None:
        super().__init__(f"the state of shard {shard_id} cannot be read as tables: {detail}")
        self.shard_id = shard_id
        self.detail = detail


class StoreClosedError(StoreError):
    """The store was destroyed before the commit could be made; nothing of it is durable."""

    def __init__(self, shard_fqn: str) -> None:
        super().__init__(shard_fqn, "destroyed before the commit was made")
