"""Asynchronous access to one DynamoDB table.

Calls run on threads, because boto3's clients block; threads may share a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from broadsheet.leases.errors import (
    DependencyError,
    InvalidStateError,
    LeasingError,
    ThrottlingError,
)
from broadsheet.leases.stores.dynamodb.expressions import Condition, UpdateArguments
from broadsheet.leases.stores.dynamodb.values import Item
from broadsheet.runtime.task_group import TaskGroup

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

T = TypeVar("T")
USABLE: Final = ("ACTIVE", "UPDATING")
"""Status of a table that can be read and written."""
BATCH_KEYS_MAX: Final = 100
"""Most keys in one batch request."""
BATCH_ATTEMPTS_MAX: Final = 5
"""Requests for the rest of a batch before that counts as throttling."""
BATCH_PAUSE_SECONDS: Final = 0.05
"""Pause before the second attempt, doubled before each further one."""
STATUS_POLL_SECONDS: Final = 1.0
STATUS_TIMEOUT_SECONDS: Final = 600.0
"""Interval and deadline of checks of a table being created or deleted, which takes some 10 seconds."""

# Translation of botocore's errors into leasing errors; nothing else reads them.

CONDITION_FAILED: Final = "ConditionalCheckFailedException"
NOT_FOUND: Final = "ResourceNotFoundException"
"""The table does not exist; with moto, also an index."""
IN_USE: Final = "ResourceInUseException"
"""The table exists, or is being created or deleted."""
_INVALID: Final = "ValidationException"
_TRANSACTION_CONFLICT: Final = "TransactionConflictException"
_THROTTLED: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "Throttling",
        "RequestLimitExceeded",
        "LimitExceededException",
    }
)
_PASSING: Final = frozenset({"ExpiredTokenException", "ExpiredToken", "RequestTimeoutException"})
"""Temporary refusals, which end e.g. once the client has new credentials."""


class ConditionRefusedError(Exception):
    """DynamoDB refused a request for a reason that its caller expects. Never raised outside this package."""

    def __init__(self, code: str, item: Item | None = None) -> None:
        """Keep the reason.

        Args:
            code: AWS' own.
            item: Of a condition that does not hold: the row as it is; None: there is none.
        """
        super().__init__(code)
        self.code = code
        self.item = item


@contextmanager
def translated(*, expected: tuple[str, ...] = (), writes: bool = False) -> Iterator[None]:
    """Translate a client's errors into leasing errors.

    Args:
        expected: Codes that the caller knows what to do about.
        writes: The call may have been applied if no answer comes.

    Raises:
        ConditionRefusedError:  DynamoDB answered with an expected code.
        ThrottlingError: there is no capacity; nothing was written.
        DependencyError: no answer came, or one of an outage.
        InvalidStateError: there is no table, or DynamoDB refuses the call and always will.
    """
    try:
        yield
    except ClientError as error:
        raise _error_for(error, expected=expected, writes=writes) from error
    except BotoCoreError as error:
        # An unsent request may be the client's second attempt, after an answer was lost.
        raise DependencyError(_text(error), outcome_unknown=writes) from error


def _error_for(
    error: ClientError, *, expected: tuple[str, ...], writes: bool
) -> LeasingError | ConditionRefusedError:
    # Any: what the answer has besides, by the kind of error.
    response: Any = error.response
    code = str(response.get("Error", {}).get("Code", ""))
    if code in expected:
        return ConditionRefusedError(code, response.get("Item"))
    metadata = response.get("ResponseMetadata", {})
    if code in _THROTTLED:
        if writes and metadata.get("RetryAttempts", 0):
            # The client retried, so an earlier attempt may have been applied.
            return DependencyError(_text(error), outcome_unknown=True)
        return ThrottlingError(_text(error))
    if code == NOT_FOUND:
        return InvalidStateError(f"no lease store: the table is not there; create it ({code})")
    if code == _INVALID:
        return InvalidStateError(
            f"DynamoDB refuses the call; is the table one of this layout? {_text(error)}"
        )
    if code == _TRANSACTION_CONFLICT or code in _PASSING:
        return DependencyError(_text(error))
    status = metadata.get("HTTPStatusCode", HTTPStatus.INTERNAL_SERVER_ERROR)
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return InvalidStateError(f"DynamoDB refuses the call ({code}): {_text(error)}")
    return DependencyError(_text(error), outcome_unknown=writes)


def _text(error: Exception) -> str:
    return str(error).partition("\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Options for creating a table."""

    capacity_units: tuple[int, int] | None = None
    """Read and write capacity units, also of its index; None: pay per request."""
    deletion_protection: bool = False
    """Deletion protection: DynamoDB refuses to delete the table."""
    point_in_time_recovery: bool = False
    """Point-in-time recovery."""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKeys:
    """The key attributes of a table, all of type S."""

    key_name: str
    owner_name: str
    owner_index: str | None


class LeaseTable:
    """Calls for one table, with leasing errors."""

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
        """Return the table's status, e.g. `ACTIVE`; None: there is no table."""

        def describe() -> str:
            return self._client.describe_table(TableName=self._name)["Table"]["TableStatus"]

        try:
            return await _call(describe, expected=(NOT_FOUND,))
        except ConditionRefusedError:
            return None

    async def create(self, options: TableOptions) -> bool:
        """Create the table, and wait until it is active; return False if it exists, or another process creates it."""
        arguments = _creation_of(self._name, self._keys, options)
        try:
            await _call(
                lambda: self._client.create_table(**arguments), expected=(IN_USE,), writes=True
            )
        except ConditionRefusedError:
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
        except ConditionRefusedError as refused:
            if refused.code == IN_USE and await self.status() != "DELETING":
                raise ThrottlingError(
                    f"table {self._name} is being created or changed: delete it later"
                ) from refused
        await self._until((None,))

    async def read(self, key: str) -> Item | None:
        """Return the present row."""
        answer = await _call(
            lambda: self._client.get_item(
                TableName=self._name, Key=self._key(key), ConsistentRead=True
            )
        )
        return answer.get("Item")

    async def scan(self, *, rows_max: int | None, consistent: bool, segments: int) -> list[Item]:
        """Return all rows, unordered.

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
        """Return the keys of an owner's rows, which the index may show late; None: there is no index."""
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
            return None  # A table from before version 3 has no index, or it is being created.
        return [str(row[names.key_name]["S"]) for row in rows]

    async def read_all(self, keys: Sequence[str]) -> list[Item]:
        """Return the present rows of keys, without deleted ones, unordered."""
        found: list[Item] = []
        for start in range(0, len(keys), BATCH_KEYS_MAX):
            found += await self._read_batch(keys[start : start + BATCH_KEYS_MAX])
        return found

    async def update(self, key: str, update: UpdateArguments) -> Item:
        """Write a row, and return it.

        Raises:
            ConditionRefusedError: the condition does not hold; it says what is there.
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
        """Delete a row; return False if it was not there.

        Args:
            key: Of the row.
            condition: What must hold; may be empty.

        Raises:
            ConditionRefusedError: the condition does not hold; it says what is there.
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
        wanted: Any = {  # Any: the unprocessed keys have another type than the request's.
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


CONNECT_SECONDS_MAX = 3.0
ANSWER_SECONDS_MAX = 5.0
"""Timeouts of a connection and of an answer, together less than the length of a lease."""
CONNECTIONS_MAX = 32
"""Connections; asyncio's default executor has at most as many threads."""


def open_dynamodb_client(**settings: Any) -> DynamoDBClient:
    """Open a client for record stores, with short timeouts and no retries; close it after its last store.

    A call that boto3 retries silently cannot tell throttling from a lost answer; a lease manager that retries can, and
    looks for its own write first.

    Args:
        settings: As of `boto3.client`, e.g. `region_name`, `endpoint_url`; a `config` is merged over this one's.
            Any: of different types.
    """
    config = Config(
        connect_timeout=CONNECT_SECONDS_MAX,
        read_timeout=ANSWER_SECONDS_MAX,
        retries={"total_max_attempts": 1},
        max_pool_connections=CONNECTIONS_MAX,
    )
    given = settings.pop("config", None)
    return boto3.client(
        "dynamodb", config=config if given is None else config.merge(given), **settings
    )
