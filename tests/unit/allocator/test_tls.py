"""TLS from files: what they must be, when they are read again, and whom a certificate names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog.testing
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from prometheus_client import CollectorRegistry

from broadsheet.runtime.errors import ValidationError
from broadsheet.security.tls import LOOK_SECONDS, TlsConfig, TlsFiles, handshake_advice
from broadsheet.serving.metrics import CertificateMetrics
from tests.support.certificates import CertificateAuthority, yesterday


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    """An authority for one test."""
    return CertificateAuthority(tmp_path)


class _Seconds:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_files_that_need_another_are_refused_without_it() -> None:
    """A forgotten key would otherwise mean clear text, and a forgotten certificate clients that are not checked."""
    file = Path("/nowhere")
    with pytest.raises(ValidationError, match="key_file: expected a file"):
        TlsConfig(cert_file=file)
    with pytest.raises(ValidationError, match="cert_file: expected a file"):
        TlsConfig(key_file=file)
    with pytest.raises(ValidationError, match="cert_file: expected a file"):
        TlsConfig(client_ca_file=file)
    for name in ("", "a b", " a", "a\n"):
        with pytest.raises(ValidationError, match="server_name: expected a DNS name"):
            TlsConfig(server_name=name)


def test_files_that_cannot_be_used_are_refused_by_name(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    """To gRPC nearly anything is fine until a handshake fails; the operator must learn of it at the start."""
    one, other = authority.certificate("one"), authority.certificate("other")
    text = tmp_path / "text"
    text.write_text("no certificate")
    torn = tmp_path / "torn"
    torn.write_bytes(authority.ca_file.read_bytes().replace(b"E", "é".encode(), 40))
    cut = tmp_path / "cut"
    cut.write_bytes(authority.ca_file.read_bytes()[:300])
    locked = tmp_path / "locked"
    key = load_pem_private_key(one.key_file.read_bytes(), password=None)
    locked.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )

    with pytest.raises(ValidationError, match=r"ca_file: cannot read .*: No such file"):
        TlsFiles(TlsConfig(ca_file=tmp_path / "missing"))
    for ca_file in (text, torn, cut):
        with pytest.raises(ValidationError, match="ca_file: expected certificates in PEM"):
            TlsFiles(TlsConfig(ca_file=ca_file))
    for key_file in (other.key_file, locked, text):
        with pytest.raises(ValidationError, match="and its key, not encrypted"):
            TlsFiles(TlsConfig(cert_file=one.cert_file, key_file=key_file))


def test_a_renewed_certificate_is_used_once_both_of_its_files_are_there(
    authority: CertificateAuthority,
) -> None:
    """A renewal writes two files, one after the other; in between, the former certificate must serve on."""
    tls, now = authority.tls("server", "a.test"), _Seconds()
    assert tls.cert_file is not None
    assert tls.key_file is not None
    files = TlsFiles(tls, monotonic_seconds=now)
    former = files.present()
    before = tls.cert_file.read_bytes(), tls.key_file.read_bytes()

    authority.certificate("server", "a.test")
    renewed = tls.cert_file.read_bytes()
    tls.cert_file.write_bytes(before[0])
    now.now += LOOK_SECONDS
    assert files.present() is former, "the key does not fit"
    tls.cert_file.write_bytes(renewed)
    assert files.present() is former, "it is too early for another look"
    now.now += LOOK_SECONDS
    assert files.present().cert == renewed
    assert files.present() is files.present()


@pytest.mark.parametrize("years", [1, 60])
def test_expiry_of_a_certificate_is_shown_and_told_once_it_has_passed(
    authority: CertificateAuthority, years: int
) -> None:
    """Alerts need the time before it comes; X.509 writes years from 2050 on in another form."""
    expires_at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=365 * years)
    made = authority.certificate("server", "a.test", expires_at=expires_at)
    made.cert_file.write_bytes(b"a comment\n" + made.cert_file.read_bytes())
    tls = TlsConfig(cert_file=made.cert_file, key_file=made.key_file)

    assert TlsFiles(tls).present().expires_at == expires_at
    registry = CollectorRegistry()
    registry.register(CertificateMetrics(tls, prefix="test"))
    name = "test_certificate_expiry_timestamp_seconds"
    assert registry.get_sample_value(name) == expires_at.timestamp()

    expired = authority.certificate("expired", "a.test", expires_at=yesterday())
    with structlog.testing.capture_logs() as logs:
        TlsFiles(TlsConfig(cert_file=expired.cert_file, key_file=expired.key_file))
    assert [line["event"] for line in logs] == ["tls.certificate_expired"]


def test_files_that_vanish_leave_the_former_in_use(authority: CertificateAuthority) -> None:
    """A volume that is remounted must not end the service of those who have their certificates in memory."""
    tls, now = authority.tls("server", "a.test"), _Seconds()
    assert tls.cert_file is not None
    files = TlsFiles(tls, monotonic_seconds=now)
    former = files.present()
    tls.cert_file.unlink()
    now.now += LOOK_SECONDS
    assert files.present() is former


def test_a_renewal_by_a_link_is_noticed(authority: CertificateAuthority, tmp_path: Path) -> None:
    """Kubernetes renews a secret by moving one link to another folder; the files' names stay."""
    now = _Seconds()
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        made = authority.certificate(folder.name)
        made.cert_file.rename(folder / "tls.crt")
        made.key_file.rename(folder / "tls.key")
    link = tmp_path / "data"
    link.symlink_to(folders[0])
    files = TlsFiles(
        TlsConfig(cert_file=link / "tls.crt", key_file=link / "tls.key"), monotonic_seconds=now
    )
    files.present()
    fresh = tmp_path / "fresh"
    fresh.symlink_to(folders[1])
    fresh.rename(link)
    now.now += LOOK_SECONDS
    assert files.present().cert == (folders[1] / "tls.crt").read_bytes()


@pytest.mark.parametrize(
    ("address", "detail", "advice"),
    [
        ("https://a:1", "CERTIFICATE_VERIFY_FAILED: unable to get local issuer", "--tls-ca"),
        ("https://a:1", "CERTIFICATE_VERIFY_FAILED: certificate has expired", "renew it"),
        ("https://a:1", "CERTIFICATE_VERIFY_FAILED: unsuitable certificate purpose", "for servers"),
        ("https://a:1", "Hostname Verification Check failed.", "for another name"),
        ("https://a:1", "OPENSSL_internal:WRONG_VERSION_NUMBER", "use http://"),
        ("https://a:1", "failed to connect to all addresses; Socket closed", "--tls-cert"),
        ("http://a:1", "failed to connect to all addresses; Socket closed", "use https://"),
        ("https://a:1", "Socket closed", ""),
        ("https://a:1", "failed to connect to all addresses; Connection refused", ""),
    ],
)
def test_a_failed_handshake_says_what_is_missing(address: str, detail: str, advice: str) -> None:
    """OpenSSL's words help nobody to find the option that is wrong."""
    assert advice in handshake_advice(address, detail)
    assert bool(advice) == bool(handshake_advice(address, detail))
