"""Who asks, as a client says of itself: noted where an operator's doing must be told from the cluster's own.

    client → member   `broadsheet-actor`    e.g. maria@workstation; of a forwarded request, as it was first received

It proves nothing: what a caller may do is a matter of its token. A client that says nothing is known by its address.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterable

ACTOR = "broadsheet-actor"
"""Key of the metadata. Only printable ASCII is passed."""

ACTOR_CHARACTERS_MAX = 128

Pairs = Iterable[tuple[str, str | bytes]]
"""Metadata as gRPC hands it out."""


def local_actor() -> str:
    """Return how a client of this process names itself."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"  # No such user here: a container with an arbitrary id.
    return _printable(f"{user}@{socket.gethostname()}")


def actor_of(metadata: Pairs, peer: str) -> str:
    """Return who asks.

    Args:
        metadata: Of the call.
        peer: The caller's address, as gRPC knows it.
    """
    for key, value in metadata:
        if key == ACTOR and value:
            return _printable(value if isinstance(value, str) else value.decode(errors="replace"))
    return _printable(peer)


def _printable(text: str) -> str:
    return "".join(each if " " <= each <= "~" else "?" for each in text)[:ACTOR_CHARACTERS_MAX]
