"""Exceptions of shards."""

from __future__ import annotations

from broadsheet.journals.errors import JournalReplacedError
from broadsheet.runtime.errors import ServiceError, ValidationError
from broadsheet.wire import journal_pb2


class ResolverStoppedError(ServiceError):
    """This process is shutting down and no longer serves shards."""


class ShardError(ServiceError):
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


class PlanNotAppliedError(ServiceError):
    """A plan was refused, or could not be followed exactly; `problem` says why and what to do."""

    def __init__(self, plan_id: str, problem: str) -> None:
        super().__init__(f"plan {plan_id}: {problem}")
        self.plan_id = plan_id
        self.problem = problem


class RewindRefusedError(ServiceError):
    """A shard's hints were not rewound; `problem` says why and what to do."""

    def __init__(self, shard_id: str, problem: str) -> None:
        super().__init__(f"shard {shard_id} was not rewound: {problem}")
        self.shard_id = shard_id
        self.problem = problem


class SourceResetRefusedError(ServiceError):
    """A source of a shard was not reset; `problem` says why and what to do."""

    def __init__(self, shard_id: str, journal: str, problem: str) -> None:
        super().__init__(f"source {journal} of shard {shard_id} was not reset: {problem}")
        self.shard_id = shard_id
        self.journal = journal
        self.problem = problem


class PruneIncompleteError(ServiceError):
    """Some fragments of recovery logs should have been removed, and were not."""

    def __init__(self, fragments: int, size_bytes: int) -> None:
        super().__init__(
            f"{fragments} dead fragments of {size_bytes} bytes together could not be removed; the notes say why, and "
            "the next prune tries again"
        )
        self.fragments = fragments
        self.size_bytes = size_bytes


class UnsupportedSpecError(ServiceError, ValidationError):
    """The spec requires something unsupported by this version: only another spec helps."""


class SplitDelayedError(ServiceError):
    """A split cannot go on now; it is tried again."""


class KeyElsewhereError(ValidationError):
    """Raised by a shard that is asked for a key which another one of its family owns: ask that one."""


class SplitConflictError(ServiceError):
    """A shard of a split's family was changed by another writer meanwhile, so nothing was changed: ask again."""


class SourceReplacedError(ServiceError):
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


class SourceUnreadError(ServiceError):
    """A shard recovers from before the end of a divided journal, which is gone; the error says what is lost."""


class ShardHeldBackError(ServiceError):
    """The shard's primaries died one after another: it is not restarted before `seconds` have passed."""

    def __init__(self, shard_id: str, *, members: tuple[str, ...], seconds: float) -> None:
        super().__init__(
            f"shard {shard_id} is held back for {seconds:.0f} s: its last {len(members)} primaries died soon after "
            f"they took it ({', '.join(members)}); look at their logs, then unassign it or wait"
        )
        self.shard_id = shard_id
        self.members = members
        self.seconds = seconds


class AssignmentLostError(ServiceError):
    """Etcd no longer has this process's assignment: it must not touch the store."""


class ApplicationError(ServiceError):
    """The application raised; `operation` names the callback."""

    def __init__(self, shard_id: str, operation: str, error: BaseException) -> None:
        super().__init__(f"{operation} of shard {shard_id}: {type(error).__name__}: {error}")
        self.shard_id = shard_id
        self.operation = operation


class SourceError(ServiceError):
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
            "source read_recreated=True, or a relay --set source.read.recreated=true; to count everything again, "
            "remove state and checkpoint",
        )
        self.known = known
        self.found = found


class CommitFencedError(ServiceError):
    """A newer primary restored this shard; this one must never commit again."""

    def __init__(self, shard_fqn: str, held: int, current: int | None) -> None:
        now = "gone" if current is None else str(current)
        super().__init__(
            f"shard {shard_fqn} is fenced: this primary holds fence {held}, the store has {now}"
        )
        self.shard_fqn = shard_fqn
        self.held = held
        self.current = current


class SinkFencedError(CommitFencedError):
    """The system that takes a shard's records refuses this holder: a newer one took over, or it was thought to."""

    def __init__(self, shard_fqn: str, detail: str) -> None:
        """Say what was refused.

        Args:
            shard_fqn: The shard.
            detail: What the system said.
        """
        ServiceError.__init__(self, f"shard {shard_fqn} is fenced: {detail}")
        self.shard_fqn = shard_fqn
        self.held, self.current = 0, None
        self.detail = detail


class OutputDoubtError(ServiceError):
    """Another system has forgotten whether it has a shard's records, or contradicts the store."""

    def __init__(self, shard_id: str, output: str, detail: str) -> None:
        """Say what is in doubt.

        Args:
            shard_id: The shard.
            output: Key of its records in the checkpoint.
            detail: The doubt, and the next step.
        """
        super().__init__(f"shard {shard_id}: output {output}: {detail}")
        self.output = output
        self.detail = detail


class RecoveryLogError(ServiceError):
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


class StoreError(ServiceError):
    """A shard's store cannot be opened, read or committed; `detail` says what to do about it."""

    def __init__(self, shard_fqn: str, detail: str) -> None:
        super().__init__(f"store of shard {shard_fqn}: {detail}")
        self.shard_fqn = shard_fqn
        self.detail = detail


class StoreUnavailableError(StoreError):
    """The database behind a store does not answer, or its locks are held: retrying helps, however long it takes."""


class ForeignStoreError(StoreError):
    """The files are of another store, or of another shard: opening them as empty would apply everything again."""


class ImportFilesError(ServiceError):
    """The files of an import of keyed state cannot be read or written; the text says which, and what to do."""


class StateNotShownError(ServiceError):
    """A shard's state cannot be read as tables; `detail` says why."""

    def __init__(self, shard_id: str, detail: str) -> None:
        super().__init__(f"the state of shard {shard_id} cannot be read as tables: {detail}")
        self.shard_id = shard_id
        self.detail = detail


class StoreClosedError(StoreError):
    """The store was destroyed before the commit could be made; nothing of it is durable."""

    def __init__(self, shard_fqn: str) -> None:
        super().__init__(shard_fqn, "destroyed before the commit was made")
