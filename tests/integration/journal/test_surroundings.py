"""Servers and clients on this machine, in an environment that is meant for other programs."""

from __future__ import annotations

import resource
from pathlib import Path

import psutil
import pytest

from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.security.endpoints import proxy_options

NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy", "grpc_proxy"])
async def test_channels_to_this_machine_take_no_proxy(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy for the web leads to no broker of this machine: every call ended as unavailable."""
    with EmbeddedBrokerProcess(tmp_path / "broker") as broker:
        monkeypatch.setenv(variable, NOWHERE)
        async with JournalClient(broker.address) as client:
            assert not (await client.list()).journals


@pytest.mark.parametrize(
    ("address", "proxy", "uses"),
    [
        ("10.0.0.1:8080", "", 0),
        ("10.0.0.1:8080", NOWHERE, 1),
        ("127.0.0.1:8080", NOWHERE, 0),
        ("[::1]:8080", NOWHERE, 0),
        ("localhost:8080", NOWHERE, 0),
    ],
)
def test_proxy_is_used_only_where_one_for_grpc_is_named(
    address: str, proxy: str, uses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`http_proxy` is for the web; `grpc_proxy` is for channels, and no way to this machine."""
    monkeypatch.setenv("http_proxy", NOWHERE)
    monkeypatch.setenv("grpc_proxy", proxy)

    assert proxy_options(address) == (("grpc.enable_http_proxy", uses),)


def test_embedded_etcd_ignores_the_settings_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Etcd takes its flags from the environment too: a name, or a state of the cluster, ended it at the start."""
    for name, value in (
        ("ETCD_NAME", "other"),
        ("ETCD_INITIAL_CLUSTER_STATE", "existing"),
        ("ETCD_LISTEN_CLIENT_URLS", "http://10.9.9.9:1"),
        ("ETCD_CONFIG_FILE", "/absent"),
        ("ETCD_CLIENT_CERT_AUTH", "true"),
    ):
        monkeypatch.setenv(name, value)

    with EmbeddedEtcdProcess() as etcd:
        assert etcd.is_running


def test_broker_raises_its_limit_of_open_files(tmp_path: Path) -> None:
    """It has a file for each journal, and the usual soft limit is for programs that call `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, hard))
    try:
        with EmbeddedBrokerProcess(tmp_path / "broker") as broker:
            raised, _ = psutil.Process(broker.pid).rlimit(psutil.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert raised == hard or raised > 1_024
