"""A hosted `StatefulProcessor` on a cluster's shards: what `ShardCluster.transform_with_state` runs, and returns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from broadsheet.consumer.client import SyncShardClient
from broadsheet.consumer.keyed.application import JournalOutput
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import KeyColumn, MappedJournal
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.cluster.broker_journals import BrokerAccess
from broadsheet.spark_bridge.cluster.query_plan import (
    QueryPlan,
    QueryShards,
    Sources,
    groups_of,
    plan_query,
    sources_prefix,
)
from broadsheet.spark_bridge.format_options import TlsPaths
from broadsheet.spark_bridge.keyed.application import (
    QueryArguments,
    StatefulProcessorApplication,
)
from broadsheet.spark_bridge.keyed.initial_state import InitialState
from broadsheet.spark_bridge.keyed.schemas import struct_of
from broadsheet.spark_bridge.keyed_reader import KeyedReader, ShardKey, first_field
from broadsheet.spark_bridge.routing.key_shards import MappingFactory
from broadsheet.spark_bridge.routing.lookup import selecting
from broadsheet.spark_bridge.task_resolver import Members, TaskResolver
from broadsheet.wire.shard_metadata import Token

WAIT_SECONDS_MAX: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedQuery:
    """A processor, its sources and its output, checked on the driver."""

    processor: Any
    """As `StatefulProcessorApplication` takes it."""
    sources: Sources
    output: JournalOutput | None
    arguments: QueryArguments
    """With initial state that executors can take."""

    @property
    def factory(self) -> Callable[[], StatefulProcessorApplication]:
        """Makes the application, on executors; it names the processor, so that its modules are sent."""
        return functools.partial(
            StatefulProcessorApplication, self.processor, output=self.output, **self.arguments
        )

    def plan(self, broker: BrokerAccess, shards: QueryShards, *, root: str) -> QueryPlan:
        """Return its shards, and the journals that it needs.

        Raises:
            ValidationError: sources or output are wrong; the error names the journal.
            EndpointError: no broker could be reached.
        """
        outputs = (*_journals(self.output), *_journals(self._side))
        prefix = sources_prefix(self.sources)
        written = [*(each.journal for each in outputs), f"{shards.name}/logs/"]
        found = broker.names_below(prefix) if prefix else ()
        groups = groups_of(self.sources, found, written)
        initial = self.arguments.get("initialState")
        is_shared = initial is not None and not (
            isinstance(initial, InitialState)
            and (initial.journals is not None or callable(initial.rows))
        )
        if is_shared and len(groups) > 1:
            raise ValidationError(
                "initialState",
                f"expected an InitialState whose journals say which of the {len(groups)} shards has a row",
            )
        known = broker.specs_of(
            dict.fromkeys((*(name for group in groups for name in group), *written[:-1]))
        )
        return plan_query(groups, outputs, known, shards, root=root)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of its journals of output."""
        return tuple(each.journal for each in _journals(self.output))

    @property
    def schema(self) -> StructType:
        """Schema of its output."""
        return struct_of(self.arguments["outputStructType"], "outputStructType")

    @property
    def _side(self) -> JournalOutput | None:
        options = self.arguments.get("options")
        return None if options is None else options.side


def hosted_query(
    processor: Any,  # as the application takes it
    sources: Sources,
    output: JournalOutput | str | None,
    arguments: QueryArguments,
) -> HostedQuery:
    """Return a query whose arguments are right.

    Raises:
        ValidationError, IllegalArgumentException, AnalysisException: see `StatefulProcessorApplication`.
    """
    if isinstance(output, str):
        output = JournalOutput(MappedJournal(output, NDJSON), JsonType())
    given = arguments.copy()
    initial = given.get("initialState")
    if isinstance(initial, DataFrame):
        given["initialState"] = initial.toArrow()
    elif isinstance(initial, InitialState) and isinstance(initial.rows, DataFrame):
        given["initialState"] = replace(initial, rows=initial.rows.toArrow())
    query = HostedQuery(processor=processor, sources=sources, output=output, arguments=given)
    query.factory()  # Here, where the user sees the error, and before a member starts.
    return query


def _journals(output: JournalOutput | None) -> tuple[MappedJournal, ...]:
    """Return the journals of an output; none of a mapping of the user's own, which must exist."""
    if output is None:
        return ()
    if isinstance(output.journals, MappedJournal):
        return (output.journals,)
    return tuple(output.journals.partitions()) if isinstance(output.journals, KeyColumn) else ()


class QueryCluster(Members, Protocol):
    """The parts of a `ShardCluster` that a query uses."""

    @property
    def client(self) -> SyncShardClient:
        """A client of a live member."""
        ...

    def wait_read_through(self, shard_ids: Iterable[str], *, timeout_seconds: float) -> None:
        """Wait until shards have read all that their sources have now, and committed it."""
        ...

    def stop_members(self) -> None:
        """End the members."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedQuery:
    """A processor that runs on a cluster's shards."""

    cluster: QueryCluster
    spark: SparkSession
    broker: BrokerAccess
    name: str
    """Begins the ids of its shards."""
    shard_ids: tuple[str, ...]
    outputs: tuple[str, ...]
    """Its journals of output."""
    schema: StructType
    """Of its output."""

    def wait(self, *, timeout_seconds: float = WAIT_SECONDS_MAX) -> None:
        """Wait until all that the sources have now is handled and committed, as `processAllAvailable` does.

        What timers yield later is not waited for.

        Raises:
            TimeoutError: it takes longer.
        """
        self.cluster.wait_read_through(self.shard_ids, timeout_seconds=timeout_seconds)

    def output(self, **options: str) -> DataFrame:
        """Return the rows that are committed in the journals of output, as a DataFrame.

        Args:
            options: More of the format `journal`, such as `authKeysFile` if the broker checks signatures.
        """
        found: DataFrame = self._reading(self.spark.read, options).load()
        return found

    def output_stream(self, **options: str) -> DataFrame:
        """Return the same as a stream, from the beginning of the journals unless an option `start` says otherwise."""
        found: DataFrame = self._reading(self.spark.readStream, options).load()
        return found

    def state(self, **options: str) -> DataFrame:
        """Return the state as of the last commits: a row for each key, with its fields, variables and timers.

        Args:
            options: More of the format `shard_state`, such as `maxStalenessSeconds`.
        """
        reader = self.spark.read.format("shard_state").option("address", self.address)
        reader = reader.option("selector", f"id:prefix={self.name}/")
        return reader.options(**self._tls, **options).load()

    def reader(
        self,
        *,
        columns: Sequence[str] = (),
        mapping: str | MappingFactory = "modulo",
        token: Token | None = None,
        shard_key: ShardKey = first_field,
    ) -> KeyedReader:
        """Return what looks keys up in the shards that have them; it can be sent to tasks.

        Args:
            columns: Of the state; none: all.
            mapping: By which the publishers choose a key's journal, as `TaskResolver` takes it.
            token: Offsets that every answer must have read through, bytes by journal.
            shard_key: Returns what publishers hash of a key.

        Raises:
            NoMemberError: none of the members answered.
            ValidationError: keys cannot be mapped to the shards.
        """
        own = selecting(*self.shard_ids)
        resolver = TaskResolver(self.cluster, shards=own, mapping=mapping, token=token)
        return KeyedReader(resolver, columns=columns, shard_key=shard_key)

    def get(self, *key: Any, token: Token | None = None) -> dict[str, Any] | None:
        """Return the row of a key, with its variables and timers, as of the last commit; None if it has no state.

        For one question: a `reader` that is kept asks faster.

        Args:
            key: Its fields.
            token: Offsets that the answer must have read through, bytes by journal.

        Raises:
            NoMemberError: none of the members answered.
            ValidationError: the key is of a type whose mapping only a `reader` can be told.
            grpc.RpcError: the key does not fit, or its shard has no primary for as long as a call waits.
        """
        return self.reader(token=token).get(*key)

    @property
    def address(self) -> str:
        """Address of a live member, which answers queries of every shard: gRPC, `shardctl --address`."""
        return self.cluster.client.address

    def stop(self) -> None:
        """End the members, each after its last commit; state, output and positions stay.

        Another `transform_with_state` of the cluster, or of a later one at the same root, goes on from there.
        """
        self.cluster.stop_members()

    def _reading(self, reader: Any, options: dict[str, str]) -> Any:  # a reader of either kind
        if not self.outputs:
            raise ValidationError("output", "expected journals that are known; the query has none")
        return (
            reader.format("journal")
            .schema(self.schema)
            .option("address", self.broker.address)
            .option("selector", f"name in ({','.join(self.outputs)})")
            .options(**self._tls, **options)
        )

    @property
    def _tls(self) -> dict[str, str]:
        return TlsPaths.of_config(self.broker.tls).options()
