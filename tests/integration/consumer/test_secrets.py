"""Secrets that are planted in every option, and looked for in all that a process shows."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import aiohttp
import click
import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.broker.__main__ import main as broker_command
from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.server import Broker
from broadsheet.cli.serve.serve import serve
from broadsheet.consumer.member.config import MemberConfig
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.auth import Capability, Claims, KeyedAuth, TrustConfig
from broadsheet.spark_bridge.cluster.cluster_conf import (
    BROKER,
    ENDPOINTS,
    METRICS_PUSH,
    read_cluster_conf,
)
from broadsheet.spark_bridge.errors import ClusterConfError
from tests.support.eventually import eventually
from tests.support.members import Cluster

SECRET = "s3cr3t-of-mine"
KEYS = b64encode(f"{SECRET}, which is a key of a member".encode()).decode()
AUTH = KeyedAuth(KEYS)
TOKEN = dict(AUTH.metadata(Claims(capability=Capability.ALL)))["authorization"]
PLANTED = (SECRET, KEYS, TOKEN.split()[1])
NOWHERE = f"http://me:{SECRET}@127.0.0.1:1/{SECRET}"
STORES = (
    f"sql:postgresql://me:{SECRET}@127.0.0.1:1/leases?password={SECRET}",
    f"sql:postgresql://127.0.0.1:1/leases?user=me&%70assword={SECRET}",
    f"dynamodb:t?endpoint=http://me:{SECRET}@127.0.0.1:1&region=eu",
    f"etcd:/app?endpoints=me:{SECRET}@127.0.0.1:1",
)

# A new field must be put into one of these: the first have secrets planted below.

SECRET_FIELDS: Mapping[type, frozenset[str]] = {
    MemberConfig: frozenset(
        {"auth_keys", "broker_auth_keys", "etcd", "lease_stores", "metrics_push_url", "trust"}
    ),
    BrokerConfig: frozenset({"auth_keys", "cloud_stores", "trust"}),
    EtcdConfig: frozenset({"password", "endpoints"}),
    TrustConfig: frozenset({"jwks"}),
}
PLAIN_TEXTS: Mapping[type, frozenset[str]] = {
    MemberConfig: frozenset(
        {"root", "suffix", "zone", "host", "bind_host", "broker_address", "state_dir"}
        | {"revoke_predecessors_prefix"}
    ),
    BrokerConfig: frozenset({"host", "zone"}),
    EtcdConfig: frozenset({"server_name", "username"}),
    TrustConfig: frozenset({"issuer", "audience", "identities_file"}),
}
SECRET_OPTIONS: Mapping[str, str] = {
    "endpoints": f"http://me:{SECRET}@127.0.0.1:1",
    "etcd_password": SECRET,
    "broker": NOWHERE,
    "auth_keys": f"{SECRET}!",
    "broker_auth_keys": f"{SECRET}!",
    "jwks": NOWHERE,
    "lease_stores": f"mysql://me:{SECRET}@h/db",
    "metrics_push": f"ftp://me:{SECRET}@h",
    "cloud_stores": f"ftp://me:{SECRET}@bucket/?secret_access_key={SECRET}",
}
PLAIN_OPTIONS = frozenset(
    {"app", "root", "etcd_user", "zone", "suffix", "host", "bind_host", "state_dir", "replaces"}
    | {"jwks_issuer", "jwks_audience", "metrics_host", "tls_server_name", "etcd_server_name"}
    | {"durability", "listen", "purge_quarantined", "restore_quarantined"}
)


@pytest.mark.parametrize("kind", SECRET_FIELDS, ids=lambda each: each.__name__)
def test_every_text_of_a_configuration_is_known_to_hold_a_secret_or_not(kind: type) -> None:
    """An option that is added must get its place here, so that a secret is planted in it."""
    texts = {each.name for each in fields(kind) if "str" in str(each.type)}

    assert texts - SECRET_FIELDS[kind] - PLAIN_TEXTS[kind] == set()


async def _surfaces(root: str) -> dict[str, str]:
    """Return what an admin port shows to who may see all."""
    found: dict[str, str] = {}
    async with aiohttp.ClientSession(headers={"Authorization": TOKEN}) as session:
        for path in ("/debug/vars", "/debug/tasks", "/metrics", "/page/leases", "/readyz"):
            async with session.get(root + path) as answer:
                found[path] = await answer.text()
    return found


def _leaks(surfaces: Mapping[str, Any]) -> list[str]:
    return [name for name, text in surfaces.items() for each in PLANTED if each in str(text)]


@pytest.mark.etcd
async def test_member_shows_no_secret_of_its_options(cluster: Cluster) -> None:
    """Passwords of lease stores stood in /debug/vars, and drivers quote what they are given in their errors. Plan: a
    member with a secret in each option that may have one, and stores and a gateway that cannot be reached.
    """
    settings: dict[str, Any] = {
        "admin_port": 0,
        "auth_keys": KEYS,
        "lease_stores": STORES,
        "metrics_push_url": NOWHERE,
        "trust": TrustConfig(jwks=f"http://127.0.0.1:1/?token={SECRET}"),
        "etcd": EtcdConfig(endpoints=(cluster.etcd_endpoint,), username=None, password=None),
    }
    config = cluster.config("a", **settings)
    with capture_logs() as logs:
        async with cluster.member("a", **settings) as member:
            surfaces = await _surfaces(member.admin_address)
            await eventually(lambda: any(each["event"] == "metrics.push_failed" for each in logs))

    assert _leaks(surfaces | {"logs": logs, "repr": config, "service": repr(member)}) == []
    assert "127.0.0.1:1" in surfaces["/debug/vars"]
    assert surfaces["/page/leases"].count('"error"') == len(STORES)


async def test_broker_shows_no_secret_of_its_options(tmp_path: Path) -> None:
    """Credentials of fragment stores may stand in their URLs."""
    stores = (
        f"s3://bucket/?region=eu&endpoint=http://127.0.0.1:1&access_key_id={SECRET}&secret_access_key={SECRET}",
    )
    trust = TrustConfig(jwks=f"http://127.0.0.1:1/?token={SECRET}")
    config = BrokerConfig(
        data_dir=tmp_path, auth_keys=KEYS, admin_port=0, cloud_stores=stores, trust=trust
    )
    with capture_logs() as logs:
        async with Broker(config) as broker:
            surfaces = await _surfaces(broker.admin_address)

    assert _leaks(surfaces | {"logs": logs, "repr": config}) == []
    assert "s3://bucket/?region=eu" in surfaces["/debug/vars"]


@pytest.mark.parametrize("command", [serve, broker_command], ids=["serve", "broker"])
def test_errors_and_help_of_commands_show_no_secret(command: click.Command, tmp_path: Path) -> None:
    """An option that is wrong is told, and its secret is not; help does not show what the environment holds."""
    texts = [
        each
        for each in command.params
        if each.type is click.STRING and each.name not in PLAIN_OPTIONS
    ]
    assert {each.name for each in texts} <= SECRET_OPTIONS.keys()
    arguments = (
        ["broadsheet.examples.counter.app:Counter", "--admin-port", "0"]
        if command is serve
        else ["--data-dir", str(tmp_path), "--port", "0"]
    )
    for option in texts:
        value = SECRET_OPTIONS[str(option.name)]
        given = {option.envvar: value} if isinstance(option.envvar, str) else {}
        told = CliRunner().invoke(command, ["--help"], env=given)
        assert SECRET not in told.output
        failed = CliRunner().invoke(command, [*arguments, option.opts[0], value])
        assert (failed.exit_code != 0, SECRET in failed.output) == (True, False), (
            option.name,
            failed.output,
            failed.exception,
        )


@pytest.mark.parametrize(
    "conf",
    [
        {METRICS_PUSH: NOWHERE},
        {METRICS_PUSH: f"http://gateway:9091/{SECRET}"},
        {ENDPOINTS: f"http://me:{SECRET}@127.0.0.1:2379"},
    ],
    ids=str,
)
def test_settings_that_spark_shows_may_have_no_secret(conf: dict[str, str]) -> None:
    """Spark writes its conf to event logs and pages, and hides only names with `secret` in them."""
    with pytest.raises(ClusterConfError) as caught:
        read_cluster_conf(conf)

    assert SECRET not in str(caught.value)


def test_settings_that_spark_hides_are_not_shown_by_the_cluster_either() -> None:
    """The name with `secret` takes the same URL; nothing that is made of it shows it."""
    conf = read_cluster_conf({"spark.broadsheet.secret.metricsPush": NOWHERE, BROKER: "http://b:1"})

    assert SECRET not in repr(conf) + repr(conf.settings)
    with pytest.raises(ClusterConfError, match="only one"):
        read_cluster_conf(
            {"spark.broadsheet.secret.metricsPush": NOWHERE, METRICS_PUSH: "http://g:9091"}
        )
    with pytest.raises(ValidationError) as caught:
        MemberConfig(root="/a", suffix="m", broker_address=NOWHERE)
    assert SECRET not in str(caught.value)
