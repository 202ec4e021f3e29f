"""Endpoints of servers, and channels to them: in clear text, with TLS, or over a Unix socket.

An endpoint is `http://host:port` (clear text), `https://host:port` (TLS), `unix:///path` or `host:port`.

Source: gazette/core broker/protocol/endpoint.go (GRPCAddr).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

import grpc

from broadsheet.runtime.errors import ValidationError
from broadsheet.security.tls import TlsConfig, secure_channel
from broadsheet.wire.alphabet import shown

CONSUMER_ADDRESS_DEFAULT = "http://localhost:8080,http://localhost:8082"
"""Where `shardctl dev` has its first two members."""
BROKER_ADDRESS_DEFAULT = "http://localhost:8081"
"""Where `shardctl dev` has its broker."""
FAILING_STATES = (
    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
    grpc.ChannelConnectivity.SHUTDOWN,
)
"""States of a channel whose endpoint cannot be reached at the moment."""
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ChannelTarget:
    """Address and security of a connection."""

    address: str
    """Address that gRPC dials: `host:port` or `unix:/path`."""
    tls: bool


def parse_endpoint(endpoint: str, *, may_be_tls: bool = False) -> ChannelTarget:
    """Return the connection target of an endpoint.

    Args:
        endpoint: The address as it was written.
        may_be_tls: Whether the caller connects with TLS where the endpoint says so, as `open_channel` does. The others
            refuse such an endpoint: in clear text, anyone on the way would read the tokens.

    Raises:
        ValidationError: it is no endpoint, its scheme is unknown, or it asks for TLS that the caller does not do.
    """
    expected = "expected http://host:port, https://host:port or unix:///path"
    text = endpoint if ":/" in endpoint else f"http://{endpoint}"
    if any(character.isspace() or not character.isprintable() for character in endpoint):
        # `urlsplit` drops line ends silently, so a printed endpoint would span two lines.
        raise ValidationError("address", f"{expected} without spaces, got {shown(endpoint)}")
    try:
        url = urlsplit(text)
        host, port = url.hostname or "", url.port
    except ValueError as error:
        raise ValidationError("address", f"{expected}, got {shown(endpoint)}: {error}") from error
    if url.username is not None:
        # Not shown, because it ends with a password, which would never be sent.
        raise ValidationError(
            "address", f"{expected} without a user name; authorize with keys or a token instead"
        )
    if url.query or url.fragment or port == 0:
        raise ValidationError("address", f"{expected} and a port above 0, got {shown(endpoint)}")
    if url.scheme == "unix" and url.path:
        # The URL may have a host (Gazette writes the machine's name); the socket is local all the
        # same.
        return ChannelTarget(f"unix:{url.path}", tls=False)
    if url.scheme not in _DEFAULT_PORTS or not host or url.path not in ("", "/"):
        raise ValidationError("address", f"{expected}, got {shown(endpoint)}")
    if url.scheme == "https" and not may_be_tls:
        raise ValidationError(
            "address",
            f"{shown(endpoint)} asks for TLS, which this caller does not speak: open the channel with "
            "`open_channel`, or say may_be_tls=True and connect with TLS",
        )
    bracketed = f"[{host}]" if ":" in host else host
    return ChannelTarget(
        f"{bracketed}:{port or _DEFAULT_PORTS[url.scheme]}", tls=url.scheme == "https"
    )


def is_tls(endpoint: str) -> bool:
    """Report whether an endpoint is spoken to with TLS; what is no endpoint is not."""
    return endpoint.lower().startswith("https://")


def open_channel(
    endpoint: str,
    tls: TlsConfig | None = None,
    *,
    options: Sequence[tuple[str, int | str]] = (),
) -> grpc.aio.Channel:
    """Return a channel to an endpoint, which speaks TLS if the endpoint is `https://`.

    Args:
        endpoint: `http://host:port`, `https://host:port`, `unix:///path` or `host:port`.
        tls: Files for TLS; None: the server's certificate must be signed by a public authority.
        options: Of gRPC.

    Raises:
        ValidationError: it is no endpoint, or a file cannot be used.
    """
    target = parse_endpoint(endpoint, may_be_tls=True)
    options = (*options, *proxy_options(target.address))
    if not target.tls:
        return grpc.aio.insecure_channel(target.address, options=options)
    try:
        return secure_channel(target.address, tls, options)
    except ValidationError as error:
        raise error.under("tls") from None


def proxy_options(address: str) -> tuple[tuple[str, int], ...]:
    """Return gRPC's options of a channel that goes directly to its server, unless a proxy for gRPC itself is named.

    `http_proxy` and `https_proxy` name the way to the web, which leads to no broker or member, and to nothing on this
    machine. `grpc_proxy` is meant for channels.

    Args:
        address: `host:port`, or `unix:PATH`.
    """
    host = address.rpartition(":")[0].strip("[]")
    # gRPC knows it in small letters alone.
    uses_proxy = bool(os.environ.get("grpc_proxy")) and not is_loopback(host)  # noqa: SIM112
    return (("grpc.enable_http_proxy", int(uses_proxy)),)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can connect to a listener on this host."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a host name may belong to any interface.


def parse_endpoints(addresses: str | Sequence[str], *, may_be_tls: bool = False) -> tuple[str, ...]:
    """Return the endpoints of an address, which may name several, separated by commas; each once, in order.

    Raises:
        ValidationError: one is no endpoint, or there is none.
    """
    texts = addresses.split(",") if isinstance(addresses, str) else addresses
    endpoints = tuple(dict.fromkeys(text.strip() for text in texts if text.strip()))
    if not endpoints:
        raise ValidationError(
            "address", "expected http://host:port, several of them separated by commas, got none"
        )
    for endpoint in endpoints:
        parse_endpoint(endpoint, may_be_tls=may_be_tls)
    return endpoints
