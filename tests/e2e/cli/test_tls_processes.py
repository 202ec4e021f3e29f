"""A broker, a member and `shardctl` as processes that speak TLS, with certificates of one authority."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.embedded.member import EmbeddedMemberProcess
from tests.support.certificates import CertificateAuthority
from tests.support.documents import REPOSITORY
from tests.support.eventually import eventually_sync

pytestmark = [pytest.mark.e2e, pytest.mark.etcd, pytest.mark.timeout(900)]

SECONDS_MAX = 300.0


def _list_shards(address: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "broadsheet.cli.main", "shards", "list"],
        capture_output=True,
        check=False,
        cwd=REPOSITORY,
        env={**os.environ, "CONSUMER_ADDRESS": address, **variables},
        text=True,
        timeout=SECONDS_MAX,
    )


def test_processes_take_their_files_from_options_and_the_environment(
    etcd_server: EmbeddedEtcdProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator names files, and every part speaks TLS and says so in its address. A stranger leaves one line with
    whom it asked, and none with the server. What is set for other clusters does not change an embedded broker.
    """
    tls = CertificateAuthority(tmp_path).tls("all", "127.0.0.1", mutual=True)
    variables = {
        "BROADSHEET_TLS_CA": str(tls.ca_file),
        "BROADSHEET_TLS_CERT": str(tls.cert_file),
        "BROADSHEET_TLS_KEY": str(tls.key_file),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with EmbeddedBrokerProcess(tmp_path / "plain") as plain:
        assert plain.address.startswith("http://")
    with EmbeddedBrokerProcess(tmp_path / "broker", tls=tls) as broker:
        log = tmp_path / "member.log"
        arguments = ["--etcd", etcd_server.endpoint, "--broker", broker.address]
        arguments += ["--root", f"/test/{uuid4().hex}", "--port", "0"]
        arguments += ["--tls-client-ca", str(tls.client_ca_file)]
        member = EmbeddedMemberProcess(
            "broadsheet.examples.counter.app:Counter", arguments, log_file=log
        )
        try:
            address = eventually_sync(
                lambda: member.address_or_none() or "", timeout_seconds=SECONDS_MAX
            )
            listed = _list_shards(address, variables)
            refused = _list_shards(address, {**variables, "BROADSHEET_TLS_CA": ""})
        finally:
            member.stop()

    assert broker.address.startswith("https://")
    assert address.startswith("https://")
    assert listed.returncode == 0, listed.stderr
    assert refused.returncode
    assert "--tls-ca" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert "handshake" not in log.read_text().lower()
