"""Every exception that the Spark bridge raises.

SparkBridgeError
├── ClusterStartError(detail)       members did not come up
├── ClusterStoppedError             the cluster was stopped, or its job failed
└── JavaNotFoundError(detail)       no usable Java
"""

from __future__ import annotations


class SparkBridgeError(Exception):
    """Root of the bridge's exceptions."""


class ClusterStartError(SparkBridgeError):
    """Members did not announce themselves in time; the message says what Spark knows of it."""


class ClusterStoppedError(SparkBridgeError):
    """The cluster was stopped, or the Spark job behind it failed."""


class JavaNotFoundError(SparkBridgeError):
    """No Java of version 17 or later was found."""
