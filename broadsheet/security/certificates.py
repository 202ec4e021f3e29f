"""Facts in certificates: the identity of a peer, the names of a server, and when a certificate expires.

Source: RFC 5280 §4; SPIFFE X.509-SVID §2 (one URI, its form); RFC 9525 §6.3 (names of a server are in its subject
alternative name).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

# The library is imported where it is used: processes without TLS, Spark's workers above all, start sooner without it.

_PEERS_MAX = 1_024
"""Certificates whose identity a process keeps."""
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_SPIFFE = re.compile(r"spiffe://[a-z0-9._-]{1,255}(/(?!\.{1,2}(/|$))[A-Za-z0-9._-]+)*")
_SPIFFE_BYTES_MAX = 2048
_DNS_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*"
)


def certificates_in(pem: bytes) -> list[bytes]:
    """Return the certificates of a PEM text, each in PEM, without the comments between them."""
    return _CERTIFICATE.findall(pem)


def expiry_of(pem: bytes) -> datetime | None:
    """Return when the first certificate of a PEM text expires; None if there is none that can be read."""
    certificate = _first_in(pem)
    return None if certificate is None else certificate.not_valid_after_utc


def has_server_names(pem: bytes) -> bool:
    """Report whether the first certificate of a PEM text names a host or an address in its subject alternative name.

    A name in the subject alone is one that clients should not believe, and several do not.
    """
    from cryptography import x509

    certificate = _first_in(pem)
    if certificate is None:
        return False
    names = _alternative_names(certificate)
    return any(isinstance(each, (x509.DNSName, x509.IPAddress)) for each in names or ())


def peer_identity(auth_context: Mapping[str, Iterable[bytes]]) -> str | None:
    """Return the identity of the peer by its verified certificate; None without one.

    Args:
        auth_context: gRPC's, `context.auth_context()` in a handler.
    """
    if [*auth_context.get("transport_security_type", ())] != [b"ssl"]:
        return None
    # gRPC's own list of names ends each at a NUL, and so makes another name of it.
    pem = next(iter(auth_context.get("x509_pem_cert", ())), None)
    return None if pem is None else identity_of(bytes(pem))


@lru_cache(maxsize=_PEERS_MAX)
def identity_of(pem: bytes) -> str | None:
    """Return the identity that a certificate names; None if it names none.

    It is the certificate's SPIFFE id, or else its first DNS name, in lower case and not a wildcard, or else its common
    name. A certificate that names two SPIFFE ids, or a malformed one, has no identity. A common name that looks like a
    URI is none, because authorities check common names less than SPIFFE ids. A certificate with a name that cannot be
    read has none either: what an authority meant by it is not known.
    """
    from cryptography import x509

    certificate = _first_in(pem)
    names = None if certificate is None else _alternative_names(certificate)
    if certificate is None or names is None:
        return None
    uris = [each.value for each in names if isinstance(each, x509.UniformResourceIdentifier)]
    hosts = [each.value for each in names if isinstance(each, x509.DNSName)]
    if not all(map(_is_name, (*uris, *hosts))):
        return None
    if any(uri.lower().startswith("spiffe:") for uri in uris):
        is_one = len(uris) == 1 and len(uris[0]) <= _SPIFFE_BYTES_MAX
        return uris[0] if is_one and _SPIFFE.fullmatch(uris[0]) else None
    for host in hosts:
        if _DNS_NAME.fullmatch(host.lower()):
            return host.lower()
    return _common_name_of(certificate)


def _common_name_of(certificate: Certificate) -> str | None:
    from cryptography.x509.oid import NameOID

    try:
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except ValueError:
        return None
    for name in (each.value for each in names):
        if isinstance(name, str) and _is_name(name) and name == name.strip() and "://" not in name:
            return name
    return None


def _is_name(text: str) -> bool:
    """Report whether a text has a meaning for a person; NUL and the like are there to deceive."""
    return bool(text) and text.isprintable() and "\ufffd" not in text


def _first_in(pem: bytes) -> Certificate | None:
    from cryptography import x509

    found = _CERTIFICATE.search(pem)
    if found is None:
        return None
    try:
        return x509.load_pem_x509_certificate(found[0])
    except ValueError:
        return None


def _alternative_names(certificate: Certificate) -> list[object] | None:
    """Return the subject alternative names; None if they cannot be read."""
    from cryptography import x509

    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return None
    return list(extension.value)
