"""Spark finds the formats by itself, at a cost that every session of every user can bear."""

from __future__ import annotations

import io
import struct
import subprocess
import sys

from pyspark.sql.worker import lookup_data_sources

from broadsheet.spark_bridge.formats import FORMATS

LIGHT = """
import sys
from broadsheet.spark_bridge import formats
print(sorted({"grpc", "numpy", "pandas", "pyarrow", "structlog"} & sys.modules.keys()))
"""


def _found_by_spark() -> set[str]:
    """Return the names that Spark's own look finds here, as it runs before a session's first look for a format."""
    told = io.BytesIO()
    # A worker of Spark calls it when it starts; no public function looks without a session.
    lookup_data_sources._main(io.BytesIO(), told)  # noqa: SLF001
    told.seek(0)
    (count,) = struct.unpack("!i", told.read(4))
    parts = []
    for _ in range(2 * count):
        (length,) = struct.unpack("!i", told.read(4))
        parts.append(told.read(length))
    # Each name is followed by its pickled class.
    return {name.decode() for name in parts[::2]}


def test_formats_are_found_by_spark_without_being_registered() -> None:
    """A notebook forgets `register_formats`, and Spark's error then tells of a missing Java package.

    If this fails, the environment is older than `pyproject.toml`: `make setup` installs the modules.
    """
    assert {each.name() for each in FORMATS} <= _found_by_spark()


def test_formats_are_imported_without_what_is_slow() -> None:
    """Spark imports them in a new process for each question, also where no format of ours is used; and it may fork a
    process that has imported them, which gRPC does not survive.
    """
    done = subprocess.run(
        [sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True, timeout=120
    )

    assert done.stdout.strip() == "[]"
