"""Certificates for tests, made by the `openssl` program."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate and its key, PEM files."""

    cert_file: Path
    key_file: Path


class CertificateAuthority:
    """Signs certificates; its own is the trust anchor."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        """Make a new authority in `directory`; without an openssl program, skip the test and say so."""
        program = shutil.which("openssl")
        if program is None:
            pytest.skip("no openssl program to make certificates with: TLS is not tested here")
        self._openssl = program
        self._directory = directory
        self._own = self._make(name, "-x509")
        self.ca_file = self._own.cert_file

    def certificate(self, name: str, *, subject_alternative_names: str) -> Certificate:
        """Return a certificate signed by this authority, e.g. for `DNS:localhost,IP:127.0.0.1`."""
        return self._make(
            name,
            "-x509",
            *("-CA", str(self._own.cert_file), "-CAkey", str(self._own.key_file)),
            *("-addext", f"subjectAltName={subject_alternative_names}"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
        )

    def _make(self, name: str, *arguments: str) -> Certificate:
        made = Certificate(
            cert_file=self._directory / f"{name}.pem", key_file=self._directory / f"{name}.key"
        )
        files = ("-keyout", str(made.key_file), "-out", str(made.cert_file))
        subprocess.run(
            [self._openssl, "req", *arguments, *_NEW_KEY, *files, "-subj", f"/CN={name}"],
            check=True,
            capture_output=True,
            timeout=30,
        )
        return made
