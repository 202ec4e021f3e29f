"""How far splits and merges are; unknown is never a number."""

from __future__ import annotations

import msgspec
import pytest

from broadsheet.cli.shards.merges import MERGE_COLUMNS, merge_cells
from broadsheet.cli.shards.splits import SPLIT_COLUMNS, split_cells
from broadsheet.consumer.elastic.fork import (
    ForkPhase,
    ForkRecord,
    PurgeProgress,
    decode_fork,
    encode_fork,
)
from broadsheet.consumer.elastic.merge import MergePhase, MergeRecord
from broadsheet.consumer.elastic.progress import merge_progress, split_progress
from broadsheet.consumer.keyed.purge import Purge
from broadsheet.consumer.keyed.state_rows import STATE, TIMERS, group_bytes
from broadsheet.wire.elastic_pb2 import ListMergesResponse, ListSplitsResponse
from broadsheet.wire.key_range import GROUPS, KeyRange
from broadsheet.wire.progress_pb2 import ProgressUnit

RECORD = ForkRecord(parent="a", begin=2048, end=4096, done_bytes=300, behind_bytes=100)


def test_following_has_a_time_once_there_is_a_rate() -> None:
    """Before that it is unknown, unless nothing is left."""
    assert split_progress("b", RECORD).eta_s == -1
    timed = msgspec.structs.replace(RECORD, bytes_per_second=50.0)
    progress = split_progress("b", timed)
    assert (progress.done, progress.to_do, progress.rate, progress.eta_s) == (300, 100, 50.0, 2.0)
    assert split_progress("b", msgspec.structs.replace(RECORD, behind_bytes=0)).eta_s == 0
    assert decode_fork(encode_fork(timed)) == timed


def test_purging_takes_as_long_as_the_slower_shard_and_is_unknown_before_both_told() -> None:
    """They remove rows beside each other; one that is done counts no more."""
    purging = msgspec.structs.replace(
        RECORD, phase=ForkPhase.PURGING, purging={"a": PurgeProgress(48, 2000, 100.0)}
    )
    assert (split_progress("b", purging).to_do, split_progress("b", purging).eta_s) == (-1, -1)
    both = msgspec.structs.replace(
        purging, purging={**purging.purging, "b": PurgeProgress(1048, 1000, 200.0)}
    )
    progress = split_progress("b", both)
    assert (progress.done, progress.to_do, progress.rate, progress.eta_s) == (1096, 3000, 300, 20)
    assert progress.unit == ProgressUnit.PROGRESS_UNIT_GROUPS
    assert decode_fork(encode_fork(both)) == both
    slow = msgspec.structs.replace(both, purging={**both.purging, "b": PurgeProgress(0, 2048)})
    assert split_progress("b", slow).eta_s == -1
    half = msgspec.structs.replace(both, purged=("a",))
    assert (split_progress("b", half).to_do, split_progress("b", half).eta_s) == (1000, 5)


@pytest.mark.parametrize("owned", [KeyRange(0, 1024), KeyRange(1024, 2048), KeyRange(3000, GROUPS)])
def test_purge_passes_each_foreign_group_once_and_ends_only_when_it_is_over(
    owned: KeyRange,
) -> None:
    """Rows of state and of timers lie apart, so a group is half done between them."""
    foreign = GROUPS - (owned.end - owned.begin)
    purge, before = Purge.of(None, owned), -1
    assert purge.groups() == (0, foreign)
    for family in sorted((STATE, TIMERS)):
        for group in range(GROUPS):
            if group in owned:
                continue
            done, left = purge.advanced(family + group_bytes(group) + b"key").groups()
            assert done + left == foreign
            assert done >= before
            assert left > 0
            before = done
    assert purge.advanced(None).groups() == (foreign, 0)
    assert Purge.of(None, KeyRange()).groups() == (0, 0)


def test_cells_of_a_split_show_what_is_unknown_as_that() -> None:
    """A record that cannot be read has no progress, but its child's name."""
    unread = ListSplitsResponse.Split(child="b", reason="needs a later release")
    assert split_cells(unread)[-5:-1] == ["", "?", "?", "?"]
    timed = msgspec.structs.replace(RECORD, bytes_per_second=50.0)
    shown = ListSplitsResponse.Split(
        parent="a",
        child="b",
        given_begin=2048,
        given_end=4096,
        progress=split_progress("b", timed),
    )
    assert dict(zip(SPLIT_COLUMNS, split_cells(shown), strict=True)) == {
        "NEW SHARD": "b",
        "OF": "a",
        "KEYS": "0800-1000",
        "PHASE": "following",
        "DONE": "300 bytes",
        "LEFT": "100 bytes",
        "TIME LEFT": "2 s",
        "DELAYED BECAUSE": "",
    }


def test_merge_has_a_time_once_there_is_a_rate_and_no_rows_left_once_both_rest() -> None:
    """How many rows are left is not known before the other shard's log was followed."""
    record = MergeRecord(absorbed="b", begin=2048, end=4096, done_rows=30, rate=5.0)
    unknown = merge_progress("a", record)
    assert (unknown.to_do, unknown.eta_s) == (-1, -1)
    known = merge_progress("a", msgspec.structs.replace(record, left_rows=10))
    assert (known.done, known.to_do, known.eta_s) == (30, 10, 2.0)
    assert merge_progress("a", msgspec.structs.replace(record, left_rows=10, rate=0.0)).eta_s == -1
    rests = msgspec.structs.replace(record, left_rows=10, phase=MergePhase.HOLDING)
    assert (merge_progress("a", rests).to_do, merge_progress("a", rests).eta_s) == (0, 0.0)


def test_cells_of_a_merge_show_what_is_unknown_as_that() -> None:
    """A record that cannot be read has no progress, but its survivor's name and the reason."""
    unread = ListMergesResponse.Merge(survivor="a", reason="needs a later release")
    assert merge_cells(unread) == ["a", "?", "?", "?", "?", "?", "?", "needs a later release"]
    record = MergeRecord(absorbed="b", begin=2048, end=4096, done_rows=30, left_rows=10, rate=5.0)
    shown = ListMergesResponse.Merge(
        survivor="a",
        absorbed="b",
        given_begin=2048,
        given_end=4096,
        progress=merge_progress("a", record),
    )
    assert dict(zip(MERGE_COLUMNS, merge_cells(shown), strict=True)) == {
        "SHARD": "a",
        "TAKES IN": "b",
        "KEYS": "0800-1000",
        "PHASE": "copying",
        "DONE": "30 rows",
        "LEFT": "10 rows",
        "TIME LEFT": "2 s",
        "DELAYED BECAUSE": "",
    }
