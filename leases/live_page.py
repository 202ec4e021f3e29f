"""Leases on the live page of a member: what lease stores hold, read only when a page asks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from broadsheet.consumer.live_page.routes import LEASES_PATH
from broadsheet.leases.addresses import StoreAddress, parse_store_address
from broadsheet.leases.lease_rows import LEASE_COLUMNS, lease_row, lease_states
from broadsheet.leases.opening import existing_store
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import Capability
from broadsheet.security.errors import NotAuthorizedError
from broadsheet.security.secret_url import SecretUrl
from broadsheet.serving.admin import CLAIMS, AdminRoute
from broadsheet.wire.labels import is_scoped

LEASES_MAX: Final = 10_000
"""Most leases of one store that are shown."""
LOOK_SECONDS: Final = 4.0
"""Least time between two looks at the lease stores, however many pages ask."""
LOOK_SECONDS_MAX: Final = 20.0
"""Longest look at one store; the admin port gives a request 30 s."""
CAUSE_CHARACTERS_MAX: Final = 300


def lease_route(lease_stores: Sequence[str | SecretUrl]) -> AdminRoute:
    """Return the route that shows the leases of stores.

    Args:
        lease_stores: Addresses of the stores.

    Raises:
        ValidationError: one is no address.
    """
    return AdminRoute(
        path=LEASES_PATH, handler=_LeaseTables(lease_stores).answer, require=Capability.LIST
    )


class _LeaseTables:
    """Reads lease stores for pages: only when one asks, and one look at a time, which all share."""

    def __init__(self, addresses: Sequence[str | SecretUrl]) -> None:
        self._addresses = [_store_address(number, text) for number, text in enumerate(addresses)]
        self._looking = asyncio.Lock()
        self._stores: list[dict[str, object]] = []
        self._fresh_until_seconds = float("-inf")

    async def answer(self, request: web.Request) -> web.Response:
        """Answer with the leases of each store, or why they cannot be read."""
        if is_scoped(request[CLAIMS].selector):
            raise NotAuthorizedError(
                "leases have no labels: the token must not be restricted to some shards"
            )
        now = asyncio.get_running_loop().time
        async with self._looking:
            if now() >= self._fresh_until_seconds:
                async with TaskGroup() as group:
                    looks = [
                        group.start_soon(_leases_of(each), name=f"leases of {each.text}")
                        for each in self._addresses
                    ]
                self._stores = [look.result() for look in looks]
                self._fresh_until_seconds = now() + LOOK_SECONDS
            return web.json_response({"stores": self._stores})


def _store_address(number: int, text: str | SecretUrl) -> StoreAddress:
    try:
        return parse_store_address(text)
    except ValidationError as error:
        raise error.under(f"lease_stores[{number}]") from None


async def _leases_of(address: StoreAddress) -> dict[str, object]:
    names = [column.lower() for column in LEASE_COLUMNS]
    told: dict[str, object] = {"store": address.text}
    try:
        async with asyncio.timeout(LOOK_SECONDS_MAX), existing_store(address) as store:
            states = await lease_states(store, address.layout, leases_max=LEASES_MAX + 1)
    # Each backend has its own errors, and one that fails must not hide the others.
    except Exception as error:
        # A driver's error may quote the address as it was written, or parts of it.
        cause = (
            address.url.hidden_in(str(error)).removeprefix(f"store: {address.text}: ")
            or type(error).__name__
        )
        return told | {"error": cause[:CAUSE_CHARACTERS_MAX]}
    rows = [lease_row(found, is_free=is_free) for found, is_free in states[:LEASES_MAX]]
    return told | {
        "leases": [dict(zip(names, row, strict=True)) for row in rows],
        "more": len(states) > LEASES_MAX,
    }
