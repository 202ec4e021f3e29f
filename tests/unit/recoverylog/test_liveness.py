"""What hints need of logs, and when a whole log is left alone."""

from __future__ import annotations

import pytest

from broadsheet.consumer.recoverylog.hints import encode_hints
from broadsheet.consumer.recoverylog.liveness import (
    ENDLESS,
    HintsValue,
    LogNeeds,
    ShardHints,
    live_logs,
)
from broadsheet.wire.recorded_op_pb2 import FnodeSegments, FSMHints, Segment

LOG = "logs/shard-a"


def segment(seq: int, begin: int, end: int, *, author: int = 1, log: str = "") -> Segment:
    """Return one of one operation."""
    return Segment(
        author=author,
        first_seq_no=seq,
        first_offset=begin,
        last_seq_no=seq,
        last_offset=end,
        log=log,
    )


def hints(*segments: Segment, log: str = LOG) -> bytes:
    """Return stored hints with a file for each segment."""
    nodes = [FnodeSegments(fnode=each.first_seq_no, segments=[each]) for each in segments]
    return encode_hints(FSMHints(log=log, live_nodes=nodes))


def shard(primary: bytes = b"", *backups: bytes, name: str = "shard-a") -> ShardHints:
    """Return a shard's hints; empty ones are not there."""
    values = [HintsValue("primary", primary)] if primary else []
    values += [HintsValue(f"backup.{n}", each, is_backup=True) for n, each in enumerate(backups)]
    return ShardHints(shard=name, log=f"logs/{name}", values=tuple(values))


def needs_of(*shards: ShardHints, unreadable_specs: tuple[str, ...] = ()) -> dict[str, LogNeeds]:
    """Return what must stay, by log."""
    return {each.log: each for each in live_logs(shards, unreadable_specs=unreadable_specs)}


def test_last_segment_of_each_hint_has_no_end() -> None:
    """The primary's begins at 500, the backup's at 300: all from 300 on, and the first segment of each."""
    primary = hints(segment(1, 100, 110), segment(9, 500, 510))
    backup = hints(segment(1, 100, 110), segment(4, 200, 210), segment(6, 300, 310))

    needs = needs_of(shard(primary, backup))[LOG]

    assert needs.intervals == ((100, 110), (200, 210), (300, ENDLESS))
    assert needs.based
    assert not needs_of(shard(primary))[LOG].based


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, 100, False),
        (0, 101, True),
        (102, 104, True),
        (109, 110, True),
        (110, 200, False),
        (110, 201, True),
        (90, 120, True),
        (150, 10_000, True),
    ],
)
def test_a_byte_is_enough_to_need_a_fragment(begin: int, end: int, *, expected: bool) -> None:
    """Of a log of which [100, 110) and all from 200 on must stay."""
    needs = needs_of(shard(hints(segment(1, 100, 110), segment(3, 200, 0))))[LOG]
    assert needs.needs(begin, end) is expected


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (shard(), "shard shard-a has no hints"),
        (shard(hints()), "hints at primary name no files"),
        (shard(hints(segment(1, 5, 9)), hints()), "hints at backup.0 name no files"),
        (shard(hints(segment(1, 5, 9, log="logs/c"))), "hints at primary: expected the last"),
    ],
)
def test_log_is_spared_alone(broken: ShardHints, reason: str) -> None:
    """A shard whose hints tell too little; another shard's log is pruned."""
    needs = needs_of(broken, shard(hints(segment(1, 7, 9), log="logs/shard-b"), name="shard-b"))

    assert needs[LOG].spared.startswith(reason)
    assert needs[LOG].needs(0, 1)
    assert not needs["logs/shard-b"].spared
    assert list(needs) == [LOG, "logs/shard-b"]


def test_hints_of_a_fork_protect_the_log_that_it_came_from() -> None:
    """Shard B's file was written in A's log, of which A itself needs but the end."""
    forked = hints(segment(1, 10, 20, log=LOG), segment(2, 5, 0, author=2), log="logs/shard-b")

    needs = needs_of(shard(hints(segment(7, 900, 0))), shard(forked, name="shard-b"))

    assert needs[LOG].intervals == ((10, 20), (900, ENDLESS))
    assert needs["logs/shard-b"].intervals == ((5, ENDLESS),)


@pytest.mark.parametrize("has_backup", [True, False])
def test_log_is_based_if_all_that_name_it_are(*, has_backup: bool) -> None:
    """Its own shard has a backup; so must one that forked from it."""
    own = hints(segment(7, 900, 0))
    forked = hints(segment(1, 10, 20, log=LOG), segment(2, 5, 0, author=2), log="logs/shard-b")
    fork = shard(forked, *([forked] if has_backup else []), name="shard-b")

    for order in ((shard(own, own), fork), (fork, shard(own, own))):
        assert needs_of(*order)[LOG].based is has_backup


def test_hints_of_another_log_than_the_spec_spare_both() -> None:
    """They may be what somebody recovers from yet."""
    stranger = hints(segment(1, 10, 20), log=LOG)

    needs = needs_of(shard(hints(segment(1, 7, 9))), shard(stranger, name="shard-b"))

    assert "expected logs/shard-b as in the spec" in needs[LOG].spared
    assert "expected logs/shard-b as in the spec" in needs["logs/shard-b"].spared


def test_what_cannot_be_decoded_spares_everything() -> None:
    """Garbage in one shard's backup, or in a spec: nobody knows which logs it needs, and the reason says where."""
    sound = shard(hints(segment(1, 7, 9)))
    garbage = shard(hints(segment(1, 7, 9), log="logs/shard-b"), b"{garbage", name="shard-b")

    needs = needs_of(sound, garbage)
    assert "hints at backup.0 cannot be read" in needs[LOG].spared
    assert "shardctl shards rewind shard-b" in needs["logs/shard-b"].spared
    assert "spec at /items/x cannot" in needs_of(sound, unreadable_specs=("/items/x",))[LOG].spared


def test_shards_with_one_log_both_protect_it() -> None:
    """Two prefixes and ids may make one name."""
    twin = ShardHints(
        shard="a", log=LOG, values=(HintsValue("primary", hints(segment(3, 40, 50))),)
    )
    needs = needs_of(shard(hints(segment(1, 90, 95))), twin)[LOG]
    assert needs.shards == ("a", "shard-a")
    assert needs.intervals == ((40, ENDLESS),)
