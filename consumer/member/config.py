"""Configuration of one member process. Nothing is read from files or the environment: the caller passes values."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum

from broadsheet.allocator.announcement import Predecessors
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.keys import check_root
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.policy import AllocationPolicy
from broadsheet.consumer.elastic.scaling_policy import ScalingPolicy
from broadsheet.consumer.member.accrual import SUSPICION_PHI
from broadsheet.consumer.member.load_report import CAPACITY_MAX
from broadsheet.consumer.rpc.call_limits import CallBounds
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.journals.direct_fragments import DirectFragments
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.formats import LEVEL, FormatLevel
from broadsheet.security.auth import KeyedAuth, TrustConfig, is_keys_file, require_certificates
from broadsheet.security.endpoints import is_loopback, parse_endpoints
from broadsheet.security.secret_url import SecretUrl
from broadsheet.security.tls import TlsConfig
from broadsheet.wire.alphabet import validate_token
from broadsheet.wire.validation_terms import SUFFIX_BYTES, ZONE_BYTES

SHARD_LIMIT_MAX = 1 << 17
"""Gazette's bound of replicas a process."""
LEASE_TTL_SECONDS_MIN = 2.0
"""Etcd counts whole seconds, and a lease is renewed three times within its life."""
PORT_MAX = 65_535

_SHARDS_AT_LEAST = {
    "input_bytes_max": 1,
    "member_input_bytes_max": 1,
    "poison_attempts": 1,
    "producers_bytes_max": 1,
    "intent_bytes_max": 1,
    "publish_bytes_max": 1,
    "restart_delay_seconds": 0.01,  # Without a pause, a shard that fails at once would flood the log.
}
"""Least values of `ShardConfig` that are not 0."""
_SCALING_AT_LEAST = {"members_min": 1, "family_shards_min": 1, "family_shards_max": 1}
"""Least values of `ScalingPolicy` that are not 0."""
_SHARDS_ANY = frozenset({"publish_clock_delta_seconds"})
"""Fields of `ShardConfig` that may be negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """Identity, addresses and limits of a member. Durations are in seconds."""

    root: str
    """Where the cluster keeps its keys in etcd, e.g. `/broadsheet/my-app`. Members with one root share shards."""
    suffix: str
    """Unique within the zone; a restarted process takes a new one, or waits for its old lease to end."""
    zone: str = "local"
    """Failure domain; replicas of a shard are spread over two."""
    host: str = "127.0.0.1"
    """Where others reach this process."""
    port: int = 0
    """0 lets the system choose."""
    bind_host: str = ""
    """Interface to listen on; empty is `host`."""
    admin_port: int | None = None
    """Port of health, metrics and debugging over HTTP, where `port` is; 0 lets the system choose, None: none."""
    lease_stores: tuple[str | SecretUrl, ...] = ()
    """Addresses of lease stores whose leases the live page shows, read only; see `shardctl leases --help`."""
    metrics_push_url: str | SecretUrl = ""
    """Pushgateway that gets the metrics, for processes that cannot be scraped; empty: none. It may have a user and
    password. This and `lease_stores` are kept as `SecretUrl`."""
    traces: bool = False
    """Export traces as the process's `OTEL_*` variables say; without, only if the application set a tracer provider."""
    etcd: EtcdConfig = field(default_factory=EtcdConfig)
    broker_address: str
    """Of the journal brokers: `http://host:port`."""
    shard_limit: int = 32
    """Most replicas this process takes."""
    capacity: int = 0
    """Load that this process can carry beside the others, such as its CPUs; 0: its `shard_limit`. All members of a
    cluster should set it, or none."""
    hot_standbys_max: int = 3
    """Bound on every shard's standbys. All members of a cluster should agree."""
    format_level: int = LEVEL
    """Highest level of stored formats that this process says it reads. A lower one than its release's own keeps the
    cluster from rising above it while this process lives, so that the earlier release may come back."""
    lease_ttl_seconds: float = 20.0
    """A process that dies silently loses its shards after this."""
    announce_seconds_max: float = 30.0
    """How long to wait while another process holds our identity: an earlier life's lease ends within its TTL."""
    watch_delay_seconds: float = 0.03
    """Changes of the key space that arrive together are applied together."""
    state_dir: str = ""
    """Where shards with a recovery log keep their copies of files; empty: below the system's temporary directory. Take
    a local disk with room for them. What is there may be lost at any time."""
    auth_keys: str = field(default="", repr=False)
    """Base64 keys that sign and verify tokens (`KeyedAuth`), or `file:PATH` of a file with them, which is read again
    when it changes; empty turns authorization off."""
    broker_auth_keys: str = field(default="", repr=False)
    """The same for the journal brokers."""
    trust: TrustConfig = field(default_factory=TrustConfig)
    """Callers who are believed beside those with keys. It needs `auth_keys`, which sign the calls among members."""
    allow_unauthenticated: bool = False
    """Confirms that an address other than loopback may be served without keys."""
    revoke_predecessors_prefix: str | None = None
    """Before announcing, revoke the leases of earlier lives of ours: members of our zone with this suffix, or with one
    that goes on after it with a separator (`m-1`: `m-1` and `m-1-2`, not `m-10`; `m-`: all that start so)."""
    revoke_in_any_zone: bool = False
    """Whether earlier lives may have been in other zones: only for suffixes that are unique among all zones."""
    watch_peers: bool = True
    """Whether this process ends the leases of peers whose process it finds ended, so that fail-over is quick."""
    suspicion_phi: float = SUSPICION_PHI
    """How sure this process must be that a silent peer will not be heard again before it asks others about it: −log10
    of the chance that it will. Lower suspects sooner, and in vain more often; 0: silent peers wait for their lease."""
    drain_seconds_max: float = 300.0
    """A leaving process waits so long for its shards to be handed over, then stops them all the same. 0 hands nothing
    over."""
    drain_alone_seconds_max: float = 5.0
    """The same while there is no other member that is staying to take them. 0 does not wait for one
    to join; with others staying it changes nothing."""
    drain_covered_seconds_max: float = 30.0
    """The same while each shard left here has a ready replica on a member that stays: leaving costs no service. 0
    leaves at once then."""
    stop_seconds_max: float = 15.0
    """RPCs under way at the end may take so long."""
    tls: TlsConfig | None = None
    """Files for TLS. With a certificate, this process serves `https://` only, and is announced so. Requests to other
    members and to brokers speak TLS where their address says so."""
    fragments: DirectFragments = field(default_factory=DirectFragments)
    """Rules for reading stored fragments of journals without their broker."""
    request_bytes_max: int = 4 << 20
    """Largest request that the server takes, bytes."""
    calls: CallBounds = field(default_factory=CallBounds)
    """What clients together may take of the server."""
    shards: ShardConfig = field(default_factory=ShardConfig)
    """Limits of each shard."""
    allocation: AllocationPolicy = field(default_factory=AllocationPolicy)
    """How shards are placed, and how fast they may move; the same on all members, because the leader uses its own."""
    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)
    """When shards are split, and how many members are wanted; off by default. The same on all members, too."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValidationError: a field is out of its bounds; the error names it.
        """
        check_root(self.root)
        validate_token(self.zone, "zone", bytes_range=ZONE_BYTES)
        validate_token(self.suffix, "suffix", bytes_range=SUFFIX_BYTES)
        _require_text(self.host, "host")
        _require_address(self.broker_address)
        _require_range(self.port, "port", 0, PORT_MAX)
        _require_range(self.admin_port or 0, "admin_port", 0, PORT_MAX)
        _require_range(self.format_level, "format_level", FormatLevel.FIRST, LEVEL)
        if self.lease_stores and self.admin_port is None:
            raise ValidationError("lease_stores", "expected an admin_port, whose page shows leases")
        stores = tuple(SecretUrl.of(each) for each in self.lease_stores)
        object.__setattr__(self, "lease_stores", stores)
        push = SecretUrl.of(self.metrics_push_url)
        object.__setattr__(self, "metrics_push_url", push)
        if push and not push.reveal().startswith(("http://", "https://")):
            raise ValidationError("metrics_push_url", "expected http://… or https://…")
        _require_range(self.shard_limit, "shard_limit", 0, SHARD_LIMIT_MAX)
        _require_range(self.capacity, "capacity", 0, CAPACITY_MAX)
        _require_at_least(self.hot_standbys_max, "hot_standbys_max", 0)
        _require_at_least(self.lease_ttl_seconds, "lease_ttl_seconds", LEASE_TTL_SECONDS_MIN)
        _require_at_least(self.suspicion_phi, "suspicion_phi", 0)
        _require_at_least(self.watch_delay_seconds, "watch_delay_seconds", 0)
        _require_at_least(self.drain_seconds_max, "drain_seconds_max", 0)
        _require_at_least(self.drain_alone_seconds_max, "drain_alone_seconds_max", 0)
        _require_at_least(self.drain_covered_seconds_max, "drain_covered_seconds_max", 0)
        _require_at_least(self.announce_seconds_max, "announce_seconds_max", 0)
        _require_at_least(self.stop_seconds_max, "stop_seconds_max", 0)
        _require_at_least(self.request_bytes_max, "request_bytes_max", 1024)
        for each in fields(self.calls):
            value = getattr(self.calls, each.name)
            _require_at_least(value, f"calls.{each.name}", each.metadata["least"])
        _require_shards(self.shards)
        _require_policy(self.allocation)
        _require_scaling(self.scaling)
        _require_keys(self.auth_keys, "auth_keys")
        _require_keys(self.broker_auth_keys, "broker_auth_keys")
        require_certificates(self.trust, self.tls)
        if self.trust.is_any and not self.auth_keys:
            raise ValidationError(
                "auth_keys",
                "expected keys beside trust: they sign the calls among members, which permit no more than a caller's",
            )
        if self.revoke_predecessors_prefix == "":
            raise ValidationError(
                "revoke_predecessors_prefix",
                "expected None or the start of a suffix; an empty one would revoke the whole zone",
            )

    @property
    def predecessors(self) -> Predecessors | None:
        """Earlier lives of this member, as far as they are named."""
        if self.revoke_predecessors_prefix is None:
            return None
        return Predecessors(
            prefix=self.revoke_predecessors_prefix, in_any_zone=self.revoke_in_any_zone
        )

    @property
    def listen_host(self) -> str:
        """Interface to listen on."""
        return self.bind_host or self.host

    @property
    def scheme(self) -> str:
        """Scheme of this process's address."""
        return "https" if self.tls is not None and self.tls.serves else "http"

    @property
    def requires_client_certificates(self) -> bool:
        """Report whether this process refuses clients without a certificate."""
        return self.tls is not None and self.tls.requires_client_certificates

    def require_guarded(self) -> None:
        """Refuse to serve other machines without keys or client certificates, unless the operator confirmed it.

        Raises:
            ValidationError: the address could be reached by others, and nothing guards it.
        """
        if self.auth_keys or self.requires_client_certificates or self.allow_unauthenticated:
            return
        if not is_loopback(self.listen_host):
            raise ValidationError(
                "auth_keys",
                f"expected keys, because {self.listen_host} can be reached from other machines; "
                "or require certificates of clients (--tls-client-ca), or allow unauthenticated "
                "access explicitly (--allow-unauthenticated)",
            )

    @property
    def member_id(self) -> MemberId:
        """The process's identity."""
        return MemberId(self.zone, self.suffix)


def _require_text(value: str, name: str) -> None:
    if not value or any(character.isspace() for character in value):
        raise ValidationError(name, f"expected a host name or address, got {value!r}")


def _require_address(address: str) -> None:
    try:
        parse_endpoints(address, may_be_tls=True)
    except ValidationError as error:
        raise ValidationError("broker_address", error.problem) from error


def _require_range(value: int, name: str, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValidationError(name, f"expected {least} to {most}, got {value}")


def _require_at_least(value: float, name: str, least: float) -> None:
    if not value >= least:
        raise ValidationError(name, f"expected at least {least}, got {value}")


def _require_shards(shards: ShardConfig) -> None:
    for each in fields(shards):
        if each.name in _SHARDS_ANY:
            continue
        least = _SHARDS_AT_LEAST.get(each.name, 0)
        _require_at_least(getattr(shards, each.name), f"shards.{each.name}", least)
    _require_at_least(
        shards.restart_delay_seconds_max,
        "shards.restart_delay_seconds_max",
        shards.restart_delay_seconds,
    )


def _require_policy(policy: AllocationPolicy) -> None:
    for name, part in (
        ("objective", policy.objective),
        ("primaries", policy.primaries),
        ("transition", policy.transition),
        ("loads", policy.loads),
        ("move_log", policy.move_log),
    ):
        for each in fields(part):
            value = getattr(part, each.name)
            if not isinstance(value, Enum):
                _require_at_least(value, f"allocation.{name}.{each.name}", 0)

    if not policy.loads.bucket_ratio > 1:
        raise ValidationError(
            "allocation.loads.bucket_ratio",
            f"expected more than 1, got {policy.loads.bucket_ratio}",
        )


def _require_scaling(policy: ScalingPolicy) -> None:
    for each in fields(policy):
        value = getattr(policy, each.name)
        if not isinstance(value, Enum):
            _require_at_least(value, f"scaling.{each.name}", _SCALING_AT_LEAST.get(each.name, 0))
    for name in ("sample_seconds", "busy_cpu_ratio", "member_cores"):
        if not getattr(policy, name) > 0:
            raise ValidationError(f"scaling.{name}", "expected more than 0, got 0")
    # A split makes two shards of which each may be half as busy: below that they would be merged at once.
    if not policy.idle_cpu_ratio <= policy.busy_cpu_ratio / 2:
        raise ValidationError(
            "scaling.idle_cpu_ratio",
            f"expected at most half of busy_cpu_ratio, {policy.busy_cpu_ratio / 2:g}, got {policy.idle_cpu_ratio:g}",
        )
    if not policy.members_slack_ratio < 1:
        raise ValidationError(
            "scaling.members_slack_ratio", f"expected less than 1, got {policy.members_slack_ratio}"
        )
    if policy.members_max and policy.members_max < policy.members_min:
        raise ValidationError(
            "scaling.members_max",
            f"expected 0, or at least members_min, {policy.members_min}, got {policy.members_max}",
        )


def _require_keys(keys: str, name: str) -> None:
    # A file is read where the member runs, which may be another machine.
    if not keys or is_keys_file(keys):
        return
    try:
        KeyedAuth(keys)
    except ValidationError as error:
        raise ValidationError(error.field_path.replace("auth_keys", name), error.problem) from error
