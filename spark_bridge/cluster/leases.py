"""Ends the leases of members that are known to be gone, so that nobody waits for their time to pass.

It is only for speed. A process that is wrongly held for gone loses its lease, stops its shards and cannot commit: the
stores' fences see to that.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from allocator.errors import KeyDecodeError
from allocator.etcd.api import Etcd
from allocator.keys import Keys, MemberKey
from allocator.model import MemberId
from allocator.ops import LeaseId, prefix_range_end
from spark_bridge.member.identity import Incarnation, parse_suffix

log = structlog.get_logger()


async def revoke_members(
    etcd: Etcd, keys: Keys, should_revoke: Callable[[Incarnation], bool]
) -> tuple[MemberId, ...]:
    """Revoke the lease of every member that a task made and that `should_revoke` chooses; return who they were."""
    revoked: list[MemberId] = []
    for member_id, lease in await _members(etcd, keys):
        incarnation = parse_suffix(member_id.suffix)
        if incarnation is None or not should_revoke(incarnation):
            continue
        if lease and await etcd.lease_revoke(lease):
            log.info("member.lease_revoked", member_id=str(member_id), lease=f"{lease:x}")
            revoked.append(member_id)
    return tuple(revoked)


async def _members(etcd: Etcd, keys: Keys) -> list[tuple[MemberId, LeaseId]]:
    prefix = keys.members_prefix
    found = await etcd.get_range(prefix, prefix_range_end(prefix))
    members: list[tuple[MemberId, LeaseId]] = []
    for kv in found.kvs:
        try:
            parsed = keys.parse(kv.key)
        except KeyDecodeError:
            continue  # not a member's; whoever watches the root reports it
        assert isinstance(parsed, MemberKey), "read below members/"
        members.append((parsed.member_id, LeaseId(kv.lease)))
    return members
