"""Stores and recovery logs that cannot be opened, read or written, or belong to somebody else by now."""

from __future__ import annotations

from consumer.errors.root import ConsumerError


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
    """Hints contradict themselves or the log that they are about: recover from a backup of them."""


class LogDataLossError(RecoveryLogError):
    """The log lacks what its hints say it holds; going on without would lose committed state."""


class LogFencedError(RecoveryLogError):
    """Another recorder took the log over; this one's operations count no more."""


class StoreError(ConsumerError):
    """A shard's store cannot be opened, read or committed; `detail` says what to do about it."""

    def __init__(self, shard_fqn: str, detail: str) -> None:
        super().__init__(f"store of shard {shard_fqn}: {detail}")
        self.shard_fqn = shard_fqn
        self.detail = detail


class StoreUnavailableError(StoreError):
    """The database behind a store does not answer, or its locks are held: trying again helps, however long it takes."""


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
