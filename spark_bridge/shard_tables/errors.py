"""What a reader of tables may meet.

SparkBridgeError
├── NoMemberAnsweredError(met)      none of the members named can be reached
└── StateReadError(shard_id)        a shard's state cannot be read
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_bridge.errors import SparkBridgeError


class NoMemberAnsweredError(SparkBridgeError):
    """None of the members that were named can be reached."""

    def __init__(self, met: Mapping[str, str]) -> None:
        causes = "; ".join(f"{address}: {cause}" for address, cause in met.items())
        super().__init__(
            f"no member answers ({causes}): give option address one that lives, or several"
        )
        self.met = dict(met)


class StateReadError(SparkBridgeError):
    """A shard's state cannot be read; the message says what was met."""

    def __init__(self, shard_id: str, detail: str) -> None:
        super().__init__(f"the state of shard {shard_id} cannot be read: {detail}")
        self.shard_id = shard_id
        self.detail = detail
