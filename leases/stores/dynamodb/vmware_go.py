"""Table layout of vmware-go-kcl, whose workers may run beside ours.

They judge which workers live by the time in `LeaseTimeout`, on the wall clocks of all machines, and mostly write whole
rows, which drops other programs' attributes. So our acquisitions and renewals move `LeaseTimeout` as theirs do, and we
add these attributes:

    epoch       N   acquisitions so far
    rev         N   our writes so far; gone: a program of theirs wrote
    broadsheet  S   the rest of the record, as JSON, with the counter

A row after such a write is read as follows. If owner and time are those that we knew, the write was a claim or a
checkpoint, and the lease has not changed hands; otherwise it has, and the epoch is one more than the last known. A
process that knows no epoch starts at the time itself, in milliseconds, which is beyond every earlier epoch. The time is
the counter, too, because it moves when they renew.

A worker of theirs that lost its lease can still overwrite every row; no attribute of ours prevents that.

Source: vmware/vmware-go-kcl-v2 clientlibrary/checkpoint (attributes, types, meaning).
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from broadsheet.leases.codec import encode
from broadsheet.leases.expiry import LeaseExpiry
from broadsheet.leases.position import SHARD_END, Position
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.stores.dynamodb.layout import (
    EPOCH,
    REMAINDER,
    REV,
    attrs_in,
    attrs_of_rest,
    attrs_of_row,
    reading,
    remainder_of,
)
from broadsheet.leases.stores.dynamodb.values import Item, Value, number_of, text_of, values_of
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.errors import ValidationError

KEY: Final = "ShardID"
OWNER: Final = "AssignedTo"
TIMEOUT: Final = "LeaseTimeout"
CHECKPOINT: Final = "Checkpoint"
PARENT: Final = "ParentShardId"
CLAIM: Final = "ClaimRequest"
LEASE_SECONDS: Final = 10.0
"""Default length of a lease in vmware-go-kcl."""
_KNOWN: Final = frozenset({KEY, OWNER, CHECKPOINT, PARENT, CLAIM, EPOCH, REV, REMAINDER})
_NANOSECONDS_PER_MILLISECOND: Final = 1_000_000

NANOSECONDS: Final = 1_000_000_000
"""Nanoseconds in a second."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENT: Final = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[Tt](?P<time>\d\d:\d\d:\d\d)"
    r"(?:\.(?P<fraction>\d{1,9}))?(?P<zone>[Zz]|[+-]\d\d:\d\d)",
    re.ASCII,
)


def nanoseconds_of(moment: str) -> int:
    """Parse a time of vmware-go-kcl into nanoseconds since the Unix epoch; negative before it.

    Its notation is RFC 3339 in UTC, with up to nine digits of fractional seconds. `datetime` keeps six, so times are
    integers here. A store always compares the text that was read, because one time has many texts.

    Source: RFC 3339 §5.6; Go's `time.RFC3339Nano` drops trailing zeros.

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
    """Format a time in UTC."""
    seconds, fraction = divmod(nanoseconds, NANOSECONDS)
    whole = datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
    digits = f".{fraction:09}".rstrip("0") if fraction else ""
    return f"{whole}{digits}Z"


class VmwareGoLayout:
    """Implements `broadsheet.leases.stores.dynamodb.layout.Layout`."""

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
        """Return the record; an empty text counts as absent."""
        key = str(item[KEY]["S"])
        with reading(key):
            return _record(key, item, known)

    def row(self, record: LeaseRecord) -> dict[str, Value]:
        """Return the attributes that vmware-go-kcl would write, and the remainder."""
        parent = min(record.parents, default=None)
        checkpoint = record.checkpoint
        shown = None if checkpoint is None or _is_start(checkpoint) else checkpoint.seq
        values = values_of(
            {
                OWNER: record.owner,
                CHECKPOINT: shown,
                PARENT: parent,
                CLAIM: record.claim,
                REMAINDER: _remainder(record),
            }
        )
        return values | attrs_of_row(record, known=_KNOWN)

    def own(self, record: LeaseRecord) -> dict[str, Value]:
        """Return the epoch, and the remainder."""
        return values_of({EPOCH: record.epoch, REMAINDER: _remainder(record)})

    def stamped(
        self, before: LeaseRecord | None, after: LeaseRecord, *, now_nanoseconds: int
    ) -> LeaseRecord:
        """Set a new end time in a record that is acquired or renewed; return any other unchanged."""
        if after.owner is None or not (_is_acquired(before, after) or _is_renewed(before, after)):
            return after
        ends = moment_of(now_nanoseconds + self._lease_nanoseconds)
        return replace(after, attrs={**after.attrs, TIMEOUT: json.dumps(ends)})


def ends_at_nanoseconds(record: LeaseRecord) -> int | None:
    """Return the end of a lease in such a table, in nanoseconds since the Unix epoch; None: unknown.

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
    """Tell whether a lease was neither acquired nor renewed since, because both move its time."""
    return bool(text_of(item, OWNER)) and all(
        text_of(item, name) == text_of(known, name) for name in (OWNER, TIMEOUT)
    )


def _milliseconds(item: Item) -> int:
    moment = text_of(item, TIMEOUT)
    return max(0, nanoseconds_of(moment) // _NANOSECONDS_PER_MILLISECOND) if moment else 0


def _checkpoint(seq: str | None, kept: Position | None) -> Position | None:
    """Return the row's checkpoint, completed from the remainder; without one, the starting position kept there."""
    if seq is None:
        return kept if kept is not None and _is_start(kept) else None
    bare = Position(seq)
    return kept if kept is not None and kept.seq == bare.seq else bare


def _is_start(position: Position) -> bool:
    """Tell whether a position is a name that vmware-go-kcl would take for a sequence number."""
    return position.is_name and position.seq != SHARD_END


def _remainder(record: LeaseRecord) -> str:
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
    return encode(rest)


def _is_acquired(before: LeaseRecord | None, after: LeaseRecord) -> bool:
    return before is None or before.epoch != after.epoch


def _is_renewed(before: LeaseRecord | None, after: LeaseRecord) -> bool:
    """Tell whether a write only moves the counter; a checkpoint, in contrast, keeps the time."""
    if before is None or before.counter == after.counter:
        return False
    return replace(after, counter=before.counter, write_id=before.write_id) == before


SKEW_SECONDS = 2.0
"""A generous bound on the clock skew between machines with NTP."""


class WallClockExpiry:
    """Expiry in a table of vmware-go-kcl: each row holds its end, by the clock of the machine that wrote it.

    Implements `broadsheet.leases.expiry.Expiry`. All machines must keep their clocks with NTP.
    """

    def __init__(self, *, skew_seconds: float = SKEW_SECONDS, clock: Clock | None = None) -> None:
        """Judge by this machine's wall clock.

        Args:
            skew_seconds: Longer than any two machines' clocks are apart: a lease lasts so much longer for others.
            clock: Its wall clock is compared with the moments in the table.
        """
        self._skew_seconds = skew_seconds
        self._clock = clock or SystemClock()

    def standing(self, found: Versioned, *, asked_monotonic_seconds: float) -> LeaseExpiry:
        """Judge a lease by its end time. An owner without one has nothing that it could renew, and counts as gone."""
        ends = ends_at_nanoseconds(found.record)
        if ends is None:
            return LeaseExpiry(is_free=True, overdue_seconds=0.0)
        overdue_seconds = self._clock.wall_seconds() - ends / NANOSECONDS - self._skew_seconds
        is_free = found.record.holder is None or overdue_seconds > 0
        return LeaseExpiry(is_free=is_free, overdue_seconds=overdue_seconds)
