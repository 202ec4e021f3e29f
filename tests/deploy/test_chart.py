"""The Helm chart: rendered, validated by Kubernetes' schemas, and its commands read by the programs that get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from broadsheet.broker.__main__ import main as broker_command
from broadsheet.cli.serve.serve import serve
from tests.deploy.charts import (
    ALL,
    CHART,
    ELSEWHERE,
    GAZETTE,
    GAZETTE_TLS,
    LEAST,
    NAMESPACE,
    RELEASE,
    Values,
    render,
)
from tests.support.documents import REPOSITORY

KUBERNETES = ("1.32", "1.33", "1.34")
OWN_KINDS = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}
"""Kinds that operators bring along, of which Kubernetes has no schema."""
NAME = f"{RELEASE}-broadsheet"
EVERY = [
    pytest.param(LEAST, id="least"),
    pytest.param(ALL, id="all"),
    pytest.param(GAZETTE, id="gazette"),
    pytest.param(GAZETTE_TLS, id="gazette-tls"),
    pytest.param(ELSEWHERE, id="elsewhere"),
]


@pytest.mark.parametrize("values", EVERY)
@pytest.mark.parametrize("version", KUBERNETES)
def test_objects_follow_the_schemas_of_kubernetes(values: Values, version: str) -> None:
    """A misspelt field is ignored by a cluster without a word, so unknown ones are refused here."""
    for each in render(values).objects:
        if each["kind"] not in OWN_KINDS:
            kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("values", EVERY)
@pytest.mark.parametrize("version", KUBERNETES)
def test_chart_passes_helms_lint(values: Values, version: str) -> None:
    """As `helm lint --strict --kube-version` would say, but for the picture that the chart does not have."""
    report = helm_python.lint(CHART, dict(values), strict=True, kube_version=f"v{version}.0")
    assert [each for each in report["messages"] if each["error"] != "icon is recommended"] == [], (
        report
    )


@pytest.mark.parametrize("values", EVERY)
def test_commands_are_understood_by_the_programs_that_get_them(
    values: Values, tmp_path: Path
) -> None:
    """An option that was renamed would let every pod of an upgrade fail at its start."""
    programs = {
        ("shardctl", "serve"): serve,
        ("python", "-m", "broadsheet.broker"): broker_command,
    }
    seen = 0
    for container in render(values).containers:
        words = [_here(word, container, tmp_path) for word in container["args"]]
        for begin, command in programs.items():
            if tuple(words[: len(begin)]) == begin:
                context = command.make_context(begin[-1], words[len(begin) :])
                assert not context.args
                seen += 1
    assert seen == len([each for each in render(values).containers if "command" not in each])


def _here(word: str, container: dict[str, Any], tmp_path: Path) -> str:
    """Return an argument with its variables filled in, and files of Secrets below a directory of the test."""
    for variable in container.get("env", ()):
        word = word.replace(f"$({variable['name']})", "orders-broadsheet-0")
    assert "$(" not in word, f"a variable that the container has not: {word}"
    option, separator, value = word.partition("=")
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    if separator and value.startswith("/etc/broadsheet/"):
        assert str(Path(value).parent) in mounts, word
        file = tmp_path / value.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        return f"{option}={file}"
    return word


@pytest.mark.parametrize("values", EVERY)
def test_pods_have_no_more_rights_than_they_need(values: Values) -> None:
    """No root, nothing written outside volumes, no privilege, no token of the cluster's API: `restricted`, and more."""
    rendered = render(values)
    for workload in rendered.of_kind("StatefulSet"):
        pod = workload["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in rendered.containers:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
        # Secrets come as files, because child processes inherit an environment. Gazette takes its keys in no other way.
        secrets = [
            each["name"]
            for each in container.get("env", ())
            if any(word in each["name"] for word in ("KEY", "PASS", "TOKEN"))
        ]
        assert secrets == (["BROKER_AUTH_KEYS"] if container["args"][0] == "serve" else [])


@pytest.mark.parametrize(("values", "scheme"), [(LEAST, "HTTP"), (ALL, "HTTPS")])
def test_probes_kill_neither_a_broker_that_reads_nor_a_member_that_leaves(
    values: Values, scheme: str
) -> None:
    """The admin port answers from before a broker reads its data, which may take longer than any probe waits, until a
    member has handed its shards over.
    """
    for container in render(values).containers:
        assert {"name": "admin", "containerPort": 9090} in container["ports"]
        assert "--admin-port=9090" in container["args"]
        for name in ("startupProbe", "livenessProbe"):
            alive = {"port": "admin", "path": "/livez", "scheme": scheme}
            assert container[name]["httpGet"] == alive
        ready = container["readinessProbe"]
        asked = ready["grpc"] if scheme == "HTTP" else ready["httpGet"]
        assert asked == (
            {"port": container["ports"][0]["containerPort"]}
            if scheme == "HTTP"
            else {"port": "admin", "path": "/readyz", "scheme": scheme}
        )
        assert container["startupProbe"]["failureThreshold"] >= 60


def test_pod_is_given_more_time_than_its_drain_takes() -> None:
    """A pod that is killed in its drain leaves its shards to the lease's end."""
    values = {**LEAST, "members": {**LEAST["members"], "drainSeconds": 77}}
    members = render(values).named("StatefulSet", NAME)["spec"]["template"]["spec"]
    assert "--drain-seconds=77" in members["containers"][0]["args"]
    assert members["terminationGracePeriodSeconds"] == 107


def test_zones_become_failure_domains_on_nodes_of_that_zone() -> None:
    """A standby is worth nothing in its primary's zone: what members call their zone must be where they are."""
    rendered = render(ALL)
    for name, topology in {"a": "eu-west-1a", "b": "eu-west-1b"}.items():
        spec = rendered.named("StatefulSet", f"{NAME}-{name}")["spec"]
        pod = spec["template"]["spec"]
        assert f"--zone={name}" in pod["containers"][0]["args"]
        assert pod["nodeSelector"]["topology.kubernetes.io/zone"] == topology
        # Each set selects its own pods alone, or two would fight for them.
        assert spec["selector"]["matchLabels"]["broadsheet.dev/zone"] == name
        assert (
            spec["selector"]["matchLabels"].items()
            <= spec["template"]["metadata"]["labels"].items()
        )


def test_zone_is_upgraded_from_a_pod_on() -> None:
    """Each zone is a StatefulSet, and all of them roll at one time unless the values hold some back."""
    zones = [{"name": "a", "replicas": 2}, {"name": "b", "replicas": 2, "partition": 2}]
    rendered = render({**LEAST, "members": {**LEAST["members"], "zones": zones}})
    assert "updateStrategy" not in rendered.named("StatefulSet", f"{NAME}-a")["spec"]
    held = rendered.named("StatefulSet", f"{NAME}-b")["spec"]["updateStrategy"]
    assert held == {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}


def test_pods_run_where_and_as_whom_the_values_say() -> None:
    """A tainted pool of nodes, and an identity of the cloud for the object store, are of every component's pods."""
    taint = [{"key": "streams", "operator": "Exists"}]
    placed = {"serviceAccountName": "s3", "nodeSelector": {"disk": "nvme"}, "tolerations": taint}
    members = {**LEAST["members"], **placed}
    embedded = render({**LEAST, "members": members, "broker": {"embedded": placed}})
    gazette = {**GAZETTE["broker"], "gazette": {**GAZETTE["broker"]["gazette"], **placed}}
    for rendered in (embedded, render({**GAZETTE, "members": members, "broker": gazette})):
        for workload in rendered.of_kind("StatefulSet"):
            assert placed.items() <= workload["spec"]["template"]["spec"].items()


def test_application_and_broker_may_have_secrets_as_files() -> None:
    """An environment is inherited by child processes and shown by `kubectl describe`; a file is neither."""
    volumes: dict[str, list[object]] = {
        "volumes": [{"name": "database", "secret": {"secretName": "database"}}],
        "volumeMounts": [{"name": "database", "mountPath": "/etc/database", "readOnly": True}],
    }
    values = {
        **LEAST,
        "members": {**LEAST["members"], **volumes},
        "broker": {"embedded": volumes},
    }
    for workload in render(values).of_kind("StatefulSet"):
        pod = workload["spec"]["template"]["spec"]
        assert volumes["volumes"][0] in pod["volumes"]
        assert volumes["volumeMounts"][0] in pod["containers"][0]["volumeMounts"]


def test_members_call_each_other_by_names_that_are_resolved_before_they_are_ready() -> None:
    """A member announces its address when it joins, and is called there before its readiness probe has passed."""
    rendered = render(LEAST)
    members = rendered.named("StatefulSet", NAME)["spec"]
    service = rendered.named("Service", members["serviceName"])
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    host = f"--host=$(CONSUMER_ID).{members['serviceName']}.{NAMESPACE}.svc"
    assert host in members["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize(
    ("values", "address", "keys"),
    [
        (LEAST, f"http://{NAME}-broker.{NAMESPACE}.svc:8081", "auth"),
        (ALL, f"https://{NAME}-broker.{NAMESPACE}.svc:8081", "auth"),
        (GAZETTE, f"http://{NAME}-gazette.{NAMESPACE}.svc:8081", "auth"),
        (GAZETTE_TLS, f"https://{NAME}-gazette.{NAMESPACE}.svc:8081", "auth"),
        (ELSEWHERE, "http://brokers.journals:8080", "broker-auth"),
    ],
)
def test_members_are_given_the_brokers_that_the_values_say(
    values: Values, address: str, keys: str
) -> None:
    """The address is of a Service that the chart makes, on a port that it opens, with the keys of those brokers."""
    rendered = render(values)
    (first, *_) = [each for each in rendered.containers if each["name"] == "member"]
    assert f"--broker={address}" in first["args"]
    assert f"--broker-auth-keys-file=/etc/broadsheet/{keys}/keys" in first["args"]
    if address.endswith(".svc:8081"):
        name = address.partition("://")[2].split(".")[0]
        service = rendered.named("Service", name)
        selected = service["spec"]["selector"]
        (pods,) = [
            each["spec"]["template"]
            for each in rendered.of_kind("StatefulSet")
            if selected.items() <= each["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert pods["spec"]["containers"][0]["ports"][0] == {"name": "grpc", "containerPort": 8081}


def test_network_policy_admits_the_release_and_named_clients_alone() -> None:
    """Each port has those who may reach it; the admin port, which asks for no token, only those that scrape it."""
    policies = {
        each["metadata"]["name"]: each["spec"] for each in render(ALL).of_kind("NetworkPolicy")
    }
    assert set(policies) == {f"{NAME}-members", f"{NAME}-broker"}
    calls, admin = policies[f"{NAME}-members"]["ingress"]
    assert calls["ports"] == [{"port": 8080, "protocol": "TCP"}]
    assert calls["from"][1:] == ALL["networkPolicy"]["clients"]
    assert calls["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == RELEASE
    assert admin["ports"] == [{"port": 9090, "protocol": "TCP"}]
    assert admin["from"] == ALL["networkPolicy"]["monitoring"]
    off = render({**LEAST, "networkPolicy": {"enabled": False}})
    assert off.of_kind("NetworkPolicy") == []


def test_monitoring_scrapes_every_component_and_has_the_alerts_of_the_docs() -> None:
    """The alerts look for jobs whose names begin with `broadsheet`."""
    rendered = render(ALL)
    monitor = rendered.named("ServiceMonitor", NAME)["spec"]
    selector = monitor["selector"]["matchExpressions"][0]
    components = {
        each["metadata"]["labels"].get("app.kubernetes.io/component")
        for each in rendered.of_kind("Service")
        if any(port["name"] == "admin" for port in each["spec"]["ports"])
    }
    assert components == set(selector["values"])
    (endpoint,) = monitor["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["relabelings"][0]["replacement"].startswith("broadsheet")
    documented = yaml.safe_load((REPOSITORY / "docs" / "operations" / "alerts.yaml").read_text())
    assert rendered.named("PrometheusRule", NAME)["spec"] == documented


def test_autoscaler_moves_one_member_at_a_time_and_owns_their_number() -> None:
    """A StatefulSet that also names a number would undo the autoscaler's at each upgrade."""
    rendered = render(ALL)
    for scaled in rendered.of_kind("ScaledObject"):
        target = rendered.named("StatefulSet", scaled["spec"]["scaleTargetRef"]["name"])
        assert "replicas" not in target["spec"]
        behaviour = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert {way["policies"][0]["value"] for way in behaviour.values()} == {1}
        assert behaviour["scaleDown"]["stabilizationWindowSeconds"] >= 300
    assert len(rendered.of_kind("ScaledObject")) == 2
    for other in render(LEAST).of_kind("StatefulSet"):
        assert other["spec"]["replicas"] >= 1


def test_autoscaler_follows_the_wanted_members_and_keeps_them_if_nobody_tells() -> None:
    """KEDA reads an absent metric as 0 unless it is told otherwise, and would stop nearly all members without a leader.
    The members' own bounds are those of all zones together.
    """
    rendered = render(ALL)
    scaled = rendered.of_kind("ScaledObject")
    for each in scaled:
        (trigger,) = each["spec"]["triggers"]
        told = trigger["metadata"]
        assert "broadsheet_wanted_members" in told["query"]
        assert told["query"].endswith(f"/ {len(scaled)})")
        assert (trigger["metricType"], told["threshold"]) == ("AverageValue", "1")
        assert told["ignoreNullValues"] == "false"
        target = rendered.named("StatefulSet", each["spec"]["scaleTargetRef"]["name"])
        args = target["spec"]["template"]["spec"]["containers"][0]["args"]
        assert "--scaling=act" in args
        assert f"--members-min={each['spec']['minReplicaCount'] * len(scaled)}" in args
        assert f"--members-max={each['spec']['maxReplicaCount'] * len(scaled)}" in args


def test_observing_autoscaler_changes_nothing() -> None:
    """Members log what they would do; who starts them is as without."""
    rendered = render({**LEAST, "autoscaling": {"enabled": True, "mode": "observe"}})
    assert not rendered.of_kind("ScaledObject")
    members = rendered.named("StatefulSet", NAME)
    assert members["spec"]["replicas"] >= 1
    args = members["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--scaling=observe" in args


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"etcd": {"endpoints": []}}, "/etcd/endpoints"),
        ({"etcd": {"endpoints": ["http://etcd:2379"]}}, "/etcd/endpoints/0"),
        ({"members": {"application": "my.orders"}}, "/members/application"),
        ({"members": {**LEAST["members"], "replica": 3}}, "replica"),
        ({"auth": {"keysSecret": ""}}, "auth.keysSecret: expected"),
        ({"tls": {"verifyClients": True}}, "tls.verifyClients: expected tls.secret"),
        ({"broker": {"embedded": {"enabled": False}}}, "expected exactly one of address"),
        ({"broker": {"address": "http://b:1"}}, "got broker.address, broker.embedded.enabled"),
        (
            {"broker": {"embedded": {"enabled": False}, "gazette": {"enabled": True}}},
            "broker.gazette.image: expected",
        ),
        (
            {"broker": GAZETTE["broker"], "etcd": ALL["etcd"]},
            "so etcd.userSecret must be empty",
        ),
        ({"autoscaling": {"enabled": True}}, "autoscaling.prometheusAddress: expected"),
    ],
)
def test_wrong_values_are_refused_by_name(change: Values, told: str) -> None:
    """Before anything is installed, with the value's name and what was expected."""
    with pytest.raises(helm_python.HelmError) as refused:
        render({**LEAST, **change})
    assert told in str(refused.value)


def test_every_value_is_explained() -> None:
    """Who sets a value reads its name in the chart's README."""
    readme = (REPOSITORY / "deploy" / "README.md").read_text()
    groups = yaml.safe_load((CHART / "values.yaml").read_text())
    missing = [
        f"{group}.{name}"
        for group, values in groups.items()
        for name in values
        if f"`{group}.{name}" not in readme
    ]
    assert missing == []


def test_gazette_brokers_share_the_group_key_and_leave_in_time() -> None:
    """Tokens that members make are verified by the brokers, and a broker that leaves can hand its journals over."""
    rendered = render(GAZETTE)
    spec = rendered.named("StatefulSet", f"{NAME}-gazette")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    keys = {each["name"]: each.get("valueFrom") for each in container["env"]}
    assert keys["BROKER_AUTH_KEYS"] == {"secretKeyRef": {"name": "keys", "key": "keys"}}
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > 300
    assert rendered.named("PodDisruptionBudget", f"{NAME}-gazette")
