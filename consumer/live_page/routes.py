"""The live page of the admin port: static files of the package, and the headers that keep a browser from anything else.

The page is the folder `live_page`: HTML, a stylesheet and modules that browsers take as they are, with two libraries
(`live_page/vendored`). It has no data of its own; it asks the REST gateway of the port that served it, with the
caller's token. So the files need none, and hold nothing that a token would guard. Two routes beside them tell the page
whether its reader's token permits changes, and what lease stores hold: members have no part in leases, so the gateway
knows none, and a program that shows them passes the route (`broadsheet.leases.lease_route`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeAlias

from aiohttp import web

from broadsheet.security.auth import Capability
from broadsheet.security.secret_url import SecretUrl
from broadsheet.serving.admin import AdminRoute

LEASES_PATH: Final = "/page/leases"
"""Path of the route that shows leases."""
LeaseRoute: TypeAlias = Callable[[Sequence[str | SecretUrl]], AdminRoute]
"""Returns the route at `LEASES_PATH` for the addresses of stores."""
_FILES: Final = Path(__file__).parent
_INDEX: Final = "index.html"
_TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}


def content_security_policy(peers: Sequence[str] = ()) -> str:
    """Return what a browser lets the page do: run its own files, call the port that it came from, and others.

    No inline script or style, and no other host: text of a shard cannot become code, nor leave the page.

    Args:
        peers: Origins of other members' admin ports, which the page asks when its own member does not answer. The
            browser enforces that the page's token goes nowhere else, whatever the page is told later.
    """
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        f"connect-src {' '.join((_SELF, *peers))}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )


_SELF: Final = "'self'"
_HEADERS: Final = {
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


def live_page_routes(
    leases: AdminRoute | None = None, *, policy: Callable[[], str] = content_security_policy
) -> list[AdminRoute]:
    """Return the routes of the live page: `/`, and others below `/page/`. The files are read now, and kept.

    Args:
        leases: Answers at `LEASES_PATH` with what lease stores hold; None: there are none.
        policy: Returns what a browser lets the page do, asked each time that the page is opened.
    """
    names = sorted(path for path in _FILES.rglob("*") if path.suffix in _TYPES)
    files = {path.relative_to(_FILES).as_posix(): _page_file(path) for path in names}
    may_apply = AdminRoute(path="/page/may-apply", handler=_agree, require=Capability.APPLY)
    no_leases = AdminRoute(path=LEASES_PATH, handler=_answer_no_leases, require=Capability.LIST)
    # Each file is a route: no name that a client sends becomes a path of the disk.
    return [
        may_apply,
        leases or no_leases,
        *(
            AdminRoute(
                path="/" if name == _INDEX else f"/page/{name}",
                handler=partial(_answer_file, file, policy),
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


async def _answer_no_leases(request: web.Request) -> web.Response:
    del request
    return web.json_response({"stores": []})


async def _answer_file(
    file: _PageFile, policy: Callable[[], str], request: web.Request
) -> web.Response:
    allowed = policy()
    # A browser that keeps a file keeps its policy with it, so another policy is another file.
    tag = sha256(f"{file.tag} {allowed}".encode()).hexdigest()[:32]
    headers = {**_HEADERS, "Content-Security-Policy": allowed, "ETag": f'"{tag}"'}
    if any(each.value in (tag, "*") for each in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    return web.Response(
        body=file.content, content_type=file.content_type, charset="utf-8", headers=headers
    )
