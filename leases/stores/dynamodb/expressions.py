"""DynamoDB expressions: a write updates only changed attributes, on condition that its premises still hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from broadsheet.leases.stores.dynamodb.values import Item, Value, canonical


class Condition(TypedDict, total=False):
    """Arguments of a conditional delete."""

    ConditionExpression: str
    ExpressionAttributeNames: dict[str, str]
    ExpressionAttributeValues: dict[str, Any]  # Any: see `Value`.


class UpdateArguments(Condition, total=False):
    """Arguments of a conditional update."""

    UpdateExpression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeChanges:
    """Changes of attributes, by their names."""

    set: Item
    add: Item
    """Members to add to sets, which others may add to as well."""
    remove: Sequence[str]


def changes_between(before: Item, after: Item) -> AttributeChanges:
    """Return the changes that turn one row into the other."""
    set_: dict[str, Value] = {}
    add: dict[str, Value] = {}
    for name, value in after.items():
        old = before.get(name)
        if old is not None and canonical(old) == canonical(value):
            continue
        grown = _added(old, value)
        if grown is None:
            set_[name] = value
        else:
            add[name] = grown
    return AttributeChanges(set=set_, add=add, remove=sorted(set(before) - set(after)))


def _added(old: Value | None, new: Value) -> Value | None:
    """Return the members added to a set; None if the value is no set, or lost members."""
    members = new.get("SS")
    if members is None or (old is not None and "SS" not in old):
        return None
    before = frozenset(old["SS"] if old is not None else ())
    return {"SS": sorted(set(members) - before)} if before <= set(members) else None


def update_of(
    changes: AttributeChanges, *, key_name: str, guards: Mapping[str, Value | None]
) -> UpdateArguments:
    """Return the arguments of an update of an existing row.

    Args:
        changes: What it does.
        key_name: The attribute that every row has.
        guards: What each of these attributes must be; None: absent.
    """
    terms = _Terms()
    sections = {
        "SET": [
            f"{terms.name(name)} = {terms.value(value)}" for name, value in changes.set.items()
        ],
        "ADD": [f"{terms.name(name)} {terms.value(value)}" for name, value in changes.add.items()],
        "REMOVE": [terms.name(name) for name in changes.remove],
    }
    update: UpdateArguments = {
        "UpdateExpression": " ".join(
            f"{verb} {', '.join(parts)}" for verb, parts in sections.items() if parts
        ),
        "ConditionExpression": terms.condition(key_name, guards),
        "ExpressionAttributeNames": terms.name_by_place,
    }
    if terms.value_by_place:
        update["ExpressionAttributeValues"] = terms.value_by_place
    return update


def creation_of(row: Item, *, key_name: str) -> UpdateArguments:
    """Return the arguments of an update that creates a row, if absent."""
    terms = _Terms()
    parts = [f"{terms.name(name)} = {terms.value(value)}" for name, value in row.items()]
    return {
        "UpdateExpression": f"SET {', '.join(parts)}",
        "ConditionExpression": f"attribute_not_exists({terms.name(key_name)})",
        "ExpressionAttributeNames": terms.name_by_place,
        "ExpressionAttributeValues": terms.value_by_place,
    }


def condition_of(key_name: str, guards: Mapping[str, Value | None]) -> Condition:
    """Return the arguments of a delete of an existing, unchanged row."""
    terms = _Terms()
    condition: Condition = {
        "ConditionExpression": terms.condition(key_name, guards),
        "ExpressionAttributeNames": terms.name_by_place,
    }
    if terms.value_by_place:
        condition["ExpressionAttributeValues"] = terms.value_by_place
    return condition


@dataclass(slots=True)
class _Terms:
    """Names and values behind placeholders, because DynamoDB reserves many words."""

    name_by_place: dict[str, str] = field(default_factory=dict)
    value_by_place: dict[str, Any] = field(default_factory=dict)  # Any: see `Value`.

    def name(self, name: str) -> str:
        """Return the placeholder of a name."""
        for place, known in self.name_by_place.items():
            if known == name:
                return place
        place = f"#n{len(self.name_by_place)}"
        self.name_by_place[place] = name
        return place

    def value(self, value: Value) -> str:
        """Return a placeholder of a value."""
        place = f":v{len(self.value_by_place)}"
        self.value_by_place[place] = dict(value)
        return place

    def condition(self, key_name: str, guards: Mapping[str, Value | None]) -> str:
        """Return the condition that the row exists and has these attribute values."""
        parts = []
        # An attribute that equals a value exists, and so does its row.
        if not any(guards.values()):
            parts.append(f"attribute_exists({self.name(key_name)})")
        for name, value in sorted(guards.items()):
            if value is None:
                parts.append(f"attribute_not_exists({self.name(name)})")
            else:
                parts.append(f"{self.name(name)} = {self.value(value)}")
        return " AND ".join(parts)
