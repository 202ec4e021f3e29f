"""Why a pending change of an item waits: the vocabulary that decisions, plans and explanations share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from allocator.model import ItemId, MemberId


class Change(Enum):
    """What it is that waits."""

    ADD = "add"
    REMOVE = "remove"
    HAND_OVER = "hand-over"


class Reason(Enum):
    """What a change waits for."""

    NO_MEMBER = "no-member"
    """The plan has no better member for a replica: too few may take it, or each other one would be worse."""
    DISABLED = "disabled"
    """The item wants no replicas."""
    LIMIT = "limit"
    """The member that should take the replica is at its limit."""
    ZONE = "zone"
    """Removing the replica would leave fewer zones, or the plan itself has it in one zone."""
    STANDBY_NOT_CAUGHT_UP = "standby-not-caught-up"
    """Too few other replicas are consistent for this one to go, or to take over."""
    MOVE_BUDGET = "move-budget"
    """As many moves are in flight as the policy allows."""
    SETTLING = "settling"
    """Balance waits for membership to settle."""
    DRAIN_WAITS = "drain-waits"
    """The drain waits for a member that replaces the leaving one."""
    HAND_OVER_WAITS = "hand-over-waits"
    """A planned hand-over of the primary waits for its turn."""
    QUARANTINED = "quarantined"
    """The step was refused again and again, and is tried ever more rarely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """One change that waits."""

    item_id: ItemId
    reason: Reason
    change: Change | None = None
    """None: nothing is planned, and the reason says why."""
    member_id: MemberId | None = None
    """The member that would gain or lose the replica, or the primary."""
    detail: str = ""
    """Numbers for people: "holds 8 of 8"."""
