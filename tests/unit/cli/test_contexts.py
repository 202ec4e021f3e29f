"""Contexts: addresses and credentials from a file, below flags and the environment; completion."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from broadsheet.cli.command import make_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.context_file import contexts_path, with_current
from broadsheet.cli.main import main
from broadsheet.cli.options import command_options

CONFIG = """\
# of this machine
current: test
contexts:
  test: {address: "http://test:8080", broker: "http://test:8081"}
  live:
    address: https://live:8080
    auth_keys_file: live.keys
    token_file: ~/token
"""


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration file, and an environment that says nothing else."""
    for name in ("CONSUMER_ADDRESS", "BROKER_ADDRESS", "AUTH_KEYS", "BROADSHEET_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    monkeypatch.setenv("BROADSHEET_CONFIG", str(file))
    monkeypatch.setenv("HOME", "/home/somebody")
    return file


@command_options
class _NoOptions:
    """Of a command that has those of a connection alone."""


def _connected(*arguments: str, **environment: str) -> tuple[Connection | None, Result]:
    """Return the connection that a command line makes."""
    made: list[Connection] = []
    command = make_command(
        "command", _NoOptions, lambda connection, _: made.append(connection), is_connected=True
    )
    result = CliRunner().invoke(command, arguments, env=environment)
    return (made[0] if made else None), result


def _connection(*arguments: str, **environment: str) -> Connection:
    connection, result = _connected(*arguments, **environment)
    assert connection is not None, result.output
    return connection


def test_flags_come_before_the_environment_and_that_before_the_file() -> None:
    """A person types what matters once, a script's environment beats it, and a flag beats both."""
    assert _connection().address == "http://test:8080"
    assert _connection(CONSUMER_ADDRESS="http://env:1").address == "http://env:1"
    flagged = _connection("--address", "http://flag:1", CONSUMER_ADDRESS="http://env:1")
    assert (flagged.address, flagged.broker) == ("http://flag:1", "http://test:8081")


def test_context_is_named_by_a_flag_or_the_environment(tmp_path: Path) -> None:
    """One look into another cluster does not change the current context. What it does not say has its default."""
    live = _connection("--context", "live")
    named = _connection(BROADSHEET_CONTEXT="live")

    assert live == named
    assert live.address == "https://live:8080"
    assert live.broker == "http://localhost:8081"
    assert live.auth_keys_file == tmp_path / "live.keys"
    assert live.token_file == Path("/home/somebody/token")


def test_credentials_that_are_given_replace_those_of_the_file() -> None:
    """A key of the environment beside a file's token must not lose to it."""
    live = _connection("--context", "live", AUTH_KEYS="c2VjcmV0")

    assert (live.auth_keys, live.auth_keys_file, live.token_file) == ("c2VjcmV0", None, None)


@pytest.mark.parametrize(
    ("text", "arguments", "problem"),
    [
        (CONFIG, ("--context", "none"), "--context: there is no context 'none', but live, test"),
        ("current: gone", (), "current: there is no context 'gone', but none"),
        ("contexts: {a: {keys: x}}", (), "unknown field `keys`"),
        ("contexts: [", (), "is not YAML"),
        (None, (), "cannot read"),
    ],
)
def test_mistakes_in_the_file_are_one_line(
    config: Path, text: str | None, arguments: tuple[str, ...], problem: str
) -> None:
    """The file is written by hand: what is wrong is said with its place, and help is printed all the same."""
    config.unlink() if text is None else config.write_text(text)

    connection, result = _connected(*arguments)
    _, helped = _connected("--help")

    assert connection is None
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1
    assert helped.exit_code == 0


def test_without_a_file_there_are_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody needs the file: `shardctl dev` is where the defaults look. XDG_CONFIG_HOME moves it."""
    monkeypatch.delenv("BROADSHEET_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))

    assert contexts_path() == tmp_path / "none" / "broadsheet" / "config.yaml"
    assert _connection().address == "http://localhost:8080,http://localhost:8082"
    listed = CliRunner().invoke(main, ["contexts", "list"])
    assert listed.stderr == f"there are no contexts in {contexts_path()}\n"


def test_current_context_is_chosen_and_marked(config: Path) -> None:
    """The rest of the file, comments too, is somebody's own."""
    used = CliRunner().invoke(main, ["contexts", "use", "live"])
    listed = CliRunner().invoke(main, ["contexts", "list"])
    refused = CliRunner().invoke(main, ["contexts", "use", "none"])

    assert used.exit_code == 0, used.output
    assert config.read_text() == CONFIG.replace("current: test", 'current: "live"')
    assert [line.split()[:2] for line in listed.stdout.splitlines()[1:]] == [
        ["*", "live"],
        ["test", "http://test:8080"],
    ]
    assert refused.exit_code == 3
    assert with_current("contexts: {}\n", "a") == 'current: "a"\ncontexts: {}\n'


def _completions(*words: str, incomplete: str = "") -> list[str]:
    completer = ShellComplete(main, {}, "shardctl", "_SHARDCTL_COMPLETE")
    return [each.value for each in completer.get_completions(list(words), incomplete)]


def test_commands_options_and_contexts_are_completed(config: Path) -> None:
    """TAB shows what there is; a cluster that does not answer, or a broken file, completes nothing and says nothing."""
    assert _completions("shards", incomplete="rec") == ["recover"]
    assert _completions(incomplete="jour") == ["journals"]
    assert "--selector" in _completions("shards", "list", incomplete="--sel")
    assert _completions("shards", "list", "--context", incomplete="l") == ["live"]
    assert _completions("shards", "list", "-o", incomplete="j") == ["json", "jsonpath="]
    assert _completions("shards", "stat", "--address", "http://127.0.0.1:1", incomplete="a") == []
    config.write_text("contexts: [")
    assert _completions("contexts", "use") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_script_is_printed(shell: str) -> None:
    """The script is evaluated by the shell at its start; that of bash asks an installed bash for its version."""
    result = CliRunner().invoke(main, ["completion", shell])

    assert result.exit_code == 0
    assert "_SHARDCTL_COMPLETE" in result.stdout


def test_completion_of_a_command_imports_no_other() -> None:
    """A shell starts the program at each TAB: names of commands need no import of them."""
    program = (
        "import sys\n"
        "from click.shell_completion import ShellComplete\n"
        "from broadsheet.cli.main import main\n"
        "assert ShellComplete(main, {}, 'shardctl', 'X').get_completions(['shards'], 'l')\n"
        "print(*sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    assert not {"grpc", "google.protobuf", "yaml"} & {*ended.stdout.split()}
