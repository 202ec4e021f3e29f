"""A worker of the Kinesis Client Library for Java, as far as its table can tell: what it writes, and on which terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.dynamodb_stores import DynamoSubject

Row = dict[str, Any]  # Any: values of attributes.


@dataclass(slots=True)
class KclPeer:
    """One worker. Its methods answer as those of its lease refresher: False if the condition does not hold."""

    subject: DynamoSubject
    worker: str

    def create(self, key: str, **more: Row) -> None:
        """Put a lease, as version 3.5 does."""
        self.subject.put(
            {
                "leaseKey": {"S": key},
                "leaseCounter": {"N": "0"},
                "ownerSwitchesSinceCheckpoint": {"N": "0"},
                "checkpoint": {"S": "TRIM_HORIZON"},
                "checkpointSubSequenceNumber": {"N": "0"},
                "entityType": {"S": "LEASE"},
                **more,
            }
        )

    def take(self, seen: Row) -> bool:
        """`takeLease`: compares the counter only."""
        old = seen.get("leaseOwner")
        switches = int(seen["ownerSwitchesSinceCheckpoint"]["N"]) + (
            old is not None and old["S"] != self.worker
        )
        return self._update(
            seen,
            "SET leaseOwner = :w, leaseCounter = :n, ownerSwitchesSinceCheckpoint = :s"
            " REMOVE checkpointOwner",
            "leaseCounter = :c",
            {":w": {"S": self.worker}, ":s": {"N": str(switches)}, **_counters(seen)},
        )

    def renew(self, seen: Row) -> bool:
        """`renewLease`: compares the counter, and that nobody hands the lease off."""
        return self._update(
            seen,
            "SET leaseCounter = :n",
            "leaseCounter = :c AND attribute_not_exists(checkpointOwner)",
            _counters(seen),
        )

    def commit(self, seen: Row, checkpoint: str) -> bool:
        """`updateLease`, with a checkpoint."""
        return self._update(
            seen,
            "SET checkpoint = :p, checkpointSubSequenceNumber = :z, leaseCounter = :n,"
            " ownerSwitchesSinceCheckpoint = :z"
            " REMOVE pendingCheckpoint, pendingCheckpointSubSequenceNumber, pendingCheckpointState",
            "leaseCounter = :c",
            {":p": {"S": checkpoint}, ":z": {"N": "0"}, **_counters(seen)},
        )

    def evict(self, seen: Row) -> bool:
        """`evictLease` of a lease that nobody hands off: compares the owner, not the counter."""
        return self._update(
            seen,
            "REMOVE leaseOwner ADD leaseCounter :one",
            "leaseOwner = :o AND attribute_not_exists(checkpointOwner)",
            {":o": seen["leaseOwner"], ":one": {"N": "1"}},
        )

    def begin_hand_off(self, seen: Row, owner: str) -> bool:
        """`initiateGracefulLeaseHandoff`: the counter stays."""
        return self._update(
            seen,
            "SET leaseOwner = :w, checkpointOwner = :o",
            "leaseOwner = :o AND attribute_not_exists(checkpointOwner)",
            {":w": {"S": owner}, ":o": seen["leaseOwner"]},
        )

    def note_children(self, key: str, children: list[str]) -> bool:
        """`updateLeaseWithMetaInfo`: the counter stays."""
        return self._update(
            {"leaseKey": {"S": key}},
            "SET childShardIds = :k",
            "attribute_exists(leaseKey)",
            {":k": {"SS": children}},
        )

    def _update(self, seen: Row, expression: str, condition: str, values: Row) -> bool:
        client = self.subject.client
        try:
            client.update_item(
                TableName=self.subject.table_name,
                Key={"leaseKey": seen["leaseKey"]},
                UpdateExpression=expression,
                ConditionExpression=condition,
                ExpressionAttributeValues=values,
            )
        except client.exceptions.ConditionalCheckFailedException:
            return False
        return True


def _counters(seen: Row) -> Row:
    counter = int(seen["leaseCounter"]["N"])
    return {":c": {"N": str(counter)}, ":n": {"N": str(counter + 1)}}
