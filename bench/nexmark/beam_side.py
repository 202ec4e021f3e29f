"""Beam's own Nexmark queries over a file of events; run in an environment that has `apache-beam`, and nothing of ours.

python bench/nexmark/beam_side.py EVENTS.jsonl QUERY: prints a JSON object with the processor seconds of the pipeline,
and with the rows that it emits.
"""

from __future__ import annotations

import functools
import importlib
import json
import resource
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.benchmarks.nexmark.nexmark_util import ParseJsonEventFn

_QUERIES = "apache_beam.testing.benchmarks.nexmark.queries"
_METADATA = {
    "auction_skip": 123,
    "window_size_sec": 10,
    "window_period_sec": 5,
    # Sellers are remembered, and sessions told when they end: what Beam forgets or tells early is not in the queries.
    "max_auction_waiting_time": 24 * 3600,
    "max_log_events": 1 << 30,
    "occasional_delay_sec": 0,
}


def main(events: str, name: str) -> None:
    """Run a query."""
    query: Any = importlib.import_module(f"{_QUERIES}.{name.replace('q', 'query')}")
    if name == "q3":
        # Its panes have 30 events; sellers with fewer are never told of over bounded input.
        of_one = functools.partial(query.trigger.AfterCount, 1)
        query.trigger = SimpleNamespace(**{**vars(query.trigger), "AfterCount": lambda _: of_one()})
    with tempfile.TemporaryDirectory() as directory:
        before = _cpu_seconds()
        # The other runner in one process cannot encode the windows of q4.
        with beam.Pipeline(
            options=PipelineOptions(["--runner=BundleBasedDirectRunner"])
        ) as pipeline:
            rows = (
                pipeline
                | beam.io.ReadFromText(events)
                | beam.ParDo(ParseJsonEventFn())
                | beam.Map(lambda event: beam.window.TimestampedValue(event, event.date_time))
            )
            found = query.load(rows, _METADATA)
            shown = found | beam.Map(lambda row: json.dumps(row, default=str))
            shown | beam.io.WriteToText(f"{directory}/out")
        seconds = _cpu_seconds() - before
        lines = [
            line for path in Path(directory).iterdir() for line in path.read_text().split("\n")
        ]
    print(json.dumps({"cpu_s": seconds, "rows": [json.loads(line) for line in lines if line]}))


def _cpu_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
