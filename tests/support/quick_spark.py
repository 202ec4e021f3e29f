"""How the tests' JVMs and Python workers start sooner: many live for seconds, on few processors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CONF_DIR = Path(__file__).parent / "spark_conf"
_JAVA_OPTIONS = (
    # What runs for seconds is not worth the compiler that takes its time, nor threads that collect garbage.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
)


@contextmanager
def quick_spark() -> Iterator[None]:
    """Let every Spark that is started within the block, by whatever program, start quickly."""
    with pytest.MonkeyPatch.context() as patch:
        given = os.environ.get("JAVA_TOOL_OPTIONS", "")
        patch.setenv("JAVA_TOOL_OPTIONS", " ".join([given, *_JAVA_OPTIONS]).strip())
        patch.setenv("SPARK_CONF_DIR", str(CONF_DIR))
        yield
