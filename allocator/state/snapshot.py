"""Values of one moment, on their way from the event loop to the thread that decides on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broadsheet.allocator.model import Assignment, Item, ItemId, Member, MemberId
from broadsheet.allocator.policy import Objective
from broadsheet.allocator.state.alloc_state import AllocState, Avoided, Loads, member_slots
from broadsheet.allocator.state.load import ItemWeights, Lags


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Values of one moment, not yet sorted: cheap to take, so that the rest can be done in a thread."""

    revision: int
    basis: tuple[int, int] = field(compare=False)
    """The basis of the derived state at that moment."""
    local_id: MemberId
    members: Mapping[MemberId, Member]
    items: Mapping[ItemId, Item]
    groups: Mapping[ItemId, tuple[Assignment, ...]]
    limits: Mapping[MemberId, int]
    drain_costs: Mapping[MemberId, int]
    loads: Loads
    item_slots: int
    unreadable_items: frozenset[ItemId]
    avoided: Avoided
    weights: ItemWeights
    capacities: Mapping[MemberId, int]
    lags: Lags
    objective: Objective
    is_whole: bool

    def state(self) -> AllocState:
        """Return the snapshot as sorted state."""
        return AllocState(
            revision=self.revision,
            local_id=self.local_id,
            members=self.members,
            items=dict(sorted(self.items.items())),
            assignments=dict(sorted(self.groups.items())),
            limits=self.limits,
            loads=self.loads,
            item_slots=self.item_slots,
            member_slots=member_slots(
                self.limits, self.drain_costs, self.members.values(), self.loads
            ),
            drain_costs=self.drain_costs,
            unreadable_items=self.unreadable_items,
            avoided=self.avoided,
            # Only plans use loads.
            item_loads=self.weights.loads(self.items) if self.is_whole else {},
            capacities=self.capacities,
            lags=self.lags,
            objective=self.objective,
            is_whole=self.is_whole,
        )
