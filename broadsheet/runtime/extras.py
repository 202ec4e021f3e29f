"""The command that installs what an extra of this distribution needs, for errors of features that lack it.

It names the packages, not `broadsheet[extra]`: an index that does not have this distribution would refuse that, or
serve a stranger's of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata

DISTRIBUTION = "broadsheet"
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")
_NAME = re.compile(r"[\w.-]+")


def install_command(extra: str) -> str:
    """Return the `pip install …` of what an extra needs and this environment lacks; empty if that cannot be told.

    It cannot where the package was copied without its metadata, as to an executor by `--py-files`.
    """
    try:
        declared = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:
        return ""
    wanted = requirements_of(extra, declared)
    # What is there stays as it is: a cluster that brings its own PySpark must not get another over it.
    lacking = [each for each in wanted if not _is_installed(each)] or wanted
    return f"pip install {' '.join(_quoted(each) for each in lacking)}" if lacking else ""


def requirements_of(extra: str, declared: Iterable[str]) -> list[str]:
    """Return the requirements of an extra; the build has put those of extras that it names among them.

    Args:
        extra: Its name.
        declared: Lines of `Requires-Dist`, e.g. `fastavro>=1.9; extra == 'avro'`.
    """
    lines = (line.partition(";") for line in declared)
    return [of.strip() for of, _, marker in lines if extra in _EXTRA.findall(marker)]


def _is_installed(requirement: str) -> bool:
    name = _NAME.match(requirement)
    try:
        metadata.distribution(name[0] if name else requirement)
    except metadata.PackageNotFoundError:
        # A cluster's PySpark may be a folder of PYTHONPATH, as EMR's is, of which pip knows nothing.
        return name is not None and _is_module(name[0])
    return True


def _is_module(name: str) -> bool:
    # Imported here, because it costs milliseconds, and is needed only where a package is missing.
    from importlib.util import find_spec

    try:
        found = find_spec(name)
    except (ImportError, ValueError):
        return False
    # A folder without code, such as a project's own `kafka/`, is a module without an origin.
    return found is not None and found.origin is not None


def _quoted(requirement: str) -> str:
    """Return a requirement as a shell takes it: `<` and `[` mean something else there."""
    return requirement if _NAME.fullmatch(requirement) else f"'{requirement}'"
