"""Keyed shards under simulation, and defects on purpose that the simulation must see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.keyed import committed_index, store, txn_time
from broadsheet.consumer.keyed.committed_index import CommittedIndex
from broadsheet.consumer.keyed.recording import KeyedFiles
from broadsheet.consumer.keyed.row_cache import RowCache
from broadsheet.consumer.keyed.store import KeyedStore
from broadsheet.consumer.stores.change_files import ChangeFiles, Selection, StoredFile
from tests.support.keyed_simulation import simulate

SEEDS = 8
CATCHING_SEEDS = 20
Break = Callable[[pytest.MonkeyPatch], None]


def test_no_timer_is_lost_or_fires_twice_whatever_dies(tmp_path: Path) -> None:
    """Storms in pieces, aborts, clocks that go back, deaths that lose the end of the log, and standbys that are
    promoted with what they have seen: each commit fires the timers that are due, in order, and no other, and counts
    each row.
    """
    promotions = sum(simulate(seed, tmp_path) for seed in range(SEEDS))
    assert promotions > SEEDS, "standbys had too little to go on from"


def _timers_not_followed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(committed_index, "entries_of", lambda _: {})


def _fired_timers_stay(patch: pytest.MonkeyPatch) -> None:
    def keep(self: KeyedStore, key: bytes, expiry_ms: int) -> None:
        """Remove the entry, and not the timer."""

    patch.setattr(KeyedStore, "remove_timer", keep)


def _rows_of_deleted_timers_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store, "without_expiry", lambda *_: None)


def _storm_bound_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    def due_bound(state: Any, mode: Any) -> Any:
        state.storm_ms = None
        return real(state, mode)

    real = txn_time.due_bound
    patch.setattr("broadsheet.consumer.keyed.run.due_bound", due_bound)


def _last_commits_are_not_read(patch: pytest.MonkeyPatch) -> None:
    def load(files: KeyedFiles, *, after: int = 0, **options: Any) -> Any:
        found = real(files, after=after, **options)
        return found if not after else ((frame, {}) for frame, _ in found)

    real = KeyedFiles.load
    patch.setattr(KeyedFiles, "load", load)


def _standby_goes_on_over_a_gap(patch: pytest.MonkeyPatch) -> None:
    def follow(index: CommittedIndex, frame: Any, rows: Any) -> None:
        if frame.number % 3:
            real(index, frame, rows)
        else:
            index.apply({}, frame.number, frame.checkpoint, frame.segments)

    real = CommittedIndex.follow
    patch.setattr(CommittedIndex, "follow", follow)


def _aborts_keep_their_changes(patch: pytest.MonkeyPatch) -> None:
    shared = RowCache(4000)
    patch.setattr(store, "RowCache", lambda _: shared)


def _replaced_changes_are_not_read(patch: pytest.MonkeyPatch) -> None:
    def load(files: Any, select: Selection, **options: Any) -> Any:
        def selected(found: Sequence[StoredFile]) -> list[StoredFile]:
            newest = max((each.number for each in found if not each.is_changes), default=0)
            return [each for each in select(found) if each.number >= newest]

        return real(files, selected, **options)

    real = ChangeFiles.load
    patch.setattr(ChangeFiles, "load", load)


@pytest.mark.parametrize(
    "defect",
    [
        _timers_not_followed,
        _fired_timers_stay,
        _rows_of_deleted_timers_stay,
        _storm_bound_is_not_kept,
        _last_commits_are_not_read,
        _standby_goes_on_over_a_gap,
        _aborts_keep_their_changes,
        _replaced_changes_are_not_read,
    ],
)
def test_defect_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, defect: Break) -> None:
    """What the judge does not see here it would not see in the product either."""
    defect(monkeypatch)
    with pytest.raises((AssertionError, StoreError)):
        for seed in range(CATCHING_SEEDS):
            simulate(seed, tmp_path)
