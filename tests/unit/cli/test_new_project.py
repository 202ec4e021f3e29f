"""`shardctl init` and `shardctl examples`: names and folders that are refused, and what is written."""

from __future__ import annotations

import json
import py_compile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broadsheet.cli.main import main
from broadsheet.cli.new_project import files_of, template_names
from broadsheet.cli.project import read_project
from broadsheet.runtime.errors import ValidationError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which commands are typed."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _shardctl(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


@pytest.mark.parametrize("template", template_names())
def test_init_writes_a_project_of_its_own_name(here: Path, template: str) -> None:
    """Nothing of the template's name is left, and dev finds the application and both files."""
    made = _shardctl("init", "hello", "--template", template)

    assert made.exit_code == 0, made.output
    files = {path.relative_to(here): path for path in here.rglob("*") if path.is_file()}
    assert sorted(map(str, files)) == sorted(made.stdout.split())
    assert {Path("hello/.gitignore"), Path("hello/README.md")} <= set(files)
    assert not [path for path in files.values() if "hello_" in path.read_text() + str(path)]
    project = read_project(here / "hello")
    assert project is not None
    assert project.application.startswith("hello.app:")
    assert (project.journals, project.specs) == (
        here / "hello" / "journals.yaml",
        here / "hello" / "shards.yaml",
    )
    assert "cd hello\n  shardctl dev" in made.stderr


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("My-App", "such as my_app"),
        ("1st", "cannot be the name of a package"),
        ("a" * 41, "at most 40 small letters"),
        ("class", "'class' is a word of Python"),
        ("json", "Python has a module json"),
        ("tests", "Python has a module tests"),
        ("click", "a package click is installed, which the project would hide"),
        ("../up", "such as up"),
    ],
)
def test_init_refuses_a_name_that_would_not_work(here: Path, name: str, problem: str) -> None:
    """A name that Python or journals cannot have, or that hides a module, fails later and elsewhere."""
    refused = _shardctl("init", "--", name)

    assert refused.exit_code == 2
    assert problem in refused.stderr
    assert not list(here.iterdir())


def test_init_leaves_files_that_are_there_alone(here: Path) -> None:
    """A second init, or one into a folder with work in it, must not overwrite anything."""
    (here / "hello").mkdir()
    (here / "hello" / ".git").mkdir()
    first = _shardctl("init", "hello")
    (here / "hello" / "hello" / "app.py").write_text("mine")
    second = _shardctl("init", "hello")
    (here / "other").touch()
    file = _shardctl("init", "other")

    assert first.exit_code == 0, first.output
    assert second.exit_code == 2
    assert "the folder hello is not empty, it has .gitignore, README.md, hello and" in second.stderr
    assert (here / "hello" / "hello" / "app.py").read_text() == "mine"
    assert "other is a file: choose another name" in file.stderr


def test_template_has_no_summary_left_in_the_project() -> None:
    """The sentence in `shardctl init --help` describes the template, not the user's project."""
    for template in template_names():
        assert "summary" not in files_of(template, "hello")[Path("pyproject.toml")]
        assert template in _shardctl("init", "--help").stdout


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('app = "a:B"', "tool.broadsheet.app: unknown field"),
        ('journals = "none.yaml"\napplication = "a:B"', "there is no file .*none.yaml"),
        ("application = 3", "tool.broadsheet.application: expected a text, got 3"),
        ("", "tool.broadsheet.application: expected package.module:attribute"),
    ],
)
def test_mistake_in_the_table_of_a_project_is_named(here: Path, table: str, problem: str) -> None:
    """Dev reads the table each time: a mistake in it is shown with its field, not as a missing file of YAML."""
    (here / "pyproject.toml").write_text(f"[tool.broadsheet]\n{table}\n")

    with pytest.raises(ValidationError, match=problem):
        read_project(here)
    assert _shardctl("dev").exit_code == 1


def test_dev_without_a_project_says_how_to_make_one(here: Path) -> None:
    """The first command of somebody who skipped the second line of the README."""
    refused = _shardctl("dev")
    (here / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    still = _shardctl("dev")

    assert refused.exit_code == still.exit_code == 2
    assert "shardctl init NAME makes a folder with one" in refused.stderr


def test_examples_are_listed_with_files_that_exist() -> None:
    """README's commands name files of a clone; an installation has them elsewhere, and this says where."""
    listed = json.loads(_shardctl("examples", "list", "-o", "json").stdout)["examples"]
    table = _shardctl("examples", "list")

    by_name = {each["name"]: each for each in listed}
    assert by_name["counter"]["application"] == "broadsheet.examples.counter.app:Counter"
    assert {"flights", "word_count"} <= set(by_name)
    assert all(Path(each["specs"]).is_file() for each in listed)
    without = {name for name, each in by_name.items() if not each["journals"]}
    assert without == {"kafka_totals"}, "it reads and writes topics"
    named = [each["journals"] for name, each in by_name.items() if name not in without]
    assert all(Path(journals).is_file() for journals in named)
    assert f"--journals {by_name['counter']['journals']}" in table.stderr


def test_copied_example_imports_nothing_of_the_original(here: Path) -> None:
    """A copy is there to be changed: a module that still came from us would ignore the change."""
    copied = _shardctl("examples", "copy", "word_count", "--directory", "words")
    unknown = _shardctl("examples", "copy", "none")
    again = _shardctl("examples", "copy", "word_count", "--directory", "words")

    assert copied.exit_code == 0, copied.output
    for path in (here / "words").glob("*.py"):
        py_compile.compile(str(path), cfile=str(here / "compiled"), doraise=True)
        assert "broadsheet.examples" not in path.read_text()
    assert "shardctl dev words.app:create" in copied.stderr
    assert unknown.exit_code == 3
    assert again.exit_code == 2
