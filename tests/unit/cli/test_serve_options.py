"""What `shardctl serve` makes of its command line: every option reaches the setting that it names."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from broadsheet.allocator.policy import MoveLogPolicy
from broadsheet.cli.errors import WrongValueError
from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.cli.main import main
from broadsheet.cli.options import options_from
from broadsheet.cli.serve.options import ServeOptions
from broadsheet.cli.serve.serve import serve
from broadsheet.consumer.member.config import MemberConfig
from broadsheet.consumer.shard.environment import ShardConfig

APP = "broadsheet.examples.counter.app:Counter"

SHARD_OPTIONS: dict[str, Any] = {
    "restart_delay_seconds": 0.25,
    "restart_delay_seconds_max": 12.0,
    "healthy_seconds": 5.0,
    "attempts_max": 7,
    "quarantine_seconds": 33.0,
    "poison_attempts": 2,
    "stall_seconds": 8.5,
    "unavailable_seconds": 4.5,
    "young_deaths_max": 0,
    "hold_seconds": 1.5,
    "stop_grace_seconds": 3.0,
    "hand_over_seconds": 2.5,
    "teardown_seconds": 4.0,
    "hints_seconds": 60.0,
    "hints_bytes": 1000,
    "input_bytes_max": 1 << 20,
    "member_input_bytes_max": 1 << 21,
    "producers_bytes_max": 1 << 20,
    "intent_bytes_max": 1 << 21,
    "rollback_again_seconds": 90.0,
    "clock_ahead_seconds": 60.0,
    "head_patience_seconds": 2.5,
}
"""A value other than the default for each option that has the name of its field."""

WITHOUT_OPTION = {
    "publish_clock_delta_seconds",
    "publish_bytes_max",
    "carried_bytes_max",
}
"""Only for tests, and for tuning in a program of one's own."""


def _config(*arguments: str) -> MemberConfig:
    context = serve.make_context("serve", [APP, "--suffix", "member-1", *arguments])
    return options_from(ServeOptions, dict(context.params)).member_config()


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def test_serve_without_options_does_what_a_member_does_by_itself() -> None:
    """Defaults stand in one place: a member in a program of one's own behaves as one of the terminal."""
    config = _config()

    assert config.shards == ShardConfig()
    assert config.watch_peers
    assert config.capacity == 0


def test_serve_has_an_option_for_every_limit_of_a_shard() -> None:
    """A limit that is added must be given an option, or be left out on purpose."""
    named = (
        SHARD_OPTIONS.keys()
        | {"stall_hand_over", "refuse_clocks_ahead", "file_open_transactions"}
        | WITHOUT_OPTION
    )

    assert named == {each.name for each in fields(ShardConfig)}


@pytest.mark.parametrize("name", SHARD_OPTIONS)
def test_serve_option_sets_its_limit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command line, or by the environment, as a container does; nothing else changes."""
    value = SHARD_OPTIONS[name]
    wanted = replace(ShardConfig(), **{name: value})

    assert _config(_flag(name), str(value)).shards == wanted
    monkeypatch.setenv(f"CONSUMER_{name.upper()}", str(value))
    assert _config().shards == wanted


def test_serve_options_bound_the_move_log() -> None:
    """A count and days; by default what the policy says, and never less than nothing."""
    assert _config().allocation.move_log == MoveLogPolicy()
    bounded = _config("--move-log-entries", "10", "--move-log-days", "0.5").allocation.move_log
    assert bounded == MoveLogPolicy(entries_max=10, age_seconds_max=43_200.0)
    with pytest.raises(WrongValueError, match=r"--move-log-entries: expected"):
        _config("--move-log-entries", "-1")


def test_serve_switches_and_members_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches work both ways, the command line before the environment."""
    monkeypatch.setenv("CONSUMER_WATCH_PEERS", "false")
    monkeypatch.setenv("CONSUMER_STALL_HAND_OVER", "true")

    assert not _config().watch_peers
    assert _config("--watch-peers").watch_peers
    monkeypatch.setenv("CONSUMER_REFUSE_CLOCKS_AHEAD", "true")
    assert _config().shards.refuse_clocks_ahead
    assert not _config("--accept-clocks-ahead").shards.refuse_clocks_ahead
    assert not _config().shards.file_open_transactions
    assert _config("--file-open-transactions").shards.file_open_transactions
    assert _config().shards.stall_hand_over
    assert not _config("--no-stall-hand-over").shards.stall_hand_over
    config = _config(
        "--capacity",
        "8",
        "--bind-host",
        "0.0.0.0",  # noqa: S104 - only parsed
        "--allow-unauthenticated",
        "--state-dir",
        "/data",
    )
    assert (config.capacity, config.bind_host, config.state_dir) == (8, "0.0.0.0", "/data")  # noqa: S104


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--poison-attempts", "0"], "--poison-attempts: expected at least 1"),
        (["--restart-delay-seconds", "0"], "--restart-delay-seconds: expected at least 0.01"),
        (["--stall-seconds", "-1"], "--stall-seconds: expected at least 0"),
        (["--quarantine-seconds", "nan"], "--quarantine-seconds: expected at least 0"),
        (
            ["--restart-delay-seconds", "9", "--restart-delay-seconds-max", "8"],
            "--restart-delay-seconds-max: expected at least 9",
        ),
        (["--zone", "a#b"], "--zone: "),
        (["--broker", "nonsense::"], "--broker: expected http://host:port"),
        (["--etcd", "a:1,b"], "--etcd[1]: expected host:port"),
        (["--etcd-probe-timeout", "0"], "--etcd-probe-timeout: expected more than 0"),
        (["--auth-keys", "***"], "--auth-keys[0]: expected base64"),
        (["--jwks-issuer", "us"], "--jwks-issuer: expected jwks beside it"),
        (["--replaces", ""], "--replaces: expected None or the start of a suffix"),
        (["--lease-store", "etcd:/r"], "--lease-store: expected an admin_port"),
        (["--bind-host", "0.0.0.0"], "--auth-keys: expected keys, because 0.0.0.0"),  # noqa: S104 - refused
    ],
)
def test_serve_refuses_a_value_that_makes_no_sense(arguments: list[str], text: str) -> None:
    """Before anything starts, as wrong usage, in one line that names the option and what it may be."""
    result = CliRunner().invoke(main, ["serve", APP, *arguments])

    assert result.exit_code == ExitStatus.USAGE
    assert result.output.startswith("Error: ")
    assert text in result.output
    assert len(result.output.splitlines()) == 1


def test_serve_names_the_option_of_each_number_below_its_bound() -> None:
    """A field of the configuration that no option is known for would be named as programs know it."""
    numbers = [
        each.opts[0]
        for each in serve.params
        if isinstance(each.type, click.types.IntParamType | click.types.FloatParamType)
    ]

    for name in numbers:
        result = CliRunner().invoke(main, ["serve", APP, f"{name}=-1"])
        assert result.exit_code == ExitStatus.USAGE, f"{name}: {result.output}"
        assert name in result.output.splitlines()[-1]


def test_serve_tells_the_environment_variable_of_each_option() -> None:
    """Whoever writes a deployment reads the help, not the code."""
    options = {each.name: each for each in serve.params if isinstance(each, click.Option)}

    for name in (*SHARD_OPTIONS, "stall_hand_over", "watch_peers", "capacity", "state_dir"):
        assert options[name].help
        assert options[name].envvar == f"CONSUMER_{name.upper()}"
        assert options[name].show_envvar


def test_password_of_etcd_comes_from_a_file(tmp_path: Path) -> None:
    """A Secret is mounted as a file: an environment is inherited by child processes."""
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    given = ("--etcd-user", "me", "--etcd-password-file", str(file))

    assert _config(*given).etcd.password == "s3cret"
    with pytest.raises(WrongValueError, match="--etcd-password-file: expected either"):
        _config(*given, "--etcd-password", "other")
