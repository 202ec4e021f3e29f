"""Exceptions that the Spark bridge raises.

SparkBridgeError
├── ClusterStartError(detail)       members were not announced in time
│   ├── ClusterJoinError(root)      settings do not fit those of the application that is there
│   └── ExecutorUnfitError          no executor can run a member, and why
├── ClusterStoppedError             the cluster was stopped, or its job failed
├── NoMemberError                   no member is alive at the moment
├── ScaleTimeoutError(wanted)       a change of size takes longer than one waited; also a TimeoutError
├── NotInClusterError(target)       neither a member nor an executor of the cluster
├── ConnectNotSupportedError        a session over Spark Connect cannot do this
├── ApplicationLoadError            the application's factory cannot be found
├── ArgumentMissingError(name)      the application was not given an argument; also a KeyError
├── MemberReleasedError             a member left although the cluster was not stopped
├── JavaNotFoundError(detail)       no usable Java
├── SparkConfError(name)            a setting of the session would harm members
├── SparkVersionError(feature)      PySpark is older than a feature needs
├── ClusterConfError(name)          one of `spark.broadsheet.*` is not what it must be
├── ShardNotServedError(shard_id)   a task's call was not answered in time; also a TimeoutError
│   └── MembersGoneError            no member answered at all
├── TokenIgnoredError(shard_id)     a method does not honour tokens
├── StateImportError(checkpoint)    a query's state cannot be taken over
└── PublishError                    a DataFrame cannot be published
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from broadsheet.runtime.errors import BroadsheetError


class SparkBridgeError(BroadsheetError):
    """Root of the bridge's exceptions."""


class ClusterStartError(SparkBridgeError):
    """Members did not announce themselves in time; the message says what Spark knows of it."""


class ExecutorUnfitError(ClusterStartError):
    """No executor can run a member: the message has the executors' own errors, and what to do.

    docs/executor-errors.md explains each.
    """

    def __init__(self, problems: str) -> None:
        super().__init__(f"no executor can run a member:\n{problems}")


class ClusterJoinError(ClusterStartError):
    """The settings of a driver do not fit those of another application's driver at the same root."""

    def __init__(self, root: str, application_id: str, problems: Sequence[str]) -> None:
        super().__init__(
            f"cannot join application {application_id} at {root}: {'; '.join(problems)}. If it was killed, its key "
            "in etcd ends after 10 s"
        )
        self.root = root
        self.problems = tuple(problems)


class StateImportError(SparkBridgeError):
    """A query's state cannot be read from its checkpoint, or was not read as a whole; the message says why."""

    def __init__(self, checkpoint: str, detail: str) -> None:
        super().__init__(f"the state in {checkpoint} cannot be taken over: {detail}")
        self.checkpoint = checkpoint
        self.detail = detail


class SparkVersionError(SparkBridgeError):
    """PySpark is older than a feature needs; the message names both versions, and what works with this one."""

    def __init__(self, feature: str, minimum: tuple[int, int], present: str) -> None:
        wanted = ".".join(map(str, minimum))
        super().__init__(
            f"{feature} needs PySpark {wanted} or later, and this is {present}; "
            "docs/spark.md#versions-of-spark says what works with which"
        )
        self.feature = feature
        self.minimum = minimum


class ClusterStopError(SparkBridgeError):
    """Spark did not end the tasks of a cluster that was stopped."""

    def __init__(self, root: str, *, tasks: int, seconds: float) -> None:
        super().__init__(
            f"{tasks} tasks of the cluster at {root} still run {seconds:g} s after their jobs were cancelled: "
            "call stop() again, or end their executors"
        )


class ClusterStoppedError(SparkBridgeError):
    """The cluster was stopped, or the Spark job behind it failed."""


class NoMemberError(SparkBridgeError):
    """Every member is gone at the moment; Spark starts them again."""


class ScaleTimeoutError(SparkBridgeError, TimeoutError):
    """A cluster has not reached its wanted size in time; it goes on trying."""

    def __init__(self, wanted: int, *, members: int, seconds: float, why: str) -> None:
        super().__init__(f"{members} of {wanted} members after {seconds:g} s: {why}")
        self.wanted = wanted
        self.members = members


class NotInClusterError(SparkBridgeError):
    """The name is neither that of a live member nor of an executor of the cluster."""

    def __init__(self, target: object, *, known: str) -> None:
        super().__init__(f"expected a live member or an executor, got {target}; there are {known}")
        self.target = target


class ConnectNotSupportedError(SparkBridgeError):
    """A Spark Connect session has no SparkContext, which this call needs."""

    def __init__(self, what: str, *, instead: str) -> None:
        super().__init__(
            f"{what} needs a SparkContext in its own process, and this session reaches Spark over "
            f"Spark Connect: {instead}"
        )


class ArgumentMissingError(SparkBridgeError, KeyError):
    """The application asks for an argument that is not set."""

    def __init__(self, name: str, *, given: Sequence[str]) -> None:
        super().__init__(
            f"the application was not given {name!r}: set spark.broadsheet.app.{name}, or "
            f"spark.broadsheet.secret.app.{name}; given are {', '.join(given) or 'none'}"
        )
        self.name = name

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError's own text would be in quotes


class ApplicationLoadError(SparkBridgeError):
    """The name of an application does not lead to a factory, or its module cannot be imported."""

    @classmethod
    def of(cls, name: str, error: Exception) -> Self:
        """Return the error of an import that raised another one.

        Args:
            name: `module:factory`; empty if the factory was passed itself.
            error: The import's error.
        """
        what = f"application {name!r}" if name else "the application's factory"
        kind = type(error).__name__
        return cls(f"{what} cannot be imported: {kind}: {error}")


class MemberReleasedError(SparkBridgeError):
    """A member left although the cluster was not stopped; its task fails, so that Spark restarts it."""


class JavaNotFoundError(SparkBridgeError):
    """No Java of version 17 or later was found."""


class SparkConfError(SparkBridgeError):
    """A setting of the Spark session is unfit for members."""

    def __init__(self, name: str, *, value: str, needed: str, why: str) -> None:
        super().__init__(
            f"{name} is {value}, members need {needed}: {why}. "
            "Start the session with broadsheet.spark_bridge.recommended_conf()"
        )
        self.name = name
        self.value = value


class ClusterConfError(SparkBridgeError):
    """A setting of the session that is meant for clusters is wrong; the message never has its value."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name


class PublishError(SparkBridgeError):
    """A DataFrame cannot be published; the message says what was expected."""


class ShardNotServedError(SparkBridgeError, TimeoutError):
    """A task's call was not answered by the shard's primary before the deadline."""

    def __init__(
        self,
        shard_id: str,
        method: str,
        *,
        attempts: int,
        seconds: float,
        asked: Mapping[str, str],
    ) -> None:
        met = "; ".join(f"{endpoint}: {cause}" for endpoint, cause in asked.items())
        super().__init__(
            f"{method} of shard {shard_id} was not answered within {seconds:g} s "
            f"({attempts} attempts); asked {met or 'no member: the deadline had passed'}"
        )
        self.shard_id = shard_id
        self.method = method
        self.asked = dict(asked)
        """The last answer of each member by its address, in the order of the last questions."""


class MembersGoneError(ShardNotServedError):
    """No member answered a task's call until its deadline, of those that are known and those that etcd lists.

    A job that fails with it four times in one task is ended by the session's `ShardCluster`.
    """


class TokenIgnoredError(SparkBridgeError):
    """An application's method does not acknowledge the call's token, so its answer may be older than that."""

    def __init__(self, shard_id: str, method: str) -> None:
        super().__init__(
            f"{method} of shard {shard_id} did not say that it honoured the token: serve it with "
            "broadsheet.consumer.serving_shard, or give its request a field `read_through`"
        )
        self.shard_id = shard_id
        self.method = method


class QuerySourceReplacedError(SparkBridgeError):
    """A journal no longer holds the content that a query has read."""

    def __init__(
        self, journal: str, offset: int, write_head: int, read_epoch: str, present_epoch: str
    ) -> None:
        super().__init__(
            f"journal {journal} does not hold what was read of it: it was read up to offset {offset} in epoch "
            f"{read_epoch}; its write head is {write_head} now, in epoch {present_epoch}. It was deleted and applied "
            "again, or has lost its end. Restore it, or set the option failOnDataLoss to false to read all that is "
            "there now"
        )
        self.journal = journal
        self.offset = offset
        self.write_head = write_head
        self._epochs = (read_epoch, present_epoch)

    def __reduce__(self) -> tuple[type[QuerySourceReplacedError], tuple[str, int, int, str, str]]:
        return type(self), (self.journal, self.offset, self.write_head, *self._epochs)


class QuerySourceGoneError(SparkBridgeError):
    """A journal of which a query has content left to read does not exist any more."""

    def __init__(self, journal: str, offset: int) -> None:
        super().__init__(
            f"journal {journal} does not exist, or is hidden from this query, which planned to read it up to offset "
            f"{offset}. Restore it, or set the option failOnDataLoss to false to go on without it"
        )
        self.journal = journal
        self.offset = offset
        """End of what was to be read, bytes."""

    def __reduce__(self) -> tuple[type[QuerySourceGoneError], tuple[str, int]]:
        return type(self), (self.journal, self.offset)


class JournalBytesGoneError(SparkBridgeError):
    """Bytes that a read has not seen yet are gone from their journal."""

    def __init__(self, journal: str, begin: int, end: int) -> None:
        super().__init__(
            f"journal {journal}: bytes [{begin}, {end}) are gone before they were read: its retention is shorter than "
            "the query's pause, or it was recreated. To go on without them, set the option failOnDataLoss to false"
        )
        self.journal = journal
        self.begin = begin
        """Offset of the first missing byte."""
        self.end = end
        """Offset of the first byte after it that is present."""

    def __reduce__(self) -> tuple[type[JournalBytesGoneError], tuple[str, int, int]]:
        return type(self), (self.journal, self.begin, self.end)
