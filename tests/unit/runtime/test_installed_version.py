"""Versions of what may be there without its metadata."""

from __future__ import annotations

from broadsheet.runtime.installed_version import installed_version


def test_installed_version_without_metadata_is_empty() -> None:
    """A member whose Broadsheet came by `--py-files` must not fail for its own version, which it only shows."""
    assert installed_version("no-such-distribution-of-anything") == ""
    assert installed_version()[:1].isdigit()
