"""The packages' doors: what users may import, from one place each, and what an extra that is missing says."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

import broadsheet.allocator as allocator_door
import broadsheet.broker as broker_door
import broadsheet.consumer as consumer_door
import broadsheet.consumer.commands as commands_door
import broadsheet.consumer.keyed as keyed_door
import broadsheet.consumer.relay as relay_door
import broadsheet.consumer.sources as sources_door
import broadsheet.consumer.stores as stores_door
import broadsheet.embedded as embedded_door
import broadsheet.journals as journals_door
import broadsheet.leases as leases_door
import broadsheet.runtime as runtime_door
import broadsheet.security as security_door
import broadsheet.spark_bridge as spark_door
import broadsheet.spark_bridge.keyed as spark_keyed_door
import broadsheet.testing as test_kit
import broadsheet.testing.allocator as allocator_simulation
import broadsheet.testing.leases as lease_suites
import broadsheet.testing.shards as shard_simulation
import broadsheet.testing.stores as store_suites
from broadsheet.cli.main import main
from broadsheet.runtime.libraries import EXTRAS
from tests.support.documents import REPOSITORY

_LAZY = (
    allocator_door,
    broker_door,
    commands_door,
    consumer_door,
    embedded_door,
    journals_door,
    keyed_door,
    leases_door,
    relay_door,
    runtime_door,
    security_door,
    sources_door,
    stores_door,
    spark_door,
    spark_keyed_door,
    lease_suites,
    store_suites,
    test_kit,
)
DOORS = {door.__name__: door for door in (*_LAZY, allocator_simulation, shard_simulation)}
_ROOMS = sorted(
    each.name
    for each in (REPOSITORY / "broadsheet").iterdir()
    if each.is_dir() and each.name not in ("examples", "__pycache__")
)
_OURS = rf"broadsheet\.(?:{'|'.join(_ROOMS)})"
_IMPORT = re.compile(
    rf"^[ \t]*(?:from ((?:{_OURS})(?:\.\w+)*) import (\([^)]*\)|[^\n]*)|import ((?:{_OURS})(?:\.\w+)*))",
    re.MULTILINE,
)
_DEEP = re.compile(rf"(?<![\w./-])((?:{_OURS})(?:\.\w+)+)\.\w+")

each_door = pytest.mark.parametrize("door", DOORS.values(), ids=DOORS.keys())
each_lazy_door = pytest.mark.parametrize("door", _LAZY, ids=lambda door: door.__name__)


def _for_users() -> Iterator[Path]:
    """Yield what users copy from: README, docs, examples. Stubs, decisions and recipes for our own code are not."""
    yield REPOSITORY / "README.md"
    yield from (
        path
        for path in (REPOSITORY / "docs").rglob("*.md")
        if not {"adr", "recipes"} & {*path.parts}
    )
    for path in (REPOSITORY / "examples").rglob("*.py"):
        # What all examples have in common is no example.
        if "_pb2" not in path.name and path != REPOSITORY / "examples/__init__.py":
            yield path


def _source(door: ModuleType) -> ast.Module:
    assert door.__file__ is not None
    return ast.parse(Path(door.__file__).read_text())


def _homes_in(nodes: ast.AST) -> dict[str, str]:
    """Return of each imported name the module that it is imported from; our own packages only."""
    return {
        alias.name: node.module
        for node in ast.walk(nodes)
        if isinstance(node, ast.ImportFrom) and node.module and re.match(_OURS, node.module)
        for alias in node.names
    }


def _homes_of(door: ModuleType) -> dict[str, str]:
    """Return of each public name of a door the module that a type checker finds it in."""
    tree = _source(door)
    if door not in _LAZY:
        return _homes_in(tree)
    (checking,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return _homes_in(checking)


def test_readme_docs_and_examples_import_from_doors_only() -> None:
    """What users copy must not reach behind a door: what lies there may change in any release."""
    wrong = []
    count = 0
    for path in _for_users():
        for module, names, plain in _IMPORT.findall(path.read_text()):
            door = DOORS.get(module or plain)
            asked = re.findall(r"\w+(?= as )|(?<! as )\b\w+\b(?! as )", re.sub(r"#.*", "", names))
            count += 1
            if door is None or not {name for name in asked if name != "as"} <= set(door.__all__):
                wrong.append(f"{path.relative_to(REPOSITORY)}: {module or plain}: {names}")
    assert wrong == []
    assert count > 50, "the pattern finds what it is to judge"


def test_help_of_commands_names_doors_only() -> None:
    """What `--help` tells people to import or to name must be public as well."""

    def helps(command: click.Command, context: click.Context) -> Iterator[str]:
        yield command.get_help(context)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                yield from helps(child, click.Context(child, info_name=name, parent=context))

    texts = list(helps(main, click.Context(main, info_name="shardctl")))
    named = {module for text in texts for module in _DEEP.findall(text)}

    assert len(texts) > 10
    assert named <= set(DOORS)


@each_door
def test_a_door_says_the_same_to_everybody(door: ModuleType) -> None:
    """`__all__`, what type checkers see and what Python finds are one list of names."""
    homes = _homes_of(door)

    assert set(door.__all__) == set(homes)
    assert set(door.__all__) <= set(dir(door))
    for name, home in homes.items():
        assert getattr(door, name) is getattr(importlib.import_module(home), name), name


def test_a_name_has_one_home() -> None:
    """No two doors hand out the same thing: there is one right way to import it."""
    doors_of: dict[tuple[str, str], list[str]] = {}
    for door in DOORS.values():
        for name, home in _homes_of(door).items():
            doors_of.setdefault((home, name), []).append(door.__name__)

    assert {thing: doors for thing, doors in doors_of.items() if len(doors) > 1} == {}


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    """`hasattr` and a mistyped import must work as with any other module."""
    for door in _LAZY:
        with pytest.raises(AttributeError, match=f"module '{door.__name__}' has no attribute"):
            _ = door.NoSuchName


def test_our_own_modules_do_not_come_in_through_the_doors() -> None:
    """Inside, a name is imported from where it is defined: through a door, every import could close a circle."""
    wrong = []
    for package in (
        allocator_door,
        broker_door,
        consumer_door,
        journals_door,
        leases_door,
        spark_door,
    ):
        assert package.__file__ is not None
        for path in Path(package.__file__).parent.rglob("*.py"):
            for name, home in _homes_in(ast.parse(path.read_text())).items():
                door = DOORS.get(home)
                if door in _LAZY and name in door.__all__:
                    wrong.append(f"{path}: from {home} import {name}")
    assert wrong == []


def _python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_HEAVY = ("grpc", "numpy", *EXTRAS)


def test_a_door_imports_nothing_until_it_is_asked() -> None:
    """Opening every door costs no gRPC, no Arrow and no extra: a client of one name does not pay for all."""
    names = [door.__name__ for door in _LAZY]

    loaded = _python(
        f"import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"print(*sorted({{name.partition('.')[0] for name in sys.modules}} & set({_HEAVY!r})))"
    )

    assert loaded.split() == []


_BLOCKED = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {extras!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
for door in {doors!r}:
    module = importlib.import_module(door)
    for name in module.__all__:
        try:
            getattr(module, name)
        except ImportError as error:
            print(name, getattr(error, "extra", "none"), error, sep="|")
"""


def test_names_that_need_an_extra_say_which() -> None:
    """In an installation without extras each door opens, and each name works or tells what to install."""
    doors = [door.__name__ for door in DOORS.values()]

    told = _python(_BLOCKED.format(extras=set(EXTRAS), doors=doors))

    lacking: dict[str, set[str]] = {}
    for line in told.splitlines():
        name, extra, message = line.split("|", 2)
        assert f"{name} needs " in message
        assert f"(the extra `{extra}`): pip install " in message
        assert "broadsheet[" not in message
        lacking.setdefault(extra, set()).add(name)
    assert {"KinesisSource", "DynamoRecordStore"} <= lacking.pop("aws")
    assert {"BlobRecordStore", "RecordCheckpointStore"} <= lacking.pop("azure")
    assert {"KafkaSource"} <= lacking.pop("kafka")
    assert {"AggregateStore", "Sum"} <= lacking.pop("aggregate")
    assert lacking.pop("rocksdb") == {"RocksDbAnswers", "RocksDbStore"}
    assert lacking.pop("keyed") == {"KeyedStore"}
    assert {"SqlStore", "SqlAnswers", "SqlRecordStore"} <= lacking.pop("sql")
    assert {"ShardCluster", "start_session", "publish_dataframe"} <= lacking.pop("spark")
    assert lacking == {}


def test_a_program_that_lacks_an_extra_says_so_in_one_line(tmp_path: Path) -> None:
    """The first example that somebody tries in a bare installation ends with what to install, not with a traceback."""
    (tmp_path / "sitecustomize.py").write_text(_BLOCKED.format(extras=set(EXTRAS), doors=[]))

    done = subprocess.run(
        [sys.executable, "-m", "broadsheet.examples.enrich.run"],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    (told,) = done.stderr.splitlines()
    needs = "error: broadsheet.examples.enrich.run needs psutil (the extra `spark`): pip install "
    assert told.startswith(needs)
    assert "pyspark" in told


_LACKING = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name == "pyspark.sql.datasource":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import broadsheet.spark_bridge
try:
    broadsheet.spark_bridge.register_formats
except ImportError as error:
    print(error)
"""


def test_library_that_is_too_old_is_not_said_to_be_missing() -> None:
    """PySpark 3.5 has no data sources in Python: `pip install pyspark` would change nothing."""
    told = _python(_LACKING)

    assert "register_formats needs another version of pyspark: " in told
    assert "has no pyspark.sql.datasource" in told
    assert "pip install" not in told


def test_a_bare_installation_has_what_the_first_programs_need() -> None:
    """Only what is about an extra's own subject may need it: never the application's contract, or a client."""
    told = _python(
        _BLOCKED.format(
            extras=set(EXTRAS),
            doors=[
                door.__name__
                for door in (
                    allocator_door,
                    broker_door,
                    consumer_door,
                    journals_door,
                    embedded_door,
                )
            ],
        )
    )

    assert told == ""


def _requirements(extras: dict[str, list[str]], name: str) -> Iterator[str]:
    """Yield what an extra needs, and what the extras that it names need."""
    for requirement in extras[name]:
        own = re.fullmatch(r"broadsheet\[(.+)\]", requirement)
        if own is None:
            yield requirement
        for each in own[1].split(",") if own else ():
            yield from _requirements(extras, each)


def test_extras_are_those_of_the_project() -> None:
    """What an error tells to install exists, and brings the package that is missing."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    for module, (extra, packages) in EXTRAS.items():
        listed = " ".join(_requirements(project["optional-dependencies"], extra))
        for package in packages.split(" and "):
            assert package in listed, f"{module}: [{extra}] has no {package}"
