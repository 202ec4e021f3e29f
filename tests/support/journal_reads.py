"""Drives the journal source as Spark does, without Spark: readers pickled, made again and asked again."""

from __future__ import annotations

import json
import pickle
from typing import Any, TypeVar
from uuid import uuid4

from pyspark.sql.types import LongType, StructField, StructType

from broadsheet.journals.content.json import NDJSON
from broadsheet.spark_bridge.journal_source.readers import (
    JournalStreamReader,
    batch_reader,
    stream_reader,
)
from tests.support.journal_writers import JournalWriter
from tests.support.spark import make_journals

IDS = StructType([StructField("id", LongType())])
T = TypeVar("T")
Rows = list[dict[str, Any]]


class Topic:
    """Some journals of one test."""

    def __init__(self, address: str, count: int, *, content_type: str = NDJSON) -> None:
        self.address = address
        self.prefix = f"test/{uuid4().hex}/"
        self.journals = [f"{self.prefix}part-{index:03d}" for index in range(count)]
        make_journals(address, self.journals, content_type=content_type)

    def options(self, **more: object) -> dict[str, str]:
        """Return the options of a read of all journals."""
        base = {"address": self.address, "selector": f"name:prefix={self.prefix}"}
        return base | {name: str(value) for name, value in more.items()}

    def writer(self, index: int = 0) -> JournalWriter:
        """Return a new producer."""
        return JournalWriter(self.address, self.journals[index])

    def batch(self, schema: StructType = IDS, /, **more: object) -> tuple[int, Rows]:
        """Read once; return the number of partitions and the rows."""
        return batch_read(self.options(**more), schema)


def batch_read(options: dict[str, str], schema: StructType = IDS) -> tuple[int, Rows]:
    """Read once; return the number of partitions and the rows."""
    reader = shipped(batch_reader(options, schema))
    partitions = shipped(reader.partitions())
    batches = [batch for each in partitions for batch in reader.read(each)]
    return len(partitions), [row for batch in batches for row in batch.to_pylist()]


class Query:
    """A streaming query's driver: it keeps offsets, and asks a reader."""

    def __init__(self, topic: Topic, **options: object) -> None:
        self.options = topic.options(**options)
        self.spans: list[tuple[Any, Any]] = []
        self.restart()
        self.offset = kept(self.reader.initialOffset())

    def restart(self) -> None:
        """Ask another reader from now on."""
        self.reader: JournalStreamReader = stream_reader(self.options, IDS)

    def trigger(self) -> list[int]:
        """Run a micro-batch and return its ids."""
        limit = self.reader.getDefaultReadLimit()
        end = kept(self.reader.latestOffset(self.offset, limit))
        if end == self.offset:
            return []
        self.spans.append((self.offset, end))
        self.offset = end
        return self.ids(len(self.spans) - 1)

    def ids(self, batch: int) -> list[int]:
        """Return the ids of a micro-batch, perhaps once more."""
        partitions = shipped(self.reader.partitions(*self.spans[batch]))
        reader = shipped(stream_reader(self.options, IDS))
        batches = [batch for each in partitions for batch in reader.read(each)]
        return [row["id"] for batch in batches for row in batch.to_pylist()]

    def trigger_to_the_end(self) -> list[list[int]]:
        """Run micro-batches until there is nothing more."""
        batches: list[list[int]] = []
        while True:
            before = self.offset
            ids = self.trigger()
            if self.offset == before:
                return batches
            batches.append(ids)

    def close(self) -> None:
        """Stop the reader."""
        self.reader.stop()


def shipped(value: T) -> T:
    """Return a value as a task gets it."""
    copy: T = pickle.loads(pickle.dumps(value))  # noqa: S301 - it was pickled here
    return copy


def kept(offset: dict[str, Any]) -> dict[str, Any]:
    """Return an offset as the checkpoint gives it back."""
    value: dict[str, Any] = json.loads(json.dumps(offset))
    return value
