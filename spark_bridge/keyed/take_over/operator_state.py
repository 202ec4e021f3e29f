"""The operator of a query whose state is taken over: which one, and the variables that it has.

Source: Spark's `state-metadata` data source; `operatorProperties` as transformWithState writes them.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from broadsheet.consumer.keyed.imports.manifest import Kind
from broadsheet.runtime.errors import ValidationError

_KINDS: Final[dict[str, Kind]] = {
    "ValueState": "ValueState",
    "ListState": "ListState",
    "MapState": "MapState",
}
_TIMERS: Final = "TimerState"
_TAKEN: Final = "transformWithState"
_WHAT: Final = {
    "flatMapGroupsWithState": "mapGroupsWithState, flatMapGroupsWithState or applyInPandasWithState: write it as a "
    "StatefulProcessor, and let it begin with initialState",
    "applyInPandasWithState": "applyInPandasWithState: write it as a StatefulProcessor, and let it begin with "
    "initialState",
    "stateStoreSave": "an aggregation: use broadsheet.keyed's streams, which begin empty",
    "sessionWindowStateStoreSaveExec": "session windows: use broadsheet.keyed's streams, which begin empty",
    "dedupe": "dropDuplicates: use broadsheet.keyed's streams, which begin empty",
    "dedupeWithinWatermark": "dropDuplicatesWithinWatermark: use broadsheet.keyed's streams, which begin empty",
    "symmetricHashJoin": "a join of streams: use broadsheet.keyed's streams, which begin empty",
    "globalLimit": "a limit",
}
"""What operators with state are, which are not taken over, by Spark's names."""


@dataclass(frozen=True, slots=True)
class StoredVariable:
    """A variable as the query declares it."""

    name: str
    kind: Kind
    expires: bool
    """Its values have a TTL."""


@dataclass(frozen=True, slots=True)
class StoredOperator:
    """The operator."""

    id: int
    time_mode: str
    output_mode: str
    variables: Sequence[StoredVariable]
    has_timers: bool


def operator_of(rows: Sequence[Any], wanted: int | None) -> StoredOperator:
    """Return the operator to take over.

    Args:
        rows: Of `state-metadata`: (operatorId, operatorName, operatorProperties).
        wanted: Id of the operator; None: the only one of its kind.

    Raises:
        ValidationError: there is none, several are, or its state cannot be taken over; the error names what it is.
    """
    names = {int(number): str(name) for number, name, _ in rows}
    if not names:
        raise ValidationError("checkpoint", "expected a query with state, the checkpoint has none")
    taken = {number for number, name in names.items() if name.startswith(_TAKEN)}
    if wanted is None and len(taken) > 1:
        shown = ", ".join(map(str, sorted(taken)))
        raise ValidationError("operator_id", f"expected one of {shown}: each is a {_TAKEN}")
    number = wanted if wanted is not None else next(iter(taken), min(names))
    if number not in names:
        raise ValidationError("operator_id", f"expected one of {sorted(names)}, got {number}")
    if number not in taken:
        name = names[number]
        raise ValidationError(
            "operator_id",
            f"expected {_TAKEN}, whose state alone can be taken over; operator {number} is {_WHAT.get(name, name)}",
        )
    properties = next(text for each, _, text in rows if int(each) == number)
    return _operator(number, properties)


def _operator(number: int, properties: str) -> StoredOperator:
    try:
        found = json.loads(properties)
        declared = [
            (each["stateName"], each["stateVariableType"], bool(each.get("ttlEnabled")))
            for each in found["stateVariables"]
        ]
        time_mode, output_mode = str(found["timeMode"]), str(found["outputMode"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValidationError(
            "checkpoint",
            f"operator {number}: expected its variables as JSON, got {properties!r:.200}",
        ) from error
    variables = []
    for name, kind, expires in declared:
        if kind == _TIMERS:
            continue
        if kind not in _KINDS:
            raise ValidationError(
                "checkpoint", f"variable {name}: expected a value, list or map, got a {kind}"
            )
        variables.append(StoredVariable(name, _KINDS[kind], expires))
    has_timers = any(kind == _TIMERS for _, kind, _ in declared)
    return StoredOperator(number, time_mode, output_mode, variables, has_timers)
