"""The first function of a member's task: it compares versions, and starts the member.

It is pickled by value, because an executor may have another version of Broadsheet, or none, and must still be able to
say so. So it uses nothing but Python itself and PySpark, and whatever it needs of this module goes with it.
"""

from __future__ import annotations

import pickle
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any

# Compared up to their second number: Python pickles code for one such version, and Spark's own classes are alike.
_PREFIX_COMPARED = ("Python", "Spark")


class VersionsDifferError(Exception):
    """The executor has other versions than the driver; the message names each that differs, on both sides."""


def versions() -> dict[str, str]:
    """Return the versions of Python, Spark and Broadsheet in this process; empty texts for what has none.

    Broadsheet has none if it is imported from a directory or an archive instead of being installed.
    """
    import pyspark

    try:
        ours = metadata.version("broadsheet")  # noqa: TID251 - the function for that is not here
    except metadata.PackageNotFoundError:
        ours = ""
    return {
        "Python": platform.python_version(),
        "Spark": str(pyspark.__version__),
        "Broadsheet": ours,
    }


def differences(driver: Mapping[str, str], executor: Mapping[str, str]) -> list[str]:
    """Return a text for each version that must be alike and is not. Pure."""
    found = []
    for name, wanted in driver.items():
        present = executor.get(name, "")
        if not wanted or not present:
            continue
        # All of Broadsheet's: its configuration is pickled, and has other fields in other versions.
        compared = 2 if name in _PREFIX_COMPARED else None
        if wanted.split(".")[:compared] != present.split(".")[:compared]:
            found.append(f"{name} {wanted} on the driver, {present} on the executor")
    return found


def start_member(
    rows: Iterable[int], *, driver: Mapping[str, str], task: bytes
) -> Iterator[Any]:  # `Any`: `MemberResult`, a name that an executor without Broadsheet lacks
    """Run a member's task.

    Args:
        rows: The partition's rows.
        driver: The driver's `versions`.
        task: A pickled `broadsheet.spark_bridge.member.task.MemberTask`.

    Raises:
        VersionsDifferError: the versions of driver and executor differ.
        ImportError: a module is missing here; a note names this Python and its versions.
    """
    here = versions()
    if differing := differences(driver, here):
        raise VersionsDifferError(f"{'; '.join(differing)} ({sys.executable})")
    try:
        yield from pickle.loads(task)(rows)  # noqa: S301 - pickled by our own driver
    except ImportError as error:
        told = ", ".join(f"{name} {each}" for name, each in here.items() if each)
        error.add_note(f"the executor has {told}, and runs {sys.executable}")
        raise
