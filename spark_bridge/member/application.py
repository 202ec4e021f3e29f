"""Creates the user's application on the executor where it runs, with its arguments."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from broadsheet.consumer.application import Application
from broadsheet.spark_bridge.errors import ApplicationLoadError, ArgumentMissingError


class Arguments(Mapping[str, str]):
    """Arguments of an application by name. Its text never shows values, because some are secrets."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        try:
            return self._values[name]
        except KeyError:
            raise ArgumentMissingError(name, given=sorted(self._values)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Arguments({', '.join(sorted(self._values))})"


# `Any`: the type of the store is the user's choice.
ApplicationFactory = Callable[[], Application[Any]] | Callable[[Arguments], Application[Any]]
"""Creates the application; one that has a parameter without a default gets the arguments."""


def load_application(
    application: str | ApplicationFactory, arguments: Arguments
) -> Application[Any]:
    """Create the user's application.

    Args:
        application: `module:factory`, or the factory.
        arguments: For a factory that takes them.

    Raises:
        ApplicationLoadError: the name does not lead to a factory.
    """
    factory = _named(application) if isinstance(application, str) else application
    # `Any`: `_takes_arguments` tells which of the two signatures it has.
    given: tuple[Any, ...] = (arguments,) if _takes_arguments(factory) else ()
    made: Application[Any] = factory(*given)
    return made


def _named(name: str) -> ApplicationFactory:
    module_name, separator, attribute = name.partition(":")
    if not separator or not attribute:
        raise ApplicationLoadError(f"application: expected module:factory, got {name!r}")
    try:
        factory: ApplicationFactory = getattr(importlib.import_module(module_name), attribute)
    except OSError:
        # A module that reads a file or a server as it is imported may succeed at the next attempt.
        raise
    except Exception as error:
        raise ApplicationLoadError.of(name, error) from error
    return factory


def _takes_arguments(factory: ApplicationFactory) -> bool:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(
        parameter.kind in positional and parameter.default is inspect.Parameter.empty
        for parameter in inspect.signature(factory).parameters.values()
    )
