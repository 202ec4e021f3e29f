"""The table of vmware-go-kcl, whose workers may go on beside ours.

They know who lives by a moment in `LeaseTimeout`, on the wall clocks of all machines, and mostly write whole rows,
which drops what is not theirs. So an acquisition or renewal of ours moves `LeaseTimeout` as theirs do, and beside
their attributes stand

    epoch       N   acquisitions so far
    rev         N   our writes so far; gone: a program of theirs wrote
    broadsheet  S   the rest of the record, as JSON, with the counter

What such a write leaves is read so: with the owner and the moment that we knew, it was a claim or a checkpoint, and the
lease has not changed hands; else it has, and the epoch is one more than the last known. A process that knows of none
begins at the moment itself, in milliseconds, which is beyond every epoch that was. The moment is the counter, too: it
moves when they renew.

A program of theirs that lost its lease can still write over everybody; nothing that we write keeps it from that.

Source: vmware/vmware-go-kcl-v2 clientlibrary/checkpoint (attributes, types, meaning).
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from broadsheet.allocator.errors import ValidationError
from broadsheet.allocator.runtime.clock import Clock, SystemClock
from broadsheet.consumer.leasing.expiry import LeaseExpiry
from broadsheet.consumer.leasing.position import SHARD_END, Position
from broadsheet.consumer.leasing.record import LeaseRecord, Versioned
from broadsheet.consumer.leasing.stores.dynamodb.layout import (
    EPOCH,
    REMAINDER,
    REV,
    attrs_in,
    attrs_of_rest,
    attrs_of_row,
    reading,
    remainder,
    remainder_of,
)
from broadsheet.consumer.leasing.stores.dynamodb.values import (
    Item,
    Value,
    number,
    number_of,
    text,
    text_of,
)

KEY: Final = "ShardID"
OWNER: Final = "AssignedTo"
TIMEOUT: Final = "LeaseTimeout"
CHECKPOINT: Final = "Checkpoint"
PARENT: Final = "ParentShardId"
CLAIM: Final = "ClaimRequest"
LEASE_SECONDS: Final = 10.0
"""How long a lease of vmware-go-kcl lasts, unless it is told otherwise."""
_KNOWN: Final = frozenset({KEY, OWNER, CHECKPOINT, PARENT, CLAIM, EPOCH, REV, REMAINDER})
_NANOSECONDS_PER_MILLISECOND: Final = 1_000_000

# Moments in the notation of vmware-go-kcl: RFC 3339 in UTC, with up to nine digits of fractional
# seconds.
#
# `datetime` keeps six digits, so moments are whole nanoseconds since the Unix epoch here. What a
# store compares is always the text that was read: one moment has many texts.
#
# Source: RFC 3339 §5.6; Go's `time.RFC3339Nano` drops trailing zeros.
NANOSECONDS: Final = 1_000_000_000
"""In a second."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENT: Final = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[Tt](?P<time>\d\d:\d\d:\d\d)"
    r"(?:\.(?P<fraction>\d{1,9}))?(?P<zone>[Zz]|[+-]\d\d:\d\d)",
    re.ASCII,
)


def nanoseconds_of(moment: str) -> int:
    """Return nanoseconds since the Unix epoch; less than 0 before it.

    Raises:
        ValueError: this is no moment.
    """
    match = _MOMENT.fullmatch(moment)
    if match is None:
        raise ValueError(
            f"expected a moment such as 2026-01-31T12:00:00.5Z (RFC 3339), got {moment!r:.80}"
        )
    zone = match["zone"].upper().replace("Z", "+00:00")
    whole = datetime.fromisoformat(f"{match['date']}T{match['time']}{zone}") - _EPOCH
    seconds = whole.days * 86_400 + whole.seconds
    return seconds * NANOSECONDS + int((match["fraction"] or "").ljust(9, "0"))


def moment_of(nanoseconds: int) -> str:
    """Return the moment in UTC."""
    seconds, fraction = divmod(nanoseconds, NANOSECONDS)
    whole = datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
    digits = f".{fraction:09}".rstrip("0") if fraction else ""
    return f"{whole}{digits}Z"


class VmwareGoLayout:
    """Implements `broadsheet.consumer.leasing.stores.dynamodb.layout.Layout`."""

    key_name = KEY
    owner_name = OWNER
    owner_index = None
    guards = (OWNER, TIMEOUT, CHECKPOINT, CLAIM, REV)

    def __init__(self, *, lease_seconds: float | None = None) -> None:
        """Describe the layout.

        Args:
            lease_seconds: How long an acquisition or renewal of ours lasts; as the other workers have it. None: as long
                as the worker says that uses the table (`lease_lasts`), or 10 seconds if none does.
        """
        self._given_seconds = lease_seconds
        self._lease_nanoseconds = int((lease_seconds or LEASE_SECONDS) * NANOSECONDS)

    def lease_lasts(self, seconds: float) -> None:
        """Learn how long leases last for the worker that writes.

        Raises:
            ValidationError: the layout was made with another length.
        """
        if self._given_seconds not in (None, seconds):
            raise ValidationError(
                "worker.lease_seconds",
                f"expected {self._given_seconds} s, as the table's layout has it, got {seconds} s: workers would take"
                " leases from holders that live",
            )
        self._given_seconds = seconds
        self._lease_nanoseconds = int(seconds * NANOSECONDS)

    def read(self, item: Item, known: Item | None) -> LeaseRecord | None:
        """Return the record; an empty text is none."""
        key = str(item[KEY]["S"])
        with reading(key):
            return _record(key, item, known)

    def row(self, record: LeaseRecord) -> dict[str, Value]:
        """Return what vmware-go-kcl would write, and the rest."""
        parent = min(record.parents, default=None)
        checkpoint = record.checkpoint
        shown = None if checkpoint is None or _is_start(checkpoint) else checkpoint.seq
        texts = {OWNER: record.owner, CHECKPOINT: shown, PARENT: parent, CLAIM: record.claim}
        return {
            **{name: text(value) for name, value in texts.items() if value is not None},
            **attrs_of_row(record, known=_KNOWN),
            REMAINDER: _remainder(record),
        }

    def own(self, record: LeaseRecord) -> dict[str, Value]:
        """Return the epoch, and the rest."""
        return {EPOCH: number(record.epoch), REMAINDER: _remainder(record)}

    def stamped(
        self, before: LeaseRecord | None, after: LeaseRecord, *, now_nanoseconds: int
    ) -> LeaseRecord:
        """Return a record that is acquired or renewed with a new moment at which it ends, any other as it is."""
        if after.owner is None or not (_is_acquired(before, after) or _is_renewed(before, after)):
            return after
        ends = moment_of(now_nanoseconds + self._lease_nanoseconds)
        return replace(after, attrs={**after.attrs, TIMEOUT: json.dumps(ends)})


def ends_at_nanoseconds(record: LeaseRecord) -> int | None:
    """Return when a lease of such a table ends, in nanoseconds since the Unix epoch; None: it does not say.

    Raises:
        ValueError: it says no moment.
    """
    written = record.attrs.get(TIMEOUT)
    moment = None if written is None else json.loads(written)
    return nanoseconds_of(moment) if isinstance(moment, str) and moment else None


def _record(key: str, item: Item, known: Item | None) -> LeaseRecord:
    moved = _milliseconds(item)
    rest = remainder_of(item, key)
    if rest is None and known is not None and _is_same_acquisition(item, known):
        rest = remainder_of(known, key)
    if rest is None:
        rest = LeaseRecord(key=key, counter=moved)
    parent = text_of(item, PARENT)
    return replace(
        rest,
        epoch=_epoch(item, known),
        owner=text_of(item, OWNER) or None,
        handoff_from=rest.handoff_from if text_of(item, OWNER) else None,
        claim=text_of(item, CLAIM) or None,
        checkpoint=_checkpoint(text_of(item, CHECKPOINT) or None, rest.checkpoint),
        parents=rest.parents if parent in (*rest.parents, None, "") else frozenset({str(parent)}),
        attrs=attrs_in(item, rest, known=_KNOWN),
    )


def _epoch(item: Item, known: Item | None) -> int:
    epoch = number_of(item, EPOCH)
    if epoch is not None:
        return epoch
    if known is None:
        return _milliseconds(item)
    before = number_of(known, EPOCH)
    if before is None:
        return _milliseconds(known)
    return before + (not _is_same_acquisition(item, known))


def _is_same_acquisition(item: Item, known: Item) -> bool:
    """Tell whether nobody acquired or renewed a lease since, for that moves its moment."""
    return bool(text_of(item, OWNER)) and all(
        text_of(item, name) == text_of(known, name) for name in (OWNER, TIMEOUT)
    )


def _milliseconds(item: Item) -> int:
    moment = text_of(item, TIMEOUT)
    return max(0, nanoseconds_of(moment) // _NANOSECONDS_PER_MILLISECOND) if moment else 0


def _checkpoint(seq: str | None, kept: Position | None) -> Position | None:
    """Return the row's checkpoint, with what the rest knows of the same one; without one, a place to start at."""
    if seq is None:
        return kept if kept is not None and _is_start(kept) else None
    bare = Position(seq)
    return kept if kept is not None and kept.seq == bare.seq else bare


def _is_start(position: Position) -> bool:
    """Tell the names that vmware-go-kcl would take for sequence numbers."""
    return position.is_name and position.seq != SHARD_END


def _remainder(record: LeaseRecord) -> Value:
    position = record.checkpoint
    is_plain = position is not None and not position.sub and position.offset is None
    shown = position is None or (is_plain and not _is_start(position))
    rest = replace(
        record,
        epoch=0,
        owner=record.owner if record.handoff_from is not None else None,
        claim=None,
        checkpoint=None if shown else position,
        parents=record.parents if len(record.parents) > 1 else frozenset(),
        attrs=attrs_of_rest(record),
    )
    return remainder(rest)


def _is_acquired(before: LeaseRecord | None, after: LeaseRecord) -> bool:
    return before is None or before.epoch != after.epoch


def _is_renewed(before: LeaseRecord | None, after: LeaseRecord) -> bool:
    """Tell a write that only moves the counter from a checkpoint, which leaves the moment as it is."""
    if before is None or before.counter == after.counter:
        return False
    return replace(after, counter=before.counter, write_id=before.write_id) == before


# When a lease in a table of vmware-go-kcl ended: it says so itself, by the clock of the machine
# that wrote it.

SKEW_SECONDS = 2.0
"""How far clocks of machines with NTP may be apart, generously."""


class WallClockExpiry:
    """Implements `broadsheet.consumer.leasing.expiry.Expiry`. All machines must keep their clocks with NTP."""

    def __init__(self, *, skew_seconds: float = SKEW_SECONDS, clock: Clock | None = None) -> None:
        """Judge by a clock.

        Args:
            skew_seconds: Longer than any two machines' clocks are apart: a lease lasts so much longer for others.
            clock: Its wall clock is compared with the moments in the table.
        """
        self._skew_seconds = skew_seconds
        self._clock = clock or SystemClock()

    def standing(self, found: Versioned, *, asked_monotonic_seconds: float) -> LeaseExpiry:
        """Judge a lease by the moment in it. An owner without a moment has none that it could renew, and is gone."""
        ends = ends_at_nanoseconds(found.record)
        if ends is None:
            return LeaseExpiry(is_free=True, overdue_seconds=0.0)
        overdue_seconds = self._clock.wall_seconds() - ends / NANOSECONDS - self._skew_seconds
        is_free = found.record.holder is None or overdue_seconds > 0
        return LeaseExpiry(is_free=is_free, overdue_seconds=overdue_seconds)
