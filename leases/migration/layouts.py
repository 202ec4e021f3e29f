"""Record layouts: the fields that each kind of store can hold, and those that other systems' programs see (pure).

Ours keeps every field in every layout, beside theirs. Their programs do not see fields that they do not know, and drop
them when they write a whole row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Final

from broadsheet.leases.errors import InvalidStateError
from broadsheet.leases.migration.merge import said
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.stores.dynamodb.kcl_java import KclJavaLayout
from broadsheet.leases.stores.dynamodb.vmware_go import VmwareGoLayout

_FIELDS: Final = frozenset(each.name for each in fields(LeaseRecord)) - {"attrs"}
"""Names of our own fields, which attributes of other systems must not have in our JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLayout:
    """One layout, with what an import needs to know about it."""

    name: str
    readers: str
    """The system whose programs read it, besides ours; empty: none."""
    refusal: Callable[[LeaseRecord], str | None]
    """Returns the reason why a record cannot be held; None: it can."""
    unseen: Callable[[LeaseRecord], tuple[str, ...]]
    """Returns the parts of a record that those programs do not see."""


def _taken_names(record: LeaseRecord) -> str | None:
    taken = sorted(_FIELDS & record.attrs.keys())
    if not taken:
        return None
    return (
        f"its further attributes {', '.join(taken)} have the names of our own fields: rename them"
    )


def _refused_by_kcl_java(record: LeaseRecord) -> str | None:
    return _refused(lambda: KclJavaLayout().row(record))


def _refused_by_vmware_go(record: LeaseRecord) -> str | None:
    return _refused(lambda: VmwareGoLayout().row(record))


def _refused(write: Callable[[], object]) -> str | None:
    try:
        write()
    except InvalidStateError as error:
        return str(error)
    return None


def _nothing(record: LeaseRecord) -> tuple[str, ...]:
    del record
    return ()


def _unseen_by_kcl_java(record: LeaseRecord) -> tuple[str, ...]:
    checkpoint = record.checkpoint
    if checkpoint is None:
        return ("a place to start, which they expect: create the lease with TRIM_HORIZON",)
    if checkpoint.offset is None:
        return ()
    return (f"the offset of its checkpoint, {checkpoint.offset}",)


def _unseen_by_vmware_go(record: LeaseRecord) -> tuple[str, ...]:
    checkpoint = record.checkpoint
    unseen: list[str] = []
    if checkpoint is not None and checkpoint.is_name and not checkpoint.is_end:
        unseen.append(f"that it begins at {checkpoint.seq}: set it in its configuration")
    elif checkpoint is not None and (checkpoint.sub or checkpoint.offset):
        unseen.append(f"of its checkpoint {said(checkpoint)} more than {checkpoint.seq}")
    unseen += _unseen_pending(record)
    if len(record.parents) > 1:
        unseen.append(f"other parents than {min(record.parents)}")
    if record.children or record.hash_range is not None:
        unseen.append("its children and hash range")
    return tuple(unseen)


def _unseen_by_event_hubs(record: LeaseRecord) -> tuple[str, ...]:
    unseen: list[str] = []
    if record.checkpoint is not None and not _is_event(record.checkpoint):
        unseen.append(
            f"its checkpoint {said(record.checkpoint)}: it names no event with an offset, so they start over"
        )
    unseen += _unseen_pending(record)
    if record.parents or record.children or record.hash_range is not None:
        unseen.append("its parents, children and hash range")
    return tuple(unseen)


def _unseen_pending(record: LeaseRecord) -> list[str]:
    return [] if record.pending is None else [f"its pending position {said(record.pending)}"]


def _is_event(position: Position) -> bool:
    return not position.is_name and not position.sub and bool(position.offset)


NATIVE: Final = RecordLayout(name="native", readers="", refusal=_taken_names, unseen=_nothing)

LAYOUTS: Final[Mapping[str, RecordLayout]] = {
    layout.name: layout
    for layout in (
        NATIVE,
        RecordLayout(
            name="kcl-java",
            readers="workers of the Kinesis Client Library",
            refusal=_refused_by_kcl_java,
            unseen=_unseen_by_kcl_java,
        ),
        RecordLayout(
            name="vmware-go",
            readers="workers of vmware-go-kcl",
            refusal=_refused_by_vmware_go,
            unseen=_unseen_by_vmware_go,
        ),
        RecordLayout(
            name="eph",
            readers="hosts of the Event Processor Host",
            refusal=_taken_names,
            unseen=_unseen_by_event_hubs,
        ),
        RecordLayout(
            name="eventhubs",
            readers="Azure's event processors",
            refusal=_taken_names,
            unseen=_unseen_by_event_hubs,
        ),
    )
}
"""Layouts by their names in addresses."""
