"""A prune removes nothing that any hints need: logs are played before and after it, from every hint."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings, strategies as st

from broadsheet.consumer.recoverylog.hints import encode_hints
from broadsheet.consumer.recoverylog.liveness import HintsValue, LogNeeds, ShardHints, live_logs
from broadsheet.consumer.recoverylog.prune_plan import (
    LogListing,
    QuarantineRecord,
    SegmentFate,
    plan_log,
)
from broadsheet.wire.journal_pb2 import Fragment
from broadsheet.wire.recorded_op_pb2 import FSMHints
from tests.support.recorded_lives import Pieces, RecordedLife, played


def cut(random: Random, content: bytes) -> list[tuple[int, bytes]]:
    """Cut a log into fragments anywhere, mostly within operations."""
    pieces, at = [], 0
    while at < len(content):
        end = at + random.randrange(1, random.choice((8, 120)))
        pieces.append((at, content[at:end]))
        at = min(end, len(content))
    return pieces


def pruned(needs: LogNeeds, pieces: Pieces) -> list[tuple[int, bytes]]:
    """Return what a prune without a delay leaves."""
    if needs.spared:
        return list(pieces)
    fragments = [
        Fragment(begin=begin, end=begin + len(content), mod_time=1) for begin, content in pieces
    ]
    plan = plan_log(needs, LogListing(1, fragments), QuarantineRecord(), now=100, delay_seconds=0)
    gone = {fragment.begin for fragment in plan.dead}
    assert plan.tallies[SegmentFate.QUARANTINED].fragments == 0
    return [piece for piece in pieces if piece[0] not in gone]


def hints_of(life: RecordedLife, kept: int) -> ShardHints:
    """The shard's hints in etcd: its recorder's, and the newest backups."""
    backups: list[FSMHints] = list(reversed(life.backups))[:kept]
    values = [HintsValue("primary", encode_hints(life.hints()))]
    values += [
        HintsValue(f"backup.{number}", encode_hints(each), is_backup=True)
        for number, each in enumerate(backups)
    ]
    return ShardHints(shard=life.log.rpartition("/")[2], log=life.log, values=tuple(values))


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), backups=st.integers(0, 3), forks=st.booleans())
def test_every_hint_plays_the_same_after_a_prune(seed: int, backups: int, forks: bool) -> None:
    """Recorders come and go, old ones write on, a second shard may fork off; logs are cut into fragments anywhere. From
    the primary hints and each backup of both shards, playback makes the same files of what the prune left.
    """
    random = Random(seed)
    lives = [RecordedLife(random)]
    for _ in range(random.randrange(1, 6)):
        for life in lives:
            for _ in range(random.randrange(60)):
                life.work()
        if random.random() < 0.7:
            random.choice(lives).fail_over()
        if forks and len(lives) == 1 and random.random() < 0.5:
            lives.append(lives[0].fork("logs/b"))
    for life in lives:
        life.work()
    whole = {life.log: cut(random, life.logs[life.log]) for life in lives}
    shards = [hints_of(life, backups) for life in lives]

    needs = {each.log: each for each in live_logs(shards)}
    left = {log: pruned(needs[log], pieces) for log, pieces in whole.items()}

    for life in lives:
        for hints in [life.hints(), *list(reversed(life.backups))[:backups]]:
            assert played(hints, left) == played(hints, whole)


def test_prunes_of_that_kind_remove_much() -> None:
    """The property above is not true for want of anything to remove: of many lives, a fair share of bytes goes."""
    before = after = 0
    for seed in range(30):
        random = Random(seed)
        life = RecordedLife(random)
        for _ in range(4):
            for _ in range(60):
                life.work()
            life.fail_over()
        pieces = cut(random, life.logs[life.log])
        (needs,) = live_logs([hints_of(life, 1)])
        before += sum(len(content) for _, content in pieces)
        after += sum(len(content) for _, content in pruned(needs, pieces))
    assert after < 0.75 * before
