"""Looks at a cluster that suffers faults: whatever is away for now has not shown anything yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine

from broadsheet.runtime.errors import ServiceError


def patient(
    look: Callable[[], Awaitable[bool]],
) -> Callable[[], Coroutine[object, object, bool]]:
    """Return a look that is False while etcd, the broker or a member is away."""

    async def patiently() -> bool:
        try:
            return await look()
        except (ServiceError, TimeoutError):
            return False

    return patiently
