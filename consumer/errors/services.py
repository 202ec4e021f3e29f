"""Requests that are refused, and servers that cannot be reached."""

from __future__ import annotations

from consumer.errors.root import ConsumerError


class ResolverStoppedError(ConsumerError):
    """This process is shutting down and serves no shard any more."""


class NotAuthorizedError(ConsumerError):
    """The caller's token is valid but does not allow this."""


class UnauthenticatedError(ConsumerError):
    """The caller's token is missing, malformed, expired or signed with an unknown key."""


class ClaimsMissingError(ConsumerError):
    """A call's context has no claims: the call did not come through a member's server."""


class ProxyHeaderError(ConsumerError):
    """A proxied request names another etcd cluster or another process."""


class BoundExceededError(ConsumerError):
    """A request is larger than the service takes; the message names the bound and how to stay below it."""


class EndpointError(ConsumerError):
    """A server cannot be reached; `address` is where it was sought."""

    def __init__(self, address: str, detail: str, *, never_connected: bool = False) -> None:
        super().__init__(f"cannot reach {address}: {detail}")
        self.address = address
        self.detail = detail
        self.never_connected = never_connected
        """Nothing of the request can have been seen by the server, so repeating it is safe."""


class RpcFailedError(ConsumerError):
    """A server was reached but failed the request; `code` is the name of the gRPC status."""

    def __init__(self, address: str, code: str, detail: str) -> None:
        super().__init__(f"{address} failed the request: {code}: {detail}")
        self.address = address
        self.code = code
        self.detail = detail


class EmbeddedServerError(ConsumerError):
    """A server that we start ourselves was not found, did not start, or died; `detail` says why and what to do."""

    def __init__(self, server: str, detail: str) -> None:
        super().__init__(f"embedded {server}: {detail}")
        self.server = server
        self.detail = detail
