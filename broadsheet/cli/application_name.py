"""Loading of applications by name: `package.module:attribute`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from broadsheet.cli.errors import ApplicationFailedError
from broadsheet.consumer.application import Application, Store
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.libraries import missing_library

REQUIRED_METHODS = ("new_store", "message_type", "finalize_txn")
CONSUMING_METHODS = ("consume_message", "consume_batch")


def load_application(name: str) -> Application[Store]:
    """Import an application; a class or a function is called without arguments, any other object is used as it is.

    Args:
        name: `package.module:attribute`; the current directory is importable.

    Raises:
        ValidationError: there is no such attribute, or it is no application; the message says what is missing.
        ApplicationFailedError: its module, or what makes it, raised.
    """
    return _checked(name, _made(name, load_attribute(name, option="APP")))


def load_attribute(name: str, *, option: str) -> Any:
    """Import what a name stands for.

    Args:
        name: `package.module:attribute`; the current directory is importable.
        option: Named by errors.

    Raises:
        ValidationError: there is no such attribute.
        ApplicationFailedError: its module raised.
    """
    module_name, separator, attribute = name.partition(":")
    if not separator or not module_name or not attribute:
        raise ValidationError(option, f"expected package.module:attribute, got {name!r}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    module = _import(module_name, option)
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise ValidationError(option, f"module {module_name} has no {attribute}") from error


def _import(module_name: str, option: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = missing_library(module_name, error)
        if missing is not None:
            raise ValidationError(option, str(missing)) from error
        raise ValidationError(
            option,
            f"{error}; modules are looked for in {Path.cwd()}, in PYTHONPATH and among what is installed",
        ) from error
    except Exception as error:  # the user's module may raise anything
        raise ApplicationFailedError(
            option, f"module {module_name} cannot be imported: {_one_line(error)}"
        ) from error


def _made(name: str, found: Any) -> Any:  # whatever the user's module holds
    if not callable(found):
        return found
    try:
        return found()
    except Exception as error:  # the user's function may raise anything
        raise ApplicationFailedError("APP", f"{name}() raised {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    """Return the error as one line, with its place in the user's code."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    of_the_user = frame.filename not in (__file__, importlib.__file__) and frame.filename[0] != "<"
    place = f" ({frame.filename}:{frame.lineno})" if of_the_user else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"


def _checked(name: str, application: Any) -> Application[Store]:  # whatever the user's module holds
    missing = [
        method for method in REQUIRED_METHODS if not callable(getattr(application, method, None))
    ]
    if not any(callable(getattr(application, method, None)) for method in CONSUMING_METHODS):
        missing.append("consume_message (or consume_batch)")
    if missing:
        raise ValidationError("APP", f"{name} is no application: it lacks {', '.join(missing)}")
    checked: Application[Store] = application
    return checked
