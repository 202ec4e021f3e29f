"""Shard lineage of a stream: the part that reads each shard, and the shards readable now.

The hash keys [0, 2**128) are cut into as many slices as there are parts. A shard of the stream belongs to the slice in
which its range begins, regardless of its parents and children, so each shard has one reader, which needs no record. It
is read once its parents were read to their ends. A parent may be of another part:

    slice   0          |  1
    parents [----A----)[----B----)      C begins in slice 0, and waits for B of slice 1
    child   [---------C----------)

then the reader of C asks that part whether a checkpoint holds the parent's end
(`broadsheet.consumer.sources.kinesis.lineage`). A parent that the stream does not list any more has no records, and
counts as read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from broadsheet.consumer.client.shard_client import ShardClient
from broadsheet.consumer.errors import ShardError
from broadsheet.consumer.sources.kinesis.records import ShardHashRange
from broadsheet.consumer.sources.part import Part
from broadsheet.runtime.errors import EndpointError, RpcFailedError
from broadsheet.security.auth import ClientAuth
from broadsheet.security.tls import TlsConfig

HASH_BITS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShard:
    """A shard of a stream."""

    id: str
    parents: tuple[str, ...] = ()
    hashes: ShardHashRange


@dataclass(frozen=True, slots=True)
class ReadableParts:
    """Readable and awaited shards of one part."""

    readable: tuple[StreamShard, ...]
    """Shards that may be read, oldest first."""
    awaited: tuple[StreamShard, ...]
    """Parents in other parts that shards of this part wait for."""


def slice_of(shard: StreamShard, count: int) -> int:
    """Return the index of the part that reads a shard."""
    return (shard.hashes.first * count) >> HASH_BITS


def outlook(
    shards: Mapping[str, StreamShard], part: Part, *, finished: Collection[str]
) -> ReadableParts:
    """Determine the shards that a part may read now.

    Args:
        shards: All that the stream lists, by id.
        part: Ours.
        finished: Ids of shards that were read to their ends, of any part.
    """
    readable: list[StreamShard] = []
    awaited: dict[str, StreamShard] = {}
    for shard_id in sorted(shards):
        shard = shards[shard_id]
        if slice_of(shard, part.count) != part.index or shard_id in finished:
            continue
        blocking = [
            shards[parent]
            for parent in shard.parents
            if parent in shards and parent not in finished
        ]
        if not blocking:
            readable.append(shard)
        awaited |= {each.id: each for each in blocking if slice_of(each, part.count) != part.index}
    return ReadableParts(tuple(readable), tuple(awaited.values()))


# Ends of shards that other parts read, as their checkpoints hold them.

END_SUFFIX: Final = ";end"
"""Suffix of a stream shard's name in a Stat request that waits until its end is committed."""
ASK_SECONDS: Final = 1.0
_log = structlog.get_logger()


class Elsewhere(Protocol):
    """Port that tells whether other parts of a stream have read shards to their ends."""

    async def has_ended(self, name: str, part_index: int) -> bool:
        """Tell whether a part's checkpoint covers a shard of the stream to its end.

        Args:
            name: Of the messages, e.g. `kinesis/orders/shardId-000000000000`.
            part_index: Of the part that reads it.
        """
        ...


class AskedByStat:
    """Implements `Elsewhere` by the Stat RPC of the shards that read the other parts."""

    def __init__(
        self,
        address: str,
        shard_id_of: Callable[[int], str],
        *,
        auth: ClientAuth | None = None,
        timeout_seconds: float = ASK_SECONDS,
        tls: TlsConfig | None = None,
    ) -> None:
        """Create it for a cluster.

        Args:
            address: Of any member.
            shard_id_of: Returns the id of the shard of ours that reads the part of an index.
            auth: Signs the requests.
            timeout_seconds: How long an answer may take; without one, the shard has not ended yet.
            tls: Files for an `https://` address.
        """
        self._address = address
        self._auth = auth
        self._tls = tls
        self._shard_id_of = shard_id_of
        self._timeout_seconds = timeout_seconds

    async def has_ended(self, name: str, part_index: int) -> bool:
        """Ask the part's shard; False also if it does not answer."""
        shard_id = self._shard_id_of(part_index)
        try:
            async with ShardClient(self._address, auth=self._auth, tls=self._tls) as client:
                await client.stat(
                    shard_id,
                    read_through={name + END_SUFFIX: 1},
                    timeout_seconds=self._timeout_seconds,
                )
        except TimeoutError:
            return False
        except (ShardError, EndpointError, RpcFailedError) as error:
            _log.info("kinesis.parent_check_failed", source=name, shard=shard_id, reason=str(error))
            return False
        return True
