"""Shards of a stream that other shards of ours read: whether they have come to their end, durably."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import structlog

from consumer.client.shard_client import ShardClient
from consumer.errors import EndpointError, RpcFailedError, ShardError
from consumer.protocol.auth import ClientAuth

END_SUFFIX: Final = ";end"
"""What is asked of a shard under the name of a shard of the stream with this suffix: that it has committed its end."""
ASK_SECONDS: Final = 1.0

_log = structlog.get_logger()


class Elsewhere(Protocol):
    """Knows how far the other parts of a stream have come."""

    async def has_ended(self, name: str, part_index: int) -> bool:
        """Tell whether all messages of a shard of the stream, to its end, are in a part's checkpoint.

        Args:
            name: Of the messages, e.g. `kinesis/orders/shardId-000000000000`.
            part_index: Of the part that reads it.
        """
        ...


class AskedByStat:
    """Asks the shards that read the other parts, by the Stat of the Shard service."""

    def __init__(
        self,
        address: str,
        shard_id_of: Callable[[int], str],
        *,
        auth: ClientAuth | None = None,
        timeout_seconds: float = ASK_SECONDS,
    ) -> None:
        """Bind it to a cluster.

        Args:
            address: Of any member.
            shard_id_of: Returns the id of the shard of ours that reads the part of an index.
            auth: Signs the requests.
            timeout_seconds: How long an answer may take; without one, the shard has not ended yet.
        """
        self._address = address
        self._auth = auth
        self._shard_id_of = shard_id_of
        self._timeout_seconds = timeout_seconds

    async def has_ended(self, name: str, part_index: int) -> bool:
        """Ask the part's shard; False also if it does not answer."""
        shard_id = self._shard_id_of(part_index)
        try:
            async with ShardClient(self._address, auth=self._auth) as client:
                await client.stat(
                    shard_id,
                    read_through={name + END_SUFFIX: 1},
                    timeout_seconds=self._timeout_seconds,
                )
        except TimeoutError:
            return False
        except (ShardError, EndpointError, RpcFailedError) as error:
            _log.info("kinesis.parent_unknown", source=name, shard=shard_id, reason=str(error))
            return False
        return True
