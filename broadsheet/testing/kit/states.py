"""The state of stores as tests compare it: plain values."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from broadsheet.consumer.stores.state_tables import ScannableStore
from broadsheet.runtime.errors import ValidationError


def state_of(store: Any) -> Any:
    """Return the state of one of our stores, as of its last commit.

    Raises:
        ValidationError: it shows none.
    """
    committed = getattr(store, "committed_state", None)
    if callable(committed):
        return committed()
    if isinstance(store, ScannableStore):
        tables = {name: _rows_of(store, name) for name in store.tables()}
        if len(tables) == 1:
            return next(iter(tables.values()))
        # An `SqlStore` shows what it is told to show; the others show all that they have.
        if tables or not _is_sql(store):
            return tables
    raise ValidationError(
        "state",
        f"{type(store).__name__} does not show its state: pass TestCluster(…, state=lambda store: …), which returns it "
        "as a plain value, or call cluster.query",
    )


def _is_sql(store: object) -> bool:
    # A store that is one has imported SQLAlchemy, which is an extra, and takes long to import.
    if "sqlalchemy" not in sys.modules:
        return False
    from broadsheet.consumer.stores.sql import SqlStore

    return isinstance(store, SqlStore)


def _rows_of(store: ScannableStore, table: str) -> Any:
    """Return a table as a dict by its first column; as a list of rows if that is not unique."""
    with store.scan(table) as scan:
        names = scan.schema.names
        rows = [row for batch in scan.batches for row in batch.to_pylist()]
    first, *others = names
    if len({row[first] for row in rows}) < len(rows) or not others:
        return sorted((tuple(row.values()) for row in rows), key=repr)
    if len(others) == 1:
        return {row[first]: row[others[0]] for row in rows}
    return {row[first]: {name: row[name] for name in others} for row in rows}


def merged(states: Mapping[str, Any]) -> Any:
    """Return the states of several shards as one.

    Args:
        states: By shard.

    Raises:
        ValidationError: they are no dicts, or two have the same key.
    """
    if len(states) == 1:
        return next(iter(states.values()))
    whole: dict[Any, Any] = {}
    owners: dict[Any, str] = {}
    for shard, state in states.items():
        if not isinstance(state, dict):
            raise ValidationError(
                "shard",
                f"expected one of {', '.join(states)}, because their states cannot be merged",
            )
        for key, value in state.items():
            if key in owners:
                raise ValidationError(
                    "shard",
                    f"expected one of {', '.join(states)}, because {owners[key]!r} and {shard!r} both have {key!r}",
                )
            owners[key] = shard
            whole[key] = value
    return whole


def plain(value: Any) -> Any:
    """Return a value with Structs and dataclasses as dicts, so that values of two runs are compared and shown alike."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(each) for each in value]
    return value
