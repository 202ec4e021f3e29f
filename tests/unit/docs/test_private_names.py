"""Private names: what begins with an underscore is its module's own, in the product and in tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.sources import our_modules

_REACH = re.compile(
    r"(?<!self)(?<!cls)(?<!super\(\))\._[a-zA-Z]|import .*\b_[a-zA-Z]|attr\(|^ +_\w+,$",
    re.MULTILINE,
)
"""What a file must hold to reach a private name; the others are not parsed."""
_PUBLIC = frozenset(
    # Python's own functions and the methods of named tuples are documented with their underscore.
    {"_asdict", "_current_frames", "_exit", "_fields", "_getframe", "_make", "_replace"}
)
_FOREIGN = {
    "broadsheet/testing/pytest_plugin.py": "pytest has no interface to what it rewrites",
    "broadsheet/serving/grpc_server.py": "replaces a part of grpc.aio that has no interface",
    "broker/open_fragment.py": "hashlib's type has no other name",
    "broker/staging.py": "hashlib's type has no other name",
    "consumer/sources/kafka/partitions.py": "the names of librdkafka's errors",
    "consumer/sources/kafka/topic_ids.py": "the names of librdkafka's errors",
    "consumer/stores/kafka/topics.py": "the names of librdkafka's errors",
    "consumer/stores/kafka/verdicts.py": "the names of librdkafka's errors",
    "spark_bridge/jvm.py": "PySpark has no interface to the JVM's side",
    "tests/unit/spark_bridge/test_format_discovery.py": "runs PySpark's own look for formats",
    "tests/integration/consumer/test_traces.py": "OpenTelemetry's provider is set once in a process",
    "tests/unit/sinks/test_kafka_marker.py": "the names of librdkafka's errors",
    "tests/unit/sources/test_source_failures.py": "the names of librdkafka's errors",
}
"""Files that reach private names of other projects, and why."""
_ATTRIBUTE_CALLS = ("getattr", "setattr", "hasattr", "delattr")


def reached(source: str) -> Iterator[str]:
    """Yield the private names that a module reaches and does not define, with their lines.

    Names of `self`, `cls` and `super()` are the class's own, or a base class's for it.
    """
    if not _REACH.search(source):
        return
    tree = ast.parse(source)
    own = set(_defined(tree))
    for node in ast.walk(tree):
        for name in _named(node):
            if re.match(r"_[a-zA-Z]", name) and name not in own and name not in _PUBLIC:
                yield f"{getattr(node, 'lineno', 0)}: {name}"


def _named(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Attribute(value=ast.Name("self" | "cls")):
            return
        case ast.Attribute(value=ast.Call(func=ast.Name("super"))):
            return
        case ast.Attribute(attr=name):
            yield name
        case ast.ImportFrom(names=names):
            yield from (each.name for each in names)
        # As text, for functions and for pytest's monkeypatch.
        case ast.Call(
            func=ast.Name(function) | ast.Attribute(attr=function),
            args=[_, ast.Constant(str(name)), *_],
        ) if function in _ATTRIBUTE_CALLS:
            yield name


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield name
            case ast.Attribute(value=ast.Name("self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name


def test_private_names_are_reached_by_their_module_alone() -> None:
    """A private name that others use is an interface without a docstring; a test of one breaks with each rewrite."""
    found = {
        f"{path}:{each}"
        for path, source in our_modules()
        if path not in _FOREIGN
        for each in reached(source)
    }

    assert found == set(), "test what is public, or make a seam of it with a docstring"


def test_files_with_foreign_private_names_still_have_some() -> None:
    """An exception that nothing needs any more would hide the next one."""
    sources = dict(our_modules())

    assert [path for path in _FOREIGN if not list(reached(sources[path]))] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("thing._part\n", ["1: _part"]),
        ("from package import _part\n", ["1: _part"]),
        ("from package import (\n    _part,\n)\n", ["1: _part"]),
        ("patch.setattr(thing, '_part', 1)\n", ["1: _part"]),
        ("getattr(thing, '_part')\n", ["1: _part"]),
        ("self._part\nsuper()._part()\nrow._replace(a=1)\nthing.__class__\n", []),
        ("class A:\n    def __init__(self, other):\n        self._part = other._part\n", []),
    ],
)
def test_private_name_of_another_is_seen_however_it_is_reached(
    source: str, expected: list[str]
) -> None:
    """The rule sees what it is for, and lets a class look into another object of its own kind."""
    assert list(reached(source)) == expected
