"""One member of the cluster: its parts, and the order in which they start and stop.

    start   bind server ─► dial etcd ─► put the parts together, register services ─► lease ─► announce ─► load the
            mirror at that revision: assigned shards start ─► serve ─► ready

    stop()  "exiting" in etcd ─► shards are handed over, replacements first ─► drained, or the drain's bounds pass ─►
            local shards finish ─► server drains ─► shards are torn down ─► lease revoked ─► peers and etcd closed

    lease lost, or any error    not ready ─► transactions aborted at once ─► server closed ─► the error is raised

The lease is renewed and etcd followed until the last shard is torn down, so nothing is fenced, or left waiting for a
revision, while it finishes. Revoking comes last: keys that vanish earlier would start a successor beside a primary that
is still at work.

Source: gazette/core consumer/service.go, mainboilerplate/runconsumer (order); the bounds of the drain are ours.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import structlog
from prometheus_client import CollectorRegistry

from broadsheet.allocator.errors import (
    EtcdUnavailableError,
    LeaseLostError,
    MemberKeyLostError,
    TxnConflictError,
)
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.key_space import KeySpace, ObserverStage
from broadsheet.allocator.metrics import EtcdMetrics
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.solver import import_solver
from broadsheet.consumer.application import Application
from broadsheet.consumer.errors import ResolverStoppedError
from broadsheet.consumer.member.config import MemberConfig
from broadsheet.consumer.member.drain import Drain, DrainBounds, DrainVerdict
from broadsheet.consumer.member.parts import (
    MemberParts,
    Surroundings,
    compose,
    host_and_port,
    new_guard,
    new_server,
    verifier_of,
)
from broadsheet.consumer.registry.key_space import process_id_of, process_of
from broadsheet.consumer.resolver.resolver import ShardResolver
from broadsheet.consumer.rpc.guard import RpcGuard
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.journals.client import JournalClient
from broadsheet.journals.transport import BULK_APPEND_BYTES_MAX, BULK_CHUNK_BYTES, TransportPolicy
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.logs import guard_unconfigured_logs
from broadsheet.runtime.process_directory import ProcessDirectory
from broadsheet.runtime.process_signals import handled_on_loop
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import KeyedAuth
from broadsheet.serving.grpc_server import GrpcServer
from broadsheet.serving.metrics import ProcessMetrics, pushed_metrics
from broadsheet.serving.standard_services import Health
from broadsheet.serving.tracing import traces_exported
from broadsheet.wire.journal_pb2 import ProcessSpec
from broadsheet.wire.shard_pb2 import ConsumerSpec

if TYPE_CHECKING:
    from broadsheet.consumer.live_page.member_pages import MemberPages
    from broadsheet.consumer.live_page.routes import LeaseRoute
    from broadsheet.consumer.rpc.gateway import Gateway
    from broadsheet.serving.admin import AdminServer

_log = structlog.get_logger()

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""What asks a process to leave. Spark adds SIGHUP."""
DRAIN_LOOK_SECONDS = 0.2
"""Pause between two looks at a drain's bounds; its success is noticed at once."""


def default_state_parent() -> Path:
    """Return the default parent of a process's copies of recovered files."""
    return Path(tempfile.gettempdir()) / f"broadsheet-{os.getuid()}"


class Service:
    """A member: joins the cluster, serves its shards, and leaves. Make it on the loop that runs it."""

    def __init__(
        self,
        application: Application[Any],  # its store type is its own business
        config: MemberConfig,
        *,
        clock: Clock | None = None,
        registry: CollectorRegistry | None = None,
        lease_route: LeaseRoute | None = None,
    ) -> None:
        """Create a member that does nothing yet.

        Args:
            application: What the shards run.
            config: Identity, addresses and limits.
            clock: Time.
            registry: Of Prometheus metrics; a new one if none is given, so that several members fit in a process.
            lease_route: `broadsheet.leases.lease_route`, if the live page shows `config.lease_stores`.

        Raises:
            ValidationError: there are lease stores, and nothing that reads them.
        """
        if config.lease_stores and lease_route is None:
            raise ValidationError(
                "lease_stores",
                "expected lease_route=broadsheet.leases.lease_route, which reads them",
            )
        self._application = application
        self._config = config
        self._lease_route = lease_route
        self._clock = clock or SystemClock()
        self.registry = registry or CollectorRegistry()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolves when the member is announced and serves; fails with what kept it from that."""
        self._processes = ProcessMetrics(self.registry)
        self.health = Health()
        """Shown by the health service."""
        self._serving = False
        self._leaving = asyncio.Event()
        self._forced = asyncio.Event()
        self._address = ""
        self._admin: AdminServer | None = None
        self._gateway: Gateway | None = None
        self._pages: MemberPages | None = None
        self._parts: MemberParts | None = None

    @property
    def member_id(self) -> MemberId:
        """The member's identity."""
        return self._config.member_id

    @property
    def address(self) -> str:
        """URL of the member, `http://host:port`, or `https://` with a certificate; known once it is ready."""
        return self._address

    @property
    def admin_address(self) -> str:
        """URL of the admin port, which answers before the member is ready; empty if it has none."""
        return self._admin.address if self._admin is not None else ""

    @property
    def resolver(self) -> ShardResolver:
        """The resolver of shards, for code in this process, which passes `Claims.process()` for its own work.

        Requires:     The member is, or was, ready.
        """
        assert self._parts is not None, "await `ready` before `resolver`"
        return self._parts.resolver

    @property
    def shards(self) -> Mapping[ItemId, LiveShard]:
        """The shards that run here, by id; none before the member is ready."""
        return self._parts.local_shards.shards if self._parts is not None else {}

    @property
    def is_ready(self) -> bool:
        """Report whether the member serves now, for readiness probes."""
        return self._serving

    def stop(self) -> None:
        """Leave gracefully: hand the shards over, then end `run`. Idempotent, and safe before `run`."""
        self._leaving.set()

    def force_stop(self) -> None:
        """Leave without a hand-over; running transactions are aborted. Idempotent, and safe at any time."""
        self._leaving.set()
        self._forced.set()

    async def run(self) -> None:
        """Run the member until it is stopped.

        Raises:
            LeaseLostError: the lease could not be kept; shards were stopped at once. No error after `force_stop`.
            MemberKeyLostError: somebody removed the member's key. No error after `force_stop`.
            AnnounceConflictError: another live process has this identity.
            FormatLevelError: this release cannot read the cluster's stored formats.
            EtcdUnavailableError: etcd could not be reached at the start.
            EndpointError: the server's address cannot be bound.
            ValidationError: a file for TLS cannot be used, nothing guards the server, or a variable of OpenTelemetry is
                none that it knows.
            ExtraMissingError: traces are wanted, and their extra is not installed.
            ServerEndedError: the gRPC server ended by itself.
        """
        try:
            if not self._leaving.is_set():
                await self._run()
        except BaseException as error:
            self._fail_ready(error)
            raise
        self._fail_ready(ResolverStoppedError("the member was stopped before it was ready"))

    async def _run(self) -> None:
        config = self._config
        guard_unconfigured_logs()
        self._processes.set_build("member")
        broker_auth = KeyedAuth(config.broker_auth_keys) if config.broker_auth_keys else None
        async with AsyncExitStack() as stack:
            # First, because each part looks once whether it is traced.
            stack.enter_context(traces_exported("broadsheet-member", wanted=config.traces))
            # The recovery log has all that is in the copies of killed processes: they are removed.
            parent = Path(config.state_dir or default_state_parent())
            state = stack.enter_context(ProcessDirectory(parent=parent))
            guard = new_guard(config, self.registry)
            server, port = new_server(config, self.registry, guard)
            stack.push_async_callback(server.stop, None)
            self._address = f"{config.scheme}://{host_and_port(config.host, port)}"
            if config.metrics_push_url:
                pushed = pushed_metrics(config.metrics_push_url, str(self.member_id), self.registry)
                await stack.enter_async_context(pushed)
            if config.admin_port is not None:
                # From before the member joins until it has left: a process that waits for etcd is alive.
                await stack.enter_async_context(self._new_admin_server(config.admin_port, guard))
            etcd = await stack.enter_async_context(
                EtcdClient(
                    replace(config.etcd, lease_ttl_seconds=config.lease_ttl_seconds),
                    observer=EtcdMetrics(self.registry),
                )
            )
            journals = await stack.enter_async_context(
                JournalClient(
                    config.broker_address,
                    auth=broker_auth,
                    policy=TransportPolicy(
                        zone=config.zone,
                        chunk_bytes=BULK_CHUNK_BYTES,
                        whole_bytes_max=BULK_APPEND_BYTES_MAX,
                        tls=config.tls,
                        fragments=config.fragments,
                    ),
                )
            )
            journals.register_metrics(self.registry)
            self._parts = parts = compose(
                Surroundings(
                    application=self._application,
                    config=config,
                    etcd=etcd,
                    journals=journals,
                    server=server,
                    clock=self._clock,
                    registry=self.registry,
                    health=self.health,
                    gateway=self._gateway,
                    state_directory=state.path,
                    shard_tasks=await stack.enter_async_context(TaskGroup()),
                )
            )
            stack.push_async_callback(parts.peers.close)
            if self._pages is not None:
                look = partial(_look_at_pages, self._pages, parts.key_space)
                parts.key_space.observe(ObserverStage.ACT, look)
            await self._live(parts, server)

    def _new_admin_server(self, port: int, guard: RpcGuard) -> AdminServer:
        # Imported here, because it takes as long as all the rest, and a member without the port does not need it.
        from broadsheet.consumer.live_page.member_pages import MemberPages
        from broadsheet.consumer.live_page.routes import content_security_policy, live_page_routes
        from broadsheet.consumer.rpc.gateway import Gateway
        from broadsheet.serving.admin import AdminServer, standard_routes

        self._gateway = Gateway(guard, self.health)
        pages = self._pages = MemberPages(self._clock)
        leases = self._lease_route and self._lease_route(self._config.lease_stores)
        self._admin = AdminServer(
            self._config.listen_host,
            port,
            routes=[
                *standard_routes(self.health, self.registry, self._variables),
                *self._gateway.routes(),
                *live_page_routes(leases, policy=lambda: content_security_policy(pages.present())),
            ],
            verifier=verifier_of(self._config),
            tls=self._config.tls,
            is_peer=pages.is_of_member,
        )
        return self._admin

    def _variables(self) -> dict[str, object]:
        """Return what the admin port shows of this member."""
        found: dict[str, object] = {
            "member": str(self.member_id),
            "address": self._address,
            "is_ready": self._serving,
            "is_leaving": self._leaving.is_set(),
            "config": self._config,
        }
        if self._parts is not None:
            key_space = self._parts.key_space
            found |= {
                "revision": key_space.header.revision,
                "members": len(key_space.members),
                "shards": len(key_space.items),
                "replicas_here": len(self._parts.local_shards.shards),
            }
        return found

    async def _live(self, parts: MemberParts, server: GrpcServer) -> None:
        # Before the member joins, because from then on it may lead or take over a shard at any time. The import holds
        # the interpreter's lock for 0.1 s, in a thread too, and a take-over would last that much longer.
        await asyncio.to_thread(import_solver)
        if not await self._started(parts):
            return
        try:
            await server.start()
            self._mark_ready()
            async with TaskGroup() as group:
                group.start_soon(self._leave_when_asked(parts), name="member leave")
                group.start_soon(server.watch(), name="watch server")
                group.start_soon(parts.load_reporter.run(), name="report load")
                group.start_soon(parts.autoscaler.run(), name="autoscale")
                group.start_soon(parts.journal_splitter.run(), name="divide journals")
                group.start_soon(self._processes.watch_loop(), name="watch loop")
                if parts.peer_watch is not None:
                    group.start_soon(parts.peer_watch.run(), name="watch peers")
                if parts.broker_watch is not None:
                    group.start_soon(parts.broker_watch.run(), name="watch broker")
                if parts.standby_take_over is not None:
                    group.start_soon(parts.standby_take_over.run(), name="take over")
                await self._keep_session(parts, server)
                group.stop()
        finally:
            # After a graceful end all of this is done already, except the lease.
            self._serving = False
            self.health.close()
            parts.resolver.stopping.set()
            parts.local_shards.stop(grace_seconds=0.0)
            # In reverse order; each is tried, because a lease that is not ended keeps the shards from others.
            async with AsyncExitStack() as steps:
                steps.push_async_callback(parts.session.revoke)
                steps.push_async_callback(parts.local_shards.join)
                steps.push_async_callback(server.stop, None)
            _log.info("member.left", member=str(self.member_id))

    async def _keep_session(self, parts: MemberParts, server: GrpcServer) -> None:
        try:
            await parts.session.run(wind_down=partial(self._wind_down, parts, server))
        except (LeaseLostError, MemberKeyLostError) as error:
            # A forced stop does not announce its departure: a peer that finds the port closed takes
            # this member for dead, and may end its lease while shards are still torn down. The
            # lease would be ended next anyway.
            if not self._forced.is_set():
                raise
            _log.info("member.left_early", member=str(self.member_id), cause=str(error))

    async def _started(self, parts: MemberParts) -> bool:
        """Join the cluster; False if told to leave meanwhile. Waiting for etcd or for our identity may take long."""
        async with TaskGroup() as group:
            value = self._member_value(exiting=False)
            starting = group.start_soon(parts.session.start(value), name="member join")
            leaving = group.start_soon(self._leaving.wait(), name="member leave early")
            await asyncio.wait((starting, leaving), return_when=asyncio.FIRST_COMPLETED)
            group.stop()
        return not starting.cancelled()

    async def _leave_when_asked(self, parts: MemberParts) -> None:
        """Drain; end the session if that takes too long. A drained session ends by itself."""
        await self._leaving.wait()
        # Still serving, but new clients should go elsewhere.
        self.health.set_serving(False)
        config = self._config
        drain = Drain(
            DrainBounds(
                total_seconds=config.drain_seconds_max,
                alone_seconds=config.drain_alone_seconds_max,
                covered_seconds=config.drain_covered_seconds_max,
            ),
            began_monotonic_seconds=self._clock.monotonic_seconds(),
        )
        _log.info("member.exiting", member=str(self.member_id))
        told = False
        verdict = DrainVerdict.WAIT
        while verdict is DrainVerdict.WAIT and not self._forced.is_set():
            told = told or await self._tell_exiting(parts)
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_LOOK_SECONDS):
                    await self._forced.wait()
            verdict = drain.look(
                parts.key_space.members,
                parts.key_space.assignments.values(),
                leaving=self.member_id,
                now_monotonic_seconds=self._clock.monotonic_seconds(),
            )
        _log.warning(
            "member.drain_abandoned",
            member=str(self.member_id),
            reason="forced" if self._forced.is_set() else verdict.value,
            shards=len(parts.local_shards.shards),
        )
        parts.session.stop()

    async def _tell_exiting(self, parts: MemberParts) -> bool:
        """Write the exiting flag; False if it must be tried again."""
        try:
            await parts.session.update_member(self._member_value(exiting=True))
        except (EtcdUnavailableError, TxnConflictError) as error:
            _log.warning("member.exiting_not_told", member=str(self.member_id), cause=str(error))
            return False
        return True

    async def _wind_down(self, parts: MemberParts, server: GrpcServer) -> None:
        self._serving = False
        self.health.close()
        # First, so that long streams can end by themselves; the server then stops at once.
        parts.resolver.stopping.set()
        parts.local_shards.stop(grace_seconds=0.0 if self._forced.is_set() else None)
        async with TaskGroup() as group:
            group.start_soon(self._abort_when_forced(parts, server), name="member force")
            await server.stop(self._config.stop_seconds_max)
            await parts.local_shards.join()
            group.stop()

    async def _abort_when_forced(self, parts: MemberParts, server: GrpcServer) -> None:
        await self._forced.wait()
        parts.local_shards.abort()
        await server.stop(None)

    def _member_value(self, *, exiting: bool) -> bytes:
        return ConsumerSpec(
            process_spec=ProcessSpec(id=process_id_of(self.member_id), endpoint=self._address),
            shard_limit=self._config.shard_limit,
            exiting=exiting,
            admin_endpoint=self._admin_endpoint(),
            format_level=self._config.format_level,
        ).SerializeToString(deterministic=True)

    def _admin_endpoint(self) -> str:
        """Return the URL of the admin port as others reach it; it listens at a host of this machine."""
        if self._admin is None:
            return ""
        port = urlsplit(self._admin.address).port
        assert port is not None, "the admin port listens before the member is announced"
        return f"{self._config.scheme}://{host_and_port(self._config.host, port)}"

    def _mark_ready(self) -> None:
        self._serving = True
        self.health.set_serving(True)
        _log.info("member.ready", member=str(self.member_id), address=self._address)
        if not self.ready.done():
            self.ready.set_result(None)

    def _fail_ready(self, error: BaseException) -> None:
        if self.ready.done():
            return
        if isinstance(error, asyncio.CancelledError):
            self.ready.cancel()
            return
        self.ready.set_exception(error)
        # This future may have no reader; `run` raises the same error.
        self.ready.exception()


def _look_at_pages(pages: MemberPages, key_space: KeySpace) -> None:
    """Tell the live page whose admin ports there are, if members came, changed or left."""
    if key_space.changes.members:
        pages.take(
            (member_id.zone, process_of(member).admin_endpoint)
            for member_id, member in key_space.members.items()
        )


# Signals that make a member leave: the first gracefully, the second at once.


class Stoppable(Protocol):
    """Target of the signals."""

    def stop(self) -> None:
        """Leave gracefully. Idempotent."""

    def force_stop(self) -> None:
        """Leave at once. Idempotent."""


@contextmanager
def stop_on_signals(target: Stoppable, signals: Collection[signal.Signals]) -> Iterator[None]:
    """Stop `target` gracefully on the first of `signals`, and by force on any after it.

    Requires:
        Called in the main thread, unless `signals` is empty.
    """
    received: list[signal.Signals] = []

    def handle(number: signal.Signals) -> None:
        received.append(number)
        if len(received) == 1:
            target.stop()
        else:
            target.force_stop()
        _log.info("member.signalled", signal=number.name, count=len(received))

    with handled_on_loop({number: partial(handle, number) for number in signals}):
        yield


async def run_member(
    application: Application[Any],
    config: MemberConfig,
    *,
    stop_signals: Collection[signal.Signals] = STOP_SIGNALS,
    registry: CollectorRegistry | None = None,
    lease_route: LeaseRoute | None = None,
) -> None:
    """Run a member until a signal: the first asks it to leave, any after it forces it.

    Args:
        application: What the shards run.
        config: Identity, addresses and limits.
        stop_signals: What asks to leave; none where signals are another's business.
        registry: Of Prometheus metrics.
        lease_route: As of `Service`.

    Raises:
        BroadsheetError: as `Service.run`.
    """
    service = Service(application, config, registry=registry, lease_route=lease_route)
    with stop_on_signals(service, stop_signals):
        await service.run()
