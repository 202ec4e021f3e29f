"""One table of DynamoDB, asked on threads: boto3's clients block, and may be shared by threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from allocator.runtime.task_group import TaskGroup
from consumer.errors import DependencyError, InvalidStateError, ThrottlingError
from consumer.leasing.dynamodb.core.expressions import Condition, Update
from consumer.leasing.dynamodb.core.values import Item
from consumer.leasing.dynamodb.failures import (
    CONDITION_FAILED,
    IN_USE,
    NOT_FOUND,
    RefusedError,
    translated,
)

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

T = TypeVar("T")

USABLE: Final = ("ACTIVE", "UPDATING")
"""What DynamoDB calls a table that can be read and written."""
BATCH_KEYS_MAX: Final = 100
"""Rows that DynamoDB returns for one batch of keys."""
BATCH_ATTEMPTS_MAX: Final = 5
"""How often the rest of a batch is asked for before that counts as throttling."""
BATCH_PAUSE_SECONDS: Final = 0.05
"""Wait before the second attempt; twice as long before each further one."""
STATUS_POLL_SECONDS: Final = 1.0
STATUS_TIMEOUT_SECONDS: Final = 600.0
"""How often, and for how long, a table is looked at that is being made or deleted; it takes some 10 seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """How a table is made."""

    capacity_units: tuple[int, int] | None = None
    """Read and write capacity units, also of its index; None: paid by request."""
    deletion_protection: bool = False
    """Whether DynamoDB refuses to delete it."""
    point_in_time_recovery: bool = False
    """Whether DynamoDB keeps its past."""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKeys:
    """The attributes, all of type S, that a table is ordered by."""

    key_name: str
    owner_name: str
    owner_index: str | None


class LeaseTable:
    """Calls for one table, in the words of `consumer.leasing.dynamodb.failures`."""

    def __init__(
        self,
        client: DynamoDBClient,
        name: str,
        keys: TableKeys,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Describe the table; DynamoDB is not asked yet.

        Args:
            client: Of boto3; stays the caller's.
            name: Of the table.
            keys: What it is ordered by.
            sleep: Waits, for a number of seconds.
        """
        self._client = client
        self._name = name
        self._keys = keys
        self._sleep = sleep

    async def status(self) -> str | None:
        """Return what DynamoDB says of the table, e.g. `ACTIVE`; None: there is none."""

        def describe() -> str:
            return self._client.describe_table(TableName=self._name)["Table"]["TableStatus"]

        try:
            return await _call(describe, expected=(NOT_FOUND,))
        except RefusedError:
            return None

    async def create(self, options: TableOptions) -> bool:
        """Make the table, and wait until it can be used. False if another did, or it was there."""
        arguments = _creation_of(self._name, self._keys, options)
        try:
            await _call(
                lambda: self._client.create_table(**arguments), expected=(IN_USE,), writes=True
            )
        except RefusedError:
            await self._until(USABLE)
            return False
        await self._until(USABLE)
        if options.point_in_time_recovery:
            await _call(
                lambda: self._client.update_continuous_backups(
                    TableName=self._name,
                    PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True},
                ),
                writes=True,
            )
        return True

    async def delete(self) -> None:
        """Delete the table, and wait until it is gone. No error if there is none."""
        try:
            await _call(
                lambda: self._client.delete_table(TableName=self._name),
                expected=(NOT_FOUND, IN_USE),
                writes=True,
            )
        except RefusedError as refused:
            if refused.code == IN_USE and await self.status() != "DELETING":
                raise ThrottlingError(
                    f"table {self._name} is being made or changed: delete it later"
                ) from refused
        await self._until((None,))

    async def read(self, key: str) -> Item | None:
        """Return a row as it is now."""
        answer = await _call(
            lambda: self._client.get_item(
                TableName=self._name, Key=self._key(key), ConsistentRead=True
            )
        )
        return answer.get("Item")

    async def scan(self, *, rows_max: int | None, consistent: bool, segments: int) -> list[Item]:
        """Return all rows, in no order.

        Args:
            rows_max: Of a page; None: as many as fit.
            consistent: Whether each page is as it is now; else it may lack the last writes, for half the price.
            segments: Parts of the table that are read at once.
        """
        # Any: arguments of different types.
        arguments: dict[str, Any] = {"TableName": self._name, "ConsistentRead": consistent}
        if segments == 1:
            return await self._all_of(self._client.scan, arguments, rows_max)
        arguments["TotalSegments"] = segments
        async with TaskGroup() as group:
            reading = [
                group.start_soon(
                    self._all_of(self._client.scan, {**arguments, "Segment": number}, rows_max),
                    name=f"scan segment {number} of {self._name}",
                )
                for number in range(segments)
            ]
        return [row for segment in reading for row in segment.result()]

    async def keys_of(self, owner: str, *, rows_max: int | None) -> list[str] | None:
        """Return the keys of an owner's rows, as the index has them by now; None: there is no index."""
        names, index = self._keys, self._keys.owner_index
        if index is None:
            return None
        # Any: arguments of different types.
        arguments: dict[str, Any] = {
            "TableName": self._name,
            "IndexName": index,
            "KeyConditionExpression": "#owner = :owner",
            "ExpressionAttributeNames": {"#owner": names.owner_name},
            "ExpressionAttributeValues": {":owner": {"S": owner}},
        }
        try:
            rows = await self._all_of(self._client.query, arguments, rows_max)
        except InvalidStateError:
            if await self.status() not in USABLE:
                raise
            return None  # A table of before version 3 has no index, or it is being made.
        return [str(row[names.key_name]["S"]) for row in rows]

    async def read_all(self, keys: Sequence[str]) -> list[Item]:
        """Return the rows of keys as they are now, without those that are gone, in no order."""
        found: list[Item] = []
        for start in range(0, len(keys), BATCH_KEYS_MAX):
            found += await self._read_batch(keys[start : start + BATCH_KEYS_MAX])
        return found

    async def update(self, key: str, update: Update) -> Item:
        """Write a row, and return it.

        Raises:
            RefusedError: the condition does not hold; it says what is there.
        """
        answer = await _call(
            lambda: self._client.update_item(
                TableName=self._name,
                Key=self._key(key),
                ReturnValues="ALL_NEW",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **update,
            ),
            expected=(CONDITION_FAILED,),
            writes=True,
        )
        return answer["Attributes"]

    async def remove(self, key: str, condition: Condition) -> bool:
        """Delete a row. False if it was not there.

        Args:
            key: Of the row.
            condition: What must hold; may be empty.

        Raises:
            RefusedError: the condition does not hold; it says what is there.
        """
        answer = await _call(
            lambda: self._client.delete_item(
                TableName=self._name,
                Key=self._key(key),
                ReturnValues="ALL_OLD",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **condition,
            ),
            expected=(CONDITION_FAILED,),
            writes=True,
        )
        return bool(answer.get("Attributes"))

    async def _until(self, statuses: tuple[str | None, ...]) -> None:
        waited_seconds = 0.0
        while await self.status() not in statuses:
            if waited_seconds >= STATUS_TIMEOUT_SECONDS:
                raise DependencyError(
                    f"table {self._name} is not {statuses[0] or 'gone'} after {STATUS_TIMEOUT_SECONDS:.0f} s"
                )
            await self._sleep(STATUS_POLL_SECONDS)
            waited_seconds += STATUS_POLL_SECONDS

    async def _read_batch(self, keys: Sequence[str]) -> list[Item]:
        found: list[Item] = []
        wanted: Any = {  # Any: what is left has another type than what was asked.
            self._name: {"Keys": [self._key(key) for key in keys], "ConsistentRead": True}
        }
        for attempt in range(BATCH_ATTEMPTS_MAX):
            answer = await _call(
                lambda wanted=wanted: self._client.batch_get_item(RequestItems=wanted)  # type: ignore[misc]
            )
            found += answer["Responses"].get(self._name, [])
            wanted = answer["UnprocessedKeys"]
            if not wanted:
                return found
            await self._sleep(BATCH_PAUSE_SECONDS * 2**attempt)
        raise ThrottlingError(
            f"table {self._name} has no capacity to read {len(keys)} rows at once"
        )

    async def _all_of(
        self, ask: Callable[..., Any], arguments: dict[str, Any], rows_max: int | None
    ) -> list[Item]:
        """Return the rows of all pages of an answer; Any: calls of a kind."""
        if rows_max is not None:
            arguments = {**arguments, "Limit": rows_max}
        found: list[Item] = []
        while True:
            answer = await _call(lambda arguments=arguments: ask(**arguments))  # type: ignore[misc]
            found += answer["Items"]
            last = answer.get("LastEvaluatedKey")
            if not last:
                return found
            arguments = {**arguments, "ExclusiveStartKey": last}

    def _key(self, key: str) -> dict[str, Any]:  # Any: see `Value`.
        return {self._keys.key_name: {"S": key}}


async def _call(
    call: Callable[[], T], *, expected: tuple[str, ...] = (), writes: bool = False
) -> T:
    def on_thread() -> T:
        with translated(expected=expected, writes=writes):
            return call()

    return await asyncio.to_thread(on_thread)


def _creation_of(
    name: str, keys: TableKeys, options: TableOptions
) -> dict[str, Any]:  # Any: arguments of different types.
    attributes = [keys.key_name, *([keys.owner_name] if keys.owner_index else [])]
    arguments: dict[str, Any] = {
        "TableName": name,
        "AttributeDefinitions": [
            {"AttributeName": attribute, "AttributeType": "S"} for attribute in attributes
        ],
        "KeySchema": [{"AttributeName": keys.key_name, "KeyType": "HASH"}],
        "DeletionProtectionEnabled": options.deletion_protection,
        **_capacity_of(options),
    }
    if options.tags:
        arguments["Tags"] = [{"Key": tag, "Value": text} for tag, text in options.tags.items()]
    if keys.owner_index:
        throughput = {k: v for k, v in _capacity_of(options).items() if k != "BillingMode"}
        index = {
            "IndexName": keys.owner_index,
            "KeySchema": [
                {"AttributeName": keys.owner_name, "KeyType": "HASH"},
                {"AttributeName": keys.key_name, "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "KEYS_ONLY"},
            **throughput,
        }
        arguments["GlobalSecondaryIndexes"] = [index]
    return arguments


def _capacity_of(options: TableOptions) -> dict[str, Any]:  # Any: arguments of different types.
    if options.capacity_units is None:
        return {"BillingMode": "PAY_PER_REQUEST"}
    reads, writes = options.capacity_units
    return {
        "BillingMode": "PROVISIONED",
        "ProvisionedThroughput": {"ReadCapacityUnits": reads, "WriteCapacityUnits": writes},
    }
