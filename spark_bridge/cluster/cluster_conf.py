"""Settings of a `ShardCluster` in Spark's conf, which keep addresses and secrets out of programs.

    spark.broadsheet.etcd.endpoints            comma-separated
    spark.broadsheet.etcd.user, .caFile, .certFile, .keyFile, .serverName
    spark.broadsheet.broker                    http://host:port
    spark.broadsheet.tls.certFile, .keyFile, .caFile, .clientCaFile, .serverName
    spark.broadsheet.zone
    spark.broadsheet.metricsPush               http://host:port of a Pushgateway
    spark.broadsheet.fragments.direct|roots|allowHttp   reading stored fragments without the broker
    spark.broadsheet.auth.keysFile, .brokerKeysFile    files on each machine, in place of the secrets below
    spark.broadsheet.sendApplication           false: executors have the application's modules already
    spark.broadsheet.app.NAME                  the application's argument NAME
    spark.broadsheet.secret.etcd.password
    spark.broadsheet.secret.authKeys, .brokerAuthKeys
    spark.broadsheet.secret.metricsPush        in place of metricsPush, for a URL with a user or a secret
    spark.broadsheet.secret.app.NAME           the same, not to be shown

Spark hides the values of settings with `secret` in their name on its pages and in its event logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.policy import AllocationPolicy
from broadsheet.consumer.elastic.scaling_policy import ScalingPolicy
from broadsheet.consumer.rpc.call_limits import CallBounds
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.journals.direct_fragments import DirectFragments
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.auth import TrustConfig, keys_from
from broadsheet.security.secret_url import SecretUrl
from broadsheet.security.tls import TlsConfig
from broadsheet.spark_bridge.errors import ClusterConfError
from broadsheet.spark_bridge.member.application import Arguments

PREFIX = "spark.broadsheet."
_APP = f"{PREFIX}app."
_AUTH = f"{PREFIX}auth."
_ETCD = f"{PREFIX}etcd."
_TLS = f"{PREFIX}tls."
_SECRET = f"{PREFIX}secret."
_SECRET_APP = f"{_SECRET}app."
ENDPOINTS = f"{_ETCD}endpoints"
USER = f"{_ETCD}user"
CA_FILE = f"{_ETCD}caFile"
CERT_FILE = f"{_ETCD}certFile"
KEY_FILE = f"{_ETCD}keyFile"
SERVER_NAME = f"{_ETCD}serverName"
BROKER = f"{PREFIX}broker"
ZONE = f"{PREFIX}zone"
METRICS_PUSH = f"{PREFIX}metricsPush"
TRACES = f"{PREFIX}traces"
SEND_APPLICATION = f"{PREFIX}sendApplication"
_FRAGMENTS = f"{PREFIX}fragments."
DIRECT_FRAGMENTS = f"{_FRAGMENTS}direct"
FRAGMENT_ROOTS = f"{_FRAGMENTS}roots"
FRAGMENT_HTTP = f"{_FRAGMENTS}allowHttp"
TLS_FIELDS = {
    f"{_TLS}certFile": "cert_file",
    f"{_TLS}keyFile": "key_file",
    f"{_TLS}caFile": "ca_file",
    f"{_TLS}clientCaFile": "client_ca_file",
    f"{_TLS}serverName": "server_name",
}
PASSWORD = f"{_SECRET}etcd.password"
AUTH_KEYS = f"{_SECRET}authKeys"
BROKER_AUTH_KEYS = f"{_SECRET}brokerAuthKeys"
SECRET_METRICS_PUSH = f"{_SECRET}metricsPush"
AUTH_KEYS_FILE = f"{_AUTH}keysFile"
BROKER_AUTH_KEYS_FILE = f"{_AUTH}brokerKeysFile"
_AUTH_FILES = (AUTH_KEYS_FILE, BROKER_AUTH_KEYS_FILE)
_SECRETS = (PASSWORD, AUTH_KEYS, BROKER_AUTH_KEYS, SECRET_METRICS_PUSH)
_KNOWN = frozenset(
    (
        *(ENDPOINTS, USER, CA_FILE, CERT_FILE, KEY_FILE, SERVER_NAME),
        *(DIRECT_FRAGMENTS, FRAGMENT_ROOTS, FRAGMENT_HTTP),
        *TLS_FIELDS,
        *_AUTH_FILES,
        *_SECRETS,
    )
)
_CHECKED_PREFIXES = (_AUTH, _ETCD, _FRAGMENTS, _TLS, _SECRET)
"""Unknown names below these are refused, because a misspelt one would silently turn protection off."""


class MemberSettings(TypedDict, total=False):
    """Settings of every member; see `broadsheet.consumer.member.config.MemberConfig`."""

    bind_host: str
    admin_port: int | None
    metrics_push_url: str | SecretUrl
    lease_stores: tuple[str | SecretUrl, ...]
    traces: bool
    state_dir: str
    shard_limit: int
    capacity: int
    hot_standbys_max: int
    format_level: int
    lease_ttl_seconds: float
    watch_delay_seconds: float
    auth_keys: str
    broker_auth_keys: str
    trust: TrustConfig
    allow_unauthenticated: bool
    tls: TlsConfig | None
    announce_seconds_max: float
    watch_peers: bool
    suspicion_phi: float
    drain_seconds_max: float
    drain_alone_seconds_max: float
    drain_covered_seconds_max: float
    stop_seconds_max: float
    fragments: DirectFragments
    request_bytes_max: int
    calls: CallBounds
    shards: ShardConfig
    allocation: AllocationPolicy
    scaling: ScalingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConf:
    """The cluster's settings in a session's conf; None or empty if not set."""

    etcd: EtcdConfig | None
    broker: str | None
    zone: str | None
    send_application: bool
    settings: MemberSettings
    arguments: Mapping[str, str]

    def __repr__(self) -> str:
        return f"ClusterConf(etcd={self.etcd}, broker={self.broker}, zone={self.zone})"


def read_cluster_conf(conf: Mapping[str, str]) -> ClusterConf:
    """Read a session's conf.

    Raises:
        ClusterConfError: a name is unknown, or a value invalid; the message names it, and shows no secret.
    """
    ours = {name: value for name, value in conf.items() if name.startswith(PREFIX) and value}
    for name in sorted(ours):
        # The names of an application's arguments are the user's choice.
        checked = name.startswith(_CHECKED_PREFIXES) and not name.startswith(_SECRET_APP)
        if checked and name not in _KNOWN:
            raise ClusterConfError(name, f"expected one of {', '.join(sorted(_KNOWN))}")
    settings = MemberSettings()
    if keys := _keys_of(ours, AUTH_KEYS, AUTH_KEYS_FILE):
        settings["auth_keys"] = keys
    if keys := _keys_of(ours, BROKER_AUTH_KEYS, BROKER_AUTH_KEYS_FILE):
        settings["broker_auth_keys"] = keys
    if gateway := _gateway_of(ours):
        settings["metrics_push_url"] = gateway
    if TRACES in ours:
        settings["traces"] = _is_true(ours, TRACES)
    if (tls := _tls_of(ours)) is not None:
        settings["tls"] = tls
    if any(name.startswith(_FRAGMENTS) for name in ours):
        settings["fragments"] = _fragments_of(ours)
    return ClusterConf(
        etcd=_etcd_of(ours),
        broker=ours.get(BROKER),
        zone=ours.get(ZONE),
        send_application=SEND_APPLICATION not in ours or _is_true(ours, SEND_APPLICATION),
        settings=settings,
        arguments=_arguments_of(ours),
    )


def _is_true(ours: Mapping[str, str], name: str) -> bool:
    if ours[name] not in {"true", "false"}:
        raise ClusterConfError(name, "expected true or false")
    return ours[name] == "true"


def _gateway_of(ours: Mapping[str, str]) -> SecretUrl:
    plain, secret = SecretUrl(ours.get(METRICS_PUSH, "")), ours.get(SECRET_METRICS_PUSH, "")
    if plain and secret:
        raise ClusterConfError(METRICS_PUSH, f"expected only one of it and {SECRET_METRICS_PUSH}")
    # Spark shows this setting on its pages, and writes it to its event log.
    if plain.has_secret:
        raise ClusterConfError(
            METRICS_PUSH,
            f"expected http://host:port alone, because Spark shows it: set {SECRET_METRICS_PUSH} in its place",
        )
    return SecretUrl(secret) if secret else plain


def _fragments_of(ours: Mapping[str, str]) -> DirectFragments:
    for name, values in ((DIRECT_FRAGMENTS, ("auto", "off")), (FRAGMENT_HTTP, ("true", "false"))):
        if ours.get(name, values[0]) not in values:
            raise ClusterConfError(name, f"expected {' or '.join(values)}")
    roots = tuple(Path(each.strip()) for each in ours.get(FRAGMENT_ROOTS, "").split(",") if each)
    try:
        return DirectFragments(
            enabled=ours.get(DIRECT_FRAGMENTS) != "off",
            roots=roots,
            allow_http=ours.get(FRAGMENT_HTTP) == "true",
        )
    except ValidationError as error:
        raise ClusterConfError(FRAGMENT_ROOTS, str(error)) from error


def _keys_of(ours: Mapping[str, str], secret: str, file: str) -> str:
    if secret in ours and file in ours:
        raise ClusterConfError(file, f"expected only one of it and {secret}")
    return keys_from(ours.get(secret, ""), Path(ours[file]) if file in ours else None)


def _etcd_of(ours: Mapping[str, str]) -> EtcdConfig | None:
    if ENDPOINTS not in ours:
        alone = sorted(name for name in ours if name.startswith(_ETCD) or name == PASSWORD)
        if alone:
            raise ClusterConfError(alone[0], f"expected {ENDPOINTS} beside it")
        return None
    try:
        return EtcdConfig(
            endpoints=tuple(part.strip() for part in ours[ENDPOINTS].split(",")),
            username=ours.get(USER),
            password=ours.get(PASSWORD),
            ca_file=_path(ours.get(CA_FILE)),
            cert_file=_path(ours.get(CERT_FILE)),
            key_file=_path(ours.get(KEY_FILE)),
            server_name=ours.get(SERVER_NAME),
        )
    except ValidationError as error:
        raise ClusterConfError(f"{_ETCD}*", str(error)) from error


def _tls_of(ours: Mapping[str, str]) -> TlsConfig | None:
    given = {field: ours[name] for name, field in TLS_FIELDS.items() if name in ours}
    if not given:
        return None
    server_name = given.pop("server_name", None)
    files = {field: Path(text) for field, text in given.items()}
    try:
        return TlsConfig(server_name=server_name, **files)
    except ValidationError as error:
        names = {field: name for name, field in TLS_FIELDS.items()}
        raise ClusterConfError(names[error.field_path], error.problem) from error


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _arguments_of(ours: Mapping[str, str]) -> Arguments:
    plain = {name.removeprefix(_APP): ours[name] for name in ours if name.startswith(_APP)}
    secret = {
        name.removeprefix(_SECRET_APP): ours[name] for name in ours if name.startswith(_SECRET_APP)
    }
    if both := sorted(plain.keys() & secret.keys()):
        raise ClusterConfError(f"{_APP}{both[0]}", f"expected only one of it and {_SECRET_APP}…")
    return Arguments(plain | secret)
