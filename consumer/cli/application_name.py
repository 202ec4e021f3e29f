"""Applications by name: `package.module:attribute`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from allocator.errors import ValidationError
from consumer.application import Application, Store

REQUIRED_METHODS = ("new_store", "message_type", "finalize_txn")
CONSUMING_METHODS = ("consume_message", "consume_batch")


def load_application(name: str) -> Application[Store]:
    """Import an application; a class or a function is called without arguments, anything else is the application.

    Args:
        name: `package.module:attribute`; the current directory is importable.

    Raises:
        ValidationError: there is no such attribute, or it is no application; the message says what is missing.
    """
    module_name, separator, attribute = name.partition(":")
    if not separator or not module_name or not attribute:
        raise ValidationError("APP", f"expected package.module:attribute, got {name!r}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        raise ValidationError("APP", f"{name}: {error}") from error
    except AttributeError as error:
        raise ValidationError("APP", f"module {module_name} has no {attribute}") from error
    return _checked(name, found() if callable(found) else found)


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
