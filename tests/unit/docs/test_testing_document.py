"""docs/testing.md: its files run, as they are shown, where pytest has to find the plugin by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY, blocks_of


def installed_beside(directory: Path) -> dict[str, str]:
    """Return an environment in which the package is installed with the entry points of pyproject.toml."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    installed = directory / "broadsheet_plugin_test-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: broadsheet-plugin-test\n")
    (installed / "entry_points.txt").write_text(
        "\n".join(
            f"[pytest11]\n{name} = {module}"
            for name, module in project["entry-points"]["pytest11"].items()
        )
    )
    paths = [str(directory), str(REPOSITORY)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest as a user would, in an empty project."""
    environment = installed_beside(directory / "site")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_guide_to_testing_runs_as_it_stands(tmp_path: Path) -> None:
    """What users copy first: an application, its tests, and applications that are refused."""
    for block in blocks_of(REPOSITORY / "docs/testing.md"):
        name = block.code.partition("\n")[0].removeprefix("# ")
        (tmp_path / name).write_text(block.code)

    done = run_pytest(tmp_path)

    assert "6 passed" in done.stdout, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ("def test_x(cluster): pass", "pytestmark = pytest.mark.broadsheet(application=…)"),
        (
            "import pytest\n@pytest.mark.broadsheet('shop:Shop')\ndef test_x(cluster): pass",
            "takes arguments by name, e.g. application=…",
        ),
    ],
    ids=["no application", "by position"],
)
def test_a_wrong_marker_says_what_to_write(tmp_path: Path, test: str, told: str) -> None:
    """The first mistake of a new user is answered with the line to write."""
    (tmp_path / "test_x.py").write_text(test)

    done = run_pytest(tmp_path)

    assert told in done.stdout


def test_plugin_imports_nothing_for_tests_that_do_not_use_it(tmp_path: Path) -> None:
    """Every run of pytest loads the plugin: it must not load us, and gRPC with us."""
    (tmp_path / "test_x.py").write_text(
        "import sys\n"
        "def test_x():\n"
        "    assert 'broadsheet.testing.pytest_plugin' in sys.modules\n"
        "    ours = {name for name in sys.modules if name.startswith('broadsheet.')}\n"
        "    assert ours <= {'broadsheet.testing', 'broadsheet.testing.pytest_plugin', 'broadsheet.runtime',\n"
        "                    'broadsheet.runtime.door', 'broadsheet.runtime.errors',\n"
        "                    'broadsheet.runtime.libraries'}, ours\n"
    )

    done = run_pytest(tmp_path)

    assert "1 passed" in done.stdout, done.stdout[-3000:] + done.stderr[-2000:]
