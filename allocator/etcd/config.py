"""Configuration of the connection to etcd."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from broadsheet.runtime.errors import ValidationError

if TYPE_CHECKING:
    from broadsheet.security.tls import TlsConfig

ENDPOINTS_MAX = 32


REQUEST_SECONDS_MIN = 5.0
CONNECT_SECONDS_MIN = 1.0
CONNECT_SECONDS_DEFAULT = 10.0
PROBE_SECONDS_MIN = 3.0
"""Deadlines that are derived are no shorter; see `EtcdConfig.deadlines`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdDeadlines:
    """Deadlines of a client, seconds."""

    request: float
    """Of one call, with its repetitions and its login."""
    connect: float
    """Of one attempt to connect: one round trip for TCP, two for TLS, one for HTTP/2."""
    probe: float
    """How long a connection may leave a probe unanswered before it counts as broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdConfig:
    """Addresses, credentials and deadlines of an etcd cluster."""

    endpoints: tuple[str, ...] = ("127.0.0.1:2379",)
    """Members of one cluster: `host:port`, `http://host:port`, `https://host:port` or `unix:/path`."""
    ca_file: Path | None = None
    """PEM certificates of the authorities that may sign the servers'; the system's if None."""
    cert_file: Path | None = None
    """Our own PEM certificate, with `key_file`, for servers that ask for one."""
    key_file: Path | None = None
    server_name: str | None = None
    """Name to expect in the servers' certificates, where it is not the endpoint's host."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    request_timeout_seconds: float | None = None
    """Deadline of one call, retries included; None: see `deadlines`."""
    connect_timeout_seconds: float | None = None
    """Deadline of one attempt to connect; None: see `deadlines`."""
    keep_alive_seconds: float = 6.0
    """Idle time of a connection in use before it is probed. Etcd refuses less than 5 s by default."""
    keep_alive_timeout_seconds: float | None = None
    """How long a probe may stay unanswered before the connection counts as broken; None: see `deadlines`."""
    lease_ttl_seconds: float | None = None
    """The lease that is kept alive through this client, and that its deadlines must not be stricter than."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.endpoints) <= ENDPOINTS_MAX:
            raise ValidationError(
                "etcd.endpoints", f"expected 1 to {ENDPOINTS_MAX}, got {len(self.endpoints)}"
            )
        if (self.cert_file is None) != (self.key_file is None):
            raise ValidationError("etcd.cert_file", "expected both cert_file and key_file")
        if (self.username is None) != (self.password is None):
            raise ValidationError("etcd.username", "expected both username and password")
        for name in (
            "request_timeout_seconds",
            "connect_timeout_seconds",
            "keep_alive_seconds",
            "keep_alive_timeout_seconds",
            "lease_ttl_seconds",
        ):
            seconds: float | None = getattr(self, name)
            if seconds is not None and not 0 < seconds < float("inf"):
                raise ValidationError(f"etcd.{name}", f"expected more than 0, got {seconds:g}")
        for position, endpoint in enumerate(self.endpoints):
            try:
                parse_endpoint(endpoint, tls_by_default=False)
            except ValidationError as error:
                raise error.under(f"etcd.endpoints[{position}]") from None

    @property
    def deadlines(self) -> EtcdDeadlines:
        """The deadlines that are given, and for those that are not, a share of the lease that depends on them.

        A lease of 20 s is a promise that its holder lives through anything shorter, also round trips of seconds. An
        answer or a connection has half of it, because the lease counts as lost at nine tenths, and a probe a quarter.
        """
        ttl = self.lease_ttl_seconds
        connect = CONNECT_SECONDS_DEFAULT if ttl is None else max(CONNECT_SECONDS_MIN, ttl / 2)
        return EtcdDeadlines(
            request=self.request_timeout_seconds or max(REQUEST_SECONDS_MIN, (ttl or 0.0) / 2),
            connect=self.connect_timeout_seconds or connect,
            probe=self.keep_alive_timeout_seconds or max(PROBE_SECONDS_MIN, (ttl or 0.0) / 4),
        )

    @property
    def tls(self) -> TlsConfig:
        """The files of connections with TLS."""
        # Imported here with gRPC, because Spark may fork a process that has read its options.
        from broadsheet.security.tls import TlsConfig

        return TlsConfig(
            ca_file=self.ca_file,
            cert_file=self.cert_file,
            key_file=self.key_file,
            server_name=self.server_name,
        )

    @property
    def tls_by_default(self) -> bool:
        """True if an endpoint without a scheme uses TLS."""
        return self.ca_file is not None or self.cert_file is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One address, parsed."""

    name: str
    """As it was written, for messages."""
    target: str
    """As gRPC wants it."""
    tls: bool


def parse_endpoint(text: str, *, tls_by_default: bool) -> Endpoint:
    """Parse an endpoint.

    Raises:
        ValidationError: the endpoint has none of the four forms; the message shows them.
    """
    if text.startswith("unix:"):
        # Etcd prints unix://path where gRPC reads that as an authority.
        path = text.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise ValidationError("", f"expected unix:/absolute/path, got {text!r}")
        return Endpoint(name=text, target=f"unix:{path}", tls=False)
    if "@" in text:
        # Not shown, because it may end with a password, which would never be sent.
        raise ValidationError(
            "", "expected no user before the address: use the username and the password of etcd"
        )
    scheme, separator, address = text.rpartition("://")
    if separator and scheme not in ("http", "https"):
        raise ValidationError("", f"expected http, https or unix before the address, got {text!r}")
    host, _, port = address.rstrip("/").rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValidationError("", f"expected host:port or unix:/path, got {text!r}")
    tls = scheme == "https" or (not separator and tls_by_default)
    return Endpoint(name=text, target=f"{host}:{port}", tls=tls)
