"""The modules that a first transaction would import: imported before rows wait for it.

A member that never served a keyed shard needs up to half a second for them, which would be a part of the time of a
fail-over, and of the pause of a split.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Final

import pyarrow as pa

_USED_BY_TRANSACTIONS: Final = (
    "broadsheet.journals.content.tables",
    "broadsheet.journals.message.json_rows",
    "broadsheet.journals.message.plain_columns",
)
"""Which the encodings of rows import when they are first used, because journals do without pyarrow."""


@lru_cache(maxsize=1)
def import_early() -> None:
    """Import them, on a thread for which nobody waits. What it costs is paid once in a process."""
    # pyarrow imports pandas, where it is installed, with its first array of Python's values.
    pa.array([0])
    for name in _USED_BY_TRANSACTIONS:
        import_module(name)
