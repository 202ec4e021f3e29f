"""Options of commands as dataclasses: what a field declares is what the command line takes, and what the verb gets."""

# Not with annotations as text: they are read, and pytest imports this module under no name.

from typing import Annotated

import click
from click.testing import CliRunner

from broadsheet.cli.command import make_command
from broadsheet.cli.options import (
    Group,
    PerKind,
    argument,
    command_options,
    flag,
    option,
    parameters_of,
)


@command_options
class _Inner:
    depth: int = option("How deep.", "-d", default=1)


@command_options
class _Options:
    name: str = argument()
    long_name: str = option("A name of two words.", default="", env="TEST_LONG_NAME")
    other: bool = flag("A name that does not follow from the field's.", "--another")
    inner: _Inner
    pair: Annotated[
        tuple[int, int],
        Group(
            (click.option("--left", default=0), click.option("--right", default=0)),
            lambda values: (values.pop("left"), values.pop("right")),
        ),
    ]
    password: str = option("Not shown.", is_secret=True, default="")
    of_one: Annotated[
        bool, PerKind(lambda kind: click.option("--of-one", is_flag=True) if kind == 1 else None)
    ] = False


def _taken(*arguments: str, kind: int = 1) -> _Options:
    taken: list[_Options] = []
    command = make_command("try", _Options, taken.append, kind=kind)
    result = CliRunner().invoke(command, arguments, env={"TEST_LONG_NAME": "from outside"})
    assert result.exit_code == 0, result.output
    return taken[0]


def test_options_come_from_arguments_options_groups_and_inner_options() -> None:
    """A verb gets one value for all of its command line, with types, and no bag of names."""
    found = _taken("x", "--another", "-d", "3", "--right", "2", "--password", "p", "--of-one")

    assert found == _Options(
        name="x",
        long_name="from outside",
        other=True,
        inner=_Inner(depth=3),
        pair=(0, 2),
        password="p",
        of_one=True,
    )


def test_options_that_are_secret_are_not_shown() -> None:
    """An options object that is logged, or is in a traceback, gives no password away."""
    assert "hunter2" not in repr(_taken("x", "--password", "hunter2"))


def test_parameters_follow_the_fields_and_the_kind() -> None:
    """The help has the order in which options were declared; what one kind lacks keeps its default."""
    command = make_command("try", _Options, print, kind=2)

    names = [param.name for param in command.params]
    assert names == ["name", "long_name", "other", "depth", "left", "right", "password"]
    assert len([*parameters_of(_Options, 1)]) == len(names) + 1
    assert not _taken("x", kind=2).of_one
