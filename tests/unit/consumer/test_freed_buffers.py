"""What a process does with the memory of buffers that it freed."""

from __future__ import annotations

import subprocess
import sys

ROUNDS, BUFFERS, BUFFER_BYTES = 20, 8, 1 << 20
PAGE_BYTES = 4096
_FAULTS = f"""
import resource
from broadsheet.runtime.interpreter import keep_freed_buffers
keep_freed_buffers()
for round in range({ROUNDS} + 1):
    if round == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [b"x" * {BUFFER_BYTES} for _ in range({BUFFERS})]
    del kept
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_buffers_are_used_again_without_page_faults() -> None:
    """Buffers made and freed together, over and over: without the call every page is faulted in each time."""
    output = subprocess.run([sys.executable, "-c", _FAULTS], check=True, capture_output=True)
    assert int(output.stdout) < ROUNDS * BUFFERS * BUFFER_BYTES // PAGE_BYTES // 10
