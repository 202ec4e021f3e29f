"""What Spark does for code that it runs in tasks, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TypeVar

import cloudpickle
import pytest
from pyspark import TaskContext

T = TypeVar("T")


def sent(thing: T) -> T:
    """Return what arrives in another process."""
    arrived: T = cloudpickle.loads(cloudpickle.dumps(thing))
    return arrived


@contextmanager
def micro_batch(query: str, batch: int) -> Iterator[None]:
    """Let this process be a task of a micro-batch."""
    properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    with pytest.MonkeyPatch.context() as patch:
        # Spark makes contexts itself, in its own workers.
        context = SimpleNamespace(getLocalProperty=properties.get)
        patch.setattr(TaskContext, "get", lambda: context)
        yield
