"""The context of a verified call: gRPC's own, with the claims of the caller.

    async def Count(self, request, context):
        await self._work.put((request.shard, claims_of(context)))      # with the work, wherever it goes

Claims are an argument all the way, and no task, thread or context variable has any: what was not given a caller's
claims cannot act for one.
"""

from __future__ import annotations

from typing import Any

from broadsheet.consumer.errors import ClaimsMissingError
from broadsheet.consumer.protocol.auth import Claims


class CallContext:
    """What a handler is given in place of gRPC's context, and passes everything else on to."""

    __slots__ = ("_context", "claims")

    def __init__(self, context: Any, claims: Claims) -> None:
        self._context = context
        self.claims = claims

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def claims_of(context: Any) -> Claims:
    """Return what the caller may do, for `Resolver.resolve` and whatever else the call leads to.

    Args:
        context: What the handler was given. `Any`: gRPC's and those that wrap it have no class in common.

    Raises:
        ClaimsMissingError: the call did not come through a member's server.
    """
    # Asked for by name, so that a wrapper which passes on what it does not know will do.
    claims = getattr(context, "claims", None)
    if not isinstance(claims, Claims):
        raise ClaimsMissingError(
            f"a {type(context).__name__} has no claims: no member's server has verified this call; add the service in "
            "register_services, and give the handler's context"
        )
    return claims
