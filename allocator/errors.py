"""Exceptions of the allocator and of etcd."""

from __future__ import annotations

from broadsheet.runtime.errors import BroadsheetError


class AllocatorError(BroadsheetError):
    """Root of the allocator's exceptions."""


class FormatLevelError(AllocatorError):
    """A member is of a release that cannot read the cluster's stored formats; the message says which can."""


class KeySpaceError(AllocatorError):
    """The mirror of an etcd prefix cannot continue."""


class KeyDecodeError(KeySpaceError):
    """A key or its value cannot be decoded. Logged and skipped, it never crosses an RPC."""

    def __init__(self, key: bytes, problem: str) -> None:
        super().__init__(f"etcd key {key!r}: {problem}")
        self.key = key
        self.problem = problem


class RevisionCompactedError(KeySpaceError):
    """Etcd no longer has the revision asked for. The watcher reloads and compares.

    `compact_revision` is 0 where etcd does not say it.
    """

    def __init__(self, revision: int, compact_revision: int) -> None:
        kept = f" (etcd kept {compact_revision} and later)" if compact_revision else ""
        super().__init__(f"revision {revision} was compacted{kept}")
        self.revision = revision
        self.compact_revision = compact_revision


class EtcdError(AllocatorError):
    """A request to etcd failed."""


class EtcdUnavailableError(EtcdError):
    """No endpoint answered in time. Whether a write was applied is unknown."""

    def __init__(self, endpoints: tuple[str, ...], detail: str) -> None:
        super().__init__(f"etcd at {', '.join(endpoints)} is unavailable: {detail}")
        self.endpoints = endpoints
        self.detail = detail


class EtcdLimitError(EtcdError):
    """A request exceeds one of the server's limits; `limit` names which, and how to stay below it."""

    def __init__(self, limit: str, detail: str) -> None:
        super().__init__(f"etcd limit exceeded: {limit} ({detail})")
        self.limit = limit
        self.detail = detail


class EtcdAuthenticationError(EtcdError):
    """Etcd does not accept our user, password, certificate or permissions."""

    def __init__(self, endpoints: tuple[str, ...], detail: str) -> None:
        super().__init__(
            f"etcd at {', '.join(endpoints)} refused our credentials: {detail};"
            " check the user name, password and certificate, and what the user may do"
        )
        self.endpoints = endpoints
        self.detail = detail


class EtcdRequestError(EtcdError):
    """Etcd refuses this request and would refuse it again: it is malformed or names a missing object."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"etcd refused the request: {detail}")
        self.detail = detail


class LeaseNotFoundError(EtcdRequestError):
    """A write names a lease that has ended; nothing of the request was applied."""


class TxnConflictError(EtcdError):
    """A comparison of a transaction failed; `keys` are those compared."""

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        shown = ", ".join(key.decode(errors="replace") for key in keys[:5])
        super().__init__(f"etcd transaction refused: another writer changed one of {shown}")
        self.keys = keys


class ClusterMismatchError(EtcdError):
    """An answer came from another etcd cluster than the one first met."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(
            f"etcd cluster id is {actual:#x}, expected {expected:#x}: do the endpoints name one cluster?"
        )
        self.expected = expected
        self.actual = actual


class LeaseLostError(AllocatorError):
    """The member's lease expired, was revoked, or could not be renewed in time. Ends the session."""

    def __init__(self, lease_id: int, reason: str) -> None:
        super().__init__(f"lease {lease_id:x} is lost: {reason}")
        self.lease_id = lease_id
        self.reason = reason


class MemberKeyLostError(AllocatorError):
    """The member's own key is gone from etcd. Ends the session."""

    def __init__(self, key: str) -> None:
        super().__init__(f"member key {key} is gone")
        self.key = key


class AnnounceConflictError(AllocatorError):
    """Another live process holds this member's key; `holder_lease` is the lease it lives on."""

    def __init__(self, key: str, holder_lease: int) -> None:
        super().__init__(
            f"member key {key} is held by another process (lease {holder_lease:x}); choose another suffix"
        )
        self.key = key
        self.holder_lease = holder_lease
