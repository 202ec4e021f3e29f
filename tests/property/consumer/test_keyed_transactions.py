"""Random programs over keyed state, beside a model that has no index, no cache, no chunks and no log."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from broadsheet.consumer.keyed.store import IndexKind
from broadsheet.consumer.keyed.txn_time import TimeMode
from broadsheet.consumer.keyed.watermark import WatermarkRules
from tests.support.keyed_model import COMMANDS, ROWS, TTL_MS, Commands, ExpiringCommands, Model, Row
from tests.support.keyed_runs import Lives, settings_of

_KEYS = (None, "", "a", "a\x00", "a\x00b", "b", "é")
_rows = st.lists(
    st.tuples(
        st.sampled_from(_KEYS),
        st.sampled_from(COMMANDS),
        st.integers(0, 40),
        # A coarse grid: else equal times never occur.
        st.integers(0, 8).map(lambda step: 5 * step),
    ),
    max_size=12,
)
# Coarse too, so that times of expiry and batches meet.
_pause = st.sampled_from((0, 0, 10, 20, TTL_MS))
_step: st.SearchStrategy[tuple[str, list[Row], int]] = st.one_of(
    st.tuples(st.just("commit"), _rows, _pause),
    st.tuples(st.just("commit"), _rows, _pause),
    st.tuples(st.just("abort"), _rows, _pause),
    st.tuples(st.just("die"), st.just([]), _pause),
)
Step = tuple[str, list[Row], int]


def _follow(steps: list[Step], mode: str, *, ttl: bool, index: IndexKind) -> None:
    """Run the steps on both sides, and compare each output."""
    model = Model(mode, TTL_MS) if ttl else Model(mode)
    parts: dict[str, Any] = {
        "mode": TimeMode(mode),
        "rules": WatermarkRules(delay_ms=model.delay_ms),
    }
    with TemporaryDirectory() as directory:
        lives = Lives(
            Path(directory),
            ExpiringCommands if ttl else Commands,
            settings_of(ROWS, "key string", **parts),
            index=index,
            cache_bytes=3000,
            snapshot_bytes_min=2000,
        )
        lives.clock.now_ms = 0
        try:
            for kind, rows, pause in steps:
                lives.clock.now_ms += pause
                if kind == "die":
                    lives.reopen()
                    continue
                expected = copy.deepcopy(model)
                out = expected.transact(rows, lives.clock.now_ms)
                assert lives.transact(rows, commits=kind == "commit") == out
                assert lives.run.next_txn_after() == expected.next_txn_after()
                if kind == "commit":
                    model = expected
                else:
                    lives.restore()
        finally:
            lives.end()


@pytest.mark.parametrize("ttl", [False, True], ids=["lasting", "expiring"])
@pytest.mark.parametrize("mode", ["event", "processing"])
def test_keyed_transactions_do_what_the_model_does(mode: str, ttl: bool) -> None:
    """State, timers, expiry and late rows, through aborts and deaths: every output is the model's. The cache holds a
    few rows, lists are of several chunks, and snapshots of ranges come every few commits.
    """

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(_step, max_size=12))
    def follow(steps: list[Step]) -> None:
        _follow(steps, mode, ttl=ttl, index="memory")

    follow()


def test_log_that_ends_anywhere_goes_on_with_state_timers_and_times_of_one_commit(
    tmp_path: Path,
) -> None:
    """A primary dies at any step of any commit, or of a snapshot of some ranges. Its successor does next what the model
    does next after the commit that the log ends with: values, lists, maps, timers, watermark and expiries alike.
    """
    chosen = random.Random(7)
    model = Model("event", TTL_MS)
    rules = WatermarkRules(delay_ms=model.delay_ms)
    lives = Lives(
        tmp_path,
        ExpiringCommands,
        settings_of(ROWS, "key string", mode=TimeMode.EVENT, rules=rules),
        snapshot_bytes_min=1500,
    )
    lives.clock.now_ms = 0
    models = [copy.deepcopy(model)]
    for at in range(12):
        rows: list[Row] = [
            (chosen.choice(_KEYS), chosen.choice(COMMANDS), chosen.randrange(40), 5 * at)
            for _ in range(12)
        ]
        lives.clock.now_ms += 10
        assert lives.transact(rows) == model.transact(rows, lives.clock.now_ms)
        models.append(copy.deepcopy(model))
    asked: list[Row] = [
        (key, op, 3, 90) for key in _KEYS for op in ("value?", "list?", "maps?", "timers?")
    ]
    log, seen = lives.log, set()
    try:
        for _, files in log.cuts():
            commits = lives.reopen_at(files)
            seen.add(commits)
            expected = copy.deepcopy(models[commits])
            for rows in (asked, [], asked):
                out = expected.transact(rows, lives.clock.now_ms)
                assert lives.transact(rows) == out, f"after commit {commits}"
    finally:
        lives.end()
    assert seen == set(range(13))


def test_keyed_transactions_in_rocksdb_do_what_the_model_does() -> None:
    """The index in RocksDB has the same rows in the same order as the one in memory."""

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(_step, min_size=3, max_size=8))
    def follow(steps: list[Step]) -> None:
        _follow(steps, "event", ttl=True, index="rocksdb")

    follow()
