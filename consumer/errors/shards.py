"""Shards that cannot be served, and changes of them that cannot be made."""

from __future__ import annotations

from allocator.errors import ValidationError
from consumer.errors.journals import JournalReplacedError
from consumer.errors.root import ConsumerError
from consumer.protocol import journal_pb2


class ShardError(ConsumerError):
    """A shard cannot be served here and now; `header.route` says where to go."""

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
    """Nobody is the primary yet."""

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
    """Some fragments should have been removed from recovery logs, and were not."""

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
    """The spec asks for what this version cannot do: only another spec helps."""


class SourceReplacedError(ConsumerError):
    """A source of the shard does not hold what the shard's checkpoint has read: going on would skip messages."""

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
    """The shard's primaries died one after another: it is not started again before `seconds` have passed."""

    def __init__(self, shard_id: str, *, members: tuple[str, ...], seconds: float) -> None:
        super().__init__(
            f"shard {shard_id} is held back for {seconds:.0f} s: its last {len(members)} primaries died soon after "
            f"they took it ({', '.join(members)}); look at their logs, then unassign it or wait"
        )
        self.shard_id = shard_id
        self.members = members
        self.seconds = seconds


class AssignmentLostError(ConsumerError):
    """Etcd no longer has the assignment that this process believes in: it must not touch the store."""


class ApplicationError(ConsumerError):
    """The application raised; `operation` says in which of its callbacks."""

    def __init__(self, shard_id: str, operation: str, error: BaseException) -> None:
        super().__init__(f"{operation} of shard {shard_id}: {type(error).__name__}: {error}")
        self.shard_id = shard_id
        self.operation = operation
