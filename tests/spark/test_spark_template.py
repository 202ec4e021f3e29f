"""The driver of the template `spark`, on the session of these tests: DataFrames in and out, as the project runs it."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broadsheet.cli.new_project import files_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broadsheet.spark_bridge.cluster.shard_cluster import Services

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]
NAME = "from_template"


def test_driver_of_the_template_counts_a_data_frame(
    spark: SparkSession,
    services: Services,
    tmp_path: Path,
    sent_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its YAML is applied, 1,000 rows become messages, and the counts come back as rows: each row counts once."""
    for path, text in files_of("spark", NAME).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    # pytest is the program here, and the project is not beside it.
    code = shutil.make_archive(str(sent_path / "code"), "zip", tmp_path, NAME)
    spark.sparkContext.addPyFile(code)
    monkeypatch.syspath_prepend(str(tmp_path))

    counts = importlib.import_module(f"{NAME}.run").run(
        spark, etcd=",".join(services.etcd.endpoints), broker=services.broker_address
    )

    assert counts == {"key-0": 334, "key-1": 333, "key-2": 333}
