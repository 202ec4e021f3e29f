"""State of a query that stopped on a real Spark, from its stored checkpoint: `make nightly-import` has many queries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.keyed.imports.files import ImportPlace
from broadsheet.consumer.keyed.imports.manifest import MANIFEST
from tests.support.documents import REPOSITORY
from tests.support.stored_query import PLACE, SCRIPT, checkpoint_in, continued, rest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_shard_goes_on_as_spark_did(spark: SparkSession, tmp_path: Path) -> None:
    """From a driver: values, lists, maps, timers and watermarks of a checkpoint; every later batch is Spark's."""
    from broadsheet.spark_bridge.keyed import import_state
    from tests.support.spark_queries import comparable
    from tests.support.taken_over import Continued, hosted

    place = tmp_path / "import"
    report = import_state(spark, hosted(SCRIPT, place), str(checkpoint_in(tmp_path)))

    assert min(*report.rows.values(), report.timers) > 0
    found = Continued(SCRIPT, place, tmp_path / "lives").run(rest())
    assert [comparable(each) for each in found] == continued()


def test_command_takes_state_over_and_a_shard_refuses_it_where_counts_differ(
    tmp_path: Path,
) -> None:
    """`shardctl keyed import`, as a process: its place has all that the checkpoint has. A second import into it is
    refused, and so is the start of a shard whose import says another number than its files have.
    """
    from tests.support.spark_queries import comparable
    from tests.support.taken_over import Continued

    place = tmp_path / "import"
    checkpoint = checkpoint_in(tmp_path)
    done = _import(checkpoint, place)
    assert done.returncode == 0, done.stderr
    assert "(timers)" in done.stdout
    again = _import(checkpoint, place)
    assert (again.returncode, "expected a place without an import" in again.stderr) == (2, True)

    found = Continued(SCRIPT, place, tmp_path / "lives").run(rest())
    assert [comparable(each) for each in found] == continued()

    manifest = ImportPlace(str(place)).manifest()
    files = [msgspec.structs.replace(each, rows=each.rows + 1) for each in manifest.files]
    (place / MANIFEST).write_bytes(msgspec.structs.replace(manifest, files=files).encode())
    with pytest.raises(StoreError, match="rows"):
        Continued(SCRIPT, place, tmp_path / "refused")


def _import(checkpoint: Path, place: Path) -> subprocess.CompletedProcess[str]:
    shardctl = Path(sys.executable).with_name("shardctl")
    command = [str(shardctl), "keyed", "import", "tests.support.stored_query:application"]
    return subprocess.run(
        [*command, "--checkpoint", str(checkpoint), "--master", "local[1]"],
        cwd=REPOSITORY,
        env=os.environ | {PLACE: str(place), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
