"""The command that installs what an extra needs."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from broadsheet.runtime.errors import needs_extra
from broadsheet.runtime.extras import install_command, requirements_of
from tests.support.documents import REPOSITORY, product_folders

_PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
_DECLARED = (
    "numpy>=1.26",
    "fastavro>=1.9; extra == 'avro'",
    'x<3,>=2; extra == "a" or extra == "b"',
)
_PAGES = (
    REPOSITORY / "README.md",
    *(REPOSITORY / "docs").rglob("*.md"),
    *(REPOSITORY / "examples").rglob("*.md"),
)
_PIP_OF_AN_INDEX = re.compile(r"""pip install\b.*["' ]broadsheet\b(?!-)""")
_OURS_OF_AN_INDEX = re.compile(r"(?:pip )?install '?`?broadsheet\b")


@pytest.mark.parametrize(
    ("extra", "wanted"), [("avro", ["fastavro>=1.9"]), ("b", ["x<3,>=2"]), ("none", [])]
)
def test_requirements_of_an_extra_are_those_that_its_marker_names(
    extra: str, wanted: list[str]
) -> None:
    """Neither what is always installed, nor what other extras bring."""
    assert requirements_of(extra, _DECLARED) == wanted


@pytest.mark.parametrize("extra", sorted(_PROJECT["optional-dependencies"]))
def test_command_of_each_extra_names_packages_and_never_us(extra: str) -> None:
    """`pip install 'broadsheet[extra]'` asks an index that does not have us, or has a stranger's of that name."""
    command = install_command(extra)

    assert command.startswith("pip install ")
    assert "broadsheet" not in command


def test_what_is_installed_is_not_installed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that brings its own PySpark and lacks orjson must not get another PySpark."""
    import importlib.metadata

    found = importlib.metadata.distribution

    def distribution(name: str) -> importlib.metadata.Distribution:
        if name == "orjson":
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    monkeypatch.setitem(sys.modules, "orjson", None)

    assert install_command("spark") == "pip install 'orjson>=3.10'"


def test_pyspark_of_a_path_is_not_installed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """EMR's PySpark is a folder of PYTHONPATH, without the metadata of an installation."""
    (tmp_path / "clusters_own").mkdir()
    (tmp_path / "clusters_own" / "__init__.py").touch()
    (tmp_path / "a_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    declared = [f"{each}>=1; extra == 'spark'" for each in ("clusters_own", "a_folder", "absent.x")]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: declared)

    assert install_command("spark") == "pip install 'a_folder>=1' 'absent.x>=1'"


def test_copy_without_metadata_names_the_packages_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an executor that got the code by `--py-files` there is no list of requirements."""
    monkeypatch.setattr("broadsheet.runtime.extras.DISTRIBUTION", "no-such-distribution")

    assert needs_extra("avro", "fastavro") == "needs fastavro (the extra `avro`)"


def test_no_text_of_the_product_installs_us_from_an_index() -> None:
    """Errors, help and docstrings: each such command would fail as printed."""
    found = [
        f"{path.relative_to(REPOSITORY)}: {line.strip()}"
        for folder in product_folders()
        for path in folder.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if _OURS_OF_AN_INDEX.search(line)
    ]
    assert found == []


def test_no_page_installs_us_from_an_index() -> None:
    """A page's command has the file of a wheel, or a checkout."""
    found = [
        f"{page.relative_to(REPOSITORY)}: {line.strip()}"
        for page in _PAGES
        for line in page.read_text(encoding="utf-8").splitlines()
        if _PIP_OF_AN_INDEX.search(line)
    ]
    assert found == []
