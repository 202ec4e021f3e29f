"""Counts who uses something that must not be destroyed meanwhile."""

from __future__ import annotations

import asyncio


class Holds:
    """Holds on one thing; lives on the event loop."""

    def __init__(self) -> None:
        """Begin with none."""
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def add(self) -> None:
        """Hold once more, until `remove`."""
        self._count += 1
        self._none.clear()

    def remove(self) -> None:
        """Undo one `add`."""
        assert self._count > 0, "released more often than held"
        self._count -= 1
        if self._count == 0:
            self._none.set()

    async def wait_none(self) -> None:
        """Wait until nobody holds it."""
        await self._none.wait()
