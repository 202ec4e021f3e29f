"""TLS from files: the certificates of a process, its channels and its ports, reread when the files change.

    files ──a look, at most once a second──► unchanged: the contents in use
                                        └──► changed ──► complete, and the key fits: used by new handshakes
                                                    └──► not so: the former ones stay in use, and the log says why

A server looks at each handshake. A client looks at each call: after a change its calls go over a new connection, while
calls in progress keep the old one, which closes with the last of them. Neither is restarted, and no stream is lost.
"""

from __future__ import annotations

import re
import socket
import ssl
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

import grpc
import grpc.aio
import structlog

from broadsheet.runtime.errors import ValidationError
from broadsheet.security.certificates import certificates_in, expiry_of, has_server_names

LOOK_SECONDS = 1.0
"""Least time between two looks at the files. One look takes some microseconds; certificates last hours at least."""
_CONFIGS_MAX = 64
"""Configurations whose files a process keeps in memory; programs have one or two, test suites many."""

_log = structlog.get_logger()
_Stamp = tuple[int, int, int, int] | None
ChannelOptions = Sequence[tuple[str, int | str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """PEM files of a process, for the servers that it calls and the clients that it serves."""

    ca_file: Path | None = None
    """Authorities that sign the certificates of servers; gRPC's list of public ones if None."""
    cert_file: Path | None = None
    """Our certificate, with those between it and the authority: shown to clients, and to servers that ask for one."""
    key_file: Path | None = None
    """The private key of `cert_file`, not encrypted."""
    client_ca_file: Path | None = None
    """Authorities that sign the certificates of clients. A server with it refuses clients without a certificate."""
    server_name: str | None = None
    """Name to expect in the certificates of servers, where it is not the address's host: all servers that we call then
    need it. For members whose addresses are not known beforehand."""

    def __post_init__(self) -> None:
        """Check which files are given; they are read when they are used.

        Raises:
            ValidationError: a file is given without the one that it needs.
        """
        if (self.cert_file is None) != (self.key_file is None):
            missing, given = (
                ("cert_file", "key_file") if self.cert_file is None else ("key_file", "cert_file")
            )
            raise ValidationError(missing, f"expected a file, because {given} is given")
        if self.client_ca_file is not None and self.cert_file is None:
            raise ValidationError(
                "cert_file", "expected a file, because client_ca_file is for servers with TLS"
            )
        name = self.server_name
        if name is not None and (not name.isprintable() or name.split() != [name]):
            raise ValidationError("server_name", f"expected a DNS name, got {name!r}")

    @property
    def serves(self) -> bool:
        """Report whether a server with these files speaks TLS; without a certificate it cannot."""
        return self.cert_file is not None

    @property
    def requires_client_certificates(self) -> bool:
        """Report whether a server with these files refuses clients without a certificate (mutual TLS)."""
        return self.client_ca_file is not None


@dataclass(frozen=True, slots=True, eq=False)
class Pems:
    """Contents of the files at one time; compared by identity."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None = field(repr=False)
    client_ca: bytes | None
    expires_at: datetime | None
    """When `cert` expires; None without it, or if its form is unknown."""
    stamps: tuple[_Stamp, ...] = field(repr=False)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials of a client's channel."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)

    def server_configuration(self) -> grpc.ServerCertificateConfiguration:
        """Return the configuration of a server's handshakes."""
        assert self.cert is not None, "a server has a certificate"
        assert self.key is not None, "a certificate has a key"
        return grpc.ssl_server_certificate_configuration([(self.key, self.cert)], self.client_ca)


class TlsFiles:
    """The files of one configuration. Threads may share it: at worst two of them read a change."""

    def __init__(
        self, config: TlsConfig, *, monotonic_seconds: Callable[[], float] = time.monotonic
    ) -> None:
        """Read the files.

        Raises:
            ValidationError: a file cannot be read, is not PEM, or the key is not the certificate's.
        """
        self._config = config
        self._monotonic_seconds = monotonic_seconds
        self._looked_monotonic_seconds = monotonic_seconds()
        self._pems = _read(config)
        self._refused: tuple[_Stamp, ...] | None = None
        """State of the files that was last refused, so that the log says so once."""
        self._tell_if_expired()

    def present(self) -> Pems:
        """Return the contents in use: those of the files, unless they changed within `LOOK_SECONDS`, or are wrong."""
        now = self._monotonic_seconds()
        if now - self._looked_monotonic_seconds >= LOOK_SECONDS:
            self._looked_monotonic_seconds = now
            stamps = _stamps_of(self._config)
            if stamps != self._pems.stamps:
                self._reload(stamps)
        return self._pems

    def _reload(self, stamps: tuple[_Stamp, ...]) -> None:
        try:
            self._pems = _read(self._config)
        except ValidationError as error:
            # A certificate and its key cannot be replaced in one step, so between the two they do not fit. The next
            # look tries again.
            if stamps != self._refused:
                self._refused = stamps
                _log.warning("tls.reload_refused", cause=str(error))
            return
        self._refused = None
        _log.info("tls.reloaded", cert_file=str(self._config.cert_file or ""))
        self._tell_if_expired()

    def _tell_if_expired(self) -> None:
        # Not refused: clocks differ, and a server that others still trust should not end by ours.
        expires_at = self._pems.expires_at
        if expires_at is not None and expires_at < datetime.now(UTC):
            _log.warning(
                "tls.certificate_expired",
                cert_file=str(self._config.cert_file),
                expired_at=expires_at.isoformat(),
            )


@lru_cache(maxsize=_CONFIGS_MAX)
def tls_files(config: TlsConfig) -> TlsFiles:
    """Return the files of a configuration; users in one process share them.

    Raises:
        ValidationError: a file cannot be read, is not PEM, or the key is not the certificate's.
    """
    return TlsFiles(config)


def _paths(config: TlsConfig) -> tuple[tuple[str, Path | None], ...]:
    names = ("ca_file", "cert_file", "key_file", "client_ca_file")
    return tuple((name, getattr(config, name)) for name in names)


def _stamps_of(config: TlsConfig) -> tuple[_Stamp, ...]:
    """Return what changes when a file is replaced, written to, or linked to another one."""
    return tuple(None if path is None else _stamp_of(path) for _, path in _paths(config))


def _stamp_of(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read(config: TlsConfig) -> Pems:
    """Read and check the files.

    Raises:
        ValidationError: see `TlsFiles`; or a file was changed meanwhile.
    """
    stamps = _stamps_of(config)
    contents = {name: _content_of(name, path) for name, path in _paths(config)}
    for name in ("ca_file", "client_ca_file"):
        if (content := contents[name]) is not None:
            _require_certificates(name, content, getattr(config, name))
    _require_key_fits(config)
    if _stamps_of(config) != stamps:
        raise ValidationError("", "the certificates were changed while they were read: try again")
    return Pems(
        ca=contents["ca_file"],
        cert=contents["cert_file"],
        key=contents["key_file"],
        client_ca=contents["client_ca_file"],
        expires_at=expiry_of(contents["cert_file"] or b""),
        stamps=stamps,
    )


def _content_of(name: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        # A pipe would make the process wait for a writer, and what it gave could not be read again.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValidationError(name, f"expected a regular file, got {path}")
        return path.read_bytes()
    except OSError as error:
        raise ValidationError(name, f"cannot read {path}: {error.strerror}") from error


def _require_certificates(name: str, content: bytes, path: Path) -> None:
    # Comments are left out: bundles have names of authorities there, in any letters, which `ssl` refuses.
    blocks = b"\n".join(certificates_in(content))
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=blocks.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ValidationError(
            name, f"expected certificates in PEM, got {path}: {_reason_of(error)}"
        ) from error


def _require_key_fits(config: TlsConfig) -> None:
    """Refuse a certificate or key that gRPC would accept now, to fail at each handshake."""
    if config.cert_file is None or config.key_file is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            # Without a password OpenSSL would ask for one on the terminal.
            config.cert_file,
            config.key_file,
            password=lambda: "",
        )
    except (OSError, ValueError) as error:  # `SSLError` is an `OSError`.
        raise ValidationError(
            "cert_file",
            f"expected {config.cert_file} and {config.key_file} to be a certificate in PEM and its key, "
            f"not encrypted: {_reason_of(error)}",
        ) from error


def _reason_of(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return str(reason or error).lower().replace("_", " ")


# Servers.


def add_port(server: grpc.aio.Server, address: str, tls: TlsConfig | None) -> int:
    """Bind a server to an address, with TLS if there is a certificate; return the port.

    Raises:
        OSError: the address cannot be bound; the reason is the system's.
        RuntimeError: it cannot be bound, for a reason that gRPC writes to standard error.
        ValidationError: a file of `tls` cannot be used.
    """
    _require_bindable(address)
    if tls is None or not tls.serves:
        return server.add_insecure_port(address)
    require_server_names(tls)
    return server.add_secure_port(address, _server_credentials(tls))


def require_server_names(tls: TlsConfig) -> None:
    """Refuse a server's certificate that names it in its subject alone.

    gRPC's clients would believe the name, others would not; and authorities check it less.

    Raises:
        ValidationError: the certificate has no subject alternative name of a host or an address.
    """
    pems = tls_files(tls).present()
    if not has_server_names(pems.cert or b""):
        raise ValidationError(
            "cert_file",
            f"expected the server's names in the subject alternative name of {tls.cert_file} (DNS or IP)",
        )


def _require_bindable(address: str) -> None:
    """Try an address before gRPC does, whose error has no reason, and a line of its own on standard error.

    Raises:
        OSError: none of the addresses that a name stands for can be bound.
    """
    host, _, port = address.rpartition(":")
    if address.startswith("unix:") or not port.isdecimal() or port == "0":
        return
    reason: OSError | None = None
    name = host.strip("[]") or None
    for family, kind, _, _, target in socket.getaddrinfo(
        name, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        try:
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(target)
        except OSError as error:
            reason = error
        else:
            return
    if reason is not None:
        raise reason


def _server_credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """Return credentials for one port; gRPC remembers of each port what its last handshake used."""
    files = tls_files(tls)
    used = files.present()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        present = files.present()
        if present is used:
            return None
        used = present
        return present.server_configuration()

    return grpc.dynamic_ssl_server_credentials(
        used.server_configuration(),
        changed,  # type: ignore[arg-type]  # None means no change, says its documentation.
        require_client_authentication=tls.requires_client_certificates,
    )


# Clients.


def secure_channel(
    target: str, tls: TlsConfig | None, options: ChannelOptions = ()
) -> grpc.aio.Channel:
    """Return a channel that speaks TLS; it follows changes of the files.

    Args:
        target: `host:port`.
        tls: The files; None: the server's certificate must be signed by a public authority.
        options: Of gRPC.

    Raises:
        ValidationError: a file cannot be used.
    """
    return _ReloadingChannel(target, tls_files(tls or TlsConfig()), (*options, *name_options(tls)))


def name_options(tls: TlsConfig | None) -> ChannelOptions:
    """Return the options of a channel whose server is expected to have another name than its address's host."""
    if tls is None or tls.server_name is None:
        return ()
    return (("grpc.ssl_target_name_override", tls.server_name),)


# `Any` in both classes: messages of services that we do not know.


class _ReloadingChannel(grpc.aio.Channel):
    """A channel whose next call uses the present certificates; gRPC's own keep those that they began with."""

    def __init__(self, target: str, files: TlsFiles, options: ChannelOptions) -> None:
        self._target = target
        self._files = files
        self._options = options
        self._calls: WeakSet[Any] = WeakSet()
        self._closed = False
        self._pems = files.present()
        self._channel = self._open(self._pems)

    def current(self) -> tuple[grpc.aio.Channel, Pems]:
        """Return the channel with the present certificates, and these."""
        pems = self._files.present()
        if pems is not self._pems and not self._closed:
            # The former channel is let go, not closed: closing it would cancel the calls in progress. Without them it
            # closes its connection itself.
            self._pems, self._channel = pems, self._open(pems)
        return self._channel, self._pems

    def track(self, call: Any) -> Any:
        """Return a call, which `close` will end."""
        self._calls.add(call)
        return call

    def _open(self, pems: Pems) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(
            self._target, pems.channel_credentials(), options=self._options
        )

    def unary_unary(self, method: str, *args: Any, **options: Any) -> Any:
        """Return the callable of a method."""
        return _Callable(self, "unary_unary", method, args, options)

    def unary_stream(self, method: str, *args: Any, **options: Any) -> Any:
        """Return the callable of a method that answers with a stream."""
        return _Callable(self, "unary_stream", method, args, options)

    def stream_unary(self, method: str, *args: Any, **options: Any) -> Any:
        """Return the callable of a method that takes a stream."""
        return _Callable(self, "stream_unary", method, args, options)

    def stream_stream(self, method: str, *args: Any, **options: Any) -> Any:
        """Return the callable of a method that takes a stream and answers with one."""
        return _Callable(self, "stream_stream", method, args, options)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the connection."""
        return self.current()[0].get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Return when the state of the connection is another one."""
        await self.current()[0].wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Return when the connection is ready."""
        await self.current()[0].channel_ready()

    async def close(self, grace: float | None = None) -> None:
        """End the calls on this channel, also those of former certificates, and close it. Idempotent."""
        self._closed = True
        await self._channel.close(grace)
        for call in tuple(self._calls):
            call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.close()


class _Callable:
    """One method, on the channel that is current at each call."""

    def __init__(
        self,
        channel: _ReloadingChannel,
        kind: str,
        method: str,
        args: tuple[Any, ...],
        options: Mapping[str, Any],
    ) -> None:
        self._channel = channel
        self._kind = kind
        self._method = method
        self._args = args
        self._options = options
        # Not the channel itself: a reference to it would keep it, and its connection, open.
        self._of: Pems | None = None
        self._perform: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **options: Any) -> Any:
        channel, pems = self._channel.current()
        if self._perform is None or self._of is not pems:
            create = getattr(channel, self._kind)
            self._perform = create(self._method, *self._args, **self._options)
            self._of = pems
        return self._channel.track(self._perform(*args, **options))


_ADVICE: Sequence[tuple[re.Pattern[str], str]] = (
    (
        re.compile(r"CERTIFICATE_VERIFY_FAILED.*(expired|not yet valid)"),
        "its certificate is not valid at this time: renew it, and compare the clocks",
    ),
    (
        re.compile(r"CERTIFICATE_VERIFY_FAILED.*purpose"),
        "its certificate is not for servers: it lacks the purpose of server authentication",
    ),
    (
        re.compile(r"CERTIFICATE_VERIFY_FAILED"),
        "its certificate is not signed by an authority known here: name that in ca_file (--tls-ca)",
    ),
    (
        re.compile(r"Hostname Verification Check failed|is not in peer certificate"),
        "its certificate is for another name than that of the address; expect it with server_name (--tls-server-name)",
    ),
    (re.compile(r"WRONG_VERSION_NUMBER"), "it does not speak TLS: use http://"),
)
_CLOSED = re.compile(r"Socket closed|Connection reset|end of TCP stream", re.IGNORECASE)
_HANDSHAKE = re.compile(r"(Ssl|Tls) handshake failed|Check failed|not in peer certificate")


def is_failed_handshake(detail: str) -> bool:
    """Tell from gRPC's text whether a server answered, and the two did not agree on TLS."""
    return _HANDSHAKE.search(detail) is not None


def handshake_advice(address: str, detail: str) -> str:
    """Return what to do about a connection that failed, if TLS is a likely cause; else an empty text.

    Args:
        address: The endpoint, with its scheme.
        detail: gRPC's text.
    """
    for pattern, advice in _ADVICE:
        if pattern.search(detail):
            return advice
    # Once a connection was open, the same text means that the server ended.
    if "failed to connect" not in detail or not _CLOSED.search(detail):
        return ""
    if address.lower().startswith("https://"):
        return "does it require a certificate of clients? name ours in cert_file, key_file (--tls-cert, --tls-key)"
    return "does it speak TLS? then use https://"
