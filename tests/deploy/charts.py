"""Rendered charts: what `helm template` prints, as objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml
from helm_python import Chart

from tests.support.documents import REPOSITORY

CHART: Final = REPOSITORY / "deploy" / "chart"
RELEASE: Final = "orders"
NAMESPACE: Final = "prod"

# `Any` in this module: a Kubernetes object is whatever its schema says.
Values = Mapping[str, Any]

LEAST: Final[Values] = {
    "etcd": {"endpoints": ["etcd-0.etcd:2379"]},
    "auth": {"keysSecret": "keys"},
    "members": {"application": "my.orders:create"},
}
"""The fewest values that make sense: two members and an embedded broker, with tokens."""

ALL: Final[Values] = {
    "image": {"repository": "registry.test/orders", "tag": "7", "pullSecrets": [{"name": "pull"}]},
    "etcd": {"endpoints": ["etcd-0:2379", "etcd-1:2379"], "userSecret": "u", "tlsSecret": "t"},
    "auth": {"keysSecret": "keys"},
    "tls": {"secret": "certificates", "verifyClients": True},
    "members": {
        "application": "my.orders:create",
        "root": "/apps/orders",
        "zones": [
            {"name": "a", "replicas": 2, "topology": "eu-west-1a"},
            {"name": "b", "replicas": 1, "topology": "eu-west-1b", "partition": 1},
        ],
        "serviceAccountName": "orders",
        "volumes": [{"name": "database", "secret": {"secretName": "database"}}],
        "volumeMounts": [{"name": "database", "mountPath": "/etc/database", "readOnly": True}],
        "extraArgs": ["--stall-seconds=60"],
        "env": [{"name": "COLOUR", "value": "blue"}],
        "envFrom": [{"secretRef": {"name": "database"}}],
        "state": {"persistent": True, "storageClass": "fast"},
        "podLabels": {"team": "payments"},
        "podAnnotations": {"note": "kept"},
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [{"key": "streams", "operator": "Exists"}],
    },
    "broker": {
        "embedded": {
            "cloudStores": ["s3://bucket/fragments/"],
            "storageClass": "fast",
            "volumes": [{"name": "gcs", "secret": {"secretName": "gcs"}}],
            "volumeMounts": [{"name": "gcs", "mountPath": "/etc/gcs", "readOnly": True}],
            "serviceAccountName": "broker",
            "nodeSelector": {"disk": "nvme"},
            "tolerations": [{"key": "streams", "operator": "Exists"}],
            "extraArgs": ["--retention"],
            "env": [{"name": "AWS_REGION", "value": "eu-west-1"}],
            "envFrom": [{"secretRef": {"name": "bucket"}}],
        }
    },
    "service": {"annotations": {"note": "kept"}},
    "networkPolicy": {
        "clients": [{"namespaceSelector": {"matchLabels": {"team": "payments"}}}],
        "monitoring": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
    },
    "monitoring": {"serviceMonitor": True, "alerts": True, "labels": {"release": "prometheus"}},
    "autoscaling": {"enabled": True, "prometheusAddress": "http://prometheus:9090"},
}
"""Every value that renders something of its own."""

GAZETTE: Final[Values] = {
    **LEAST,
    "broker": {
        "embedded": {"enabled": False},
        "gazette": {"enabled": True, "image": "registry.test/gazette:1"},
    },
}
"""Gazette's brokers in place of the embedded one."""

GAZETTE_TLS: Final[Values] = {
    **GAZETTE,
    "etcd": {**ALL["etcd"], "userSecret": ""},
    "tls": {"secret": "certificates", "verifyClients": True},
}
"""The same with certificates everywhere."""

ELSEWHERE: Final[Values] = {
    **LEAST,
    "broker": {
        "address": "http://brokers.journals:8080",
        "keysSecret": "broker-keys",
        "embedded": {"enabled": False},
    },
}
"""Brokers that another team runs."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The objects of one rendering."""

    objects: list[dict[str, Any]]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the objects of a kind, in the chart's order."""
        return [each for each in self.objects if each["kind"] == kind]

    def named(self, kind: str, name: str) -> dict[str, Any]:
        """Return the one object of a kind and name."""
        (found,) = [each for each in self.of_kind(kind) if each["metadata"]["name"] == name]
        return found

    @property
    def containers(self) -> list[dict[str, Any]]:
        """The containers of all pods."""
        return [
            container
            for workload in self.of_kind("StatefulSet")
            for container in workload["spec"]["template"]["spec"]["containers"]
        ]


def render(values: Values) -> Rendered:
    """Return the chart's objects with these values.

    Raises:
        helm_python.HelmError: a value is missing or wrong; the error names it.
    """
    with Chart.load(CHART) as chart:
        files = chart.render(dict(values), name=RELEASE, namespace=NAMESPACE)
    return Rendered(
        [
            document
            for path, text in files.items()
            if path.endswith(".yaml")
            for document in yaml.safe_load_all(text)
            if document
        ]
    )
