"""Preconditions of an append. Pure: the same check serves early refusals and the committer's final decision.

Source: gazette/core broker/append_fsm.go (order of checks), broker/protocol/journal_spec_extensions.go (flags).
"""

from __future__ import annotations

from dataclasses import dataclass

from broadsheet.wire.journal_pb2 import AppendRequest, JournalSpec, LabelSet, Status
from broadsheet.wire.labels import matches, registers_match, subtract, union

REGISTERS_BYTES_MAX = 16 * 1024
"""Largest registers: they hold a few fences and locks, and are copied with each batch that changes them."""
FLUSHED_SECONDS = 24 * 3600.0
"""Time for which content must be sealed before a journal without a flush interval is suspended if flushed."""
_OK = Status.OK  # of Status, whose `Name` is a function
_WRITABLE = (JournalSpec.NOT_SPECIFIED, JournalSpec.O_WRONLY, JournalSpec.O_RDWR)
_READABLE = (JournalSpec.NOT_SPECIFIED, JournalSpec.O_RDONLY, JournalSpec.O_RDWR)
_SUSPENDING = (
    AppendRequest.SUSPEND_IF_FLUSHED,
    AppendRequest.SUSPEND_NOW,
    AppendRequest.SUSPEND_KEEP,
)


@dataclass(frozen=True, slots=True)
class JournalEnd:
    """End of a journal, against which an append is judged."""

    head: int
    """Write head, bytes."""
    registers: LabelSet
    unconfirmed: bool
    """True if acknowledged bytes were lost and no append has accepted that."""


def may_write(spec: JournalSpec) -> bool:
    """Tell whether the journal's flags allow content to be appended."""
    return spec.flags in _WRITABLE


def may_read(spec: JournalSpec) -> bool:
    """Tell whether the journal's flags allow content to be read."""
    return spec.flags in _READABLE


def is_suspended(spec: JournalSpec, suspend: int) -> bool:
    """Tell whether the journal's suspension refuses an append of this kind."""
    if suspend == AppendRequest.SUSPEND_RESUME:
        return False
    if suspend == AppendRequest.SUSPEND_NO_RESUME:
        return spec.suspend.level != JournalSpec.Suspend.NONE
    return spec.suspend.level == JournalSpec.Suspend.FULL


def suspension_level(
    suspend: int, *, is_empty: bool, flushed_seconds: float | None, flush_interval_seconds: float
) -> JournalSpec.Suspend.Level.ValueType | None:
    """Return the suspension level that an accepted append requests; None if it does not suspend its journal.

    Args:
        suspend: Of the append.
        is_empty: The journal has no content.
        flushed_seconds: For how long all content has been in sealed fragments; None if some is not.
        flush_interval_seconds: Of the spec; 0 means a day.
    """
    if suspend not in (AppendRequest.SUSPEND_IF_FLUSHED, AppendRequest.SUSPEND_NOW):
        return None
    if is_empty:
        return JournalSpec.Suspend.FULL
    patience = flush_interval_seconds or FLUSHED_SECONDS
    is_flushed = flushed_seconds is not None and flushed_seconds > patience
    if suspend == AppendRequest.SUSPEND_NOW or is_flushed:
        return JournalSpec.Suspend.PARTIAL
    return None


def refusal(request: AppendRequest, spec: JournalSpec, position: JournalEnd) -> Status.ValueType:
    """Return the reason why an append is refused at a position, or OK."""
    head = max(position.head, spec.suspend.offset)
    if request.HasField("check_registers") and not registers_match(
        request.check_registers, position.registers
    ):
        return Status.REGISTER_MISMATCH
    if not request.offset and position.unconfirmed and may_write(spec):
        return Status.INDEX_HAS_GREATER_OFFSET
    if request.offset not in (0, head):
        return Status.WRONG_APPEND_OFFSET
    if is_suspended(spec, request.suspend):
        return Status.SUSPENDED
    return _OK


def content_refusal(request: AppendRequest, spec: JournalSpec) -> Status.ValueType:
    """Return the reason why an append may carry no content, or OK."""
    if not may_write(spec) or request.suspend in _SUSPENDING:
        return Status.NOT_ALLOWED
    return _OK


def confirms_loss(request: AppendRequest, position: JournalEnd) -> bool:
    """Tell whether an accepted append accepts the loss of earlier bytes by naming the end of the index."""
    return position.unconfirmed and request.offset != 0


def updates_registers(request: AppendRequest) -> bool:
    """Tell whether an append changes the registers."""
    return request.HasField("union_registers") or request.HasField("subtract_registers")


def registers_after(request: AppendRequest, registers: LabelSet) -> LabelSet:
    """Return the registers once an append with content is committed."""
    if not updates_registers(request):
        return registers
    return union(subtract(registers, request.subtract_registers), request.union_registers)


def is_proven(request: AppendRequest, status: Status.ValueType, registers: LabelSet) -> bool:
    """Tell whether an append succeeded with the registers that it demanded, so that others may follow it.

    If registers were lost, any demand passes; exclusive writers must not rely on such an answer.

    Args:
        request: What was asked.
        status: The answer.
        registers: After it.
    """
    is_met = not request.HasField("check_registers") or matches(request.check_registers, registers)
    return status == _OK and is_met
