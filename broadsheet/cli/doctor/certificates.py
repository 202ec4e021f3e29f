"""Certificates that servers show."""

from __future__ import annotations

import asyncio
import socket
import ssl
from datetime import UTC, datetime
from urllib.parse import urlsplit

from broadsheet.cli.doctor.findings import Finding, bad, judge_certificate
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.tls import TlsConfig

CONNECT_SECONDS_MAX = 5.0


async def served_certificate(
    endpoint: str, tls: TlsConfig | None, server_name: str, remedy: str
) -> Finding:
    """Judge the certificate that a server shows.

    Raises:
        ValidationError: one of our files cannot be used.
    """
    what = f"certificate {endpoint}"
    context = await asyncio.to_thread(_tls_context, tls)
    try:
        until = await asyncio.to_thread(_certificate_end, endpoint, context, server_name)
    except OSError as error:
        reason = getattr(error, "verify_message", "") or error.strerror or str(error)
        return bad(what, reason, remedy)
    return judge_certificate(what, until, datetime.now(UTC))


def _tls_context(tls: TlsConfig | None) -> ssl.SSLContext:
    """Return what trusts the authorities of our files. Blocking.

    Raises:
        ValidationError: a file cannot be used.
    """
    try:
        ca_file = tls.ca_file if tls is not None else None
        context = ssl.create_default_context(cafile=ca_file)
        if tls is not None and tls.cert_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as error:
        raise ValidationError("--tls-ca", f"cannot be used: {error.strerror or error}") from error
    return context


def _certificate_end(endpoint: str, context: ssl.SSLContext, server_name: str) -> datetime:
    """Return when the certificate of a server ends. Blocking.

    Args:
        endpoint: `https://host:port`.
        context: Whom we trust.
        server_name: The name to expect; empty: the host.

    Raises:
        OSError: the server cannot be reached, or its certificate is not valid.
    """
    url = urlsplit(endpoint)
    address = (url.hostname or "", url.port or 443)
    with (
        socket.create_connection(address, timeout=CONNECT_SECONDS_MAX) as raw,
        context.wrap_socket(raw, server_hostname=server_name or url.hostname) as connected,
    ):
        shown = connected.getpeercert()
        assert shown is not None, "the context demands one"
        return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown["notAfter"])), UTC)
