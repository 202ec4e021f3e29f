"""A worker of vmware-go-kcl, as far as its table can tell: what it writes, and on which conditions.

Most of it are puts of whole rows with nothing else in them, the last of which asks for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broadsheet.leases.stores.dynamodb.vmware_go import NANOSECONDS, moment_of
from tests.support.dynamodb_stores import DynamoSubject
from tests.support.stepping_clock import SteppingClock


@dataclass(slots=True)
class VmwareGoPeer:
    """One worker with one shard, and what it believes about it."""

    subject: DynamoSubject
    clock: SteppingClock
    worker: str
    shard: str = "shardId-000000000000"
    timeout: str = ""
    checkpoint: str = ""
    parent: str | None = None

    def fetch(self) -> None:
        """Read what is there, as `FetchCheckpoint` does; nothing of a row without a checkpoint."""
        row = self.subject.row(self.shard)
        if "Checkpoint" not in row:
            return
        self.checkpoint = row["Checkpoint"]["S"]
        self.timeout = row.get("LeaseTimeout", {"S": self.timeout})["S"]

    def acquire(self, *, expects: dict[str, Any] | None = None) -> None:
        """Acquire or renew, as `GetLease` does.

        Args:
            expects: What the row must be, or else this fails; None: nobody's.
        """
        self.timeout = moment_of(int((self.clock.now_seconds + 10) * NANOSECONDS) + 123)
        row = self._row(AssignedTo=self.worker, LeaseTimeout=self.timeout)
        if expects is None:
            self._put(row, "attribute_not_exists(AssignedTo)", {})
        else:
            values = {
                ":id": {"S": self.shard},
                ":assigned_to": expects["AssignedTo"],
                ":lease_timeout": expects["LeaseTimeout"],
            }
            condition = (
                "ShardID = :id AND AssignedTo = :assigned_to AND LeaseTimeout = :lease_timeout"
            )
            self._put(row, condition, values)

    def commit(self, checkpoint: str) -> None:
        """Put the row as the worker believes it to be, as `CheckpointSequence` does: on no condition."""
        self.checkpoint = checkpoint
        self._put(self._row(AssignedTo=self.worker, LeaseTimeout=self.timeout), "", {})

    def claim(self) -> None:
        """Ask for a lease, as `ClaimShard` does."""
        self.fetch()
        row = self.subject.row(self.shard)
        claimed = self._row(LeaseTimeout=self.timeout, ClaimRequest=self.worker)
        claimed |= {name: row[name] for name in ("AssignedTo", "ParentShardId") if name in row}
        self._put(
            claimed,
            "ShardID = :id AND LeaseTimeout = :lease_timeout AND attribute_not_exists(ClaimRequest)"
            " AND AssignedTo = :assigned_to AND Checkpoint = :checkpoint",
            {
                ":id": {"S": self.shard},
                ":lease_timeout": {"S": self.timeout},
                ":assigned_to": row["AssignedTo"],
                ":checkpoint": {"S": self.checkpoint},
            },
        )

    def release(self) -> None:
        """Let go, as `RemoveLeaseOwner` does."""
        self.subject.client.update_item(
            TableName=self.subject.table_name,
            Key={"ShardID": {"S": self.shard}},
            UpdateExpression="remove AssignedTo",
            ConditionExpression="AssignedTo = :assigned_to",
            ExpressionAttributeValues={":assigned_to": {"S": self.worker}},
        )

    def _row(self, **texts: str) -> dict[str, Any]:  # Any: values of attributes.
        row = {"ShardID": {"S": self.shard}} | {name: {"S": text} for name, text in texts.items()}
        if self.checkpoint:
            row["Checkpoint"] = {"S": self.checkpoint}
        if self.parent:
            row["ParentShardId"] = {"S": self.parent}
        return row

    def _put(self, row: dict[str, Any], condition: str, values: dict[str, Any]) -> None:
        more: dict[str, Any] = {"ConditionExpression": condition} if condition else {}
        if values:
            more["ExpressionAttributeValues"] = values
        self.subject.client.put_item(TableName=self.subject.table_name, Item=row, **more)


def vmware_moment(seconds: float) -> dict[str, Any]:
    """Return a moment, in seconds since the Unix epoch, as an attribute."""
    return {"S": moment_of(int(seconds * NANOSECONDS))}
