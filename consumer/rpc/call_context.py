"""The context of a verified call: gRPC's own, with the claims of the caller.

    async def Count(self, request, context):
        await self._work.put((request.shard, claims_of(context)))      # with the work, wherever it goes

Claims are always passed as an argument, and no task, thread or context variable holds any: code that was not given a
caller's claims cannot act for that caller.
"""

from __future__ import annotations

from typing import Any

from broadsheet.consumer.errors import ClaimsMissingError
from broadsheet.consumer.protocol.auth import Claims


class CallContext:
    """The context of a handler, with the caller's claims; delegates everything else to gRPC's context."""

    __slots__ = ("_context", "claims")

    def __init__(self, context: Any, claims: Claims) -> None:
        self._context = context
        self.claims = claims

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def claims_of(context: Any) -> Claims:
    """Return the caller's claims, for `Resolver.resolve` and any other work of the call.

    Args:
        context: The handler's context. `Any`, because gRPC's and its wrappers have no common class.

    Raises:
        ClaimsMissingError: the call did not come through a member's server.
    """
    # Read by name, so that a wrapper that delegates unknown attributes works as well.
    claims = getattr(context, "claims", None)
    if not isinstance(claims, Claims):
        raise ClaimsMissingError(
            f"a {type(context).__name__} has no claims: no member's server has verified this call; add the service in "
            "register_services, and give the handler's context"
        )
    return claims
