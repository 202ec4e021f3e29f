"""Who watches whom: each member the next few in a ring of all, so that everyone is watched and nobody watches many."""

from __future__ import annotations

from collections.abc import Iterable

from allocator.model import MemberId

WATCHED_PER_MEMBER = 2
"""Two witnesses for each: if one dies together with the member that it watches, the other is left."""


def watched_by(member_id: MemberId, members: Iterable[MemberId]) -> tuple[MemberId, ...]:
    """Return those that `member_id` watches: the next in the order of ids, around the end."""
    others = sorted(other for other in members if other != member_id)
    after = [other for other in others if other > member_id]
    ring = after + others[: len(others) - len(after)]
    return tuple(ring[:WATCHED_PER_MEMBER])
