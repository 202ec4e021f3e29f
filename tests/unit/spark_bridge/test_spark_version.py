"""Versions of PySpark: what works with which, and the error where something does not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyspark
import pytest
from pyspark.sql.types import StringType, StructType

from broadsheet.spark_bridge.errors import SparkVersionError
from broadsheet.spark_bridge.formats import FORMATS, JournalFormat
from broadsheet.spark_bridge.publish import journal_index, publish_dataframe
from broadsheet.spark_bridge.session import check_session
from broadsheet.spark_bridge.spark_version import MEMBERS_MIN, require_spark

_SCHEMA = StructType().add("a", StringType())
_OPTIONS = {"address": "http://127.0.0.1:1", "selector": "name=a/b"}


@pytest.mark.parametrize("version", ["4.0.0", "4.3.0.dev0", "10.1", "16.4.x-scala2.13", "unknown"])
def test_version_that_is_late_enough_passes(version: str) -> None:
    """Also a maker's own build, whose version may say anything."""
    require_spark("members", MEMBERS_MIN, version=version)


@pytest.mark.parametrize("version", ["3.5.9", "3.10.0", "2.4"])
def test_version_that_is_too_early_is_named_with_what_is_needed(version: str) -> None:
    """A module that is missing in PySpark says nothing to who did not install it."""
    with pytest.raises(
        SparkVersionError, match=rf"^members needs PySpark 4\.0 or later.* {re.escape(version)};"
    ):
        require_spark("members", MEMBERS_MIN, version=version)


@pytest.mark.parametrize(
    "ask",
    [
        lambda journal: journal.schema(),
        lambda journal: journal.reader(_SCHEMA),
        lambda journal: journal.streamReader(_SCHEMA),
        lambda journal: journal.writer(_SCHEMA, overwrite=False),
        lambda journal: journal.streamWriter(_SCHEMA, overwrite=False),
    ],
    ids=["schema", "reader", "streamReader", "writer", "streamWriter"],
)
def test_journals_on_an_earlier_spark_say_so_at_each_door(
    ask: Callable[[JournalFormat], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks for any of them first; the tables beside them work there."""
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")

    with pytest.raises(SparkVersionError, match=r'"journal" needs PySpark 4\.2 or later.* 4\.1\.4'):
        ask(JournalFormat(_OPTIONS))
    assert len(FORMATS) > 1


def test_publishing_on_an_earlier_spark_is_refused_before_it_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PySpark 4.0 has neither `arrow_udf` nor `repartitionById`; its own error would name an attribute."""
    monkeypatch.setattr(pyspark, "__version__", "4.0.3")
    nothing: Any = None

    with pytest.raises(SparkVersionError, match=r"publish_dataframe needs PySpark 4\.1 or later"):
        publish_dataframe(nothing, nothing, publication="a", key="a", order_by=[])
    with pytest.raises(SparkVersionError, match=r"journal_index needs PySpark 4\.1 or later"):
        journal_index("a", 2)


def test_cluster_on_an_earlier_spark_is_refused_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the extra `spark-provided` nothing else compares versions."""
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    session: Any = None

    with pytest.raises(SparkVersionError, match=r"ShardCluster needs PySpark 4\.0 or later"):
        check_session(session)
