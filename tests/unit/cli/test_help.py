"""The help of every command: an example each, in the width of a terminal."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from broadsheet.cli.lazy_group import ExitStatus, LazyCommand, LazyGroup
from broadsheet.cli.main import main
from tests.support.documents import REPOSITORY


def _leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _leaves(command, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", list(_leaves(main)), ids=" ".join)
def test_help_has_an_example_and_fits_80_columns(path: tuple[str, ...]) -> None:
    """Somebody who knows nothing starts at an example; one that is wider than a terminal cannot be copied."""
    result = CliRunner().invoke(main, [*path, "--help"], env={"COLUMNS": "80"})

    assert result.exit_code == 0
    assert f"  shardctl {' '.join(path)}" in result.output
    assert "Exit status: 0 done, 1 failed, 2 usage, 3 not found" in " ".join(result.output.split())
    assert all(len(line) <= 80 for line in result.output.splitlines()), result.output


def test_help_of_a_group_tells_each_command_in_one_sentence() -> None:
    """A list of commands whose descriptions are cut off tells nothing."""
    for path in ((), ("shards",), ("journals",)):
        result = CliRunner().invoke(main, [*path, "--help"], env={"COLUMNS": "80"})

        assert "..." not in result.output.partition("Commands:")[2]


def test_command_imports_no_other() -> None:
    """Who lists shards does not wait for the modules of a member."""
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from broadsheet.cli.main import main\n"
        "assert CliRunner().invoke(main, ['shards', 'list', '--help']).exit_code == 0\n"
        "print(*(name for name in sys.modules if name.startswith('broadsheet.cli.')))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    imported = ended.stdout.split()
    assert "broadsheet.cli.shards.table" in imported
    assert not {
        "broadsheet.cli.dev.dev",
        "broadsheet.cli.serve.serve",
        "broadsheet.cli.leases.list",
    } & {*imported}


def test_help_of_a_group_imports_no_command() -> None:
    """Help is asked for more often than any command: it needs neither gRPC nor protobuf."""
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from broadsheet.cli.main import main\n"
        "assert CliRunner().invoke(main, sys.argv[1:]).exit_code == 0\n"
        "print(*sys.modules)"
    )
    for group in ([], ["shards"], ["leases"]):
        ended = subprocess.run(
            [sys.executable, "-P", "-c", program, *group, "--help"],
            capture_output=True,
            text=True,
            check=True,
        )

        assert not {"grpc", "google.protobuf", "structlog", "yaml"} & {*ended.stdout.split()}


def _lazy(group: click.Group) -> Iterator[tuple[str, LazyCommand]]:
    if isinstance(group, LazyGroup):
        yield from group.lazy.items()
    for command in group.commands.values():
        if isinstance(command, click.Group):
            yield from _lazy(command)


@pytest.mark.parametrize(
    ("name", "lazy"), list(_lazy(main)), ids=[f"{lazy.module}:{name}" for name, lazy in _lazy(main)]
)
def test_summary_of_a_lazy_command_is_its_own(name: str, lazy: LazyCommand) -> None:
    """A group shows a command's summary without importing it, so it is written twice, and must be the same."""
    assert lazy.load(name).get_short_help_str(limit=100) == lazy.summary


@pytest.mark.parametrize(
    ("name", "lazy"), list(_lazy(main)), ids=[f"{lazy.module}:{name}" for name, lazy in _lazy(main)]
)
def test_verb_is_in_the_file_of_its_name(name: str, lazy: LazyCommand) -> None:
    """A newcomer opens `shards/wait.py` for `shardctl shards wait`: exceptions are few, and named here."""
    file = lazy.module.rpartition(".")[2].rstrip("_")
    families = {"resume": "pause", "uncordon": "cordon"}

    assert file in {name.replace("-", "_"), families.get(name), "spec_verbs"}


def test_every_exit_status_is_documented() -> None:
    """Scripts tell a shard that is not there from a cluster that is not: one table says how."""
    table = (REPOSITORY / "docs" / "operations.md").read_text()

    rows = re.findall(r"^\| (\d) \| (\w+) \|", table, re.MULTILINE)
    assert dict(rows) == {str(each.value): each.name.lower() for each in ExitStatus}
