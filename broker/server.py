"""The broker: opens the data, serves the journal service, stops in order."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import structlog
from prometheus_client import CollectorRegistry

from broadsheet.broker.admission import Admission
from broadsheet.broker.append import AppendHandler
from broadsheet.broker.append_stream import AppendStreamHandler
from broadsheet.broker.catalogue import Catalogue, read_catalogue
from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.data_root import DataRoot, open_data_root
from broadsheet.broker.disk import Disk
from broadsheet.broker.fragment_checks import FragmentChecks
from broadsheet.broker.fragment_deletion import DeletionHandler
from broadsheet.broker.fragment_stores import FragmentStores
from broadsheet.broker.fragment_verification import VerifyHandler
from broadsheet.broker.fragments_api import FragmentsHandler, QuarantineHandler, SumsHandler
from broadsheet.broker.free_space import FreeSpace
from broadsheet.broker.inline_commits import InlineCommits
from broadsheet.broker.journal import Site
from broadsheet.broker.journals import Journals
from broadsheet.broker.limits import BrokerLimits
from broadsheet.broker.list_apply import ApplyHandler, ListHandler
from broadsheet.broker.maintenance import Maintenance
from broadsheet.broker.metrics import CommitMetrics, ScrubMetrics, show_bounds, show_disk
from broadsheet.broker.publishing import FragmentPublisher, PublisherParts
from broadsheet.broker.quarantine import JournalQuarantine
from broadsheet.broker.read import ReadHandler
from broadsheet.broker.resolution import Identity, JournalResolver
from broadsheet.broker.scrubber import Scrubber
from broadsheet.broker.segment_recycler import SegmentRecycler
from broadsheet.broker.service import (
    Handlers,
    append_stream_handler,
    fragment_handler,
    generic_handler,
    standard_services,
)
from broadsheet.broker.staging import StagingArea
from broadsheet.broker.strangers import settle_root, with_journals_found
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.errors import (
    ServerEndedError,
    ValidationError,
)
from broadsheet.runtime.logs import guard_unconfigured_logs
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import server_auth
from broadsheet.serving.grpc_server import GrpcServer, IntakeBounds, ServerMetrics
from broadsheet.serving.metrics import CallMetrics, ProcessMetrics
from broadsheet.serving.standard_services import Health

if TYPE_CHECKING:
    from broadsheet.serving.admin import AdminServer

_log = structlog.get_logger()


class Broker:
    """A single-node broker of journals. An async context manager; its parts live on one loop."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        """Check the settings; nothing is opened yet.

        Args:
            config: The settings.
            clock: Time; the machine's if None.
            disk: File operations; the machine's if None.
            registry: Takes the broker's metrics; a new one if None.

        Raises:
            ValidationError: the address could be reached by others, and nothing guards it; or the file root is no
                directory, or overlaps the data directory.
        """
        if not config.is_guarded:
            raise ValidationError(
                "host",
                f"{config.host} can be reached from other machines: set auth keys, require "
                "certificates of clients, or allow unauthenticated access explicitly",
            )
        self._config = config
        self._clock = clock or SystemClock()
        self._disk = disk or Disk()
        self._stores = FragmentStores(config.file_root, config.cloud_stores)
        self.registry = registry or CollectorRegistry()
        """Prometheus metrics of the broker."""
        self._group = TaskGroup()
        self._verifier = server_auth(config.auth_keys, config.trust)
        self._root: DataRoot | None = None
        self._logs = ExitStack()
        """Open resources other than journals; closed after a failed start, too."""
        self._stopped = False
        self._admin: AdminServer | None = None
        self._processes = ProcessMetrics(self.registry)
        self._calls = CallMetrics(self.registry)
        self.health = Health()
        """Shown by the health service."""
        self.address = ""
        """URL to connect to, once started."""

    async def __aenter__(self) -> Self:
        guard_unconfigured_logs()
        try:
            self._processes.set_build("broker")
            if self._config.admin_port is not None:
                # From before the data is read, which may take long: a process that reads is alive.
                await self._start_admin(self._config.admin_port)
            self._root = await self._disk.run_owned(
                lambda: open_data_root(
                    self._disk,
                    self._config.data_dir,
                    # Even a new root outranks the revisions with which watchers of a deleted
                    # predecessor resume.
                    first_revision=int(self._clock.wall_seconds()),
                ),
                DataRoot.release,
            )
            await self._group.__aenter__()
            await self._start(self._root)
        except BaseException:
            self._abandon()
            await self._stop_admin()
            raise
        return self

    async def _start_admin(self, port: int) -> None:
        # Imported here, because it takes as long as all the rest, and a broker without the port does not need it.
        from broadsheet.serving.admin import AdminServer, standard_routes

        admin = AdminServer(
            self._config.host,
            port,
            routes=standard_routes(self.health, self.registry, self._variables),
            verifier=self._verifier,
            tls=self._config.tls,
        )
        self._admin = await admin.__aenter__()

    async def _stop_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.__aexit__(None, None, None)

    def _variables(self) -> dict[str, object]:
        """Return what the admin port shows of this broker."""
        found: dict[str, object] = {"address": self.address, "config": self._config}
        if self.health.is_serving:
            found["journals"] = len(self._catalogue.entries)
        return found

    async def _start(self, root: DataRoot) -> None:
        spares = SegmentRecycler(self._disk, root.spare, bytes_max=self._config.spare_bytes_max)
        floor = self._config.free_space_floor_bytes
        free_space = FreeSpace(self._disk, self._clock, root.journals, spares, floor_bytes=floor)
        publisher = self._publisher = FragmentPublisher(
            PublisherParts(
                stores=self._stores,
                disk=self._disk,
                clock=self._clock,
                group=self._group,
                spares=spares,
                free_space=free_space,
                local_bytes_max=self._config.local_fragment_bytes_max,
            ),
            self.registry,
        )
        self._logs.callback(publisher.close)
        self._checks = FragmentChecks(self._disk, publisher.fetch)
        self.limits = BrokerLimits.of(self._config.bounds, self._clock)
        show_bounds(self.registry, self.limits)
        self._catalogue = Catalogue(self._disk, root.catalogue, self._group)
        site = Site(
            disk=self._disk,
            clock=self._clock,
            config=self._config,
            group=self._group,
            spares=spares,
            free_space=free_space,
            direct=InlineCommits(self._clock, bytes_max=self._config.direct_commit_bytes_max),
            limits=self.limits,
            commits=CommitMetrics(self.registry),
            boot_id=root.boot_id,
            catalogue=self._catalogue,
            quarantine=JournalQuarantine(self._disk, root.directory),
            publisher=publisher,
        )
        self._logs.callback(self._catalogue.close)
        await self._disk.run(self._load, root)
        self._journals = Journals(site, root, lambda: self._catalogue.entries.keys())
        self._catalogue.observe(self._journals.on_update)
        show_disk(
            self.registry,
            journals=lambda: len(self._catalogue.entries),
            free_bytes=lambda: self._disk.free_bytes(root.journals),
            floor_bytes=floor,
        )
        # The port is bound only now, so that no client connects before the catalogue is loaded.
        self._server = GrpcServer(
            bounds=IntakeBounds(
                calls_per_connection_max=self._config.bounds.calls_per_connection_max,
                unread_calls_max=self._config.bounds.unread_calls_max,
            ),
            options=[
                ("grpc.max_receive_message_length", self._config.bounds.message_bytes_max),
                ("grpc.max_send_message_length", -1),
                # Two brokers must not share a port.
                ("grpc.so_reuseport", 0),
            ],
            metrics=ServerMetrics(self.registry, prefix="broadsheet_broker"),
        )
        listen = f"{_bracketed(self._config.host)}:{self._config.port}"
        port = self._server.bind(listen, self._config.tls)
        self.address = f"{self._config.scheme}://{_bracketed(self._config.host)}:{port}"
        handlers = self._handlers(root, site)
        self._server.add_generic_rpc_handlers(
            (
                generic_handler(handlers),
                fragment_handler(handlers),
                append_stream_handler(handlers),
                *standard_services(handlers, self.health),
            )
        )
        await self._server.start()
        self.health.set_serving(True)
        maintenance = self._maintenance = Maintenance(site, self._journals)
        self._ticks = [
            self._group.start_soon(self._watch_server(), name="broker.server"),
            self._group.start_soon(maintenance.run(), name="broker.maintenance"),
            self._group.start_soon(maintenance.run_notes(), name="broker.notes"),
            self._group.start_soon(publisher.run(), name="broker.publishing"),
            self._group.start_soon(self._open_published(publisher), name="broker.opening"),
            self._group.start_soon(self._processes.watch_loop(), name="broker.loop_lag"),
            self._group.start_soon(maintenance.run_syncs(), name="broker.syncs"),
            self._group.start_soon(
                Scrubber(
                    self._disk,
                    self._clock,
                    root.journals,
                    self._checks,
                    ScrubMetrics(lambda: self._checks.damaged_count, self.registry),
                ).run(self._config),
                name="broker.scrub",
            ),
        ]
        _log.info(
            "broker.started",
            address=self.address,
            data_dir=str(root.directory),
            durability=str(self._config.durability),
            journals=len(self._catalogue.entries),
            copies=1,
        )

    async def _watch_server(self) -> None:
        try:
            await self._server.watch()
        except ServerEndedError:
            # Probes and balancers must not send clients to a port that is closed, while the process ends.
            self.health.set_serving(False)
            raise

    async def _open_published(self, publisher: FragmentPublisher) -> None:
        """Open the journals that publish fragments, so that those left by an earlier process are published."""
        for entry in list(self._catalogue.entries.values()):
            if publisher.publishes(entry.spec):
                await self._journals.make_room()
                await self._journals.get(entry).journal.ready()

    def _load(self, root: DataRoot) -> None:
        """Read the catalogue and move unknown directories away. Blocking."""
        stored = settle_root(
            root,
            JournalQuarantine(self._disk, root.directory),
            read_catalogue(root.catalogue),
            accepts_loss=self._config.accept_catalogue_loss,
            wall_seconds=int(self._clock.wall_seconds()),
        )
        self._catalogue.load(with_journals_found(root, stored))

    def _handlers(self, root: DataRoot, site: Site) -> Handlers:
        identity = Identity(
            cluster_id=root.cluster_id,
            member_id=root.member_id,
            term=root.term,
            zone=self._config.zone,
            suffix=f"broker-{root.member_id:x}",
            endpoint=self.address,
        )
        resolver = JournalResolver(identity, self._catalogue, self._journals, self._verifier)
        staging = StagingArea(self._disk, root.spool, self._config)
        appends = AppendHandler(resolver, self._catalogue, staging, site)
        return Handlers(
            admission=Admission(resolver, self.limits, self._calls),
            appends=appends,
            append_streams=AppendStreamHandler(
                appends, self._catalogue, self._journals, self.limits
            ),
            reads=ReadHandler(resolver, self._journals, self._checks, site),
            lists=ListHandler(resolver, identity, self._catalogue, self._journals),
            applies=ApplyHandler(resolver, self._catalogue, journals_max=self._config.journals_max),
            fragments=FragmentsHandler(resolver, self._disk, root.spool, site.publisher),
            sums=SumsHandler(resolver, self._checks),
            deletions=DeletionHandler(resolver, site),
            verifications=VerifyHandler(resolver, site, self._checks),
            quarantine=QuarantineHandler(resolver, self._disk, site.quarantine),
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop gracefully, bounded: end waits, finish queued commits, close the files. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        self.health.close()
        # Blocked calls end first, because the server waits for all calls.
        self._journals.stopping = True
        self._journals.wake_all()
        self._catalogue.changed.notify()
        # In reverse order; each is tried, whatever failed before it, so that the directory is free in any case.
        async with AsyncExitStack() as steps:
            steps.push_async_callback(self._stop_admin)
            steps.callback(self._abandon)
            steps.push_async_exit(self._group)
            steps.push_async_callback(self._journals.close)
            steps.push_async_callback(self._maintenance.note_heads)
            steps.push_async_callback(self._publisher.stop)
            steps.callback(self._cancel_ticks)
            steps.push_async_callback(self._server.stop, self._config.stop_grace_seconds)
        _log.info("broker.stopped", address=self.address)

    def _cancel_ticks(self) -> None:
        for tick in self._ticks:
            tick.cancel()

    def _abandon(self) -> None:
        with ExitStack() as steps:
            # The lock goes last, because threads may still be writing until then.
            if self._root is not None:
                steps.callback(self._root.release)
            steps.callback(self._logs.close)
            steps.callback(self._disk.close)

    @property
    def admin_address(self) -> str:
        """URL of the admin port; empty if it has none."""
        return self._admin.address if self._admin is not None else ""

    @property
    def data_dir(self) -> Path:
        """The data directory."""
        return self._config.data_dir

    async def wait_for_termination(self) -> None:
        """Return when the server has ended."""
        await self._server.wait_for_termination()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
