"""Actor of a call, as a client names itself: logged where an operator's actions must be told from the cluster's own.

    client → member   `broadsheet-actor`    e.g. maria@workstation; of a forwarded request, as it was first received

It proves nothing, because a caller's permissions depend on its token. A client without this metadata is identified by
its address.
"""

from __future__ import annotations

import getpass
import socket

from broadsheet.wire.shard_metadata import Pairs

FORWARDED = "broadsheet-forwarded"
"""Metadata of a request that a member forwarded, which is not forwarded again; of other callers it is ignored."""
ACTOR = "broadsheet-actor"
"""Key of the metadata. Only printable ASCII is passed."""
ACTOR_CHARACTERS_MAX = 128


def local_actor() -> str:
    """Return the name by which a client of this process identifies itself."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"  # the user is unknown here: a container with an arbitrary id.
    return printable(f"{user}@{socket.gethostname()}")


def actor_of(metadata: Pairs, peer: str) -> str:
    """Return the actor of a call.

    Args:
        metadata: Of the call.
        peer: The caller's address, as gRPC knows it.
    """
    for key, value in metadata:
        if key == ACTOR and value:
            return printable(value if isinstance(value, str) else value.decode(errors="replace"))
    return printable(peer)


def printable(text: str, characters_max: int = ACTOR_CHARACTERS_MAX) -> str:
    """Return the beginning of a text of a caller, with other than printable ASCII replaced."""
    return "".join(each if " " <= each <= "~" else "?" for each in text[:characters_max])


def is_forwarded(metadata: Pairs, *, is_hop: bool) -> bool:
    """Report whether a member passed a call on.

    Args:
        metadata: Of the call.
        is_hop: Whether its claims are those of a member's hop: anybody can write the metadata.
    """
    return is_hop and any(key == FORWARDED for key, _ in metadata)
