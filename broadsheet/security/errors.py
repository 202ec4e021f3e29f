"""Exceptions of callers: who they are, and what they may do."""

from __future__ import annotations

from broadsheet.runtime.errors import ServiceError


class NotAuthorizedError(ServiceError):
    """The caller's token is valid but does not allow this."""


class UnauthenticatedError(ServiceError):
    """The caller's token is missing, malformed, expired or signed with an unknown key."""


class ClaimsMissingError(ServiceError):
    """A call's context has no claims: the call did not come through a member's server."""


class ProxyHeaderError(ServiceError):
    """A proxied request names another etcd cluster or another process."""
