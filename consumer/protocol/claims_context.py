"""The claims of the RPC being served, wherever its code may be.

The server's guard verifies each request and sets them; the resolver reads them, so that an application's own services
are bounded by the caller's token without passing it along. Code outside an RPC is the process itself and may see all.
"""

from __future__ import annotations

from contextvars import ContextVar

from consumer.protocol.auth import Capability, Claims

# A context variable is a key, not state: its value lives in the task that serves the RPC.
_CLAIMS: ContextVar[Claims | None] = ContextVar("claims", default=None)


def current_claims() -> Claims:
    """Return what the caller of the RPC being served may do; outside an RPC, everything."""
    return _CLAIMS.get() or Claims(capability=Capability.ALL)


def set_claims(claims: Claims) -> None:
    """Set the claims for the rest of this task. Each RPC is a task of its own, so nothing need be undone."""
    _CLAIMS.set(claims)
