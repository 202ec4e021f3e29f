"""Etcd's store in memory: keys with every version that is not compacted, and the changes of each revision.

Pure and synchronous: `broadsheet.testing.allocator.kernel.etcd` adds lease expiry, waiting and the port.

Source: etcd-io/etcd server/etcdserver/apply (order of checks, what a transaction's revision is) and
server/etcdserver/api/v3rpc/key.go (limits, writes of one key).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import grpc
from sortedcontainers import SortedDict

from broadsheet.allocator.errors import AllocatorError, KeyDecodeError, RevisionCompactedError
from broadsheet.allocator.etcd.api import KeyDeleted, KeyPut, WatchEvent
from broadsheet.allocator.etcd.status import error_for
from broadsheet.allocator.etcd.txn_batch import holds
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.ops import (
    TXN_OPERATIONS_MAX,
    Compare,
    Delete,
    Get,
    KeyValue,
    LeaseId,
    Operation,
    Put,
)

REQUEST_BYTES_MAX = 1_572_864
"""Etcd's default `--max-request-bytes`."""
_NO_LEASE = LeaseId(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCommit:
    """One revision: its author, and its changes."""

    revision: int
    events: tuple[WatchEvent, ...]
    author: str
    """The requester; empty for etcd itself, which ends leases."""
    ended_lease: LeaseId = _NO_LEASE
    """The lease whose end it is; 0 for a transaction."""
    note: object = None
    """A value from the author for observers; etcd does not read it."""


@dataclass(slots=True)
class SimulatedStore:
    """Keys and their history."""

    revision: int = 1
    compacted_revision: int = 0
    """Earlier history is discarded."""
    kvs: SortedDict[bytes, KeyValue] = field(default_factory=SortedDict)
    """As of the newest revision."""
    leases: dict[LeaseId, set[bytes]] = field(default_factory=dict)
    """Keys by the lease they live on."""
    commits: list[StoreCommit] = field(default_factory=list)
    """In order; those compacted are gone."""
    _versions: dict[bytes, list[tuple[int, KeyValue | None]]] = field(default_factory=dict)
    """By key: each revision that changed it, and what it was then; None if it was deleted."""

    def range(self, key: bytes, range_end: bytes, revision: int) -> tuple[KeyValue, ...]:
        """Return keys in [key, range_end) (only `key` if no end) as of a revision (0: the newest).

        Raises:
            RevisionCompactedError: that revision is compacted.
            EtcdRequestError: that revision has not happened yet.
        """
        if not revision or revision == self.revision:
            return tuple(self.kvs[each] for each in self._keys_in(self.kvs, key, range_end))
        if revision < self.compacted_revision:
            raise RevisionCompactedError(revision, 0)
        if revision > self.revision:
            raise _refusal("mvcc: required revision is a future revision")
        found = (self._version_at(each, revision) for each in self._known_keys(key, range_end))
        return tuple(kv for kv in found if kv is not None)

    def perform(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...],
        *,
        author: str = "",
        note: object = None,
    ) -> tuple[bool, tuple[tuple[KeyValue, ...], ...], StoreCommit | None]:
        """Perform a transaction. Return whether its comparisons held, its reads, and the revision that it wrote.

        Raises:
            EtcdLimitError: it is too large, or writes a key twice.
            LeaseNotFoundError: a put names a lease that has ended.
            EtcdRequestError: a put keeps the lease of a key that does not exist.
        """
        _check_limits(compares, success, failure)
        succeeded = all(self._holds(each) for each in compares)
        operations = success if succeeded else failure
        self._check_leases(operations)
        events: list[WatchEvent] = []
        gets: list[tuple[KeyValue, ...]] = []
        for operation in operations:
            match operation:
                case Put():
                    events.append(self._put(operation))
                case Delete(key, range_end):
                    events += self._delete(tuple(self._keys_in(self.kvs, key, range_end)))
                case Get(key, range_end):
                    gets.append(self.range(key, range_end, 0))
        commit = self._commit(events, author, note=note)
        return succeeded, tuple(gets), commit

    def _holds(self, compare: Compare) -> bool:
        keys = self._keys_in(self.kvs, compare.key, compare.range_end)
        return holds(compare, {each: self.kvs[each] for each in keys})

    def end_lease(self, lease: LeaseId, *, author: str = "") -> StoreCommit | None:
        """Delete a lease and its keys, in one revision if there are any.

        Raises:
            LeaseNotFoundError: there is no such lease.
        """
        if lease not in self.leases:
            raise _refusal("requested lease not found", grpc.StatusCode.NOT_FOUND)
        events = self._delete(sorted(self.leases[lease]))
        del self.leases[lease]
        return self._commit(events, author, ended_lease=lease)

    def compact(self, revision: int) -> None:
        """Discard the history before a revision.

        Raises:
            RevisionCompactedError: it is already compacted.
            EtcdRequestError: it has not happened yet.
        """
        if revision <= self.compacted_revision:
            raise RevisionCompactedError(revision, self.compacted_revision)
        if revision > self.revision:
            raise _refusal("mvcc: required revision is a future revision")
        self.compacted_revision = revision
        self.commits = [each for each in self.commits if each.revision >= revision]
        for key, versions in list(self._versions.items()):
            kept = [each for each in versions if each[0] >= revision]
            older = [each for each in versions if each[0] < revision]
            # The value as of the compacted revision can still be read.
            if older and older[-1][1] is not None:
                kept.insert(0, older[-1])
            if kept:
                self._versions[key] = kept
            else:
                del self._versions[key]

    def commits_from(self, revision: int) -> list[StoreCommit]:
        """Return the commits of a revision and later ones."""
        first = len(self.commits)
        while first and self.commits[first - 1].revision >= revision:
            first -= 1
        return self.commits[first:]

    def _commit(
        self,
        events: list[WatchEvent],
        author: str,
        *,
        ended_lease: LeaseId = _NO_LEASE,
        note: object = None,
    ) -> StoreCommit | None:
        # Reads alone, or a deletion of nothing, make no revision.
        if not events:
            return None
        self.revision += 1
        commit = StoreCommit(
            revision=self.revision,
            events=tuple(events),
            author=author,
            ended_lease=ended_lease,
            note=note,
        )
        self.commits.append(commit)
        return commit

    def _put(self, put: Put) -> KeyPut:
        old: KeyValue | None = self.kvs.get(put.key)
        lease = LeaseId(old.lease if put.ignore_lease and old is not None else put.lease)
        kv = KeyValue(
            key=put.key,
            value=put.value,
            create_revision=old.create_revision if old else self.revision + 1,
            mod_revision=self.revision + 1,
            version=old.version + 1 if old else 1,
            lease=lease,
        )
        # A key that changed its lease must not end with the former one.
        if old is not None and old.lease != lease and old.lease:
            self.leases[LeaseId(old.lease)].discard(put.key)
        if lease:
            self.leases[lease].add(put.key)
        self.kvs[put.key] = kv
        self._note_version(put.key, kv)
        return KeyPut(kv)

    def _delete(self, keys: Iterable[bytes]) -> list[WatchEvent]:
        events: list[WatchEvent] = []
        for key in keys:
            old: KeyValue = self.kvs.pop(key)
            if old.lease:
                self.leases[LeaseId(old.lease)].discard(key)
            self._note_version(key, None)
            events.append(KeyDeleted(key, self.revision + 1))
        return events

    def _note_version(self, key: bytes, kv: KeyValue | None) -> None:
        self._versions.setdefault(key, []).append((self.revision + 1, kv))

    def _check_leases(self, operations: tuple[Operation, ...]) -> None:
        for operation in operations:
            if not isinstance(operation, Put):
                continue
            if operation.ignore_lease and operation.key not in self.kvs:
                raise _refusal("key not found")
            if operation.lease and operation.lease not in self.leases:
                raise _refusal("requested lease not found", grpc.StatusCode.NOT_FOUND)

    def _known_keys(self, key: bytes, range_end: bytes) -> Iterable[bytes]:
        return self._keys_in(SortedDict(self._versions), key, range_end)

    @staticmethod
    def _keys_in(kvs: SortedDict[bytes, object], key: bytes, range_end: bytes) -> Iterable[bytes]:
        if not range_end:
            return [key] if key in kvs else []
        # Etcd encodes "no end" as a single NUL byte.
        end = None if range_end == b"\x00" else range_end
        return list(kvs.irange(key, end, inclusive=(True, False)))

    def _version_at(self, key: bytes, revision: int) -> KeyValue | None:
        found = None
        for changed_at, kv in self._versions[key]:
            if changed_at > revision:
                break
            found = kv
        return found


def key_of(event: WatchEvent) -> bytes:
    """Return the key of an event."""
    return event.kv.key if isinstance(event, KeyPut) else event.key


def describe(keys: Keys, commit: StoreCommit) -> str:
    """Format a revision as one line."""
    who = commit.author or "etcd"
    if commit.ended_lease:
        who += f" ends lease {commit.ended_lease:x}"
    words = []
    for event in commit.events:
        key = key_of(event)
        try:
            keys.parse(key)
            name = key[len(keys.watched_prefix) :].decode()
        except KeyDecodeError:
            name = key.decode(errors="replace")
        if isinstance(event, KeyPut):
            value = _shown(event.kv.value)
            words.append(f"put {name}={value}" if value else f"put {name}")
        else:
            words.append(f"delete {name}")
    return f"r{commit.revision} {who}: {', '.join(words)}"


def _shown(value: bytes) -> str:
    text = value.decode(errors="replace")
    return text if text.isprintable() else f"<{len(value)} bytes>"


def _refusal(text: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT) -> AllocatorError:
    """Return the error that the client makes of etcd's error text."""
    return error_for(code, f"etcdserver: {text}", ())


def _check_limits(
    compares: tuple[Compare, ...], success: tuple[Operation, ...], failure: tuple[Operation, ...]
) -> None:
    if max(len(compares), len(success), len(failure)) > TXN_OPERATIONS_MAX:
        raise _refusal("too many operations in txn request")
    for operations in (success, failure):
        _check_written_once(operations)
    size = sum(
        len(each.key) + (len(each.value) if isinstance(each, Put) else 0)
        for each in success + failure
    )
    if size > REQUEST_BYTES_MAX:
        raise _refusal("request is too large")


def _check_written_once(operations: tuple[Operation, ...]) -> None:
    put: set[bytes] = set()
    for operation in operations:
        if isinstance(operation, Put):
            if operation.key in put:
                raise _refusal("duplicate key given in txn request")
            put.add(operation.key)
    for operation in operations:
        if isinstance(operation, Delete) and any(_covers(operation, key) for key in put):
            raise _refusal("duplicate key given in txn request")


def _covers(delete: Delete, key: bytes) -> bool:
    if not delete.range_end:
        return key == delete.key
    return key >= delete.key and (delete.range_end == b"\x00" or key < delete.range_end)
