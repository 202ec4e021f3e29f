"""READMEs of rooms: a folder of code that is too large to be seen at a glance says where to look."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY

_PRODUCT = ("allocator", "broadsheet", "broker", "consumer", "journals", "leases", "spark_bridge")
_FILES_MAX = 8
"""Files that a reader takes in without a guide."""
_FILE = re.compile(r"(?<![\w/])(\w+)\.py\b")


_METRICS = re.compile(r"Counter|Gauge|Histogram|Summary|Info|Enum|\w+MetricFamily|Collector")


def _modules() -> list[str]:
    """Return the paths of the product's modules, generated ones left out."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *_PRODUCT],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return [
        name
        for name in listed.stdout.split()
        if name.endswith(".py") and "_pb2" not in name and (REPOSITORY / name).exists()
    ]


def _large_rooms() -> list[str]:
    """Return each folder with more modules than `_FILES_MAX`."""
    counts: dict[str, int] = {}
    for name in _modules():
        folder, _, file = name.rpartition("/")
        if file != "__init__.py":
            counts[folder] = counts.get(folder, 0) + 1
    return sorted(folder for folder, count in counts.items() if count > _FILES_MAX)


def _defines_metrics(module: Path) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and (node.module or "").partition(".")[0] == "prometheus_client"
        and any(_METRICS.fullmatch(name.name) for name in node.names)
        for node in ast.walk(ast.parse(module.read_text()))
    )


@pytest.mark.parametrize("room", _large_rooms())
def test_large_room_has_a_guide_to_its_files(room: str) -> None:
    """Nine files and more need a README that leads into them; that what it names exists is tested elsewhere."""
    guide = REPOSITORY / room / "README.md"
    assert guide.exists(), f"{room} has more than {_FILES_MAX} modules and no README.md"

    named = set(_FILE.findall(guide.read_text()))
    modules = {
        path.stem
        for path in (REPOSITORY / room).glob("*.py")
        if not path.stem.startswith("_") and "_pb2" not in path.name
    }

    assert len(named & modules) * 3 > len(modules), f"{guide} leaves out {sorted(modules - named)}"


def test_rooms_are_counted() -> None:
    """The rule finds the rooms that it is about: the heart and the broker are large."""
    assert {"consumer/shard", "broker"} <= set(_large_rooms())


def test_metrics_are_defined_in_modules_of_their_own() -> None:
    """Who starts a process should not have to know what it counts: the names of metrics are in `metrics.py`."""
    defining = {name for name in _modules() if _defines_metrics(REPOSITORY / name)}

    assert len(defining) > 5
    assert {name for name in defining if not name.endswith("/metrics.py")} == set()


def test_public_class_has_a_name_of_its_own() -> None:
    """Who searches for a class by its name finds one; two of a name are imported for each other."""
    places: dict[str, list[str]] = {}
    for module in _modules():
        for node in ast.parse((REPOSITORY / module).read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
