"""A member's key: announced under its lease, kept up to date, and taken over from dead predecessors.

Source: gazette/core allocator/announce.go. Ours: waiting for a conflicting holder has a deadline and can be cancelled;
a lost reply to an update is recognised; predecessors that are known to be dead need not be waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import structlog

from broadsheet.allocator.errors import (
    AnnounceConflictError,
    EtcdUnavailableError,
    KeyDecodeError,
    LeaseLostError,
    LeaseNotFoundError,
    MemberKeyLostError,
)
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.keys import Keys, MemberKey
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.ops import Compare, Get, KeyValue, LeaseId, Put, prefix_range_end
from broadsheet.runtime.backoff import Backoff

CONFLICT_POLL_SECONDS_MAX = 1.0
"""Longest pause between two reads of a held key: the wait of a restart beyond its predecessor's lease."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """The member's key as last written by us."""

    key: bytes
    value: bytes
    lease: LeaseId
    mod_revision: int


async def announce(
    etcd: Etcd,
    key: bytes,
    value: bytes,
    *,
    lease: LeaseId,
    timeout_seconds: float,
    admit: Callable[[], Awaitable[Compare]] | None = None,
) -> Announced:
    """Create the member's key, waiting for a previous holder's lease to end.

    Args:
        etcd: Where the member is announced.
        key: The member's key.
        value: Its first value.
        lease: The session's lease; someone else must keep it alive meanwhile.
        timeout_seconds: How long to wait for a holder, or for etcd, to give way.
        admit: Returns what must hold for the member to join, before each attempt; its errors are raised at once, unless
            etcd did not answer.

    Raises:
        AnnounceConflictError: another process still holds the key.
        FormatLevelError: as `admit`.
        EtcdUnavailableError: etcd did not answer.
        LeaseLostError: the lease ended meanwhile.
    """
    backoff = Backoff(initial_seconds=0.1, max_seconds=CONFLICT_POLL_SECONDS_MAX)
    failure: AnnounceConflictError | EtcdUnavailableError | None = None
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_seconds):
            while True:
                try:
                    admission = () if admit is None else (await admit(),)
                    announced = await _try_announce(etcd, key, value, lease, admission)
                    if announced is not None:
                        return announced
                    continue  # judged again, by what the cluster has stored now
                except (AnnounceConflictError, EtcdUnavailableError) as error:
                    if failure is None:
                        _log.warning("member.announce_retrying", key=key.decode(), cause=str(error))
                    failure = error
                await backoff.sleep()
    # No attempt has ended, so etcd did not answer at all.
    if failure is None:
        raise EtcdUnavailableError(
            (), f"no answer to the announcement within {timeout_seconds:g} s"
        )
    raise failure


async def _try_announce(
    etcd: Etcd, key: bytes, value: bytes, lease: LeaseId, admission: tuple[Compare, ...]
) -> Announced | None:
    """Announce once; None if what admitted the member has changed."""
    try:
        result = await etcd.txn(
            (Compare.absent(key), *admission), (Put(key, value, lease=lease),), (Get(key),)
        )
    except LeaseNotFoundError as error:
        # This call learned of the lost lease before the keep-alive did: report the same error.
        raise LeaseLostError(lease, "it ended before the member was announced") from error
    if result.succeeded:
        revision = result.header.revision
        return Announced(key=key, value=value, lease=lease, mod_revision=revision)
    if not result.gets[0]:
        return None
    (holder,) = result.gets[0]
    if holder.lease != lease:
        raise AnnounceConflictError(key.decode(), holder.lease)
    # An earlier attempt of ours was applied, but its reply was lost.
    return Announced(key=key, value=holder.value, lease=lease, mod_revision=holder.mod_revision)


async def update(etcd: Etcd, announced: Announced, value: bytes) -> Announced:
    """Write a new value to the member's key, which keeps its lease.

    Returns:
        The key as it is now. Its value is not ours if someone else wrote to it first: then nothing was written.

    Raises:
        MemberKeyLostError: the key is gone, or is another process' now.
        EtcdUnavailableError: whether the value was written is unknown; calling again with it is safe.
    """
    key = announced.key
    result = await etcd.txn(
        (Compare.mod_revision(key, announced.mod_revision),),
        (Put(key, value, ignore_lease=True),),
        (Get(key),),
    )
    if result.succeeded:
        revision = result.header.revision
        return Announced(key=key, value=value, lease=announced.lease, mod_revision=revision)
    found = result.gets[0][0] if result.gets[0] else None
    if found is None or found.lease != announced.lease:
        raise MemberKeyLostError(key.decode())
    # Either our own attempt whose reply was lost, or another process's write.
    return Announced(
        key=key, value=found.value, lease=announced.lease, mod_revision=found.mod_revision
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessors:
    """Earlier lives of a member, which are known to have ended."""

    prefix: str
    """The start that their suffixes share: they are this name, or go on with a separator. `m-1` means `m-1` and
    `m-1-2`, not `m-10`; `m-` means every suffix that starts so.
    """
    in_any_zone: bool = False
    """Whether a life may have been in another zone. Suffixes are unique in their zones only, as a rule."""

    def include(self, other: MemberId, *, of: MemberId) -> bool:
        """Tell whether a member is an earlier life of another.

        If a number follows the prefix, only numbers up to the member's own count, because a late attempt must not end a
        later one.
        """
        if not self.in_any_zone and other.zone != of.zone:
            return False
        if not other.suffix.startswith(self.prefix):
            return False
        rest = other.suffix.removeprefix(self.prefix)
        # A name ends where letters and digits end: at the end of the prefix, or right after it.
        if rest and self.prefix[-1].isalnum() and rest[0].isalnum():
            return False
        own, number = _number(of.suffix, self.prefix), _number(other.suffix, self.prefix)
        return own is None or number is None or number <= own


async def revoke_predecessors(
    etcd: Etcd, keys: Keys, member_id: MemberId, predecessors: Predecessors, *, own_lease: LeaseId
) -> tuple[MemberId, ...]:
    """End the leases of a member's earlier incarnations, so that their assignments move at once.

    Args:
        etcd: Where they are announced.
        keys: The syntax of the root.
        member_id: The member about to be announced.
        predecessors: Its earlier incarnations.
        own_lease: Never revoked.

    Returns:
        The members whose leases were ended.
    """
    found = await etcd.get_range(keys.members_prefix, prefix_range_end(keys.members_prefix))
    revoked: list[MemberId] = []
    for predecessor, kv in _among(found.kvs, keys, member_id, predecessors):
        if kv.lease not in (0, own_lease):
            await etcd.lease_revoke(LeaseId(kv.lease))
            _log.info("member.predecessor_revoked", member=str(predecessor), lease=f"{kv.lease:x}")
            revoked.append(predecessor)
    return tuple(revoked)


def _among(
    kvs: tuple[KeyValue, ...], keys: Keys, member_id: MemberId, predecessors: Predecessors
) -> Iterator[tuple[MemberId, KeyValue]]:
    for kv in kvs:
        with suppress(KeyDecodeError):
            parsed = keys.parse(kv.key)
            if isinstance(parsed, MemberKey) and predecessors.include(
                parsed.member_id, of=member_id
            ):
                yield parsed.member_id, kv


def _number(suffix: str, prefix: str) -> int | None:
    rest = suffix.removeprefix(prefix)
    return int(rest) if rest.isascii() and rest.isdigit() else None
