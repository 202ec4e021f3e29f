"""Composition of a member: all of its parts are created here; nothing runs yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from broadsheet.allocator.config import AllocationConfig
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.format_gate import FormatGate
from broadsheet.allocator.key_space import KeySpace, ObserverStage
from broadsheet.allocator.keys import AuxiliaryKeys, Keys
from broadsheet.allocator.leader.election import LeadershipConfig
from broadsheet.allocator.leader.move_log import MoveLog
from broadsheet.allocator.metrics import AllocatorMetrics
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.session import Session, SessionConfig
from broadsheet.consumer.application import Application, MessageProducer, ServiceRegistrar
from broadsheet.consumer.client.elastic_client import ElasticClient
from broadsheet.consumer.elastic.scaling_policy import ScalingMode
from broadsheet.consumer.member.autoscaler import Autoscaler, MemberReshaper
from broadsheet.consumer.member.broker_watch import BrokerWatch
from broadsheet.consumer.member.config import MemberConfig
from broadsheet.consumer.member.crash_watch import CrashWatch
from broadsheet.consumer.member.failure_detector import FailureDetector
from broadsheet.consumer.member.journal_splitter import JournalSplitter
from broadsheet.consumer.member.load_report import decode_report, reported_spread
from broadsheet.consumer.member.load_reporter import REPORT_SECONDS, LoadReporter, ReportPolicy
from broadsheet.consumer.member.standby_take_over import BrokerProof, StandbyTakeOver
from broadsheet.consumer.registry.key_space import (
    ReplicaConsistency,
    ShardDecoder,
    is_failed,
    is_visible,
    level_of_member_value,
    process_of,
    spec_of,
    status_of,
)
from broadsheet.consumer.resolver.hearing import Hearing
from broadsheet.consumer.resolver.local_shards import LocalShards
from broadsheet.consumer.resolver.resolver import LocalMember, Peers, ShardResolver
from broadsheet.consumer.rpc.allocation_api import (
    AllocationApi,
    LeaderForwarder,
    MemberForwarder,
)
from broadsheet.consumer.rpc.call_limits import CallLimits
from broadsheet.consumer.rpc.cordon import Cordon
from broadsheet.consumer.rpc.elastic_api import ElasticApi, PeerParentCaller
from broadsheet.consumer.rpc.guard import RpcGuard
from broadsheet.consumer.rpc.key_api import KeyApi
from broadsheet.consumer.rpc.keyed_api import KeyedApi
from broadsheet.consumer.rpc.operations import DrainWatch
from broadsheet.consumer.rpc.peer_api import PeerApi
from broadsheet.consumer.rpc.primary_hop import PrimaryHop
from broadsheet.consumer.rpc.recovery_api import RecoveryApi
from broadsheet.consumer.rpc.shard_api import ShardApi
from broadsheet.consumer.rpc.shard_listing import ShardChangeLog
from broadsheet.consumer.rpc.state_api import StateApi
from broadsheet.consumer.rpc.state_reader import StateReader
from broadsheet.consumer.rpc.watch_api import WatchApi
from broadsheet.consumer.shard.crash_loop import CrashHistory
from broadsheet.consumer.shard.environment import ShardEnvironment
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.consumer.shard.metrics import ShardMetrics
from broadsheet.consumer.shard.replica_progress import operations_of
from broadsheet.consumer.shard.rollback.records import RollbackRecords
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import (
    Capability,
    Claims,
    KeyedAuth,
    NoAuth,
    TokenVerifier,
    server_auth,
)
from broadsheet.security.tls import TlsConfig, tls_files
from broadsheet.serving.grpc_server import GrpcServer, IntakeBounds, ServerMetrics
from broadsheet.serving.metrics import CallMetrics
from broadsheet.serving.standard_services import (
    NOT_SERVING,
    SERVING,
    SHARD_PREFIX,
    Handler,
    Health,
    ServingStatus,
    standard_handlers,
)
from broadsheet.wire.allocation_pb2_grpc import add_AllocationServiceServicer_to_server
from broadsheet.wire.elastic_pb2_grpc import add_ElasticServiceServicer_to_server
from broadsheet.wire.keyed_pb2_grpc import add_KeyedServiceServicer_to_server
from broadsheet.wire.keys_pb2_grpc import add_KeyServiceServicer_to_server
from broadsheet.wire.peer_pb2_grpc import add_PeerServiceServicer_to_server
from broadsheet.wire.recovery_pb2_grpc import add_RecoveryServiceServicer_to_server
from broadsheet.wire.shard_pb2 import ReplicaStatus
from broadsheet.wire.shard_pb2_grpc import add_ShardServicer_to_server
from broadsheet.wire.state_pb2_grpc import add_StateServiceServicer_to_server
from broadsheet.wire.watch_pb2_grpc import add_WatchServiceServicer_to_server

if TYPE_CHECKING:
    from broadsheet.consumer.rpc.gateway import Gateway

_READY_CODES = frozenset({ReplicaStatus.STANDBY, ReplicaStatus.PRIMARY})
"""Statuses of replicas that serve, or could at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Dependencies of a member."""

    application: Application[Any]  # the store's type is known to the application only
    config: MemberConfig
    etcd: Etcd
    journals: JournalClient
    server: GrpcServer
    clock: Clock
    registry: CollectorRegistry
    health: Health
    """Shown by the health service."""
    gateway: Gateway | None
    """Serves the same methods over HTTP; None without an admin port."""
    state_directory: Path
    """Exists, and is this process's own."""
    shard_tasks: TaskGroup
    """Runs shards, and closes channels; outlives everything else of the member."""

    @property
    def reads_journals(self) -> bool:
        """Report whether the sources of shards are journals."""
        return not isinstance(self.application, MessageProducer)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberParts:
    """Parts of a member."""

    membership: LocalMember
    session: Session
    local_shards: LocalShards
    resolver: ShardResolver
    peers: Peers
    peer_watch: FailureDetector | None
    """None if peers are not watched."""
    broker_watch: BrokerWatch | None
    """None if primaries stay where they are, whatever they are cut off from."""
    standby_take_over: StandbyTakeOver | None
    """The same."""
    load_reporter: LoadReporter
    autoscaler: Autoscaler
    journal_splitter: JournalSplitter
    move_log: MoveLog
    """Of what this member does without leading."""
    changes: ShardChangeLog
    drains: DrainWatch

    @property
    def key_space(self) -> KeySpace:
        """The mirror of the cluster."""
        return self.membership.key_space


def compose(given: Surroundings) -> MemberParts:
    """Create the parts, register them as observers of the key space, and register every RPC."""
    config = given.config
    keys = Keys(config.root)
    formats = FormatGate(given.etcd, keys, level_of=level_of_member_value, own=config.format_level)
    key_space = KeySpace(
        given.etcd,
        keys,
        ShardDecoder(hot_standbys_max=config.hot_standbys_max, format_level=lambda: formats.level),
        apply_delay_seconds=config.watch_delay_seconds,
    )
    formats.on_rise(key_space.decode_members_again)
    membership = LocalMember(config.member_id, key_space, given.etcd, formats)
    deaths = _death_records(given)
    move_log = _move_log(given, keys)
    peers = Peers(config.tls)
    parents = PeerParentCaller(key_space, peers, _auth(config))
    local_shards = _local_shards(given, key_space, deaths, move_log, parents)
    resolver = ShardResolver(
        key_space,
        local_shards,
        member_id=config.member_id,
        application=given.application,
        peers=peers,
    )
    changes = ShardChangeLog(key_space)
    key_space.observe(ObserverStage.DERIVE, resolver.reindex)
    key_space.observe(ObserverStage.DERIVE, changes.look)
    drains = DrainWatch(key_space, config.member_id, clock=given.clock, registry=given.registry)
    key_space.observe(ObserverStage.DERIVE, drains.look)
    key_space.observe(ObserverStage.ACT, local_shards.apply)
    key_space.observe(ObserverStage.ACT, _death_watch(given, membership, deaths).look)
    key_space.observe(ObserverStage.ACT, lambda: _retain_peers(peers, key_space, given.shard_tasks))
    given.health.part_status = partial(_part_status, local_shards, key_space)
    key_space.observe(ObserverStage.WAKE, given.health.notify)
    session = _session(given, membership)
    broker_watch = _broker_watch(given, local_shards)
    parts = MemberParts(
        membership=membership,
        session=session,
        local_shards=local_shards,
        resolver=resolver,
        peers=peers,
        peer_watch=_peer_watch(given, membership) if config.watch_peers else None,
        broker_watch=broker_watch,
        standby_take_over=_standby_take_over(given, membership, move_log, broker_watch),
        load_reporter=_load_reporter(given, membership, session, local_shards),
        autoscaler=_autoscaler(given, membership, session),
        journal_splitter=JournalSplitter(
            membership,
            given.journals,
            given.application,
            parents,
            leads=lambda: session.leadership.fence is not None,
            clock=given.clock,
        ),
        move_log=move_log,
        changes=changes,
        drains=drains,
    )
    _register_services(given, parts)
    return parts


def new_guard(config: MemberConfig, registry: CollectorRegistry) -> RpcGuard:
    """Return what admits the calls of a member's clients, over gRPC and HTTP alike.

    Args:
        config: Says who may call what, and within what bounds.
        registry: Of Prometheus metrics.
    """
    limits = CallLimits(config.calls, registry)
    return RpcGuard(verifier_of(config), limits, CallMetrics(registry))


def new_server(
    config: MemberConfig, registry: CollectorRegistry, guard: RpcGuard
) -> tuple[GrpcServer, int]:
    """Return a server that is bound, but serves nothing yet, and its port.

    Args:
        config: Says where.
        registry: Of Prometheus metrics.
        guard: Admits its calls.

    Raises:
        CannotListenError: the address cannot be bound.
        ValidationError: it could be reached by others, and nothing guards it; or a file for TLS cannot be used.
    """
    config.require_guarded()
    _require_files(config.tls)
    server = GrpcServer(
        interceptors=(guard,),
        bounds=IntakeBounds(
            calls_per_connection_max=config.calls.calls_per_connection_max,
            unread_calls_max=config.calls.unread_calls_max,
        ),
        options=(
            ("grpc.max_receive_message_length", config.request_bytes_max),
            # Two processes on one port would each get half of the requests, silently.
            ("grpc.so_reuseport", 0),
        ),
        metrics=ServerMetrics(registry, prefix="broadsheet_member"),
    )
    return server, server.bind(host_and_port(config.listen_host, config.port), config.tls)


def _require_files(tls: TlsConfig | None) -> None:
    """Read the files, also those for requests to others, so that mistakes are told at the start."""
    try:
        if tls is not None:
            tls_files(tls)
    except ValidationError as error:
        raise error.under("tls") from None


def host_and_port(host: str, port: int) -> str:
    """Join host and port; an IPv6 address is put in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _death_records(given: Surroundings) -> CrashHistory:
    return CrashHistory(
        given.etcd,
        AuxiliaryKeys(given.config.root),
        clock=given.clock,
        deaths_max=given.config.shards.young_deaths_max,
        hold_seconds=given.config.shards.hold_seconds,
    )


def _death_watch(given: Surroundings, membership: LocalMember, deaths: CrashHistory) -> CrashWatch:
    return CrashWatch(
        membership,
        deaths,
        young_seconds=given.config.shards.healthy_seconds,
        clock=given.clock,
        group=given.shard_tasks,
    )


def _peer_watch(given: Surroundings, membership: LocalMember) -> FailureDetector:
    watch = FailureDetector(
        membership,
        clock=given.clock,
        registry=given.registry,
        hearing=Hearing(_auth(given.config), given.config.tls),
        suspicion_phi=given.config.suspicion_phi,
    )
    membership.key_space.observe(ObserverStage.WAKE, watch.look)
    return watch


def _broker_watch(given: Surroundings, local_shards: LocalShards) -> BrokerWatch | None:
    seconds = given.config.shards.unavailable_seconds
    if not seconds:
        return None
    return BrokerWatch(
        given.journals,
        local_shards.shards.values,
        unavailable_seconds=seconds,
        clock=given.clock,
        registry=given.registry,
    )


def _standby_take_over(
    given: Surroundings,
    membership: LocalMember,
    move_log: MoveLog,
    broker_watch: BrokerWatch | None,
) -> StandbyTakeOver | None:
    if broker_watch is None:
        return None
    take_over = StandbyTakeOver(
        membership,
        BrokerProof(
            given.journals,
            is_calm=broker_watch.is_calm,
            reads_journals=given.reads_journals,
        ),
        move_log=move_log,
        clock=given.clock,
        registry=given.registry,
    )
    membership.key_space.observe(ObserverStage.WAKE, take_over.look)
    return take_over


def _move_log(given: Surroundings, keys: Keys) -> MoveLog:
    return MoveLog(
        given.etcd,
        keys,
        member_id=given.config.member_id,
        policy=given.config.allocation.move_log,
        clock=given.clock,
    )


def _local_shards(
    given: Surroundings,
    key_space: KeySpace,
    deaths: CrashHistory,
    move_log: MoveLog,
    parents: PeerParentCaller,
) -> LocalShards:
    environment = ShardEnvironment(
        application=given.application,
        journals=given.journals,
        etcd=given.etcd,
        keys=key_space.keys,
        key_space=key_space,
        clock=given.clock,
        metrics=ShardMetrics(given.registry),
        deaths=deaths,
        rollbacks=RollbackRecords(given.etcd, AuxiliaryKeys(given.config.root)),
        state_directory=given.state_directory,
        parents=parents,
        move_log=move_log,
        config=given.config.shards,
    )
    local_shards = LocalShards(
        key_space,
        member_id=given.config.member_id,
        new_shard=lambda spec, assignment, created: LiveShard(
            spec, assignment, environment, created_revision=created
        ),
        group=given.shard_tasks,
        registry=given.registry,
    )
    environment.metrics.operations.observe(
        lambda: [
            (shard.fqn, each)
            # A copy, because Prometheus collects on a separate thread.
            for shard in tuple(local_shards.shards.values())
            for each in operations_of(shard)
        ]
    )
    return local_shards


def _session(given: Surroundings, membership: LocalMember) -> Session:
    config = given.config
    return Session(
        given.etcd,
        membership.key_space,
        SessionConfig(
            member_id=config.member_id,
            lease_ttl_seconds=config.lease_ttl_seconds,
            announce_timeout_seconds=config.announce_seconds_max,
            predecessors=config.predecessors,
            leadership=LeadershipConfig.for_lease(config.lease_ttl_seconds),
            allocation=AllocationConfig(policy=config.allocation),
        ),
        ReplicaConsistency(),
        is_failed=is_failed,
        clock=given.clock,
        metrics=AllocatorMetrics(given.registry),
        decode_load=decode_report,
        formats=membership.formats,
    )


def _load_reporter(
    given: Surroundings, membership: LocalMember, session: Session, local_shards: LocalShards
) -> LoadReporter:
    config = given.config
    scales = config.scaling.mode is not ScalingMode.OFF
    return LoadReporter(
        membership,
        lease=lambda: session.lease,
        shards=lambda: local_shards.shards,
        policy=ReportPolicy(
            capacity=config.capacity,
            measure=config.allocation.loads.measure or scales,
            counts_groups=scales,
            report_seconds=config.scaling.sample_seconds if scales else REPORT_SECONDS,
        ),
        clock=given.clock,
    )


def _autoscaler(given: Surroundings, membership: LocalMember, session: Session) -> Autoscaler:
    def client() -> ElasticClient:
        member = membership.key_space.members[membership.member_id]
        address = process_of(member).process_spec.endpoint
        return ElasticClient(address, auth=_auth(given.config), tls=given.config.tls)

    return Autoscaler(
        membership,
        fence=lambda: session.leadership.fence,
        move_log=session.allocation.move_log,
        reshaper=MemberReshaper(client, given.journals),
        policy=given.config.scaling,
        clock=given.clock,
        registry=given.registry,
    )


def _register_services(given: Surroundings, parts: MemberParts) -> None:
    config = given.config
    # Reflection and health must know all services, also the application's.
    server = given.server
    both = partial(_add, server, given.gateway)
    api = ShardApi(parts.resolver, parts.membership, move_log=parts.move_log, auth=_auth(config))
    both(add_ShardServicer_to_server, api)
    forwarder = MemberForwarder(parts.membership, parts.peers, _auth(config))
    allocation_api = AllocationApi(
        parts.session.allocation,
        LeaderForwarder(parts.session.leadership, forwarder),
        Cordon(parts.membership, parts.session.leadership, parts.drains),
        parts.membership,
        hot_standbys_max=config.hot_standbys_max,
    )
    both(add_AllocationServiceServicer_to_server, allocation_api)
    elastic_api = ElasticApi(
        parts.membership,
        parts.local_shards,
        given.journals,
        given.application,
        spread=partial(reported_spread, given.etcd, parts.key_space),
        clock=given.clock,
    )
    both(add_ElasticServiceServicer_to_server, elastic_api)
    recovery_api = RecoveryApi(given.etcd, given.journals, parts.key_space.keys, clock=given.clock)
    add_RecoveryServiceServicer_to_server(recovery_api, server)
    states = StateReader(
        parts.resolver,
        parts.local_shards,
        given.application,
        state_directory=given.state_directory,
        clock=given.clock,
    )
    state_api = StateApi(
        parts.local_shards,
        forwarder,
        given.journals,
        states,
        reads_journals=given.reads_journals,
    )
    both(add_StateServiceServicer_to_server, state_api)
    keyed_api = KeyedApi(states, PrimaryHop(parts.resolver, _auth(config)))
    both(add_KeyedServiceServicer_to_server, keyed_api)
    peer_api = PeerApi(
        parts.key_space,
        Hearing(_auth(config), config.tls),
        stopping=parts.resolver.stopping,
        clock=given.clock,
    )
    add_PeerServiceServicer_to_server(peer_api, server)
    watch_api = WatchApi(
        parts.membership, parts.changes, stopping=parts.resolver.stopping, clock=given.clock
    )
    both(add_WatchServiceServicer_to_server, watch_api)
    key_api = KeyApi(
        parts.membership,
        parts.changes,
        given.journals,
        stopping=parts.resolver.stopping,
        clock=given.clock,
    )
    both(add_KeyServiceServicer_to_server, key_api)
    if isinstance(given.application, ServiceRegistrar):
        given.application.register_services(server, parts.resolver)
    server.add_generic_rpc_handlers(
        # `RpcGuard` admits calls of every service.
        standard_handlers(given.health, server.names, public=_unchanged, private=_unchanged)
    )


def _add(
    server: GrpcServer,
    gateway: Gateway | None,
    register: Callable[[Any, Any], None],
    api: object,
) -> None:
    """Register a service with the server, and with the gateway if there is one. `Any`: each service has its own."""
    register(api, server)
    if gateway is not None:
        register(api, gateway)


def _unchanged(handler: Handler) -> Handler:
    return handler


def _part_status(
    local_shards: LocalShards, key_space: KeySpace, name: str, claims: Claims
) -> ServingStatus | None:
    """Return the health of `shard/ID`: whether this member's replica of a shard of the cluster is ready.

    A shard that the claims do not cover is absent.
    """
    shard_id = ItemId(name.removeprefix(SHARD_PREFIX))
    item = key_space.items.get(shard_id) if name.startswith(SHARD_PREFIX) else None
    if item is None or Capability.LIST not in claims.capability:
        return None
    if not is_visible(spec_of(item), claims.selector):
        return None
    shard = local_shards.shards.get(shard_id)
    if shard is None or status_of(shard.assignment).code not in _READY_CODES:
        return NOT_SERVING
    return SERVING


def _auth(config: MemberConfig) -> KeyedAuth | NoAuth:
    """Return the signer of requests to other members."""
    return KeyedAuth(config.auth_keys) if config.auth_keys else NoAuth()


def verifier_of(config: MemberConfig) -> TokenVerifier:
    """Return the verifier of clients' requests."""
    return server_auth(config.auth_keys, config.trust)


def _retain_peers(peers: Peers, key_space: KeySpace, group: TaskGroup) -> None:
    if key_space.changes.members:
        members = key_space.members.values()
        peers.retain({process_of(each).process_spec.endpoint for each in members}, group)
