"""Certificates for tests, made in memory by `trustme` and written as PEM files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate and its key, PEM files."""

    cert_file: Path
    key_file: Path


class CertificateAuthority:
    """Signs certificates; its own is the trust anchor."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        """Make a new authority whose certificate stands in `directory`."""
        self._directory = directory
        self._authority = trustme.CA(organization_name=name)
        self.ca_file = directory / f"{name}.pem"
        self._authority.cert_pem.write_to_path(self.ca_file)

    def certificate(self, name: str, *identities: str) -> Certificate:
        """Return a certificate signed by this authority for host names or addresses."""
        made = Certificate(
            cert_file=self._directory / f"{name}.pem", key_file=self._directory / f"{name}.key"
        )
        issued = self._authority.issue_cert(*identities, common_name=name)
        issued.private_key_pem.write_to_path(made.key_file)
        made.cert_file.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        return made
