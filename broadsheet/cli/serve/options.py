"""Options of `shardctl serve`, and the configuration of a member that they make."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import uuid4

import click

from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.policy import (
    SETTLE_SECONDS,
    SETTLE_SECONDS_MAX,
    AllocationPolicy,
    Balance,
    MoveLogPolicy,
    Objective,
    PrimaryPolicy,
    TransitionPolicy,
)
from broadsheet.cli.errors import option_values
from broadsheet.cli.etcd_options import ETCD_OPTIONS, EtcdCredentials
from broadsheet.cli.fragment_options import FRAGMENTS
from broadsheet.cli.numbers import PORT
from broadsheet.cli.options import Group, argument, command_options, flag, option
from broadsheet.cli.serve.shard_options import OPTION_OF_LIMIT, SHARD_OPTIONS
from broadsheet.consumer.elastic.scaling_policy import ScalingMode, ScalingPolicy
from broadsheet.consumer.member.accrual import SUSPICION_PHI
from broadsheet.consumer.member.config import MemberConfig
from broadsheet.consumer.rpc.call_limits import CallBounds
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.journals.direct_fragments import DirectFragments
from broadsheet.runtime.formats import LEVEL
from broadsheet.runtime.logs import LOG_LEVELS
from broadsheet.security.auth import TrustConfig, keys_from, trust_from
from broadsheet.security.endpoints import BROKER_ADDRESS_DEFAULT
from broadsheet.security.tls import TlsConfig
from broadsheet.security.tls_options import server_tls_options, take_tls
from broadsheet.serving.places import option_of
from broadsheet.serving.tracing import traces_option

_DAY_SECONDS = 86_400.0
_MOVE_LOG = MoveLogPolicy()
_SCALING = ScalingPolicy()
_OPTION_OF_FIELD: Final = {
    **{
        name: option_of(name)
        for name in (
            *("root", "zone", "suffix", "host", "port", "admin_port", "capacity", "jwks"),
            *("suspicion_phi", "auth_keys", "broker_auth_keys", "format_level"),
        )
    },
    **{f"calls.{each.name}": option_of(each.name) for each in fields(CallBounds)},
    **{f"shards.{name}": name_of_option for name, name_of_option in OPTION_OF_LIMIT.items()},
    "broker_address": "--broker",
    "lease_stores": "--lease-store",
    "metrics_push_url": "--metrics-push",
    "shard_limit": "--limit",
    "hot_standbys_max": "--max-hot-standbys",
    "lease_ttl_seconds": "--lease-ttl",
    "drain_seconds_max": "--drain-seconds",
    "drain_alone_seconds_max": "--drain-alone-seconds",
    "drain_covered_seconds_max": "--drain-covered-seconds",
    "revoke_predecessors_prefix": "--replaces",
    "trust.identities_file": "--identities-file",
    "issuer": "--jwks-issuer",
    "audience": "--jwks-audience",
    "allocation.primaries.hand_over_above_spread": "--hand-over-spread",
    "allocation.transition.moves_max": "--moves-max",
    "allocation.transition.moves_per_member_max": "--moves-per-member-max",
    "allocation.transition.settle_seconds": "--settle",
    "allocation.transition.settle_seconds_max": "--settle-max",
    "allocation.transition.drain_patience_seconds": "--drain-patience",
    "allocation.move_log.entries_max": "--move-log-entries",
    "allocation.move_log.age_seconds_max": "--move-log-days",
    **{
        f"scaling.{name}": option_of(name)
        for name in ("members_min", "members_max", "member_cores", "family_shards_max")
    },
    **ETCD_OPTIONS,
    "etcd.request_timeout_seconds": "--etcd-request-timeout",
    "etcd.connect_timeout_seconds": "--etcd-connect-timeout",
    "etcd.keep_alive_timeout_seconds": "--etcd-probe-timeout",
}
"""Names of options by the field of `MemberConfig` that each sets, for errors."""
_KEYS_FILE: Final = click.Path(path_type=Path)
_TRUST_NAMES: Final = ("jwks", "jwks_issuer", "jwks_audience", "identities_file")


_environment_option = partial(click.option, show_envvar=True)


def _trust(values: dict[str, Any]) -> TrustConfig:
    with option_values(_OPTION_OF_FIELD):
        return trust_from(values)


_TRUST: Final = Group(
    (
        _environment_option(
            "--jwks",
            envvar="AUTH_JWKS",
            help="Public keys of those who sign tokens: a file, or https://…",
        ),
        _environment_option(
            "--jwks-issuer", envvar="AUTH_JWKS_ISSUER", help="Their tokens' iss; any if absent."
        ),
        _environment_option(
            "--jwks-audience", envvar="AUTH_JWKS_AUDIENCE", help="Their tokens' aud; any if absent."
        ),
        _environment_option(
            "--identities-file",
            envvar="AUTH_IDENTITIES_FILE",
            type=click.Path(path_type=Path),
            help="YAML file: what the certificates of clients permit; read again when it changes.",
        ),
    ),
    lambda values: _trust({name: values.pop(name) for name in _TRUST_NAMES}),
)
_TLS: Final = Group((server_tls_options,), take_tls)
_CALLS: Final = Group(
    [
        _environment_option(
            option_of(each.name),
            envvar=f"CONSUMER_{each.name.upper()}",
            type=click.IntRange(min=each.metadata["least"]),
            default=each.default,
            help=each.metadata["help"],
        )
        for each in fields(CallBounds)
    ],
    lambda values: CallBounds(**{each.name: values.pop(each.name) for each in fields(CallBounds)}),
)


@command_options
class EtcdOptions:
    """Addresses of etcd, and the longest time of a request."""

    endpoints: str = option(
        "Comma-separated endpoints.", "--etcd", env="ETCD_ADDRESS", default="127.0.0.1:2379"
    )
    credentials: EtcdCredentials
    request_timeout: float | None = option(
        "Seconds that a call of etcd may take, with repetitions; half of --lease-ttl if absent, at least 5.",
        "--etcd-request-timeout",
        type=float,
    )
    connect_timeout: float | None = option(
        "Seconds that an attempt to connect to etcd may take; half of --lease-ttl if absent, at least 1.",
        "--etcd-connect-timeout",
        type=float,
    )
    probe_timeout: float | None = option(
        "Seconds that a connection to etcd may be silent when probed; a quarter of --lease-ttl if absent, at least 3.",
        "--etcd-probe-timeout",
        type=float,
    )

    def config(self) -> EtcdConfig:
        """Return the configuration of the client."""
        return replace(
            self.credentials.config(self.endpoints),
            request_timeout_seconds=self.request_timeout,
            connect_timeout_seconds=self.connect_timeout,
            keep_alive_timeout_seconds=self.probe_timeout,
        )


@command_options
class PolicyOptions:
    """Rules by which the leader places shards."""

    balance: str = option(
        "How even members' loads should be.",
        type=click.Choice([each.value for each in Balance]),
        default=Balance.TWO_SIDED.value,
    )
    settle: float = option(
        "Seconds without a change of membership before shards move for balance alone; 0: at once.",
        default=SETTLE_SECONDS,
    )
    settle_max: float = option(
        "Seconds that balance waits for that at most; 0: without a bound.",
        default=SETTLE_SECONDS_MAX,
    )
    drain_patience: float = option(
        "Seconds that a drain may wait for a member that replaces the leaving one.", default=0.0
    )
    moves_max: int = option("Replicas that catch up at a time; 0: no limit.", default=0)
    moves_per_member_max: int = option("The same for one member.", default=0)
    hand_over_spread: int = option(
        "Hand primaries over when one member has so many more than another; 0: never.", default=0
    )
    move_log_entries: int = option(
        "Transactions that the move log keeps; 0: none.", default=_MOVE_LOG.entries_max
    )
    move_log_days: float = option(
        "How long it keeps them.",
        type=click.FloatRange(min=0),
        default=_MOVE_LOG.age_seconds_max / _DAY_SECONDS,
    )

    def policy(self) -> AllocationPolicy:
        """Return the policy of the leader, whose bounds `MemberConfig` checks."""
        return AllocationPolicy(
            objective=Objective(balance=Balance(self.balance)),
            primaries=PrimaryPolicy(hand_over_above_spread=self.hand_over_spread),
            transition=TransitionPolicy(
                moves_per_member_max=self.moves_per_member_max,
                moves_max=self.moves_max,
                settle_seconds=self.settle,
                settle_seconds_max=self.settle_max,
                drain_patience_seconds=self.drain_patience,
            ),
            move_log=MoveLogPolicy(
                entries_max=self.move_log_entries, age_seconds_max=self.move_log_days * _DAY_SECONDS
            ),
        )


@command_options
class ScalingOptions:
    """Rules by which the leader splits shards, and tells how many members are wanted."""

    mode: str = option(
        "Whether the leader splits busy shards and tells how many members are wanted; observe only logs what it would.",
        "--scaling",
        env="CONSUMER_SCALING",
        type=click.Choice([each.value for each in ScalingMode]),
        default=ScalingMode.OFF.value,
    )
    members_min: int = option("Least members that are wanted.", default=_SCALING.members_min)
    members_max: int = option(
        "Most members that are wanted; 0: their number is not decided.",
        default=_SCALING.members_max,
    )
    member_cores: float = option(
        "Cores that the shards of one member can keep busy: 1, if their callbacks are Python.",
        default=_SCALING.member_cores,
    )
    family_shards_max: int = option(
        "Most shards into which one may be split; 1: none is split.",
        default=_SCALING.family_shards_max,
    )

    def policy(self) -> ScalingPolicy:
        """Return the policy of the leader, whose bounds `MemberConfig` checks."""
        return ScalingPolicy(
            mode=ScalingMode(self.mode),
            members_min=self.members_min,
            members_max=self.members_max,
            member_cores=self.member_cores,
            family_shards_max=self.family_shards_max,
        )


@command_options
class ServeOptions:
    """Options of `serve`."""

    app: str = argument()
    root: str | None = option(
        "Root of the group's keys in etcd; /broadsheet/APP, with a dot for the colon, if absent.",
        env="CONSUMER_ROOT",
    )
    etcd: EtcdOptions
    broker: str = option(
        "Any journal broker.", env="BROKER_ADDRESS", default=BROKER_ADDRESS_DEFAULT
    )
    zone: str = option("Failure domain of this process.", env="CONSUMER_ZONE", default="local")
    suffix: str | None = option("Unique in the zone; a random one if absent.", env="CONSUMER_ID")
    replaces: str | None = option(
        "Revoke the leases of earlier lives of ours: members of this zone with this suffix, or one that goes on "
        "after it with a separator (m-1: m-1 and m-1-2, not m-10; m-: all that start so)."
    )
    host: str = option("Where others reach this process.", env="CONSUMER_HOST", default="127.0.0.1")
    port: int = option("0 lets the system choose.", env="CONSUMER_PORT", default=8080)
    bind_host: str = option(
        "Where to listen; --host if absent.", env="CONSUMER_BIND_HOST", default=""
    )
    limit: int = option("Most replicas this process takes.", env="CONSUMER_LIMIT", default=32)
    capacity: int = option(
        "Load this process can carry beside the others, such as its CPUs; 0: its --limit.",
        env="CONSUMER_CAPACITY",
        default=0,
    )
    state_dir: str = option(
        "Where shards with a recovery log keep their files; the system's temporary directory if absent.",
        env="CONSUMER_STATE_DIR",
        default="",
        show_default=False,
    )
    max_hot_standbys: int = option("Bound on every shard's standbys.", default=3)
    format_level: int = option(
        "Highest level of stored formats that this member admits; a lower one keeps the way back to the earlier "
        "release open.",
        default=LEVEL,
    )
    lease_ttl: float = option("Seconds until a silent member is replaced.", default=20.0)
    drain_seconds: float = option(
        "How long a leaving member waits to hand its shards over; 0: it hands nothing over.",
        default=300.0,
    )
    drain_covered_seconds: float = option(
        "The same while each shard left has a ready replica elsewhere; 0: it leaves them at once.",
        default=30.0,
    )
    drain_alone_seconds: float = option(
        "The same while no other member stays; 0: it does not wait for one to join.", default=5.0
    )
    policy: PolicyOptions
    scaling: ScalingOptions
    auth_keys: str = option(
        "Base64 keys of the members' tokens.",
        env="AUTH_KEYS",
        is_secret=True,
        default="",
        show_default=False,
    )
    auth_keys_file: Path | None = option(
        "File with such keys, in place of --auth-keys; read again when it changes.",
        env="AUTH_KEYS_FILE",
        type=_KEYS_FILE,
    )
    broker_auth_keys: str = option(
        "Base64 keys of the brokers' tokens.",
        env="BROKER_AUTH_KEYS",
        is_secret=True,
        default="",
        show_default=False,
    )
    broker_auth_keys_file: Path | None = option(
        "File with such keys, in place of --broker-auth-keys; read again when it changes.",
        env="BROKER_AUTH_KEYS_FILE",
        type=_KEYS_FILE,
    )
    trust: Annotated[TrustConfig, _TRUST]
    allow_unauthenticated: bool = flag(
        "Serve other machines without --auth-keys or --tls-client-ca."
    )
    tls: Annotated[TlsConfig | None, _TLS]
    fragments: Annotated[DirectFragments, FRAGMENTS]
    shards: Annotated[ShardConfig, SHARD_OPTIONS]
    watch_peers: bool = option(
        "Whether to end the leases of members whose process is found to have ended, or fallen silent.",
        "--watch-peers/--no-watch-peers",
        env="CONSUMER_WATCH_PEERS",
        default=True,
    )
    suspicion_phi: float = option(
        "How sure to be that a silent member is gone before others are asked; 0: wait for its lease.",
        env="CONSUMER_SUSPICION_PHI",
        default=SUSPICION_PHI,
    )
    calls: Annotated[CallBounds, _CALLS]
    admin_port: int | None = option(
        "Serve health, metrics and debugging over HTTP here, where gRPC listens. 0 lets the system choose.",
        env="CONSUMER_ADMIN_PORT",
        type=PORT,
    )
    lease_stores: tuple[str, ...] = option(
        "Show this store's leases on the live page, read only: an address as of shardctl leases. May be repeated.",
        "--lease-store",
        env="CONSUMER_LEASE_STORES",
        multiple=True,
        metavar="STORE",
    )
    metrics_push: str = option(
        "URL of a Pushgateway that gets the metrics every 15 s, where they cannot be scraped.",
        env="CONSUMER_METRICS_PUSH",
        is_secret=True,
        default="",
        show_default=False,
    )
    traces: Annotated[bool, traces_option]
    metrics_port: int | None = option(
        "Serve Prometheus metrics alone here, with those of the application.", type=PORT
    )
    metrics_host: str = option(
        "Where to serve metrics; where gRPC listens if absent.", default="", show_default=False
    )
    log_level: str = option(
        "Least level that is logged.", type=click.Choice(LOG_LEVELS), default="info"
    )

    def member_config(self) -> MemberConfig:
        """Return the configuration of the member.

        Raises:
            WrongValueError: an option is out of its bounds, or lacks another; the error names it.
        """
        with option_values(_OPTION_OF_FIELD):
            config = self._member_config()
            config.require_guarded()
        return config

    def _member_config(self) -> MemberConfig:
        return MemberConfig(
            root=self.root or default_root(self.app),
            zone=self.zone,
            suffix=self.suffix or f"member-{uuid4().hex[:8]}",
            host=self.host,
            port=self.port,
            admin_port=self.admin_port,
            lease_stores=self.lease_stores,
            metrics_push_url=self.metrics_push,
            traces=self.traces,
            bind_host=self.bind_host,
            etcd=self.etcd.config(),
            broker_address=self.broker,
            shard_limit=self.limit,
            capacity=self.capacity,
            hot_standbys_max=self.max_hot_standbys,
            state_dir=self.state_dir,
            format_level=self.format_level,
            lease_ttl_seconds=self.lease_ttl,
            drain_seconds_max=self.drain_seconds,
            drain_covered_seconds_max=self.drain_covered_seconds,
            drain_alone_seconds_max=self.drain_alone_seconds,
            auth_keys=keys_from(self.auth_keys, self.auth_keys_file),
            trust=self.trust,
            allow_unauthenticated=self.allow_unauthenticated,
            tls=self.tls,
            fragments=self.fragments,
            broker_auth_keys=keys_from(self.broker_auth_keys, self.broker_auth_keys_file),
            revoke_predecessors_prefix=self.replaces,
            watch_peers=self.watch_peers,
            suspicion_phi=self.suspicion_phi,
            calls=self.calls,
            shards=self.shards,
            allocation=self.policy.policy(),
            scaling=self.scaling.policy(),
        )


def default_root(app: str) -> str:
    """Return the root of an application's group. It uses the full name, because many factories are called `create`."""
    return f"/broadsheet/{app.replace(':', '.')}"
