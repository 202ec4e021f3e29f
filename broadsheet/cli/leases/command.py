"""The command of a verb that looks at a store of leases."""

from __future__ import annotations

from functools import partial
from typing import Final

from broadsheet.cli.command import async_command

store_command: Final = partial(async_command, log_level="warning")
"""Records that cannot be read are left out, with a warning, which the user who moves records must see."""
