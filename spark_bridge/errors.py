"""Every exception that the Spark bridge raises.

SparkBridgeError
├── ClusterStartError(detail)       members did not come up
├── ClusterStoppedError             the cluster was stopped, or its job failed
├── NoMemberError                   no member is alive at the moment
├── ApplicationLoadError            the application's factory cannot be found
├── MemberReleasedError             a member left although nobody asked the cluster to stop
├── JavaNotFoundError(detail)       no usable Java
├── SparkConfError(name)            a setting of the session would harm members
└── PublishError                    a DataFrame cannot be published
"""

from __future__ import annotations


class SparkBridgeError(Exception):
    """Root of the bridge's exceptions."""


class ClusterStartError(SparkBridgeError):
    """Members did not announce themselves in time; the message says what Spark knows of it."""


class ClusterStoppedError(SparkBridgeError):
    """The cluster was stopped, or the Spark job behind it failed."""


class NoMemberError(SparkBridgeError):
    """Every member is gone at the moment; Spark starts them again."""


class ApplicationLoadError(SparkBridgeError):
    """The name of an application does not lead to a factory."""


class MemberReleasedError(SparkBridgeError):
    """A member left although nobody asked the cluster to stop; its task fails, so that Spark starts it again."""


class JavaNotFoundError(SparkBridgeError):
    """No Java of version 17 or later was found."""


class SparkConfError(SparkBridgeError):
    """A setting of the Spark session is unfit for members."""

    def __init__(self, name: str, *, value: str, needed: str, why: str) -> None:
        super().__init__(
            f"{name} is {value}, members need {needed}: {why}. "
            "Start the session with spark_bridge.conf.recommended_conf()"
        )
        self.name = name
        self.value = value


class PublishError(SparkBridgeError):
    """A DataFrame cannot be published; the message says what was expected."""
