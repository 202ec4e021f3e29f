"""The application's own files: the modules beside the driver's program that its factory needs.

    factory ─► its module, or what `__main__` has imported ─► file or package beside the program ─► its imports there

Executors have what is installed on them, so what is installed on the driver is left to its user. A module that lies
beside the program is on no executor, unless the user sent it.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

FILES_MAX: Final = 2_000
"""Most files that are sent; a package of more belongs into an installation."""
BYTES_MAX: Final = 32 << 20
"""Most bytes of files that are sent."""
_MAIN: Final = "__main__"
_NEVER: Final = frozenset(("broadsheet", _MAIN, *sys.stdlib_module_names))
"""Modules that executors have, or must have: versions of Broadsheet are compared instead."""
_LEFT_OUT: Final = frozenset(("__pycache__", "node_modules", "site-packages", "venv"))
"""Directories within a package that are no part of it; also those whose names begin with a dot."""
_INSTALLED: Final = ("stdlib", "platstdlib", "purelib", "platlib")


class NotSentError(Exception):
    """A module beside the program cannot be sent; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationFiles:
    """Files to send."""

    modules: tuple[str, ...]
    """Names of the top-level modules and packages."""
    files: Mapping[str, Path]
    """Each file by its path in the archive, relative to the directory from which it is imported."""


def program_directories(
    main: ModuleType | None, *, path: Iterable[str], environ: Mapping[str, str]
) -> tuple[Path, ...]:
    """Return the directories that are the program's own: that of its file, the working directory, and PYTHONPATH's.

    Only directories from which modules are imported count, and none of an installation.

    Args:
        main: The module `__main__`.
        path: `sys.path`.
        environ: The environment.
    """
    # An empty entry is the working directory, as `Path("")` is.
    importable = frozenset(Path(entry).resolve() for entry in path)
    candidates = [Path.cwd()]
    if (file := getattr(main, "__file__", None)) is not None:
        candidates.insert(0, Path(file).resolve().parent)
    candidates += [Path(one) for one in environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    installed = [Path(sysconfig.get_path(name)).resolve() for name in _INSTALLED]
    return tuple(
        directory
        for directory in dict.fromkeys(one.resolve() for one in candidates)
        if directory in importable
        and directory.is_dir()
        and not any(directory.is_relative_to(one) for one in installed)
    )


def modules_needed(application: object) -> tuple[str, ...]:
    """Return the modules that an application's factory is imported from, or that its `__main__` has imported.

    Args:
        application: `module:factory`, or the factory: a function, a class, a bound method, or a partial call of one.
    """
    if isinstance(application, str):
        return (application.partition(":")[0],)
    found: dict[str, None] = {}
    for each in _parts(application):
        module = getattr(each, "__module__", None) or ""
        if module != _MAIN:
            found[module] = None
            continue
        # It is sent by value; what it names are modules, and classes and functions of modules.
        names = each.__globals__ if isinstance(each, FunctionType) else vars(sys.modules[_MAIN])
        found.update((_module_of(value), None) for value in tuple(names.values()))
    return tuple(name for name in found if name and name.partition(".")[0] not in _NEVER)


def _module_of(value: object) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    # Only these are asked: an attribute of any other object may be computed.
    return (value if isinstance(value, (FunctionType, type)) else type(value)).__module__


def _parts(application: object) -> Iterator[Any]:  # `Any`: whatever a factory is made of
    if isinstance(application, functools.partial):
        yield from _parts(application.func)
        for each in (*application.args, *application.keywords.values()):
            yield each if isinstance(each, (FunctionType, type)) else type(each)
    elif isinstance(application, MethodType):
        yield from _parts(application.__func__)
        owner = application.__self__
        yield owner if isinstance(owner, type) else type(owner)
    elif isinstance(application, (FunctionType, type)):
        yield application
    else:
        yield type(application)  # an object that can be called


def application_files(
    modules: Iterable[str], directories: Iterable[Path], *, sent: Iterable[str] = ()
) -> ApplicationFiles:
    """Collect the files of modules that lie in the directories, and of what they import from there.

    Args:
        modules: Full names of modules.
        directories: Those of the program.
        sent: Directories and archives that executors import from already; what they have is left out.

    Raises:
        NotSentError: a package has compiled modules, is a home directory, or is too large.
    """
    own, sent_to = tuple(directories), list(sent)
    files: dict[str, Path] = {}
    found: dict[str, None] = {}
    waiting, seen = list(modules), set[str]()
    while waiting:
        module = waiting.pop()
        top = module.partition(".")[0]
        if module in seen or top in _NEVER or f"{top}/__init__.py" in files:
            continue
        seen.add(module)
        there = PathFinder.find_spec(top, sent_to)
        # A directory without an `__init__.py` has no origin, and may lack what is here.
        if there is not None and there.origin is not None:
            continue
        for directory in own:
            new = _files_of(module, directory)
            if new:
                found[top] = None
                waiting += _imports_of(path for name, path in new.items() if name not in files)
                files.update(new)
                break
        _check_size(files)
    return ApplicationFiles(modules=tuple(sorted(found)), files=files)


def _files_of(module: str, directory: Path) -> dict[str, Path]:
    """Return the files of the outermost package, or of the file, that has a module; none if it is not there."""
    place = directory
    for part in module.split("."):
        place = place / part
        if (place / "__init__.py").is_file():
            return _files_of_package(place, directory)
        if (file := place.with_name(f"{part}.py")).is_file():
            return {file.relative_to(directory).as_posix(): file}
        compiled = [place.with_name(part + suffix) for suffix in EXTENSION_SUFFIXES]
        if any(file.is_file() for file in compiled):
            raise NotSentError(f"{module} is compiled, and cannot be imported from an archive")
        # Without an `__init__.py`, only what is named in it is sent.
        if not place.is_dir():
            break
    return {}


def _files_of_package(package: Path, directory: Path) -> dict[str, Path]:
    if Path("~").expanduser().resolve().is_relative_to(package.resolve()):
        raise NotSentError(f"the package {package} is, or has, the home directory")
    files: dict[str, Path] = {}
    walked: set[str] = set()
    for parent, names, leaves in os.walk(package, followlinks=True):
        # Links may lead back.
        if (real := os.path.realpath(parent)) in walked:
            names.clear()
            continue
        walked.add(real)
        names[:] = sorted(one for one in names if one not in _LEFT_OUT and one[:1] != ".")
        for leaf in sorted(leaves):
            if leaf.startswith(".") or leaf.endswith(".pyc"):
                continue
            path = Path(parent, leaf)
            if leaf.endswith(tuple(EXTENSION_SUFFIXES)):
                raise NotSentError(f"{path} is compiled, and cannot be imported from an archive")
            if path.is_file():
                files[path.relative_to(directory).as_posix()] = path
        _check_size(files)
    return files


def _check_size(files: Mapping[str, Path]) -> None:
    if len(files) > FILES_MAX:
        raise NotSentError(f"more than {FILES_MAX} files")
    if sum(path.stat().st_size for path in files.values()) > BYTES_MAX:
        raise NotSentError(f"more than {BYTES_MAX >> 20} MiB")


def _imports_of(paths: Iterable[Path]) -> Iterator[str]:
    """Return the full names of what files import; relative imports lead to files of the same package."""
    for path in paths:
        if path.suffix != ".py":
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            # Executors show it, if they import the file.
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                yield node.module
                # Each may be a module of a package without an `__init__.py`.
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
