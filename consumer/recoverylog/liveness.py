"""Liveness of recovery logs: the bytes that some hints need, which a prune must keep.

Hints need their segments, in whatever log, and everything after the last one, because playback continues from there to
the end of the log. All hints of every shard count, backups too. In doubt, bytes are kept:

    a shard without hints, or whose hints name no file       plays its log from the first byte: all of it is needed
    hints that contradict themselves or their spec           all of every log that they name is needed
    hints, or a spec, that cannot be decoded                 may name any log: everything is needed

Pure.

Source: gazette/core cmd/gazctl/gazctlcmd/shards_prune.go (open end of the last segment, hints that protect). Reading
all shards, and the treatment of what cannot be decoded, are ours.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from broadsheet.consumer.errors import HintsError
from broadsheet.consumer.recoverylog.fsm import live_segments
from broadsheet.consumer.recoverylog.hints import decode_hints
from broadsheet.consumer.recoverylog.segments import Segment
from broadsheet.wire.recorded_op_pb2 import FSMHints

ENDLESS: Final = 1 << 63
"""The end of an interval without an end; every offset is below it."""


@dataclass(frozen=True, slots=True)
class HintsValue:
    """Hints as etcd holds them."""

    name: str
    """Their key, for messages to operators."""
    value: bytes
    is_backup: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHints:
    """All hints that a recovery of one shard could begin from."""

    shard: str
    log: str
    """As its spec names it."""
    values: tuple[HintsValue, ...]

    @property
    def is_based(self) -> bool:
        """True if there is a backup."""
        return any(each.is_backup for each in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNeeds:
    """The bytes that must stay of one log."""

    log: str
    shards: tuple[str, ...]
    """The shards whose own log it is."""
    spared: str = ""
    """Reason why all of it must stay; empty if only the intervals must."""
    intervals: tuple[tuple[int, int], ...] = ()
    """Intervals [begin, end) in bytes, ascending and disjoint."""
    based: bool = False
    """Whether each shard whose hints name it has a backup. A backup needs everything that hints written since its
    recovery need. So no player can be reading dead bytes, unless the shard failed over in the meantime."""

    def needs(self, begin: int, end: int) -> bool:
        """Tell whether a byte of [begin, end) must stay."""
        if self.spared:
            return True
        behind = bisect_right(self.intervals, (begin, ENDLESS))
        if behind and self.intervals[behind - 1][1] > begin:
            return True
        return behind < len(self.intervals) and self.intervals[behind][0] < end


@dataclass(slots=True)
class _Draft:
    shards: list[str] = field(default_factory=list)
    spared: str = ""
    based: bool = True
    segments: list[Segment] = field(default_factory=list)

    def spare(self, reason: str) -> None:
        self.spared = self.spared or reason


def live_logs(
    shards: Iterable[ShardHints], *, unreadable_specs: Iterable[str] = ()
) -> list[LogNeeds]:
    """Return the needs of each log that is a shard's own, by name; other logs are not pruned.

    Args:
        shards: Every shard of the cluster that has a recovery log.
        unreadable_specs: Keys of specs that cannot be decoded, and so may need any log.
    """
    drafts: dict[str, _Draft] = {}
    doubts = [
        f"the spec at {key} cannot be read, and may need any log; repair it"
        for key in unreadable_specs
    ]
    for shard in shards:
        doubts += _add_shard(drafts, shard)
    return [_needs(log, drafts[log], doubts) for log in sorted(drafts) if drafts[log].shards]


def _add_shard(drafts: dict[str, _Draft], shard: ShardHints) -> list[str]:
    """Add the needs of a shard's hints; return the reasons why they may need any log."""
    own = drafts.setdefault(shard.log, _Draft())
    own.shards.append(shard.shard)
    own.based = own.based and shard.is_based
    if not shard.values:
        own.spare(f"shard {shard.shard} has no hints: it is recovered from the whole log")
    doubts: list[str] = []
    for each in shard.values:
        try:
            hints = decode_hints(each.value)
        except ValueError:
            # Hints that cannot be decoded may need any log, so nothing is pruned anywhere.
            doubts.append(
                f"hints at {each.name} cannot be read, and may need any log; "
                f"shardctl shards rewind {shard.shard} sets them aside"
            )
            continue
        _add_hints(drafts, shard, each.name, hints)
    return doubts


def _add_hints(drafts: dict[str, _Draft], shard: ShardHints, name: str, hints: FSMHints) -> None:
    try:
        if hints.log != shard.log:
            raise HintsError(
                hints.log, f"expected {shard.log} as in the spec of shard {shard.shard}"
            )
        segments = _needed(hints)
    except HintsError as error:
        # Contradictory hints may need any byte of the logs that they name.
        for log in _named_logs(hints) | {shard.log}:
            drafts.setdefault(log, _Draft()).spare(f"hints at {name}: {error.detail}")
        return
    if not segments:
        drafts[shard.log].spare(f"hints at {name} name no files: the whole log is played")
    for segment in segments:
        draft = drafts.setdefault(segment.log, _Draft())
        draft.segments.append(segment)
        draft.based = draft.based and shard.is_based


def _needed(hints: FSMHints) -> Sequence[Segment]:
    """Return the segments of hints, the last without an end, because playback continues from there.

    Raises:
        HintsError: the hints contradict themselves.
    """
    segments = list(live_segments(hints)[1])
    if segments:
        segments[-1] = replace(segments[-1], last_offset=0)
    return segments


def _named_logs(hints: FSMHints) -> set[str]:
    named = {segment.log for node in hints.live_nodes for segment in node.segments}
    return {hints.log, *named} - {""}


def _needs(log: str, draft: _Draft, doubts: Sequence[str]) -> LogNeeds:
    spared = draft.spared or (doubts[0] if doubts else "")
    return LogNeeds(
        log=log,
        shards=tuple(sorted(draft.shards)),
        spared=spared,
        intervals=() if spared else merged(_intervals(draft.segments)),
        based=draft.based,
    )


def _intervals(segments: Iterable[Segment]) -> Iterable[tuple[int, int]]:
    return ((each.first_offset, each.last_offset or ENDLESS) for each in segments)


def merged(intervals: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return intervals [begin, end) in order, merged where they touch or overlap."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return tuple(joined)
