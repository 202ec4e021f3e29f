"""The code of docs/tutorials/streaming_query.md fits what it calls; `make nightly-import` runs it on Spark."""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import Any

from broadsheet.examples.visits.clicks import BY_USER, partitions
from broadsheet.examples.visits.processor import OUTPUT, ROWS, Visits
from broadsheet.spark_bridge.cluster.keyed_query import KeyedQuery
from broadsheet.spark_bridge.keyed import StatefulProcessorApplication
from tests.support.documents import REPOSITORY, blocks_of

_BLOCKS = blocks_of(REPOSITORY / "docs" / "tutorials" / "streaming_query.md")


def test_every_name_that_is_imported_exists() -> None:
    """A page that is run at night only must not be broken by a name that has moved by day."""
    imports = [
        node
        for block in _BLOCKS
        for node in ast.walk(ast.parse(block.code))
        if isinstance(node, ast.ImportFrom)
    ]
    assert len(imports) > 10
    for node in imports:
        assert node.module is not None
        module = importlib.import_module(node.module)
        missing = [each.name for each in node.names if not hasattr(module, each.name)]
        assert not missing, f"{node.module} has no {missing}"


def test_job_of_the_page_is_one_that_shards_can_run() -> None:
    """Its arguments are the application's, and its look-ups those of a query."""
    code = next(block.code for block in _BLOCKS if "job = {" in block.code)
    job = next(
        node.value
        for node in ast.parse(code).body
        if isinstance(node, ast.Assign) and _is_job(node)
    )
    assert isinstance(job, ast.Dict)
    values: dict[str, Any] = {
        str(key.value): each.value
        for key, each in zip(job.keys, job.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(each, ast.Constant)
    }
    application = StatefulProcessorApplication(
        Visits(), inputSchema=ROWS, outputStructType=OUTPUT, **values
    )
    assert application.settings.input_schema.names == ["user", "page", "at"]
    assert "token" in inspect.signature(KeyedQuery.get).parameters
    assert [each.journal for each in BY_USER.partitions()] == [
        each.journal for each in partitions()
    ]


def _is_job(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "job" for target in node.targets)
