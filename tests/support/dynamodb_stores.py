"""Record stores in DynamoDB, as two processes see them; and rows as other programs write them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from broadsheet.leases.stores.dynamodb.kcl_java import KclJavaLayout
from broadsheet.leases.stores.dynamodb.layout import Layout, NativeLayout
from broadsheet.leases.stores.dynamodb.store import DynamoRecordStore
from broadsheet.leases.stores.dynamodb.vmware_go import VmwareGoLayout
from broadsheet.runtime.clock import Clock

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

LAYOUTS: Final[Mapping[str, Callable[[], Layout]]] = {
    "native": NativeLayout,
    "kcl-java": KclJavaLayout,
    "vmware-go": VmwareGoLayout,
}

_SPOILED: Final[Mapping[str, Mapping[str, Any]]] = {  # Any: values of attributes.
    "key": {"record": {"S": "{"}},
    "leaseKey": {"leaseCounter": {"S": "many"}},
    "ShardID": {"LeaseTimeout": {"S": "soon"}},
}
"""An attribute that makes a row unreadable, by the layout's key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoSubject:
    """In a table of its own."""

    client: DynamoDBClient
    table_name: str
    layout: Layout
    store: DynamoRecordStore
    rival: DynamoRecordStore
    history_steps: int = 40

    async def spoil(self, key: str) -> None:
        """Write an attribute that no layout of that key takes."""
        ((name, value),) = _SPOILED[self.layout.key_name].items()
        self.change(key, "SET #a = :a", names={"#a": name}, values={":a": value})

    def put(self, item: Mapping[str, Any]) -> None:  # Any: values of attributes.
        """Write a whole row, as other programs do."""
        self.client.put_item(TableName=self.table_name, Item=item)

    def change(
        self,
        key: str,
        expression: str,
        *,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,  # Any: values of attributes.
    ) -> None:
        """Change some attributes of a row, as other programs do."""
        more: dict[str, Any] = {}  # Any: arguments of different types.
        if names:
            more["ExpressionAttributeNames"] = names
        if values:
            more["ExpressionAttributeValues"] = values
        self.client.update_item(
            TableName=self.table_name,
            Key={self.layout.key_name: {"S": key}},
            UpdateExpression=expression,
            **more,
        )

    def row(self, key: str) -> dict[str, Any]:  # Any: values of attributes.
        """Return a row as other programs read it."""
        answer = self.client.get_item(
            TableName=self.table_name,
            Key={self.layout.key_name: {"S": key}},
            ConsistentRead=True,
        )
        return dict(answer["Item"])


@asynccontextmanager
async def dynamodb_subject(
    client: DynamoDBClient,
    layout_name: str,
    *,
    page_rows: int | None = 50,
    clock: Clock | None = None,
) -> AsyncIterator[DynamoSubject]:
    """Two processes, each with what it remembers; the table ends with the server, which is faster."""
    table_name = f"leases-{uuid4().hex}"
    layout = LAYOUTS[layout_name]()
    stores = [
        DynamoRecordStore(client, table_name, layout=layout, page_rows=page_rows, clock=clock)
        for _ in range(2)
    ]
    yield DynamoSubject(
        client=client, table_name=table_name, layout=layout, store=stores[0], rival=stores[1]
    )
