"""Content types: each is one module with one record, and nothing else in the product asks for one by name."""

from __future__ import annotations

import ast
import re
from importlib import import_module

import pytest

from broadsheet.journals.content.registry import content_of, content_types
from broadsheet.spark_bridge.content.registry import spark_content_of
from tests.support.sources import our_modules

_ROOM = "journals/content/"
_JSON_BY_DEFINITION = {
    "broadsheet/cli/shards/replay.py",
    "consumer/client/referenced_journals.py",
    "consumer/commands/commands.py",
    "consumer/relay/kafka_outlet.py",
}
"""Dead letters and commands are JSON lines whatever else the journals hold, so these check that a journal takes them;
and what Kafka's relay calls a field is one of JSON."""
_NAME = re.compile(r'^([A-Z_]+): Final = "(\w+/[\w.+-]+)"$', re.MULTILINE)
"""The constant of a content type's name."""
_RECORD = re.compile(r"^CONTENT: Final = ContentType\(", re.MULTILINE)


def _product() -> dict[str, str]:
    return {
        path: source
        for path, source in our_modules()
        if not path.startswith(("tests/", "bench/", "examples/"))
    }


def _constants() -> dict[str, str]:
    """Return the names of content types, by the constant."""
    sources = (source for path, source in _product().items() if path.startswith(_ROOM))
    return dict(each for source in sources for each in _NAME.findall(source))


def test_module_with_a_record_is_registered() -> None:
    """A record that no line of the registry names would be code that no journal reaches."""
    modules = [
        "broadsheet." + path.removesuffix(".py").replace("/", ".")
        for path, source in _product().items()
        if path.startswith(_ROOM) and _RECORD.search(source)
    ]

    names = [import_module(module).CONTENT.name for module in modules]
    assert sorted(names) == sorted(content_types()) == sorted(_constants().values())


def test_name_of_a_content_type_is_written_once() -> None:
    """A second literal is the beginning of a second place that a new content type must not forget."""
    written = {
        name: [path for path, source in _product().items() if f'"{name}"' in source]
        for name in content_types()
    }

    assert all(len(paths) == 1 and paths[0].startswith(_ROOM) for paths in written.values()), (
        written
    )


def test_code_does_not_branch_by_content_type() -> None:
    """What depends on the content type is a field of its record: a branch elsewhere would miss the next one."""
    constants = set(_constants())
    named = re.compile(rf"\b({'|'.join(constants)})\b")
    branching = {
        path
        for path, source in _product().items()
        if named.search(source)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Compare, ast.match_case))
        and any(isinstance(each, ast.Name) and each.id in constants for each in ast.walk(node))
    }

    assert branching == _JSON_BY_DEFINITION


@pytest.mark.parametrize("name", content_types())
def test_record_has_every_part_that_spark_needs(name: str) -> None:
    """The columns that a record names exist, and a record without any has a message type of rows."""
    assert spark_content_of(name).inference is not None
    assert content_of(name).name == name
