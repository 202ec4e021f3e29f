"""Leases that other systems left behind, as their programs write them; each call blocks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from azure.storage.blob import ContainerClient

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

Row = Mapping[str, Any]  # Any: values of attributes.

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


def kcl_row(key: str, checkpoint: str, **more: Row) -> dict[str, Row]:
    """Return a row of the Kinesis Client Library for Java."""
    return {
        "leaseKey": {"S": key},
        "leaseOwner": {"S": "java-1"},
        "leaseCounter": {"N": "61"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": checkpoint},
        "checkpointSubSequenceNumber": {"N": "0"},
        "throughputKBps": {"N": "1.50"},
        **more,
    }


ANNOUNCED: Final[Row] = {
    "pendingCheckpoint": {"S": "250"},
    "pendingCheckpointSubSequenceNumber": {"N": "1"},
    "pendingCheckpointState": {"B": b"batch 9"},
    "parentShardId": {"SS": [FIRST]},
}
"""More of a row: a checkpoint was announced, and the shard has a parent."""


def vmware_row(key: str, checkpoint: str, **more: Row) -> dict[str, Row]:
    """Return a row of vmware-go-kcl whose lease ended long ago."""
    return {
        "ShardID": {"S": key},
        "AssignedTo": {"S": "go-1"},
        "LeaseTimeout": {"S": "2026-01-02T03:04:05.678Z"},
        "Checkpoint": {"S": checkpoint},
        **more,
    }


def make_table(client: DynamoDBClient, name: str, key_name: str, *rows: Mapping[str, Row]) -> None:
    """Make a table, and put rows."""
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": key_name, "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": key_name, "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    for row in rows:
        client.put_item(TableName=name, Item=row)


def make_eph_container(connection_string: str, name: str, **offsets: tuple[int, str]) -> None:
    """Make a container of Event Processor Host.

    Args:
        connection_string: Of the account.
        name: Of the container.
        offsets: Sequence number and offset by partition, whose names are written as `p0`.
    """
    with ContainerClient.from_connection_string(connection_string, name) as container:
        container.create_container()
        for partition, (sequence_number, offset) in offsets.items():
            body = {
                "partitionId": partition.removeprefix("p"),
                "owner": "host-1",
                "epoch": 4,
                "token": "",
                "sequenceNumber": sequence_number,
                "offset": offset,
            }
            container.upload_blob(
                f"$default/{body['partitionId']}",
                json.dumps(body),
                metadata={"owninghost": "host-1"},
            )
