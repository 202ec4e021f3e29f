"""Options for reading stored fragments without their broker."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from broadsheet.cli.options import Group
from broadsheet.journals.direct_fragments import DirectFragments

FRAGMENTS: Final = Group(
    (
        click.option(
            "--direct-fragments",
            envvar="BROADSHEET_DIRECT_FRAGMENTS",
            show_envvar=True,
            type=click.Choice(("auto", "off")),
            default="auto",
            show_default=True,
            help="Read stored fragments where they lie, or everything through the broker.",
        ),
        click.option(
            "--fragment-root",
            envvar="BROADSHEET_FRAGMENT_ROOT",
            show_envvar=True,
            multiple=True,
            type=click.Path(path_type=Path, resolve_path=True),
            help="Directory of fragments of file:// stores, as the broker's --file-root; may be repeated.",
        ),
        click.option(
            "--fragment-http",
            envvar="BROADSHEET_FRAGMENT_HTTP",
            show_envvar=True,
            is_flag=True,
            help="Also read stored fragments by http://, not by https:// alone.",
        ),
    ),
    lambda values: DirectFragments(
        enabled=values.pop("direct_fragments") == "auto",
        roots=tuple(values.pop("fragment_root")),
        allow_http=values.pop("fragment_http"),
    ),
)
"""The rules for stored fragments."""
