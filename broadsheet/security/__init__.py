"""Identities and permissions of callers: tokens, TLS, certificates and endpoints."""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.security.auth import (
        BearerAuth as BearerAuth,
        Capability as Capability,
        Claims as Claims,
        KeyedAuth as KeyedAuth,
        TrustConfig as TrustConfig,
    )
    from broadsheet.security.certificates import peer_identity as peer_identity
    from broadsheet.security.endpoints import (
        open_channel as open_channel,
        parse_endpoint as parse_endpoint,
    )
    from broadsheet.security.errors import (
        ClaimsMissingError as ClaimsMissingError,
        NotAuthorizedError as NotAuthorizedError,
        UnauthenticatedError as UnauthenticatedError,
    )
    from broadsheet.security.tls import TlsConfig as TlsConfig

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
