"""What a cluster takes from Spark's conf: names are checked, secrets never shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broadsheet.journals.direct_fragments import DirectFragments
from broadsheet.security.secret_url import SecretUrl
from broadsheet.security.tls import TlsConfig
from broadsheet.spark_bridge.cluster.cluster_conf import (
    AUTH_KEYS,
    BROKER_AUTH_KEYS,
    PASSWORD,
    read_cluster_conf,
)
from broadsheet.spark_bridge.errors import ArgumentMissingError, ClusterConfError

SPARK_REDACTS = re.compile(r"(?i)secret|password|token|access[.]?key")
"""Spark's default of `spark.redaction.regex`."""


def test_read_cluster_conf_takes_addresses_secrets_and_arguments() -> None:
    """One place in the session holds all that differs between a laptop and production."""
    found = read_cluster_conf(
        {
            "spark.app.name": "not ours",
            "spark.broadsheet.etcd.endpoints": "https://a:2379, https://b:2379",
            "spark.broadsheet.etcd.user": "members",
            "spark.broadsheet.secret.etcd.password": "pass",
            "spark.broadsheet.broker": "http://broker:8080",
            "spark.broadsheet.zone": "rack-7",
            "spark.broadsheet.metricsPush": "http://gateway:9091",
            "spark.broadsheet.traces": "true",
            "spark.broadsheet.secret.authKeys": "c2VjcmV0",
            "spark.broadsheet.tls.certFile": "/etc/member.pem",
            "spark.broadsheet.tls.keyFile": "/etc/member.key",
            "spark.broadsheet.tls.caFile": "/etc/ca.pem",
            "spark.broadsheet.tls.serverName": "members.test",
            "spark.broadsheet.fragments.roots": "/srv/fragments, /mnt/more",
            "spark.broadsheet.fragments.allowHttp": "true",
            "spark.broadsheet.app.database": "postgresql:///states",
            "spark.broadsheet.secret.app.api": "k-1",
        }
    )

    assert found.etcd is not None
    assert found.etcd.endpoints == ("https://a:2379", "https://b:2379")
    assert (found.etcd.username, found.etcd.password) == ("members", "pass")
    assert (found.broker, found.zone) == ("http://broker:8080", "rack-7")
    assert found.settings == {
        "auth_keys": "c2VjcmV0",
        "metrics_push_url": SecretUrl("http://gateway:9091"),
        "traces": True,
        "fragments": DirectFragments(
            roots=(Path("/srv/fragments"), Path("/mnt/more")), allow_http=True
        ),
        "tls": TlsConfig(
            cert_file=Path("/etc/member.pem"),
            key_file=Path("/etc/member.key"),
            ca_file=Path("/etc/ca.pem"),
            server_name="members.test",
        ),
    }
    assert dict(found.arguments) == {"database": "postgresql:///states", "api": "k-1"}


def test_read_cluster_conf_refuses_another_word_for_traces() -> None:
    """Spark's own settings know two words, and a typing error must not turn traces off."""
    with pytest.raises(
        ClusterConfError, match=r"spark\.broadsheet\.traces: expected true or false"
    ):
        read_cluster_conf({"spark.broadsheet.traces": "yes"})


def test_read_cluster_conf_of_a_plain_session_says_nothing() -> None:
    """Without settings of ours everything is left to the program's arguments."""
    found = read_cluster_conf({"spark.app.name": "x"})

    assert (found.etcd, found.broker, found.zone) == (None, None, None)
    assert not found.settings
    assert not found.arguments


def test_read_cluster_conf_certificate_without_its_key_is_refused() -> None:
    """Members without the key would serve clear text."""
    with pytest.raises(ClusterConfError, match=r"spark\.broadsheet\.tls\.keyFile: expected a file"):
        read_cluster_conf({"spark.broadsheet.tls.certFile": "/etc/member.pem"})


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("spark.broadsheet.secret.authKey", "expected one of"),
        ("spark.broadsheet.etcd.password", "expected one of"),
        ("spark.broadsheet.tls.certfile", "expected one of"),
        ("spark.broadsheet.fragments.root", "expected one of"),
        ("spark.broadsheet.fragments.direct", "expected auto or off"),
        ("spark.broadsheet.secret.etcd.password", "expected spark.broadsheet.etcd.endpoints"),
    ],
)
def test_read_cluster_conf_misspelt_secret_is_refused_without_its_value(
    name: str, problem: str
) -> None:
    """A misspelt key would turn authorization off without a word; its value must not get into a log by the error."""
    with pytest.raises(ClusterConfError, match=f"{re.escape(name)}: {problem}") as caught:
        read_cluster_conf({name: "hunter2"})

    assert "hunter2" not in str(caught.value)


def test_read_cluster_conf_takes_keys_from_files() -> None:
    """A path is no secret, and its file is rotated without a new job; which of two sources counts must be clear."""
    found = read_cluster_conf(
        {
            "spark.broadsheet.auth.keysFile": "/etc/keys",
            "spark.broadsheet.auth.brokerKeysFile": "/etc/broker-keys",
        }
    )

    assert found.settings == {
        "auth_keys": "file:/etc/keys",
        "broker_auth_keys": "file:/etc/broker-keys",
    }
    with pytest.raises(ClusterConfError, match="expected only one of it and"):
        read_cluster_conf(
            {"spark.broadsheet.auth.keysFile": "/etc/keys", "spark.broadsheet.secret.authKeys": "k"}
        )
    with pytest.raises(ClusterConfError, match="expected one of"):
        read_cluster_conf({"spark.broadsheet.auth.keyFile": "/etc/keys"})


def test_read_cluster_conf_argument_given_twice_is_refused() -> None:
    """Which of the two counts must not depend on anything."""
    with pytest.raises(ClusterConfError, match=r"spark\.broadsheet\.app\.x: expected only one"):
        read_cluster_conf({"spark.broadsheet.app.x": "1", "spark.broadsheet.secret.app.x": "2"})


def test_cluster_conf_shows_no_secret() -> None:
    """Whatever logs the conf or the arguments logs names; and Spark's own pages hide what is secret by its name."""
    found = read_cluster_conf(
        {
            "spark.broadsheet.etcd.endpoints": "a:1",
            "spark.broadsheet.etcd.user": "u",
            PASSWORD: "hunter2",
            AUTH_KEYS: "hunter2",
            "spark.broadsheet.secret.app.api": "hunter2",
        }
    )

    assert "hunter2" not in f"{found!r} {found.arguments!r} {found.etcd!r}"
    assert repr(found.arguments) == "Arguments(api)"
    for name in (PASSWORD, AUTH_KEYS, BROKER_AUTH_KEYS, "spark.broadsheet.secret.app.api"):
        assert SPARK_REDACTS.search(name), name


def test_arguments_missing_one_says_which_setting_gives_it() -> None:
    """The error comes up on an executor, far from who set the conf."""
    arguments = read_cluster_conf({"spark.broadsheet.app.a": "1"}).arguments

    with pytest.raises(ArgumentMissingError, match=r"^the application was not given 'b': set .*a$"):
        arguments["b"]
    assert arguments.get("b") is None
