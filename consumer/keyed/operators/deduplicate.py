"""Rows without those whose key came before, within a length of event time after the first.

The first row wins, at once. Its key is a row of state without content, which is due when the watermark has passed the
first row's time by the length; duplicates do not renew it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from broadsheet.consumer.keyed.operators.durations import shown_duration
from broadsheet.consumer.keyed.operators.keys import StreamKeys
from broadsheet.consumer.keyed.operators.operator import (
    KEY,
    GoesBy,
    Processed,
    by,
    set_apart,
    types_of,
)
from broadsheet.consumer.keyed.operators.stage_rows import StageRows, StoredRow
from broadsheet.consumer.keyed.operators.timed_rows import TimedRows, no_rows
from broadsheet.consumer.keyed.operators.windows import StageTime


class Deduplicate:
    """The first row of each key."""

    goes_by: GoesBy = "rows"
    wait_ms = 0

    def __init__(self, key: pa.Schema, schema: pa.Schema, within_ms: int | None) -> None:
        """Describe it.

        Args:
            key: Columns of the key.
            schema: Of the rows.
            within_ms: A key is known for so long after its first row; None: for ever.
        """
        self.keys = StreamKeys(key)
        self._within = within_ms
        self.schema = schema
        within = "for ever" if within_ms is None else f"within {shown_duration(within_ms)}"
        self.identity = f"deduplicate {within}{by(key)}"
        self.state_types = types_of(KEY, key)

    def process(self, inputs: Sequence[TimedRows], state: StageRows, at: StageTime) -> Processed:
        """Return the rows whose key is not known; then forget keys that are due."""
        done = Processed(no_rows(self.schema))
        rows = inputs[0]
        if len(rows) and self._within is not None:
            rows = set_apart(rows, rows.times <= at.late, done.apart)
        if len(rows):
            done.rows = self._first(rows, state)
        due, done.has_more = state.due(at.watermark)
        for row in due:
            state.remove(row.place, row.part)
        return done

    def _first(self, rows: TimedRows, state: StageRows) -> TimedRows:
        groups, places = self.keys.groups(rows.table)
        known = state.fetch(places, [0] * len(places))
        is_new = np.fromiter((row is None for row in known), np.bool_, len(known))
        codes = np.flatnonzero(is_new).tolist()
        first = groups.firsts[is_new]
        times = rows.times[first].tolist()
        for code, time in zip(codes, times, strict=True):
            due = None if self._within is None else time + self._within
            state.write(places[code], 0, b"", due, filed=None)
        return rows.pick(np.sort(first))

    @property
    def shown_schema(self) -> None:
        """It shows nothing."""

    def shown(self, rows: Sequence[StoredRow]) -> None:
        """Show nothing: a known key has no results."""
        del rows
