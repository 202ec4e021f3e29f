"""Lives of one shard that hosts a `StatefulProcessor` of Spark's, without a member and without a JVM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broadsheet.consumer.keyed.processor import KeyedProcessor
from broadsheet.consumer.keyed.run import KeyedRun
from broadsheet.consumer.keyed.store import IndexKind
from broadsheet.spark_bridge.keyed import HostingOptions, StatefulProcessorApplication
from tests.support.keyed_runs import Lives, SteppedClock


def _no_processor() -> KeyedProcessor:
    raise AssertionError("the application makes it")


class HostedLives(Lives):
    """One shard, whose transactions are batches of a query."""

    def __init__(
        self, directory: Path, *, index: IndexKind = "memory", strict: bool = False, **query: Any
    ) -> None:
        """Begin the first life.

        Args:
            directory: For the store's files.
            index: Where rows are looked up.
            strict: As in `HostingOptions`.
            query: Arguments of the application.
        """
        clock = SteppedClock()
        options = query.pop("options", None) or HostingOptions(strict=strict, clock=clock)
        self.application = StatefulProcessorApplication(**query, options=options)
        super().__init__(
            directory,
            _no_processor,
            self.application.settings,
            index=index,
            clock=clock,
        )

    def new_run(self) -> KeyedRun:
        """Return the transactions of a life that begins."""
        return self.application.new_run(self.shard, self.store)

    def batch(self, *rows: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a transaction with these rows, and commit; return the rows of output, as a query has them."""
        emitted = self.transact(rows)
        if not emitted:
            return []
        table = self.application.output_table(emitted)
        return [tuple(row.values()) for row in table.to_pylist()]
