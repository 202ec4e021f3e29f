"""Versions of installed distributions."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def installed_version(distribution: str = "broadsheet") -> str:
    """Return a distribution's version; empty if it is imported from a directory or an archive, without its metadata.

    So it is on an executor that got it by `--py-files`, where a member must start all the same.
    """
    try:
        return metadata.version(distribution)  # noqa: TID251 - this is the one place
    except metadata.PackageNotFoundError:
        return ""
