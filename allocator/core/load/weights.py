"""Loads in whole numbers, from declared weights and from measurements.

not measuring   a weight of 1 is 1, or, where any weight has a fraction, as much as makes all of them whole
measuring       declared weight ──► weight × `declared_weight`
                measured load   ──► as it is;  not measured yet ──► as a declared weight of 1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Protocol, runtime_checkable

from allocator.core.model import ItemId
from allocator.core.policy import LoadPolicy

WEIGHT_OF_ONE = 1000
"""Declared weights are counted in thousandths."""


@runtime_checkable
class Weighed(Protocol):
    """An item's value that may declare a weight."""

    @property
    def weight_thousandths(self) -> int | None:
        """The declared weight, from 1; None if none is declared."""
        ...


def declared_weight(value: object) -> int | None:
    """Return the weight that an item's value declares, in thousandths; None if it does not."""
    return value.weight_thousandths if isinstance(value, Weighed) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemWeights:
    """All that items' loads follow from, frozen."""

    declared: Mapping[ItemId, int] = field(default_factory=dict)
    """Thousandths, by item; items that declare none are absent."""
    measured: Mapping[ItemId, int] | None = None
    """Loads in force, by item; None if measurements are not used."""
    policy: LoadPolicy = field(default_factory=LoadPolicy)

    def loads(self, item_ids: Iterable[ItemId]) -> dict[ItemId, int]:
        """Return each item's load, from 1; items that are absent weigh 1."""
        if self.measured is None:
            return self._declared_loads(item_ids)
        one = max(1, round(self.policy.declared_weight))
        measured = self.measured
        return {item_id: measured.get(item_id, one) for item_id in item_ids} | {
            item_id: max(1, round(self.policy.declared_weight * weight / WEIGHT_OF_ONE))
            for item_id, weight in self.declared.items()
        }

    def _declared_loads(self, item_ids: Iterable[ItemId]) -> dict[ItemId, int]:
        unit = gcd(WEIGHT_OF_ONE, *self.declared.values())
        one = WEIGHT_OF_ONE // unit
        loads = {} if one == 1 else dict.fromkeys(item_ids, one)
        return loads | {item_id: weight // unit for item_id, weight in self.declared.items()}
