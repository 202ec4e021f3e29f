"""Publishes a DataFrame into journals, exactly once through lost tasks and a lost driver.

    tasks    write their rows uncommitted, each attempt as a producer of its own, and return the acknowledgements
    driver   writes the acknowledgements of the successful attempts to etcd, unless some are there already
    driver   appends the acknowledgements that etcd now has

The put-if-absent is the commit point. Before it nothing is visible to a reader of committed messages, so a failed
attempt, or a driver that died, leaves only bytes that are never acknowledged. After it the publication is a fact: who
runs it again finds the acknowledgements and appends *them*, which readers that saw them already take for duplicates.

Source: gazette/core message/publisher.go (BuildAckIntents: intents are stored durably before they are written).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everyone calls it so
from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from consumer.client.loop_thread import LoopThread
from consumer.errors import AppendOutcomeUnknownError
from spark_bridge.errors import PublishError
from spark_bridge.keys import publication_key

if TYPE_CHECKING:
    import pyarrow as pa

    from consumer.journal.client import JournalClient

Row = dict[str, Any]
"""One row as Python values by column name; Spark decides their types."""
RowFunction = Callable[[Row], Row]

_PARTITION_COLUMN = "__journal_index"
_COMMIT_TIMEOUT_SECONDS = 60.0
_RETRY_SECONDS = 0.5
_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193


class Publication(msgspec.Struct, frozen=True):
    """A published DataFrame, as etcd keeps it."""

    messages: int
    """Rows published."""
    intents: dict[str, bytes]
    """The framed acknowledgement that commits them, by journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishTarget:
    """Where to publish, and who remembers it."""

    broker_address: str
    etcd_endpoints: tuple[str, ...]
    root: str
    """Beside which publications are remembered."""
    journals: tuple[str, ...]
    """Rows are spread over these by their key; they hold `application/x-ndjson`."""


def publish_dataframe(
    df: DataFrame,
    target: PublishTarget,
    *,
    publication: str,
    key: str,
    order_by: Sequence[str],
    message_of: RowFunction | None = None,
) -> Publication:
    """Publish every row of a DataFrame once, as a JSON message, and return when readers can see them all.

    One task writes one journal, in order. A row's journal is that of `modulo_mapping` over its key, so that other
    publishers of the same journals agree.

    Args:
        df: What to publish.
        target: Where to.
        publication: Unique name of this publication under the target's root. Publishing under a name that is
            committed already publishes nothing and returns what was published then.
        key: String column; rows of one key go to one journal.
        order_by: Columns that order the messages of a journal.
        message_of: Makes a row the message; runs on executors. The row itself if not given.

    Raises:
        PublishError: the arguments do not fit the DataFrame.
        EtcdUnavailableError: etcd did not answer; run it again under the same name.
        JournalError: a broker refused; run it again under the same name.
    """
    if not target.journals:
        raise PublishError("journals: expected at least one")
    if missing := {key, *order_by} - set(df.columns):
        raise PublishError(f"no column {', '.join(sorted(missing))}; there are {df.columns}")
    with LoopThread(name=f"publish-{publication}") as loop:
        record = loop.call(_load(target, publication))
        if record is None:
            record = _write_uncommitted(
                df, target, key=key, order_by=order_by, message_of=message_of
            )
        return loop.call(_commit(target, publication, record))


def journal_index(key: str, journal_count: int) -> Column:
    """Return the index of a key's journal as a column: FNV-1a of its UTF-8 bytes, modulo the number of journals."""
    bytes_ = F.encode(F.coalesce(F.col(key), F.raise_error(F.lit(f"{key} is null"))), "UTF-8")
    # Each byte by its hexadecimal digits; hex() of nothing splits into one empty string, which conv() makes null.
    digits = F.regexp_extract_all(F.hex(bytes_), F.lit("(..)"))
    values = F.transform(digits, lambda pair: F.conv(pair, 16, 10).cast("long"))
    hashed = F.aggregate(
        values,
        F.lit(_FNV_OFFSET).cast("long"),
        lambda value, byte: (value.bitwiseXOR(byte) * F.lit(_FNV_PRIME)).bitwiseAND(
            F.lit(0xFFFFFFFF).cast("long")
        ),
    )
    return F.pmod(hashed, F.lit(journal_count)).cast("int")


def _write_uncommitted(
    df: DataFrame,
    target: PublishTarget,
    *,
    key: str,
    order_by: Sequence[str],
    message_of: RowFunction | None,
) -> Publication:
    """Write the rows and return what would commit them; of retried tasks, that of the successful attempt."""
    write = _TaskWriter(target.broker_address, target.journals, message_of)
    index = journal_index(key, len(target.journals))
    written = (
        df.withColumn(_PARTITION_COLUMN, index)
        .repartitionById(len(target.journals), _PARTITION_COLUMN)
        .sortWithinPartitions(*order_by)
        .mapInArrow(write, "journal string, intent binary, messages long")
        .collect()
    )
    return Publication(
        messages=sum(row.messages for row in written),
        intents={row.journal: bytes(row.intent) for row in written},
    )


async def _load(target: PublishTarget, publication: str) -> Publication | None:
    from allocator.etcd.client import EtcdClient, EtcdConfig

    async with EtcdClient(EtcdConfig(endpoints=target.etcd_endpoints)) as etcd:
        found = await etcd.get_range(publication_key(target.root, publication))
    return _decode(found.kvs[0].value) if found.kvs else None


async def _commit(target: PublishTarget, publication: str, record: Publication) -> Publication:
    """Make `record` durable unless another is, then append the acknowledgements of the one that is."""
    from allocator.core.ops import Compare, Get, Put
    from allocator.etcd.client import EtcdClient, EtcdConfig
    from consumer.journal.client import JournalClient

    key = publication_key(target.root, publication)
    async with EtcdClient(EtcdConfig(endpoints=target.etcd_endpoints)) as etcd:
        result = await etcd.txn(
            (Compare.absent(key),), (Put(key, msgspec.json.encode(record)),), (Get(key),)
        )
    durable = record if result.succeeded else _decode(result.gets[0][0].value)
    async with (
        asyncio.timeout(_COMMIT_TIMEOUT_SECONDS),
        JournalClient(target.broker_address) as journals,
    ):
        for journal, intent in durable.intents.items():
            await _append_again(journals, journal, intent)
    return durable


async def _append_again(journals: JournalClient, journal: str, intent: bytes) -> None:
    """Append an acknowledgement until an answer comes: one that is there twice does no harm."""
    repeating = AsyncRetrying(
        retry=retry_if_exception_type(AppendOutcomeUnknownError), wait=wait_fixed(_RETRY_SECONDS)
    )
    await repeating(journals.append, journal, intent)


def _decode(value: bytes) -> Publication:
    return msgspec.json.decode(value, type=Publication)


class _TaskWriter:
    """Runs in each task: appends its rows, uncommitted, and yields the acknowledgements."""

    def __init__(
        self, broker_address: str, journals: tuple[str, ...], message_of: RowFunction | None
    ) -> None:
        self._broker_address = broker_address
        self._journals = journals
        self._message_of = message_of

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with asyncio.Runner() as runner:
            counts, intents = runner.run(self._write(batches))
        yield pa.RecordBatch.from_pylist(
            [
                {"journal": journal, "intent": intent, "messages": counts[journal]}
                for journal, intent in intents.items()
            ],
            schema=pa.schema(
                [("journal", pa.string()), ("intent", pa.binary()), ("messages", pa.int64())]
            ),
        )

    async def _write(
        self, batches: Iterator[pa.RecordBatch]
    ) -> tuple[Mapping[str, int], Mapping[str, bytes]]:
        # gRPC may only be used after the fork that made this process, so it is imported here.
        from consumer.journal.client import JournalClient
        from consumer.message.clock import MessageClock
        from consumer.message.json_type import JsonType
        from consumer.message.mapping import MappedJournal
        from consumer.message.publisher import Publisher
        from consumer.message.uuid import new_producer_id

        clock = MessageClock()
        clock.update(time.time())
        # A producer of its own for each attempt: what a failed one wrote can never be taken for ours.
        publisher = Publisher(clock, new_producer_id())
        message_type = JsonType()
        targets = [MappedJournal(journal, message_type.content_type) for journal in self._journals]
        counts: Counter[str] = Counter()
        async with JournalClient(self._broker_address) as journals:
            for batch in batches:
                for row in batch.to_pylist():
                    mapped = targets[row.pop(_PARTITION_COLUMN)]
                    counts[mapped.journal] += 1
                    message = row if self._message_of is None else self._message_of(row)
                    publisher.publish_uncommitted(mapped, message, message_type)
                for append in publisher.take_appends():
                    await journals.append(append.journal, append.content)
        return counts, {i.journal: i.content for i in publisher.build_ack_intents()}
