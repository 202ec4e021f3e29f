"""Runs members on a Spark cluster, from the driver.

    with ShardCluster(spark, "broadsheet.examples.flights.app:create", members=4, root="/broadsheet/flights") as
    cluster:
        cluster.apply(specs)
        cluster.wait_for_primary([spec.id for spec in specs])

Members are tasks of non-barrier jobs, and each lives until it is ordered to leave; Spark restarts a lost one alone.
Orders to leave are keys in etcd that every member watches. Cancelling a job kills its tasks without a hand-over, so it
is the last resort.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

import cloudpickle
import structlog
from pyspark.resource import ResourceProfile
from pyspark.sql import SparkSession

from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.policy import AllocationPolicy, TransitionPolicy
from broadsheet.consumer.client import SyncShardClient
from broadsheet.consumer.member.config import MemberConfig
from broadsheet.notebook.extension import is_kernel, load_if_running, running_ipython
from broadsheet.runtime.logs import guard_unconfigured_logs
from broadsheet.runtime.process_directory import ProcessDirectory
from broadsheet.security.auth import KeyedAuth
from broadsheet.security.tls import TlsConfig
from broadsheet.spark_bridge.cluster.broker_journals import BrokerAccess
from broadsheet.spark_bridge.cluster.cluster_conf import MemberSettings, read_cluster_conf
from broadsheet.spark_bridge.cluster.cluster_html import cluster_html
from broadsheet.spark_bridge.cluster.elasticity import Elasticity, wait_until
from broadsheet.spark_bridge.cluster.executors import Executors, ExecutorWatch
from broadsheet.spark_bridge.cluster.interrupts import release, spare
from broadsheet.spark_bridge.cluster.joining import (
    ClusterAddress,
    Place,
    driver_record,
    place_of,
)
from broadsheet.spark_bridge.cluster.member_jobs import MemberJobs
from broadsheet.spark_bridge.cluster.membership import MemberInfo, Membership, drivers_at
from broadsheet.spark_bridge.cluster.query_plan import QueryShards, Sources
from broadsheet.spark_bridge.cluster.shards import LiveMemberClient, Shards
from broadsheet.spark_bridge.cluster.shipping import send_application
from broadsheet.spark_bridge.cluster.task_failures import MemberFailures, TaskFailureWatch
from broadsheet.spark_bridge.errors import (
    ClusterStartError,
    ClusterStopError,
    ClusterStoppedError,
    ExecutorUnfitError,
    NotInClusterError,
    ScaleTimeoutError,
)
from broadsheet.spark_bridge.member.application import ApplicationFactory, Arguments
from broadsheet.spark_bridge.member.serving import MemberPlan
from broadsheet.spark_bridge.member.task import MemberTask
from broadsheet.spark_bridge.routing.member_list import MemberDirectory
from broadsheet.spark_bridge.session import check_session
from broadsheet.wire.shard_pb2 import ShardSpec

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from broadsheet.consumer.keyed.application import JournalOutput
    from broadsheet.spark_bridge.cluster.keyed_query import KeyedQuery
    from broadsheet.spark_bridge.keyed.application import QueryArguments

_log = structlog.get_logger()
START_SECONDS_MAX = 90.0
"""Executors of a fresh session take some seconds to come up, on a busy machine many."""
SCALE_SECONDS_MAX = 120.0
PRIMARY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
"""Longest wait for members to leave by themselves; then the job is cancelled."""
RETURN_SECONDS_MAX = 5.0
"""Longest wait for tasks to return once their members are gone."""
CANCEL_SECONDS_MAX = 20.0
"""Spark kills a cancelled Python worker after about 3 s."""
ALLOCATION = AllocationPolicy(transition=TransitionPolicy(settle_seconds=0.0))
"""Balancing starts at once, because executors are not replaced one by one."""
DRAIN_ALONE_SECONDS_MAX = 1.0
"""Longest hand-over of members that all leave together: they have no successor, so it only covers the time until the
last one has announced that it leaves.
"""
DRAIN_COVERED_SECONDS_MAX = 5.0
"""Longest hand-over of shards that have a ready replica elsewhere; Spark starts no replacement before the member has
left.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Addresses of the etcd and the broker in use."""

    etcd: EtcdConfig
    broker_address: str


@contextmanager
def find_or_start(
    etcd: EtcdConfig | Sequence[str] | None, broker_address: str | None, *, data_dir: Path
) -> Iterator[Services]:
    """Return the services named, and start embedded ones in place of those not named.

    Embedded services listen on 127.0.0.1, so they serve only executors of this machine.

    Args:
        etcd: Endpoints of your cluster, or all that is needed to reach it; None starts one.
        broker_address: `http://host:port` of your brokers; None starts one.
        data_dir: Holds the data of embedded services; it survives them.
    """
    from broadsheet.embedded.broker import EmbeddedBrokerProcess
    from broadsheet.embedded.etcd import EmbeddedEtcdProcess

    with ExitStack() as started:
        if etcd is None:
            server = started.enter_context(EmbeddedEtcdProcess(data_dir / "etcd", listen="tcp"))
            etcd = (server.endpoint,)
        if broker_address is None:
            broker = started.enter_context(EmbeddedBrokerProcess(data_dir / "broker"))
            broker_address = broker.address
        config = etcd if isinstance(etcd, EtcdConfig) else EtcdConfig(endpoints=tuple(etcd))
        yield Services(etcd=config, broker_address=broker_address)


class ShardCluster:
    """A cluster of members on Spark executors; a context manager that starts and stops them."""

    def __init__(
        self,
        spark: SparkSession,
        application: str | ApplicationFactory | None = None,
        *,
        members: int,
        root: str = "",
        join: bool | str | Path = False,
        etcd: EtcdConfig | Sequence[str] | None = None,
        broker: str | None = None,
        zone: str | None = None,
        arguments: Mapping[str, str] | None = None,
        pool: str | None = None,
        resources: ResourceProfile | None = None,
        data_dir: Path | None = None,
        send_application: bool | None = None,
        start_timeout_seconds: float = START_SECONDS_MAX,
        **settings: Unpack[MemberSettings],
    ) -> None:
        """Describe the cluster; `start` starts it.

        Arguments not given are taken from the session's conf (`broadsheet.spark_bridge.cluster.cluster_conf`), if set.

        Args:
            spark: A session started with `broadsheet.spark_bridge.recommended_conf()`. Each member takes one task slot
                for
                as long as it lives.
            application: `module:factory` that executors can import, or a function that makes the application and can
                be pickled. It takes no argument, or one: the arguments. None: no member starts before
                `transform_with_state` brings one.
            members: Number of members.
            root: Prefix of the cluster's keys in etcd, e.g. `/broadsheet/flights`. Each cluster of a session needs
                another. Empty: that of `join`.
            join: True: other applications' clusters may be at this root, before or after this one, and all serve its
                shards together; members' zones are their applications. Or the `address` of another's cluster, or a
                file that has it. False: this driver expects to be alone.
            etcd: Endpoints, or all that is needed to reach etcd; None starts one on this machine.
            broker: Address of the journal brokers, `http://host:port`; None starts one on this machine.
            zone: Failure domain of all members; None: each executor's `BROADSHEET_ZONE`, or else its host name; with
                `join`, the application's id.
            arguments: Arguments of the application; they take precedence over those of the conf. They are not logged.
            pool: Of Spark's fair scheduler, for the members' tasks; None: the calling thread's.
            resources: Resources of a member, by stage-level scheduling; None: one slot of any executor.
            data_dir: Holds the data of an embedded etcd and broker; None: a directory that `stop` removes.
            send_application: Whether the application's modules that lie beside the driver's program are sent to
                executors, unless they are installed or were sent with `--py-files` or `addPyFile`; None: the conf's,
                or else True.
            start_timeout_seconds: Longest wait for every member to announce itself.
            settings: Further settings of every member.

        Raises:
            ConnectNotSupportedError: the session is a Spark Connect session.
            SparkConfError: a setting of the session would harm members.
            ClusterConfError: a setting of the session that is meant for clusters is wrong.
            ValidationError: an argument is out of its bounds.
        """
        check_session(spark)
        _require_members(members)
        conf = read_cluster_conf(spark.conf.getAll)
        self._spark = spark
        self._application = application
        self._member_count = members
        self._joins = bool(join)
        self._place = place_of(
            join.read_text() if isinstance(join, Path) else join,
            Place(root=root, etcd=etcd or conf.etcd, broker=broker or conf.broker),
        )
        self._keys = Keys(self._place.root)
        self._zone = zone or conf.zone or (self._application_id if join else None)
        self._arguments = Arguments({**conf.arguments, **(arguments or {})})
        self._pool = pool
        self._profile = resources
        self._data_dir = data_dir
        self._send_application = (
            conf.send_application if send_application is None else send_application
        )
        self._start_timeout_seconds = start_timeout_seconds
        self._settings: MemberSettings = {**conf.settings, **settings}
        self._resources = ExitStack()
        self._member_resources = ExitStack()
        """What lives as long as the members."""
        self._is_started = False
        self._jobs: MemberJobs | None = None
        self._log_file = ""
        self._is_released = False
        """Whether `stop` closed the connection to etcd."""
        keys = self._settings.get("auth_keys", "")
        self._client = LiveMemberClient(
            self.members, auth=KeyedAuth(keys) if keys else None, tls=self.tls
        )
        self._shards = Shards(self._client)

    @property
    def root(self) -> str:
        """Prefix of the cluster's keys in etcd."""
        return self._keys.root

    @property
    def address(self) -> str:
        """The address of this cluster, for `join` of another application's; without secrets, and only while it runs.

        Raises:
            ValidationError: etcd listens on a socket of this machine.
        """
        return ClusterAddress(endpoints=self._services.etcd.endpoints, root=self.root).url()

    @property
    def auth_keys(self) -> str:
        """Keys that sign requests to the members; empty if members do not check signatures."""
        return self._settings.get("auth_keys", "")

    @property
    def tls(self) -> TlsConfig | None:
        """Files with which members serve and call; on the driver, too, they are those of its own calls."""
        return self._settings.get("tls")

    @property
    def directory(self) -> MemberDirectory:
        """The list of living members in etcd, for tasks that outlive those of today."""
        return MemberDirectory(etcd=self._services.etcd, root=self.root)

    @property
    def services(self) -> Services:
        """The etcd and the broker in use."""
        return self._services

    @property
    def client(self) -> SyncShardClient:
        """A client of a live member. Get it again for each use, because members come and go.

        Raises:
            NoMemberError: there is none at the moment.
            ClusterStoppedError: the job failed.
        """
        return self._client.current()

    def start(self) -> None:
        """Start the members and wait until every one is announced; without an application, only etcd and broker.

        Raises:
            ExecutorUnfitError: no executor can run a member; the message says why, and what to do.
            ClusterJoinError: the settings do not fit those of another application's cluster at the root.
            ClusterStartError: they did not come up in time.
            ClusterStoppedError: the job failed.
        """
        guard_unconfigured_logs()
        load_if_running()
        self._is_released = False
        try:
            self._start_services()
            self._refuse_second_cluster()
            self._enrol()
            self._is_started = True
            if self._application is not None:
                self._start_members(self._application)
            if self._joins:
                self._warn_if_too_small()
        except BaseException:
            self.stop()
            raise

    def transform_with_state(
        self,
        processor: StatefulProcessor | Callable[[], StatefulProcessor],
        sources: Sources,
        *,
        output: JournalOutput | str | None = None,
        shards: QueryShards | None = None,
        timeout_seconds: float = PRIMARY_SECONDS_MAX,
        **query: Unpack[QueryArguments],
    ) -> KeyedQuery:
        """Run a `StatefulProcessor` of Spark's on shards: start the members, and wait until every shard is served.

            cluster = ShardCluster(spark, members=2, root="/broadsheet/visits")
            cluster.start()
            visits = cluster.transform_with_state(
                Visits(),
                "shop/clicks/",
                output="shop/visits",
                key="user",
                inputSchema="user string, at timestamp",
                outputStructType="user string, clicks long",
                timeMode="EventTime",
                eventTime="at",
                delay="1 minute",
            )

        Shards, recovery logs and journals of output are made unless they exist. At the same root, state and positions
        are those of an earlier call. The cluster must have no application: it runs one processor at a time.

        Args:
            processor: The processor, its class, or a function that makes one; its modules are sent to executors.
            sources: Journals: a prefix that ends in `/`, a name, or names. Each is read by a shard of its own, so all
                rows of a key are in one journal; or lists of names, each of which one shard reads.
            output: Where rows go: a journal of JSON lines, or a `JournalOutput`. None: handlers yield none.
            shards: Settings of the shards.
            timeout_seconds: Longest wait for the shards.
            query: Arguments of `broadsheet.spark_bridge.keyed.StatefulProcessorApplication`. `initialState` may be a
                DataFrame, too.

        Raises:
            ClusterStartError: the cluster has an application, or runs a processor already; or members did not come up.
            ClusterStoppedError: the cluster is not started.
            ValidationError: an argument is wrong, or a source does not exist; the error names it.
            TimeoutError: a shard is not served in time; the message has its error.
        """
        # Only users of keyed state need its extra.
        from broadsheet.spark_bridge.cluster.keyed_query import KeyedQuery, hosted_query

        self._require_vacant()
        hosted = hosted_query(processor, sources, output, query)
        given = shards or QueryShards()
        standbys = int(self._member_count > 1) if given.hot_standbys is None else given.hot_standbys
        settings = replace(given, name=given.name or self.root.lstrip("/"), hot_standbys=standbys)
        broker = self._broker()
        plan = hosted.plan(broker, settings, root=self.root)
        broker.create(plan.new_journals)
        ids = tuple(spec.id for spec in plan.shards)
        try:
            self._start_members(hosted.factory)
            self._shards.refuse_others(ids)
            self.apply(plan.shards)
            self.wait_for_primary(ids, timeout_seconds=timeout_seconds)
        except BaseException:
            self.stop_members()
            raise
        return KeyedQuery(
            cluster=self,
            spark=self._spark,
            broker=broker,
            name=settings.name,
            shard_ids=ids,
            outputs=hosted.outputs,
            schema=hosted.schema,
        )

    def members(self) -> tuple[MemberInfo, ...]:
        """Return the live members, by their task's number.

        Raises:
            ClusterStoppedError: the cluster was stopped, or its job failed.
        """
        return self._running().members()

    def last_failure(self) -> str:
        """Return the member that failed last, and the reason; empty if none reported a failure.

        A member that is killed reports nothing. Spark restarts it in either case.

        Raises:
            ClusterStoppedError: the cluster was stopped, or its job failed.
        """
        self._running()
        return self._membership.failure()

    def apply(self, specs: Iterable[ShardSpec]) -> None:
        """Create or update shards, whatever their present revision, and their recovery logs that do not exist."""
        self._shards.apply(specs, self._broker(), timeout_seconds=PRIMARY_SECONDS_MAX)

    def apply_files(self, *, journals: Path | None = None, specs: Path | None = None) -> None:
        """Apply YAML files, journals first, whatever the revisions of what they declare.

        Args:
            journals: File of journals, as `shardctl journals apply -f` takes it.
            specs: File of shards, as `shardctl shards apply -f` takes it. Journals that it names are checked, and its
                recovery logs made.

        Raises:
            ValidationError: a file cannot be read or is wrong; the error names the file, the place and the field.
            TimeoutError: no member answered.
        """
        # Only users of files pay for reading YAML.
        from broadsheet.spark_bridge.cluster.spec_files import read_journals, read_shards

        broker = self._broker()
        if journals is not None:
            broker.apply(read_journals(journals))
        if specs is not None:
            read = read_shards(specs)
            with read.errors_named():
                self._shards.verify(read.changes, broker)
            self.apply([change.upsert for change in read.changes])

    def wait_read_through(
        self, shard_ids: Iterable[str], *, timeout_seconds: float = PRIMARY_SECONDS_MAX
    ) -> None:
        """Wait until shards have read all that their sources have now, and committed it.

        Raises:
            ShardNotFoundError: there is no such shard.
            TimeoutError: it takes longer.
            JournalError: a source does not exist, or is not served.
        """
        self._shards.wait_read_through(shard_ids, self._broker(), timeout_seconds=timeout_seconds)

    def _broker(self) -> BrokerAccess:
        keys = self._settings.get("broker_auth_keys", "")
        return BrokerAccess(
            self._services.broker_address, KeyedAuth(keys) if keys else None, self.tls
        )

    def wait_for_primary(
        self,
        shard_ids: Iterable[str],
        *,
        not_on: Container[MemberId] = (),
        timeout_seconds: float = PRIMARY_SECONDS_MAX,
    ) -> dict[str, MemberId]:
        """Wait until every shard has a serving primary; return the primaries by shard id.

        Args:
            shard_ids: The shards.
            not_on: Members that do not count, e.g. one that was killed and whose lease has not ended yet.
            timeout_seconds: Longest wait.

        Raises:
            TimeoutError: some have none; the message names them and what is known of them.
            ClusterStoppedError: the job failed.
        """
        return self._shards.wait_for_primary(
            shard_ids, not_on=not_on, timeout_seconds=timeout_seconds
        )

    def scale(self, members: int, *, timeout_seconds: float = SCALE_SECONDS_MAX) -> None:
        """Change the number of members, and wait until it is reached.

        New members take task slots that are free, or become free; they are assigned shards as they come. Leaving
        members hand their shards over first; those on the fullest executors leave first, the youngest of them first.

        Raises:
            ScaleTimeoutError: it takes longer. It goes on: members come as soon as Spark has slots, or leave.
            ExecutorUnfitError: no executor can run a member. It goes on, too.
            ClusterStoppedError: the cluster was stopped, or its job failed.
        """
        _require_members(members)
        running = self._running()
        running.set_size(members)
        running.wait_settled(timeout_seconds=timeout_seconds)

    def drain(
        self, target: MemberInfo | MemberId | str, *, timeout_seconds: float = SCALE_SECONDS_MAX
    ) -> None:
        """Empty a member or an executor: hand its shards over, and wait until that is done.

        A member leaves for good, and the cluster is smaller by it. An executor, named by Spark's id for it, is
        decommissioned: its members are started again on others as slots allow, Spark places no further task there, and
        the executor ends once it has none.

        Raises:
            NotInClusterError: there is no such member or executor.
            SparkConfError: an executor is to be drained, and the session does not allow decommissioning.
            ValueError: the member is the cluster's last, and no other application has one at the root.
            ScaleTimeoutError: it takes longer; it goes on.
            ClusterStoppedError: the cluster was stopped, or its job failed.
        """
        running = self._running()
        if isinstance(target, str):
            running.drain_executor(target)
            running.wait_gone_from(target, timeout_seconds=timeout_seconds)
        else:
            running.dismiss(self._member(target))
            running.wait_settled(timeout_seconds=timeout_seconds)

    def stop(self) -> None:
        """Stop the members, by orders first, and release everything. Each step is tried, whatever failed before it.

        Idempotent. If the tasks of the members could not be ended, the next call tries again.

        Raises:
            EtcdError: etcd did not answer: Spark has killed the members, and their leases end by themselves.
            ClusterStopError: Spark did not end their tasks.
        """
        try:
            # In reverse order; an error of one step is raised after all of them.
            with ExitStack() as steps:
                steps.callback(self._resources.close)
                steps.callback(self.stop_members)
        finally:
            self._is_released = True
            self._is_started = False

    def stop_members(self) -> None:
        """Stop the members as `stop` does, but not etcd and broker. Idempotent.

        Raises:
            EtcdError, ClusterStopError: see `stop`.
        """
        jobs = self._jobs
        try:
            with ExitStack() as steps:
                steps.callback(self._member_resources.close)
                steps.callback(self._client.close)
                if jobs is not None:
                    steps.callback(self._clear)
                    steps.callback(self._end_jobs, jobs)
        finally:
            if jobs is not None and not jobs.running:
                self._jobs = None

    def _start_services(self) -> None:
        data_dir = self._data_dir
        if data_dir is None:
            data_dir = self._resources.enter_context(ProcessDirectory("broadsheet-cluster-")).path
        self._log_file = self._log_file_in(data_dir)
        self._services = self._resources.enter_context(
            find_or_start(self._place.etcd, self._broker_to_use(), data_dir=data_dir)
        )
        # The JVM runs already, so nothing forks from here on and gRPC may be used.
        self._membership = self._resources.enter_context(
            Membership(
                self._services.etcd,
                self._keys,
                application_id=self._application_id,
                joins=self._joins,
            )
        )

    def _broker_to_use(self) -> str | None:
        """Return the broker's address; that of the cluster to be joined, if none is given."""
        if self._place.broker is not None or not self._joins:
            return self._place.broker
        given = self._place.etcd
        assert given is not None, "of the address"
        config = given if isinstance(given, EtcdConfig) else EtcdConfig(endpoints=tuple(given))
        drivers = drivers_at(config, self.root)
        if not drivers:
            raise ClusterStartError(
                f"no driver of another application lives at {self.root}, so its broker is not known: "
                "give broker=, or start the other application first"
            )
        return drivers[0].broker

    def _enrol(self) -> None:
        """Announce this driver to those of other applications."""
        record = driver_record(
            self._member_config(),
            application_id=self._application_id,
            application=self._application or "",
            zone=self._zone or "",
            is_embedded=self._place.etcd is None
            or (self._place.broker is None and not self._joins),
        )
        self._membership.enrol(record)
        self._resources.callback(self._membership.leave)

    def _warn_if_too_small(self) -> None:
        """Log if the members could not serve every shard alone, as they must once another application is gone."""
        limit = self._member_config().shard_limit
        shards = self._membership.shard_count()
        if limit * self._member_count < shards:
            _log.warning(
                "cluster.too_small_alone",
                root=self.root,
                shards=shards,
                members=self._member_count,
                shard_limit=limit,
                problem="shards would be left without a primary if the other applications ended",
            )

    def _log_file_in(self, directory: Path) -> str:
        """Return the file for members' logs; empty if executors have files of their own, or this is no notebook."""
        local = not Executors(self._spark.sparkContext).can_be_lost
        if not (local and is_kernel(running_ipython())):
            return ""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory.resolve() / "members.log"
        _log.info("cluster.member_logs", file=str(path))
        return str(path)

    def _start_members(self, application: str | ApplicationFactory) -> None:
        context = self._spark.sparkContext
        if self._send_application:
            send_application(context, application)
        task = self._task(application)
        jobs = MemberJobs(self._spark, task, pool=self._pool, resources=self._profile)
        executors = Executors(context)
        member_failures = MemberFailures(context, group=jobs.group)
        self._elasticity = Elasticity(
            jobs,
            self._membership,
            executors,
            member_failures,
            slots=lambda: context.defaultParallelism,
        )
        self._watch = ExecutorWatch(executors, self._membership)
        self._member_resources.callback(self._watch.stop)
        failures = TaskFailureWatch(self._spark, member_failures)
        self._member_resources.callback(failures.stop)
        failures.start()
        self._jobs = jobs
        spare(context, jobs.group)
        self._member_resources.callback(release, jobs.group)
        self._elasticity.set_size(self._member_count)
        self._watch.start()
        try:
            self._elasticity.wait_settled(timeout_seconds=self._start_timeout_seconds)
        except ExecutorUnfitError:
            # No member is there to be told to leave, and Spark would start their tasks again and again.
            jobs.cancel()
            raise
        except ScaleTimeoutError as error:
            raise ClusterStartError(f"at {self.root} came up {error}") from None

    def _task(self, application: str | ApplicationFactory) -> MemberTask:
        config = self._member_config()
        plan = MemberPlan(
            config=config,
            application=application,
            zone=self._zone,
            arguments=self._arguments,
            orders_prefix=self._membership.orders_prefix,
            hosts_prefix=self._membership.hosts_prefix,
            failure_key=self._membership.failure_key,
            log_file=self._log_file,
        )
        return MemberTask(
            application_id=self._application_id,
            etcd=config.etcd,
            root=config.root,
            log_file=self._log_file,
            plan=cloudpickle.dumps(plan),
        )

    def _member_config(self) -> MemberConfig:
        settings: MemberSettings = {
            "drain_alone_seconds_max": DRAIN_ALONE_SECONDS_MAX,
            "drain_covered_seconds_max": DRAIN_COVERED_SECONDS_MAX,
            "allocation": ALLOCATION,
            **self._settings,
        }
        # Checks every setting here, where the user sees the error; identity and host are the executor's.
        return MemberConfig(
            root=self.root,
            suffix="chosen-by-the-task",
            etcd=self._services.etcd,
            broker_address=self._services.broker_address,
            **settings,
        )

    @property
    def _application_id(self) -> str:
        return str(self._spark.sparkContext.applicationId)

    def _running(self) -> Elasticity:
        if self._jobs is None:
            if self._is_started:
                raise ClusterStoppedError(
                    "the cluster has no members: transform_with_state starts them"
                )
            raise ClusterStoppedError("the cluster is not running: start it")
        return self._elasticity

    def _require_vacant(self) -> None:
        """Refuse a processor unless the cluster is started and without members."""
        if not self._is_started:
            raise ClusterStoppedError("the cluster is not running: start it")
        if self._application is not None:
            raise ClusterStartError(
                f"the cluster at {self.root} has an application: make a ShardCluster without one for a processor"
            )
        if self._jobs is not None:
            raise ClusterStartError(
                f"the cluster at {self.root} runs a processor already: stop that query, or make another ShardCluster "
                "with another root"
            )

    def _member(self, target: MemberInfo | MemberId) -> MemberInfo:
        member_id = target.member_id if isinstance(target, MemberInfo) else target
        members = self.members()
        for member in members:
            if member.member_id == member_id:
                return member
        known = ", ".join(str(member.member_id) for member in members)
        raise NotInClusterError(member_id, known=f"members {known or 'none'}")

    def _refuse_second_cluster(self) -> None:
        # Two clusters of one application and root would each take the other's members for dead
        # predecessors.
        if running := self._membership.members():
            raise ClusterStartError(
                f"{len(running)} members of this Spark application are at {self.root} already: "
                "stop the other ShardCluster, or choose another root"
            )

    def _end_jobs(self, jobs: MemberJobs) -> None:
        try:
            if not jobs.running or (not self._is_released and self._have_left(jobs)):
                return
        except BaseException as error:
            # Without etcd members get no orders; what still runs must give its slots back all the same.
            _log.warning("cluster.stop_forced", root=self.root, cause=str(error))
            self._cancel(jobs)
            raise
        self._cancel(jobs)

    def _have_left(self, jobs: MemberJobs) -> bool:
        """Order all members to leave; return whether their tasks have ended."""
        self._membership.order_all_to_leave()
        left = self._membership.members
        if not wait_until(lambda: not left(), timeout_seconds=STOP_SECONDS_MAX):
            _log.warning("cluster.stop_forced", root=self.root, waited_seconds=STOP_SECONDS_MAX)
            return False
        # Left are tasks that wait for a slot, maybe for ever.
        return jobs.wait(RETURN_SECONDS_MAX)

    def _cancel(self, jobs: MemberJobs) -> None:
        jobs.cancel()
        if not jobs.wait(CANCEL_SECONDS_MAX):
            raise ClusterStopError(self.root, tasks=len(jobs.running), seconds=CANCEL_SECONDS_MAX)

    def _clear(self) -> None:
        self._watch.stop()  # before its orders are cleared away
        # Killed members could not revoke their leases, and nothing should wait for these to expire.
        if not self._is_released:
            self._membership.clear()

    def _repr_html_(self) -> str:
        """Return the members as a table, for notebooks."""
        return cluster_html(self)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _require_members(members: int) -> None:
    if members < 1:
        raise ValueError(f"members: expected at least 1, got {members}")
