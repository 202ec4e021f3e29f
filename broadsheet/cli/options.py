"""Options of commands: frozen dataclasses, each field of which is a parameter.

A field is an `argument`, an `option` or a `flag` of its name. Parameters that several commands have are types, such as
`DryRun`. A field may also be a `Group` of parameters, or another such dataclass. Parameters come in the order of the
fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    TypeAlias,
    TypeVar,
    dataclass_transform,
    get_type_hints,
)

import click

OptionsT = TypeVar("OptionsT")
ValueT = TypeVar("ValueT")
_CARRIER: Final = "carrier"
"""Of a field's metadata: returns its parameter, given its name."""
Parameter: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]
"""A decorator that adds an option or argument to a command."""


class _Utf8(click.ParamType):  # type: ignore[type-arg]  # generic in later versions only
    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text as it is; fails for an argument whose bytes are no UTF-8."""
        try:
            str(value).encode()
        except UnicodeEncodeError:
            self.fail(f"expected UTF-8, got {value!r}", param, ctx)
        return str(value)


UTF8: Final = _Utf8()
"""Of options whose bytes are sent or hashed."""


def option(
    help_text: str, *names: str, env: str = "", is_secret: bool = False, **settings: Any
) -> Any:
    """Return a field that is an option; `Any`, because the dataclass turns it into a value.

    Args:
        help_text: What the help says of it.
        *names: Those that do not follow from the field's name: a short one such as `-n`, or another long one.
        env: The environment variable that gives its value where the command line does not.
        is_secret: The value is not shown where the options are.
        **settings: As of `click.option`.
    """
    if env:
        settings |= {"envvar": env, "show_envvar": True}

    def carrier(field_name: str) -> Parameter:
        is_named = any(name.startswith("--") for name in names)
        long_names = () if is_named else (f"--{field_name.replace('_', '-')}",)
        return click.option(*names, *long_names, field_name, help=help_text, **settings)

    return field(repr=not is_secret, metadata={_CARRIER: carrier})


def flag(help_text: str, *names: str, **settings: Any) -> Any:
    """Return a field that is an option without a value; parameters as of `option`."""
    return option(help_text, *names, is_flag=True, **settings)


def argument(**settings: Any) -> Any:
    """Return a field that is an argument; settings as of `click.argument`."""
    return field(metadata={_CARRIER: lambda field_name: click.argument(field_name, **settings)})


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(option, flag, argument)
)
def command_options(cls: type[ValueT]) -> type[ValueT]:
    """Make a class a frozen dataclass of options, all of which are given when it is made."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


@dataclass(frozen=True, slots=True)
class Group(Generic[ValueT]):
    """Parameters that make one value together."""

    parameters: Sequence[Parameter]
    take: Callable[[dict[str, Any]], ValueT]
    """Removes their values from those of the command, which are by name as click has them, and returns the one."""


@dataclass(frozen=True, slots=True)
class PerKind:
    """A parameter that shards and journals do not have alike."""

    of: Callable[[Any], Parameter | None]
    """Returns the parameter of one kind; None: the kind has none, and the field keeps its default."""


DryRun: TypeAlias = Annotated[
    bool, click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
]
YesOrDryRun: TypeAlias = Annotated[
    bool, click.option("--yes", is_flag=True, help="Do it; without, print what would be done.")
]
Selector: TypeAlias = Annotated[
    str,
    click.option(
        "-l",
        "--selector",
        default="",
        show_default=False,
        help="Label selector, e.g. 'app=flights, id:prefix=flights/'; empty selects all.",
    ),
]
SelectorInPlace: TypeAlias = Annotated[
    str,
    click.option(
        "-l",
        "--selector",
        default="",
        show_default=False,
        help="Label selector, in place of names.",
    ),
]
NAME_OF_ALL: Final = {"journal": "name", "shard": "id"}
"""A label that each has."""


def require_selection(noun: str, names: Sequence[str], selector: str, *, changes: bool) -> None:
    """Refuse a command line that does not say what it is about.

    An empty selector that was given selects all, as it does for `list`, unless the command changes what it selects: it
    comes of a variable of a script that is not set, too.

    Args:
        noun: What it is about, `shard` or `journal`.
        names: Those on the command line.
        selector: The value of `--selector`.
        changes: The command changes what it selects.

    Raises:
        click.UsageError: there are no names, and no selector or an empty one.
    """
    if names or selector:
        return
    context = click.get_current_context()
    if context.get_parameter_source("selector") is click.core.ParameterSource.DEFAULT:
        raise click.UsageError(f"expected names of {noun}s, or --selector")
    if changes:
        raise click.UsageError(
            f"--selector: expected what to select, got an empty text; -l {NAME_OF_ALL[noun]} selects all {noun}s"
        )


Yes: TypeAlias = Annotated[bool, click.option("-y", "--yes", is_flag=True, help="Do not ask.")]


def options_from(options: type[OptionsT], values: dict[str, Any], kind: Any = None) -> OptionsT:
    """Return the options of a command line.

    Args:
        options: Their dataclass.
        values: Of the parameters, by name as click has them; those of the options are removed.
        kind: As of `make_command`.

    Raises:
        ValidationError: a `Group` refuses its values.
    """
    made: dict[str, Any] = {}
    for name, carrier in _carriers(options, kind):
        if isinstance(carrier, type):
            made[name] = options_from(carrier, values, kind)
        elif isinstance(carrier, Group):
            made[name] = carrier.take(values)
        else:
            made[name] = values.pop(name)
    return options(**made)


def parameters_of(options: type[Any], kind: Any = None) -> Iterator[Parameter]:
    """Yield the parameters of a dataclass of options, as they are for one kind."""
    for _, carrier in _carriers(options, kind):
        if isinstance(carrier, type):
            yield from parameters_of(carrier, kind)
        elif isinstance(carrier, Group):
            yield from carrier.parameters
        else:
            yield carrier


def _carriers(options: type[Any], kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield each field's name, and what has its parameters: a decorator, a `Group`, or a dataclass of options."""
    hints = get_type_hints(options, include_extras=True)
    for each in fields(options):
        hint = hints[each.name]
        (carrier,) = getattr(hint, "__metadata__", (hint,))
        if _CARRIER in each.metadata:
            carrier = each.metadata[_CARRIER](each.name)
        elif isinstance(carrier, PerKind):
            carrier = carrier.of(kind)
        # A field of another type is no parameter, and keeps its default.
        if carrier is not None and (not isinstance(carrier, type) or is_dataclass(carrier)):
            yield each.name, carrier
