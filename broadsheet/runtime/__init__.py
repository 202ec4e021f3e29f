"""Exceptions that every package may raise."""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.runtime.errors import (
        BroadsheetError as BroadsheetError,
        ExtraMissingError as ExtraMissingError,
        ValidationError as ValidationError,
    )

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
