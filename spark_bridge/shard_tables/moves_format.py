"""The format "shard_moves": the log of moves, one row for each change of a replica and each decision to scale.

    spark.read.format("shard_moves").option("address", "http://127.0.0.1:8080").option("since", "2026-01-31").load()

The log is bounded (`broadsheet.allocator.policy.MoveLogPolicy`), so save what you read to keep a longer history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broadsheet.spark_bridge.format_options import FormatOptions, OptionError
from broadsheet.spark_bridge.shard_tables.access import (
    ClusterAccess,
    access_of,
    answer_of,
    options_of,
)
from broadsheet.spark_bridge.shard_tables.columns import batches_of, require_columns

if TYPE_CHECKING:
    from broadsheet.wire.allocation_pb2 import ListMovesResponse, ShardMove

MOVES_TABLE: Final = StructType(
    [
        StructField("time", TimestampType()),
        StructField("revision", LongType()),
        StructField("shard_id", StringType()),
        StructField("move", StringType()),
        StructField("zone", StringType()),
        StructField("member", StringType()),
        StructField("slot", IntegerType()),
        StructField("from_slot", IntegerType()),
        StructField("reason", StringType()),
        StructField("plan_id", StringType()),
        StructField("actor", StringType()),
        StructField("writer", StringType()),
        StructField("epoch", LongType()),
        StructField("outcome", StringType()),
        StructField("inputs", MapType(StringType(), DoubleType())),
    ]
)
_KNOWN = ("shard", "member", "since")
_SINCE: Final = "a date or time in ISO 8601, UTC if it names no zone, e.g. 2026-01-31T08:00:00"


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesReadOptions:
    """Options of a read of moves."""

    access: ClusterAccess
    shard_id: str
    member: str
    since: datetime | None


class ShardMovesFormat(DataSource):
    """The format of moves of replicas."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "shard_moves"

    def schema(self) -> StructType:
        """Return all columns."""
        return MOVES_TABLE

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch DataFrame."""
        given = options_of(self.options, known=_KNOWN)
        options = MovesReadOptions(
            access=access_of(given),
            shard_id=given.text_or_none("shard") or "",
            member=given.text_or_none("member") or "",
            since=_since(given),
        )
        require_columns(schema, MOVES_TABLE, name=self.name())
        return ShardMovesReader(options, schema)


class ShardMovesReader(DataSourceReader):
    """Reads the log of moves in one task, page by page."""

    def __init__(self, options: MovesReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return one partition, after a minimal request, so that errors appear on the driver."""
        asyncio.run(_page(self._options, page_size=1))
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield one or more batches for each page."""
        del partition
        token = b""
        while True:
            page = asyncio.run(_page(self._options, page_token=token))
            yield from batches_of([move_row(move) for move in page.moves], self._schema)
            token = page.next_page_token
            if not token:
                return


async def _page(
    options: MovesReadOptions, *, page_size: int = 0, page_token: bytes = b""
) -> ListMovesResponse:
    from broadsheet.consumer.client import AllocationClient

    auth, tls = options.access.auth(), options.access.tls.config()

    async def ask(address: str) -> ListMovesResponse:
        async with AllocationClient(address, auth=auth, tls=tls) as client:
            return await client.move_page(
                shard_id=options.shard_id,
                member=options.member,
                since=options.since,
                page_size=page_size,
                page_token=page_token,
            )

    return await answer_of(options.access, ask)


def move_row(move: ShardMove) -> dict[str, Any]:
    """Return a move's values by column."""
    from broadsheet.consumer.registry.move_messages import OUTCOME_NAMES, move_name

    is_decision = move.HasField("decision")
    outcome = move.decision.outcome
    return {
        "time": move.time.ToDatetime(UTC),
        "revision": move.revision,
        "shard_id": move.shard or None,
        "move": move_name(move),
        "zone": move.member.partition("#")[0] or None,
        "member": move.member or None,
        "slot": move.slot if move.slot >= 0 else None,
        "from_slot": move.from_slot if move.from_slot >= 0 else None,
        "reason": move.reason,
        "plan_id": move.plan_id or None,
        "actor": move.actor or None,
        "writer": move.writer,
        "epoch": move.epoch,
        "outcome": OUTCOME_NAMES.get(outcome, str(outcome)) if is_decision else None,
        "inputs": dict(move.decision.inputs) if is_decision else None,
    }


def _since(given: FormatOptions) -> datetime | None:
    text = given.text_or_none("since")
    if text is None:
        return None
    try:
        since = datetime.fromisoformat(text.strip())
    except ValueError:
        raise OptionError("since", _SINCE, got=text) from None
    return since if since.tzinfo is not None else since.replace(tzinfo=UTC)
