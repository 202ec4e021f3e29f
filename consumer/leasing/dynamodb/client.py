"""A client of DynamoDB as a record store wants it: it gives up soon, and does not try again by itself.

A call that boto3 repeats in secret cannot say whether it was throttled or merely not heard; a lease manager that
repeats it can, and looks for its own write first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

CONNECT_SECONDS_MAX = 3.0
ANSWER_SECONDS_MAX = 5.0
"""Longest waits for a connection and for an answer: together less than the length of a lease."""
CONNECTIONS_MAX = 32
"""As many as asyncio has threads at most."""


def open_dynamodb_client(**settings: Any) -> DynamoDBClient:
    """Open a client; close it when the stores that use it are no longer used.

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
