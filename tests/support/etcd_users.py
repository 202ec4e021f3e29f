"""Users and roles of an etcd."""

from __future__ import annotations

import json
import urllib.request
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any

from broadsheet.allocator.ops import prefix_range_end

ROOT_PASSWORD = "secret"


def call_auth(endpoint: str, path: str, body: Mapping[str, Any], *, token: str = "") -> str:
    """Call etcd's JSON gateway: users are an operator's business, so our client has no calls for them.

    Returns:
        The token of a login; otherwise nothing.
    """
    headers = {"Authorization": token} if token else {}
    request = urllib.request.Request(
        f"http://{endpoint}/v3/auth/{path}", json.dumps(body).encode(), headers
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=5) as response:
        return str(json.loads(response.read()).get("token", ""))


def add_user(endpoint: str, name: str, password: str, prefixes: Iterable[str]) -> None:
    """Add a user who may read and write keys with some prefixes; authentication is not enabled yet."""
    call_auth(endpoint, "user/add", {"name": name, "password": password})
    call_auth(endpoint, "role/add", {"name": name})
    for prefix in prefixes:
        key = prefix.encode()
        permission = {
            "permType": "READWRITE",
            "key": b64encode(key).decode(),
            "range_end": b64encode(prefix_range_end(key)).decode(),
        }
        call_auth(endpoint, "role/grant", {"name": name, "perm": permission})
    call_auth(endpoint, "user/grant", {"user": name, "role": name})


def enable_users(endpoint: str) -> None:
    """Add the user `root`, and have every client log in from now on."""
    call_auth(endpoint, "user/add", {"name": "root", "password": ROOT_PASSWORD})
    call_auth(endpoint, "user/grant", {"user": "root", "role": "root"})
    call_auth(endpoint, "enable", {})
