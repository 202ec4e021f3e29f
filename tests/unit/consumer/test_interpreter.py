"""What programs tell their interpreter about collecting cycles."""

from __future__ import annotations

import subprocess
import sys

_FREEZES_ONCE = """
import gc
from broadsheet.runtime.interpreter import freeze_imports

freeze_imports()
frozen = gc.get_freeze_count()
made = [[number] for number in range(1000)]
freeze_imports()
print(frozen > 1000, gc.get_freeze_count() <= frozen, any(each is made for each in gc.get_objects()))
"""


def test_imports_are_frozen_once_and_what_follows_is_not() -> None:
    """Later calls would freeze data of tasks, and cycles among them for ever. Process-wide, hence a process."""
    done = subprocess.run(
        [sys.executable, "-c", _FREEZES_ONCE], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "True", "True"]
