"""Certificates for tests, made in memory by `trustme` and written as PEM files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from broadsheet.security.tls import TlsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate and its key, PEM files."""

    cert_file: Path
    key_file: Path


def yesterday() -> datetime:
    """Return when a certificate that has expired did so."""
    return datetime.now(UTC) - timedelta(days=1)


def self_signed(
    *, common_name: str = "", hosts: Sequence[str] = (), uris: Sequence[str] = ()
) -> bytes:
    """Return a certificate in PEM with exactly these names, which may be what no authority would sign."""
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
    name = x509.Name(attributes)
    today = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
    )
    names = [*map(x509.UniformResourceIdentifier, uris), *map(x509.DNSName, hosts)]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


class CertificateAuthority:
    """Signs certificates; its own is the trust anchor."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        """Make a new authority whose certificate stands in `directory`."""
        self._directory = directory
        self._authority = trustme.CA(organization_name=name)
        self.ca_file = directory / f"{name}.pem"
        self._authority.cert_pem.write_to_path(self.ca_file)

    def certificate(
        self,
        name: str,
        *identities: str,
        expires_at: datetime | None = None,
        uris: tuple[str, ...] = (),
    ) -> Certificate:
        """Return a certificate signed by this authority for host names or addresses.

        One of the same name replaces the files of the former, as a renewal does.
        """
        made = Certificate(
            cert_file=self._directory / f"{name}.pem", key_file=self._directory / f"{name}.key"
        )
        today = datetime.now(UTC)
        issued = self._authority.issue_cert(
            *(identities or ("nobody.test",)),
            common_name=name,
            not_before=today - timedelta(days=2),
            not_after=expires_at or today + timedelta(days=1),
        )
        issued.private_key_pem.write_to_path(made.key_file)
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        made.cert_file.write_bytes(self._with_uris(chain, identities, uris) if uris else chain)
        return made

    def tls(self, name: str, *identities: str, mutual: bool = False) -> TlsConfig:
        """Return the files of a process that trusts this authority, with a certificate for its names or addresses."""
        made = self.certificate(name, *identities)
        return TlsConfig(
            ca_file=self.ca_file,
            cert_file=made.cert_file,
            key_file=made.key_file,
            client_ca_file=self.ca_file if mutual else None,
        )

    def _with_uris(self, chain: bytes, names: tuple[str, ...], uris: tuple[str, ...]) -> bytes:
        """Return a certificate like another, for other names; `trustme` makes none for URIs."""
        made = x509.load_pem_x509_certificate(chain)
        own = x509.load_pem_x509_certificate(self._authority.cert_pem.bytes())
        key = load_pem_private_key(self._authority.private_key_pem.bytes(), password=None)
        subject: list[x509.GeneralName] = [
            *map(x509.UniformResourceIdentifier, uris),
            *map(x509.DNSName, names),
        ]
        signed = (
            x509.CertificateBuilder(
                issuer_name=own.subject,
                subject_name=made.subject,
                public_key=made.public_key(),
                serial_number=made.serial_number,
                not_valid_before=made.not_valid_before_utc,
                not_valid_after=made.not_valid_after_utc,
            )
            .add_extension(x509.SubjectAlternativeName(subject), critical=False)
            .sign(key, hashes.SHA256())  # type: ignore[arg-type]  # trustme's keys can sign.
        )
        return signed.public_bytes(Encoding.PEM)
