"""Where parts of a shard look up the assignment that they act for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from allocator.model import Assignment

AssignmentSource: TypeAlias = "Callable[[], Assignment]"
"""Returns the shard's assignment to this process, as last observed."""
