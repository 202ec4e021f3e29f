"""A real query of Spark that stopped, stored in `tests/data`. `python -m tests.support.stored_query` makes it.

checkpoint/       of the first batches, without checksums and without the log of its source's files
continued.json    what Spark emitted for the rest, batch by batch
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.documents import REPOSITORY
from tests.support.random_queries import script_of

SCRIPT = script_of(11, mode="EventTime", in_pandas=False, keys=12, batches=5, rows=60)
FIRST = 3
"""Batches before it stopped."""
STORED = REPOSITORY / "tests" / "data" / "spark" / "stopped_query"
_CHECKPOINT = STORED / "checkpoint"
_METADATA = Path("state/0/_metadata/v2/0")
"""Within the checkpoint; it names the file of the state's schema by its whole path."""
_HERE = "file:/stopped-query"
"""In that name, for the checkpoint's own place."""
_CONTINUED = STORED / "continued.json"
PLACE = "STORED_QUERY_IMPORT"
"""Environment variable with the place of the import, for `application`."""


def checkpoint_in(directory: Path) -> Path:
    """Copy the checkpoint to a directory, as if the query had run there, and return it."""
    copied = shutil.copytree(_CHECKPOINT, directory / "checkpoint")
    metadata = copied / _METADATA
    metadata.write_text(metadata.read_text().replace(_HERE, f"file:{copied}"))
    return copied


def continued() -> list[list[tuple[Any, ...]]]:
    """Return what Spark emitted, batch by batch."""
    return [[tuple(row) for row in batch] for batch in json.loads(_CONTINUED.read_text())]


def rest() -> list[list[Any]]:
    """Return the rows of the batches that followed."""
    from tests.support.spark_queries import rows_of_batch

    return [list(rows_of_batch(each)) for each in SCRIPT.batches[FIRST:]]


def application() -> Any:
    """Return the application that takes the query over, for a command line."""
    from tests.support.taken_over import hosted

    return hosted(SCRIPT, Path(os.environ[PLACE]))


def main() -> None:
    """Run the query, and store it."""
    from broadsheet.spark_bridge.session import start_session
    from tests.support.spark_queries import comparable, query_conf, rows_of_batch
    from tests.support.taken_over import query_of

    spark = start_session("local[1]", app_name="stored-query", conf={"spark.ui.enabled": "false"})
    try:
        with TemporaryDirectory() as directory, query_conf(spark):
            query = query_of(spark, Path(directory) / "query", SCRIPT)
            query.run([rows_of_batch(each) for each in SCRIPT.batches[:FIRST]])
            shutil.rmtree(STORED, ignore_errors=True)
            unneeded = shutil.ignore_patterns("*.crc", "sources")
            shutil.copytree(query.checkpoint, _CHECKPOINT, ignore=unneeded)
            metadata = _CHECKPOINT / _METADATA
            place = f"file:{query.checkpoint}"
            assert place in metadata.read_text(), f"{metadata} does not name {place}"
            metadata.write_text(metadata.read_text().replace(place, _HERE))
            emitted = query.run(rest())
    finally:
        spark.stop()
    lines = ",\n".join(json.dumps(comparable(each)) for each in emitted)
    _CONTINUED.write_text(f"[{lines}]\n")


if __name__ == "__main__":
    main()
