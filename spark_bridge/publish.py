"""Publishes a DataFrame into journals, each journal in order, and waits until readers can see it.

The exactly-once part is the journal sink's (`broadsheet.spark_bridge.journal_sink`): tasks write uncommitted, the
driver records their acknowledgements in etcd, then appends them. This module adds order: one task writes one journal,
its rows sorted, which a data source cannot demand of Spark.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import (
    Column,
    DataFrame,
    functions as F,  # noqa: N812 - everyone calls it so
)

from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.consumer.client.loop_thread import LoopThread
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.column_texts import Indices
from broadsheet.journals.message.division import DividedJournals
from broadsheet.journals.message.framing import LineFraming
from broadsheet.journals.message.uuid import format_uuid
from broadsheet.security.tls import TlsConfig
from broadsheet.spark_bridge.content.encoder import Encoded, Stretches, in_order
from broadsheet.spark_bridge.content.json_lines import JsonLines
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.format_options import TlsPaths
from broadsheet.spark_bridge.journal_sink.attempt import WritePlan, write_attempt
from broadsheet.spark_bridge.journal_sink.commit import (
    CommitTarget,
    commit_publication,
    committed_publication,
    require_not_rolled_back,
)
from broadsheet.spark_bridge.journal_sink.commit_record import (
    RETENTION_DAYS,
    CommitAttempt,
    Publication,
    SinkTarget,
)
from broadsheet.spark_bridge.journal_sink.row_mapping import ColumnMapping, key_indices
from broadsheet.spark_bridge.journal_sink.stamps import Stamper
from broadsheet.spark_bridge.journal_source.options import Access
from broadsheet.spark_bridge.spark_version import PUBLISHING_MIN, require_spark

__all__ = ["Publication", "PublishTarget", "RowFunction", "journal_index", "publish_dataframe"]


Row: TypeAlias = dict[str, Any]
"""One row as Python values by column name; Spark decides their types."""
RowFunction: TypeAlias = Callable[[Row], Row]


class RowMessages:
    """Encodes rows as JSON messages by an application's function, one by one, in Python."""

    content_type = NDJSON

    def __init__(self, message_of: RowFunction) -> None:
        """Encode with a function.

        Args:
            message_of: Turns a row into its message; pickled to executors.
        """
        self._message_of = message_of

    def encode(
        self,
        rows: pa.RecordBatch,
        stretches: Stretches,
        stamper: Stamper,
        order: Indices | None = None,
    ) -> Encoded:
        """Return the messages of each stretch of rows, and how many they are."""
        rows = in_order(rows, order)
        uuids = stamper.stamp_messages(rows.num_rows)
        lines = [
            self._line(row, uuid.tobytes())
            for row, uuid in zip(rows.to_pylist(), uuids, strict=True)
        ]
        return Encoded(
            [b"".join(lines[begin:end]) for begin, end in stretches],
            [end - begin for begin, end in stretches],
        )

    def acknowledgement(self, uuid: bytes) -> bytes:
        """Return the line of an acknowledgement, given its UUID."""
        return LineFraming().frame(JsonType().encode({"_meta": {"uuid": format_uuid(uuid)}}))

    def _line(self, row: Row, uuid: bytes) -> bytes:
        message = self._message_of(row)
        json_type = JsonType()
        try:
            json_type.set_uuid(message, uuid)
            return LineFraming().frame(json_type.encode(message))
        except (TypeError, ValueError, AttributeError) as error:
            raise PublishError(
                f"message_of: {reprlib.repr(message)} is no JSON message: {error}"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishTarget:
    """Journals to publish to, and the etcd that records publications."""

    broker_address: str
    etcd_endpoints: tuple[str, ...]
    root: str
    """Root in etcd, beside which publications are recorded."""
    journals: tuple[str, ...]
    """Journals of type `application/x-ndjson`; a row's key chooses among them."""
    tls: TlsConfig | None = None
    """Files for a broker's `https://` address, on the driver and on executors."""
    retention_days: int = RETENTION_DAYS
    """Time for which the name is remembered after its commit, days, at least 1."""


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
        df: The rows.
        target: The journals, and the record in etcd.
        publication: Unique name of this publication under the target's root. Publishing under a name that is
            committed already publishes nothing and returns what was published then. Names are kept for the
            target's `retention_days`.
        key: String column; rows of one key go to one journal.
        order_by: Columns that order the messages of a journal.
        message_of: Turns a row into its message, on executors. The row itself if not given.

    Raises:
        PublishError: the arguments do not fit the DataFrame; or the name was published into other journals; or it is
            committed, but a broker refused its acknowledgements: run it again under the same name.
        SparkVersionError: PySpark is older than 4.1.
        EtcdUnavailableError: etcd did not answer; run it again under the same name.
    """
    require_spark("publish_dataframe", PUBLISHING_MIN)
    if not target.journals:
        raise PublishError("journals: expected at least one")
    if len(set(df.columns)) < len(df.columns):
        raise PublishError(f"columns: expected different names, got {df.columns}; rename them")
    if missing := {key, *order_by} - set(df.columns):
        raise PublishError(f"no column {', '.join(sorted(missing))}; there are {df.columns}")
    encoder = (
        JsonLines(df.schema, ignore_null_fields=False)
        if message_of is None
        else RowMessages(message_of)
    )
    access = Access(address=target.broker_address, tls=TlsPaths.of_config(target.tls))
    with LoopThread(name=f"publish-{publication}") as loop:
        divided = loop.call(_divided_journals(access))
        # Rows reach a part by way of the journal that it is a part of, so that keys keep their journals.
        journals = divided.roots(target.journals)
        commit_target = _commit_target(access, target, journals, divided)
        record = loop.call(committed_publication(commit_target, publication))
        # Under a name that is committed already, the tasks need not write again.
        if record is None:
            plan = WritePlan(
                access=access,
                journals=journals,
                mapping=ColumnMapping(key),
                encoder=encoder,
                divided=divided,
            )
            attempts = _write_uncommitted(df, plan, key=key, order_by=order_by)
            loop.call(require_not_rolled_back(commit_target, attempts))
            # Tasks, also those of another program, may have learnt of parts that are younger than the plan.
            divided = loop.call(_divided_journals(access))
            commit_target = _commit_target(access, target, journals, divided)
            record = commit_target.record_of(attempts)
        return loop.call(commit_publication(commit_target, publication, record))


def journal_index(key: str, journal_count: int, *, name: str | None = None) -> Column:
    """Return the index of a key's journal as a column: FNV-1a of its bytes, modulo the number of journals.

    Computed in Python by the function that the journal sink uses; a null key fails the query.

    Args:
        key: The key's column, or a path to a field, as Spark reads it.
        journal_count: Number of journals.
        name: Of the column in the error for a null; `key` if not given.

    Raises:
        SparkVersionError: PySpark is older than 4.1.
    """
    require_spark("journal_index", PUBLISHING_MIN)
    from pyspark.sql.pandas.functions import arrow_udf

    column = name or key
    # Modulo counts journals and reads no names.
    journals = [""] * journal_count

    def indices(keys: pa.Array) -> pa.Array:
        return pa.array(key_indices(keys, journals, name=column).astype("int32"))

    # PySpark warns of a function's type beside its annotations, and its stubs know no other form.
    found: Column = arrow_udf(indices, "int")(F.col(key))  # type: ignore[call-overload]
    return found


async def _divided_journals(access: Access) -> DividedJournals:
    from broadsheet.spark_bridge.brokers import open_client

    async with open_client(access) as client:
        await client.learn_divided()
        return client.divided


def _commit_target(
    access: Access, target: PublishTarget, journals: tuple[str, ...], divided: DividedJournals
) -> CommitTarget:
    whole = SinkTarget(selector="", journals=(*journals, *sorted(divided.below(journals))))
    return CommitTarget(
        access=access,
        etcd=EtcdConfig(endpoints=target.etcd_endpoints),
        root=target.root,
        journals=whole,
        retention_days=target.retention_days,
    )


def _write_uncommitted(
    df: DataFrame, plan: WritePlan, *, key: str, order_by: Sequence[str]
) -> list[CommitAttempt]:
    """Write the rows; return their acknowledgements, for a retried task those of the successful attempt."""
    # By place, because PySpark's mapInArrow takes a column's name for a path: a.b would be a field of a struct a.
    plain = {name: f"c{place}" for place, name in enumerate(df.columns)}
    index = journal_index(plain[key], len(plan.journals), name=key)
    written = (
        df.toDF(*(plain[name] for name in df.columns))
        .repartitionById(len(plan.journals), index)
        .sortWithinPartitions(*(plain[name] for name in order_by))
        .mapInArrow(
            _TaskWriter(plan, df.columns),
            "messages long, acknowledgement binary, journals array<string>, producer long, "
            "ended_at double",
        )
        .collect()
    )
    return [
        CommitAttempt(
            messages=row.messages,
            acknowledgement=bytes(row.acknowledgement),
            journals=tuple(row.journals),
            producer=row.producer,
            ended_at=row.ended_at,
        )
        for row in written
    ]


class _TaskWriter:
    """Appends a task's rows, uncommitted, and yields their acknowledgements."""

    def __init__(self, plan: WritePlan, names: Sequence[str]) -> None:
        self._plan = plan
        self._names = list(names)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        named = (batch.rename_columns(self._names) for batch in batches)
        attempt = write_attempt(named, self._plan)
        schema = pa.schema(
            [
                ("messages", pa.int64()),
                ("acknowledgement", pa.binary()),
                ("journals", pa.list_(pa.string())),
                ("producer", pa.int64()),
                ("ended_at", pa.float64()),
            ]
        )
        row: dict[str, Any] = {
            "messages": attempt.messages,
            "acknowledgement": attempt.acknowledgement,
            "journals": list(attempt.journals),
            "producer": attempt.producer,
            "ended_at": attempt.ended_at,
        }
        yield pa.RecordBatch.from_pylist([row], schema=schema)
