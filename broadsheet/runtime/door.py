"""Lazily imported public names of a package.

Such a package's `__init__.py` names each public name once, in a block that only type checkers run:

    if TYPE_CHECKING:
        from broadsheet.journals.client import JournalClient as JournalClient

The block is read, not run, at the first access to a name: so `import broadsheet.journals` costs nothing, and a name
that needs an extra is missed only by a program that uses it.

Source: anyio 4.9 (`anyio/__init__.py`: names once). Reading them out of the block is ours.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import NamedTuple

from broadsheet.runtime.libraries import missing_library


class Renamed(NamedTuple):
    """A deprecated name: what replaces it, and when it goes (docs/stability.md)."""

    to: str
    """A public name of the same package."""
    goes_in: str
    """The version that no longer has the old name, such as `0.4`."""


def public_names(
    door: str, deprecated: Mapping[str, Renamed] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__` (PEP 562).

    Args:
        door: The package's `__name__`.
        deprecated: Former names. They are neither in `__all__` nor known to type checkers; each access gives a
            `DeprecationWarning` at the caller's line.

    Raises:
        ExtraMissingError: raised by `__getattr__`: the name needs an extra that is not installed.
    """

    def find(name: str) -> object:
        if name == "__all__":
            return sorted(homes_of(door))
        former = deprecated.get(name) if deprecated else None
        if former is not None:
            warnings.warn(
                f"{door}.{name} is deprecated and goes in {former.goes_in}; use {former.to}",
                DeprecationWarning,
                stacklevel=2,
            )
            # Not kept in the package: the next caller needs the warning, too.
            return getattr(sys.modules[door], former.to)
        home = None if name.startswith("__") else homes_of(door).get(name)
        if home is None:
            raise AttributeError(f"module {door!r} has no attribute {name!r}")
        try:
            found: object = getattr(import_module(home), name)
        except ModuleNotFoundError as error:
            missing = missing_library(f"{door}.{name}", error)
            # Any other missing module is a defect of ours or of the installation, and must not be hidden.
            if missing is None:
                raise
            raise missing from error
        # The next access finds the name in the package, without this function.
        setattr(sys.modules[door], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[door]), *homes_of(door)})

    return find, names


def _source_of(spec: ModuleSpec) -> str:
    # Asked for by its name: `importlib.abc` imports a third of what `import broadsheet` does.
    get_source = getattr(spec.loader, "get_source", None)
    if get_source is not None:
        return get_source(spec.name) or ""
    # The loader of pytest, which rewrites the assertions of packages that bring a plugin, shows no source.
    assert spec.origin is not None, f"{spec.name} has source"
    with open(spec.origin, encoding="utf-8") as source:  # noqa: PTH123 - pathlib is not needed before
        return source.read()


@cache
def homes_of(door: str) -> Mapping[str, str]:
    """Return the module that defines each public name of a package, as its TYPE_CHECKING block imports them."""
    # Here and not above, because many processes import a package and never ask it for a name.
    import ast

    spec = sys.modules[door].__spec__
    assert spec is not None, f"{door} is imported"
    tree = ast.parse(_source_of(spec))
    return {
        alias.name: statement.module
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }
