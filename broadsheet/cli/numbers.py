"""Types of numbers on a command line, which click checks before the command does anything."""

from __future__ import annotations

import math
from typing import Any, Final

import click

PORT: Final = click.IntRange(0, 65_535)
"""0 lets the system choose."""
_OFFSET_MAX: Final = (1 << 63) - 1
OFFSET: Final = click.IntRange(0, _OFFSET_MAX)
"""A place in a journal, bytes: the wire has 64 bits with a sign."""
OFFSET_OR_HEAD: Final = click.IntRange(-1, _OFFSET_MAX)
"""The same; -1 is the write head."""


class Seconds(click.FloatRange):
    """A finite duration: click alone lets `nan` pass each bound, and loops sleep on `inf` for ever."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number; fails for one that is not finite or out of bounds."""
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"expected a number of seconds, got {value}", param, ctx)
        return seconds
