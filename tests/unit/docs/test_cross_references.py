"""Names in docstrings: what they refer to exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.documents import REPOSITORY
from tests.support.error_tree import drawn, on_page
from tests.support.sources import our_modules

_CLASS = re.compile(r"(?<!`)`([A-Z]\w*[a-z]\w*)(?:\.(\w+))?(?:\(\))?`(?!`)")
"""A name in backticks with a capital and a small letter, and an attribute of it."""
_DOTTED = re.compile(r"(?<![\w./-])broadsheet(?:\.\w+)+")
_WIRE = re.compile(r"^broadsheet\.(v1|dev)\b")
"""Names of messages on the wire, and of labels."""
_ELSEWHERE = frozenset(
    {
        *("ConditionNotMet", "LeaseIdMissing"),  # error codes of Azure Blob Storage
        *("GetRecords", "PeerService", "Txn"),  # methods and services of Kinesis, ours and etcd's
        "DefaultSource",  # a name that Spark looks for
        *("Check", "Watch"),  # methods of gRPC's health service
        *("Leader", "LeaseTimeout"),  # keys and attributes of the Kinesis client libraries' tables
        *("SparkContext.cancelAllJobs", "Task.get_stack"),  # of Spark and asyncio; we call others
        *("Infinity", "NaN"),  # words that JSON has not
    }
)
"""Names of others' interfaces, which no line of our code says."""


@cache
def _modules() -> dict[str, frozenset[str]]:
    """Return the names that the code of each module says."""
    found: dict[str, frozenset[str]] = {}
    for path, source in our_modules():
        if not path.startswith("tests/"):
            module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            name = module if module.startswith("broadsheet") else f"broadsheet.{module}"
            found[name] = frozenset(_said(source))
    return found


@cache
def _names() -> frozenset[str]:
    return frozenset().union(*_modules().values())


def _said(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
            ):
                yield name
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.alias(name=name):
                yield from name.split(".")


def _docstrings(source: str) -> Iterator[str]:
    """Yield the strings that stand alone: of modules, classes, functions and attributes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text


def dangling(text: str) -> list[str]:
    """Return the names of a docstring that refer to nothing."""
    found: list[str] = []
    for name, attribute in _CLASS.findall(text):
        whole = f"{name}.{attribute}" if attribute else name
        if name in _names() and (not attribute or attribute in _names()):
            continue
        if whole not in _ELSEWHERE:
            found.append(whole)
    found += [dotted for dotted in _DOTTED.findall(text) if not _exists(dotted)]
    return found


def _exists(dotted: str) -> bool:
    """Tell whether a module, or something in one, has this name."""
    if _WIRE.match(dotted) or "_pb2" in dotted:
        return True
    modules = _modules()
    module, rest = dotted, list[str]()
    while module not in modules:
        module, _, last = module.rpartition(".")
        rest.insert(0, last)
    return not rest or (rest[0] in modules[module] and _names().issuperset(rest))


def test_docstring_refers_to_what_exists() -> None:
    """A class that was renamed lives on in docstrings, and sends readers to search for what is gone."""
    found = {
        f"{path}: {name}"
        for path, source in our_modules()
        if not path.startswith(("tests/", "bench/"))
        for text in _docstrings(source)
        for name in dangling(text)
    }

    assert found == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("See `StallDetector` and `broadsheet.consumer.shard.stall_watch.StallWatch`.", []),
        ("The `CopyRegister2` was renamed.", ["CopyRegister2"]),
        ("It is in `broadsheet.consumer.journal.client`.", ["broadsheet.consumer.journal.client"]),
        ("See `StallDetector.judged_long_ago`.", ["StallDetector.judged_long_ago"]),
        ("The label `broadsheet.dev/source-part`, and `broadsheet.v1.PeerService`.", []),
    ],
)
def test_dangling_name_is_found(text: str, expected: list[str]) -> None:
    """The rule finds what is gone, and takes what the wire names."""
    assert dangling(text) == expected


def test_words_for_pieces_of_a_journal_are_those_of_the_code() -> None:
    """The glossary is where a reader learns what a span or a run is: a class that it names must be there."""
    page = (REPOSITORY / "docs/concepts.md").read_text(encoding="utf-8")
    glossary = page.partition("## Words for pieces of a journal\n")[2].partition("\n## ")[0]

    assert _CLASS.search(glossary), "docs/concepts.md has no glossary"
    assert dangling(glossary) == []


def test_page_of_errors_shows_the_tree_of_the_classes() -> None:
    """A tree that is drawn by hand misses the next error: `python -m tests.support.error_tree` draws it."""
    assert on_page() == drawn()
