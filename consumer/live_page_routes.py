"""The live page of the admin port: static files of the package, and the headers that keep a browser from anything else.

The page is the folder `live_page`: HTML, a stylesheet and modules that browsers take as they are, with two libraries
(`live_page/vendored`). It has no data of its own; it asks the REST gateway of the port that served it, with the
caller's token. So the files need none, and hold nothing that a token would guard. Two routes beside them tell the page
whether its reader's token permits changes, and what lease stores hold: members have no part in leases, so the gateway
knows none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

from aiohttp import web

from broadsheet.allocator.errors import ValidationError
from broadsheet.allocator.runtime.task_group import TaskGroup
from broadsheet.consumer.admin import CLAIMS, AdminRoute
from broadsheet.consumer.errors import NotAuthorizedError
from broadsheet.consumer.leasing.addresses import StoreAddress, parse_store_address
from broadsheet.consumer.protocol.auth import Capability
from broadsheet.consumer.protocol.labels import is_scoped
from broadsheet.consumer.secret_url import SecretUrl

LEASES_MAX: Final = 10_000
"""Most leases of one store that are shown."""
LOOK_SECONDS: Final = 4.0
"""Least time between two looks at the lease stores, however many pages ask."""
LOOK_SECONDS_MAX: Final = 20.0
"""Longest look at one store; the admin port gives a request 30 s."""
CAUSE_CHARACTERS_MAX: Final = 300

_FILES: Final = Path(__file__).parent / "live_page"
_INDEX: Final = "index.html"
_TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}

# No inline script or style, and no other host: text of a shard cannot become code, nor leave the page.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""What a browser lets the page do: run its own files, and call the port that it came from."""

_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    # Asked for again each time, and answered by the tag alone unless the member was upgraded.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class _PageFile:
    """One file of the page."""

    content: bytes
    content_type: str
    tag: str


def live_page_routes(lease_stores: Sequence[str | SecretUrl] = ()) -> list[AdminRoute]:
    """Return the routes of the live page: `/`, and others below `/page/`. The files are read now, and kept.

    Args:
        lease_stores: Addresses of the stores whose leases the page shows.

    Raises:
        ValidationError: one is no address.
    """
    names = sorted(path for path in _FILES.rglob("*") if path.suffix in _TYPES)
    files = {path.relative_to(_FILES).as_posix(): _page_file(path) for path in names}
    may_apply = AdminRoute(path="/page/may-apply", handler=_agree, require=Capability.APPLY)
    leases = AdminRoute(
        path="/page/leases", handler=_LeaseTables(lease_stores).answer, require=Capability.LIST
    )
    # Each file is a route: no name that a client sends becomes a path of the disk.
    return [
        may_apply,
        leases,
        *(
            AdminRoute(
                path="/" if name == _INDEX else f"/page/{name}", handler=partial(_answer_file, file)
            )
            for name, file in files.items()
        ),
    ]


def _page_file(path: Path) -> _PageFile:
    content = path.read_bytes()
    return _PageFile(content, _TYPES[path.suffix], sha256(content).hexdigest()[:32])


async def _agree(request: web.Request) -> web.Response:
    """Tell the page that its reader's token permits APPLY; each method verifies it anyway."""
    del request
    return web.json_response({})


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
    # Imported here, because only a member that shows leases needs the stores.
    from broadsheet.consumer.leasing.lease_rows import LEASE_COLUMNS, lease_row, lease_states
    from broadsheet.consumer.leasing.opening import existing_store

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


async def _answer_file(file: _PageFile, request: web.Request) -> web.Response:
    headers = {**_HEADERS, "ETag": f'"{file.tag}"'}
    if any(tag.value in (file.tag, "*") for tag in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    return web.Response(
        body=file.content, content_type=file.content_type, charset="utf-8", headers=headers
    )
