"""Runs members on a Spark cluster, from the driver.

    with ShardCluster(spark, "examples.flights.app:create", members=4, root="/broadsheet/flights") as cluster:
        cluster.apply(specs)
        cluster.wait_for_primary([spec.id for spec in specs])

A non-barrier job of N tasks that each live until told to stop; Spark starts a lost one again, alone. Stopping is
asked for by a key in etcd that every member watches. A cancelled job kills its tasks without a word, so that is the
last resort.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict, Unpack

import cloudpickle
import structlog
from pyspark.sql import SparkSession

from allocator.core.keys import Keys
from allocator.core.model import MemberId
from allocator.core.policy import AllocationPolicy
from allocator.etcd.config import EtcdConfig
from consumer.client import SyncShardClient
from consumer.config import MemberConfig
from consumer.errors import EndpointError
from consumer.protocol.auth import KeyedAuth
from consumer.protocol.shard_pb2 import ApplyRequest, ShardSpec
from consumer.shard.environment import ShardConfig
from spark_bridge.cluster.member_client import MemberClient
from spark_bridge.cluster.member_job import MemberJob
from spark_bridge.cluster.membership import MemberInfo, Membership
from spark_bridge.cluster.replicas import Replicas, read_replicas
from spark_bridge.conf import check_conf
from spark_bridge.errors import ClusterStartError, ClusterStoppedError, NoMemberError
from spark_bridge.member.serving import ApplicationFactory, MemberPlan
from spark_bridge.member.task import MemberTask
from spark_bridge.services import Services, find_or_start

log = structlog.get_logger()

START_SECONDS_MAX = 90.0
"""Executors of a fresh session take some seconds to come up, on a busy machine many."""
PRIMARY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
"""Longest wait for members to leave by themselves; then the job is cancelled."""
CANCEL_SECONDS_MAX = 20.0
"""Spark kills a cancelled Python worker after about 3 s."""
DRAIN_ALONE_SECONDS_MAX = 1.0
"""Members that all leave together have nobody to hand over to; it covers the time until the last has said so."""
_POLL_SECONDS = 0.05


class MemberSettings(TypedDict, total=False):
    """What may be set for every member; see `consumer.config.MemberConfig`."""

    bind_host: str
    state_dir: str
    shard_limit: int
    capacity: int
    hot_standbys_max: int
    lease_ttl_seconds: float
    watch_delay_seconds: float
    auth_keys: str
    broker_auth_keys: str
    announce_seconds_max: float
    watch_peers: bool
    drain_seconds_max: float
    drain_alone_seconds_max: float
    drain_covered_seconds_max: float
    stop_seconds_max: float
    request_bytes_max: int
    shards: ShardConfig
    allocation: AllocationPolicy


class ShardCluster:
    """Members on executors; a context manager that starts and stops them."""

    def __init__(
        self,
        spark: SparkSession,
        application: str | ApplicationFactory,
        *,
        members: int,
        root: str,
        etcd: EtcdConfig | Sequence[str] | None = None,
        broker: str | None = None,
        zone: str | None = None,
        data_dir: Path | None = None,
        start_timeout_seconds: float = START_SECONDS_MAX,
        **settings: Unpack[MemberSettings],
    ) -> None:
        """Describe the cluster; `start` starts it.

        Args:
            spark: A session started with `spark_bridge.conf.recommended_conf()`. Each member takes one task slot for
                as long as it lives.
            application: `module:factory` that executors can import, or a function without arguments that makes the
                application and can be pickled.
            members: Number of members.
            root: Where the cluster keeps its keys in etcd, e.g. `/broadsheet/flights`.
            etcd: Endpoints, or all that is needed to reach etcd; None starts one on this machine.
            broker: Address of the journal brokers, `http://host:port`; None starts one on this machine.
            zone: Failure domain of all members; None: each executor's `BROADSHEET_ZONE`, or else its host name.
            data_dir: Where a started etcd and broker keep their data; None: in a directory that `stop` removes.
            start_timeout_seconds: Longest wait for every member to announce itself.
            settings: Further settings of every member.

        Raises:
            SparkConfError: a setting of the session would harm members.
            ValidationError: an argument is out of its bounds.
        """
        check_conf(dict(spark.sparkContext.getConf().getAll()))
        if members < 1:
            raise ValueError(f"members: expected at least 1, got {members}")
        self._spark = spark
        self._application = application
        self._member_count = members
        self._keys = Keys(root)
        self._etcd_given = etcd
        self._broker_given = broker
        self._zone = zone
        self._data_dir = data_dir
        self._start_timeout_seconds = start_timeout_seconds
        self._settings = settings
        self._resources = ExitStack()
        self._job: MemberJob | None = None
        keys = settings.get("auth_keys", "")
        self._client = MemberClient(self.members, auth=KeyedAuth(keys) if keys else None)

    @property
    def root(self) -> str:
        """Where the cluster keeps its keys in etcd."""
        return self._keys.root

    @property
    def services(self) -> Services:
        """The etcd and the broker in use."""
        return self._services

    @property
    def client(self) -> SyncShardClient:
        """A client of a member that lives now. Take it anew for each use: members come and go.

        Raises:
            NoMemberError: there is none at the moment.
            ClusterStoppedError: the job failed.
        """
        return self._client.current()

    def start(self) -> None:
        """Start the members and wait until every one is announced.

        Raises:
            ClusterStartError: they did not come up in time, or the job failed.
        """
        try:
            self._start_services()
            self._refuse_second_cluster()
            self._job = MemberJob(self._spark, self._task(), members=self._member_count)
            self._job.start()
            self._wait_for_members()
        except BaseException:
            self.stop()
            raise

    def members(self) -> tuple[MemberInfo, ...]:
        """Return the live members, by their task's index.

        Raises:
            ClusterStoppedError: the job failed.
        """
        self._raise_if_failed()
        return self._membership.members()

    def apply(self, specs: Iterable[ShardSpec]) -> None:
        """Create or update shards, whatever their present revision."""
        changes = [ApplyRequest.Change(upsert=spec, expect_mod_revision=-1) for spec in specs]
        self._retry(lambda: self.client.apply(changes), timeout_seconds=PRIMARY_SECONDS_MAX)

    def wait_for_primary(
        self,
        shard_ids: Iterable[str],
        *,
        not_on: Container[MemberId] = (),
        timeout_seconds: float = PRIMARY_SECONDS_MAX,
    ) -> dict[str, MemberId]:
        """Wait until every shard has a primary that serves; return who it is, by shard id.

        Args:
            shard_ids: The shards.
            not_on: Members that do not count, e.g. one that was killed and that etcd does not know to be gone yet.
            timeout_seconds: Longest wait.

        Raises:
            TimeoutError: some have none; the message names them and what is known of them.
            ClusterStoppedError: the job failed.
        """
        wanted = frozenset(shard_ids)
        found = Replicas()

        def all_serving() -> bool:
            nonlocal found
            found = read_replicas(self.client.list(), not_on=not_on)
            return wanted <= found.primaries.keys()

        if not self._poll(all_serving, timeout_seconds=timeout_seconds):
            missing = "; ".join(
                found.describe(one) for one in sorted(wanted - found.primaries.keys())
            )
            raise TimeoutError(f"after {timeout_seconds:g} s there is no primary of {missing}")
        return {shard_id: found.primaries[shard_id] for shard_id in wanted}

    def stop(self) -> None:
        """Stop the members, by asking first, and let go of everything. Idempotent."""
        job, self._job = self._job, None
        if job is not None:
            self._stop_job(job)
        self._client.close()
        self._resources.close()

    def _start_services(self) -> None:
        data_dir = self._data_dir or Path(
            self._resources.enter_context(tempfile.TemporaryDirectory(prefix="broadsheet-"))
        )
        self._services = self._resources.enter_context(
            find_or_start(self._etcd_given, self._broker_given, data_dir=data_dir)
        )
        # The JVM runs already, so nothing forks from here on and gRPC may be used.
        self._membership = self._resources.enter_context(
            Membership(self._services.etcd, self._keys, application_id=self._application_id)
        )

    def _task(self) -> MemberTask:
        settings: MemberSettings = {
            "drain_alone_seconds_max": DRAIN_ALONE_SECONDS_MAX,
            **self._settings,
        }
        # Checks every setting here, where the user sees the error; identity and host are the executor's.
        config = MemberConfig(
            root=self.root,
            suffix="chosen-by-the-task",
            etcd=self._services.etcd,
            broker_address=self._services.broker_address,
            **settings,
        )
        plan = MemberPlan(
            config=config,
            application=self._application,
            zone=self._zone,
            stop_key=self._membership.stop_key,
            failure_key=self._membership.failure_key,
        )
        return MemberTask(
            application_id=self._application_id,
            etcd=config.etcd,
            root=config.root,
            plan=cloudpickle.dumps(plan),
        )

    @property
    def _application_id(self) -> str:
        return str(self._spark.sparkContext.applicationId)

    def _refuse_second_cluster(self) -> None:
        # Two clusters of one application and one root would take each other's members for dead predecessors.
        if running := self.members():
            raise ClusterStartError(
                f"{len(running)} members of this Spark application are at {self.root} already: "
                "stop the other ShardCluster, or choose another root"
            )

    def _wait_for_members(self) -> None:
        def announced() -> bool:
            return len(self.members()) >= self._member_count

        timeout_seconds = self._start_timeout_seconds
        if not self._poll(announced, timeout_seconds=timeout_seconds):
            count = len(self.members())
            raise ClusterStartError(
                f"{count} of {self._member_count} members came up at {self.root} within "
                f"{timeout_seconds:g} s: {self._membership.failure() or self._slots()}"
            )

    def _slots(self) -> str:
        slots = self._spark.sparkContext.defaultParallelism
        return f"each needs a task slot of its own, and Spark has about {slots}"

    def _stop_job(self, job: MemberJob) -> None:
        if not job.ended:
            self._membership.ask_to_stop()
            if not job.wait(STOP_SECONDS_MAX):
                log.warning("cluster.stop_forced", root=self.root, waited_seconds=STOP_SECONDS_MAX)
                job.cancel()
                job.wait(CANCEL_SECONDS_MAX)
        # What was killed could not revoke its lease; nobody shall wait for it.
        self._membership.clear()

    def _poll(self, condition: Callable[[], bool], *, timeout_seconds: float) -> bool:
        """Ask until the condition holds or the time passes; a member that cannot be reached is asked again."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                if condition():
                    return True
            except (EndpointError, NoMemberError, TimeoutError) as error:
                log.debug("cluster.member_unreachable", error=str(error))
                self._client.give_up()
            if time.monotonic() >= deadline:
                return False
            if self._job is not None:
                self._job.wait(_POLL_SECONDS)

    def _retry(self, call: Callable[[], object], *, timeout_seconds: float) -> None:
        def called() -> bool:
            call()
            return True

        if not self._poll(called, timeout_seconds=timeout_seconds):
            raise TimeoutError(f"no member of {self.root} answered within {timeout_seconds:g} s")

    def _raise_if_failed(self) -> None:
        if self._job is not None and self._job.ended:
            raise ClusterStoppedError(
                f"the Spark job of the members ended: {self._job.failure or self._job.results}"
            ) from self._job.failure

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
