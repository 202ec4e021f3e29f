"""Bytes of the recovery log for each byte that changed.

A changed byte is one of the name or of the value of a row that a commit changed, before compression: what `KeyedStore`
was told, and nothing of how it keeps it. The log's bytes are all that the store's recorder is given: frames of commits
with their checkpoints, and snapshots. Values are random, so that compression gains nothing on them. A round changes a
part of the keys; as many are made as change the state some times over.
"""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bench.report import Params, emit
from bench.stores.driven import DroppingRecorder
from broadsheet.consumer.keyed.state_rows import new_row, place_of
from broadsheet.consumer.keyed.store import KeyedStore
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.testing.stores.subject import FixedShard, reading, wait

BENCH = "keyed"
KEYS, VALUE_BYTES, ROUNDS, CHANGED = 200_000, 100, 60, 20_000
_SUFFIX = b"\x00\x01"


class CountingRecorder(DroppingRecorder):
    """Counts what is written, and drops it."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, path: str, offset: int, content: bytes) -> None:
        """Count it."""
        del path, offset
        self.bytes += len(content)


def run() -> None:
    """Print `log_amplification` of uniform changes and of changes that are mostly of a tenth of the keys."""
    for skew in ("uniform", "hot"):
        with tempfile.TemporaryDirectory(prefix="keyed-log-") as directory:
            _measure(Path(directory), skew)


def _measure(directory: Path, skew: str) -> None:
    recorder = CountingRecorder()
    shard = replace(FixedShard(), local_state=LocalState(directory / "state", recorder))
    store = KeyedStore(shard)
    store.restore_checkpoint(shard)
    chosen, changed, cpu = random.Random(1), 0, time.process_time()
    for number in range(ROUNDS):
        hot = skew == "hot" and number % 10
        among = range(KEYS // 10) if hot else range(KEYS)
        for key in chosen.sample(among, CHANGED):
            place, row = (
                place_of(b"%010d" % key),
                new_row(_SUFFIX, None, chosen.randbytes(VALUE_BYTES)),
            )
            store.put(place, _SUFFIX, row)
            changed += 1 + len(place) + len(_SUFFIX) + len(row)
        wait(store.start_commit(shard, reading(number + 1), ()))
    store.destroy()
    params: Params = {"keys": KEYS, "value_bytes": VALUE_BYTES, "skew": skew}
    emit(BENCH, "log_amplification", recorder.bytes / changed, "ratio", **params)
    cpu = (time.process_time() - cpu) / (ROUNDS * CHANGED)
    emit(BENCH, "log_cpu_us_per_changed_row", cpu * 1e6, "us", **params)
