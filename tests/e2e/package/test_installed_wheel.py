"""The wheel beside a project whose own modules are called as our folders are."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from broadsheet.cli.dev.dev import dev
from broadsheet.cli.main import main
from broadsheet.cli.new_project import template_names
from broadsheet.cli.serve.serve import serve
from tests.support.documents import REPOSITORY
from tests.support.installed_wheel import install_wheel, packages_of

pytestmark = pytest.mark.e2e

_NAMES = (
    "allocator",
    "broker",
    "consumer",
    "examples",
    "journals",
    "leases",
    "spark_bridge",
)
_SHADOWS = ("click", "grpc", "queue", "broadsheet")
"""What the broker imports; `queue` is the standard library's."""
_APPLICATION = re.compile(r"\b[a-z]\w*(?:\.[a-z]\w*)+:[A-Za-z]\w*")
_PLACEHOLDERS = {"my.module:make_app", "package.module:attribute"}
"""They stand for the user's application."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment: the wheel, PyPI's `allocator`, and what the wheel depends on."""
    directory = tmp_path_factory.mktemp("wheel")
    interpreter = install_wheel(directory)
    (packages_of(directory) / "allocator").mkdir()
    (packages_of(directory) / "allocator" / "__init__.py").write_text("OWNER = 'PyPI'\n")
    return interpreter


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with modules called `consumer`, `allocator` and so on."""
    for name in _NAMES:
        (tmp_path / f"{name}.py").write_text("OWNER = 'user'\n")
    (tmp_path / "consumer.py").write_text(
        "import broadsheet.examples.counter.app as example\n"
        "class Counter(example.Counter): pass\n"
        "OWNER = 'user'\n"
    )
    return tmp_path


def _run(python: Path, project: Path, *command: str) -> str:
    done = subprocess.run(
        [str(python), *command], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_users_modules_and_ours_are_both_there(python: Path, project: Path) -> None:
    """A user's `consumer.py` is imported by its name, and doors of ours by theirs; nothing of ours has a bare name."""
    (project / "main.py").write_text(
        "import sys\n"
        "import allocator, consumer, examples, spark_bridge\n"
        "from broadsheet import Application, JsonType, ShardClient\n"
        "from broadsheet.spark import ShardCluster\n"
        "assert {m.OWNER for m in (allocator, consumer, examples, spark_bridge)} == {'user'}\n"
        "bare = [name for name in sys.modules if name.startswith(('consumer.', 'spark_bridge.'))]\n"
        "print(bare, sys.modules['broadsheet.consumer'].__file__)\n"
    )
    printed = _run(python, project, "main.py")
    assert printed.startswith("[] ")
    assert "/site-packages/broadsheet/consumer/" in printed
    assert str(REPOSITORY) not in printed


def test_pypis_allocator_stays(python: Path, project: Path) -> None:
    """PyPI's `allocator` installs the same top-level name: both are importable."""
    program = (
        "import allocator, broadsheet.allocator as ours; print(allocator.OWNER, ours.__name__)"
    )
    assert _run(python, project, "-P", "-c", program) == "PyPI broadsheet.allocator\n"


def test_applications_that_help_names_are_installed(python: Path, project: Path) -> None:
    """`shardctl` loads each application that its help names, and one in a user's `consumer.py`, from the wheel."""
    told = " ".join(command.help or "" for command in (main, dev, serve))
    named = sorted({*_APPLICATION.findall(told)} - _PLACEHOLDERS)
    assert named
    program = (
        "import sys\nfrom broadsheet.cli.application_name import load_application\n"
        "for name in sys.argv[1:]: print(load_application(name).__module__)\n"
    )
    printed = _run(python, project, "-P", "-c", program, *named, "consumer:Counter")
    assert printed.split() == [*(name.partition(":")[0] for name in named), "consumer"]


def test_children_do_not_import_from_the_working_directory(python: Path, project: Path) -> None:
    """A broker is started where modules lie that have the names of what it imports, all of which end it."""
    for name in _SHADOWS:
        (project / f"{name}.py").write_text("raise SystemExit('the working directory shadows')\n")
    program = (
        "from pathlib import Path\n"
        "from broadsheet.embedded.broker import EmbeddedBrokerProcess\n"
        "with EmbeddedBrokerProcess(Path('data')) as broker: print(broker.address)\n"
    )
    assert "127.0.0.1" in _run(python, project, "-P", "-c", program)


def test_spark_finds_the_formats_of_the_wheel(python: Path, project: Path) -> None:
    """The modules that Spark looks for are at the top level of the wheel, not only of a clone."""
    program = (
        "import io\nfrom pyspark.sql.worker import lookup_data_sources\n"
        "told = io.BytesIO()\nlookup_data_sources._main(io.BytesIO(), told)\n"
        "print([name for name in ('journal', 'shards', 'shard_state', 'shard_moves')\n"
        "       if name.encode() not in told.getvalue()])\n"
    )
    assert _run(python, project, "-P", "-c", program) == "[]\n"


def test_templates_are_installed_with_their_files(python: Path, project: Path) -> None:
    """A wheel has what is no module, too: specs in YAML, the project's file, and a name that begins with a dot."""
    for template in template_names():
        printed = _run(
            python,
            project,
            "-P",
            "-m",
            "broadsheet.cli.main",
            "init",
            f"my_{template}",
            "-t",
            template,
        )
        written = {Path(line).name for line in printed.splitlines()}
        assert {".gitignore", "pyproject.toml", "journals.yaml", "shards.yaml"} <= written
        assert f"test_my_{template}.py" in written
