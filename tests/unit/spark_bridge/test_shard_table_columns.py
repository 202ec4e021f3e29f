"""Options and columns of reading shards' state: what is asked of whom, and what becomes of the rows."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructType

from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.shard_tables.columns import (
    METADATA,
    Provenance,
    batches_of,
    chosen_table,
    fitted,
    require_columns_of,
    table_columns,
    with_metadata,
)
from broadsheet.spark_bridge.shard_tables.moves_format import (
    MOVES_TABLE,
    ShardMovesFormat,
    move_row,
)
from broadsheet.spark_bridge.shard_tables.state_format import state_options
from broadsheet.spark_bridge.shard_tables.state_scan import endpoints_of
from broadsheet.wire.allocation_pb2 import DecisionOutcome, MoveKind, ScalingDecision, ShardMove
from broadsheet.wire.journal_pb2 import ProcessSpec, Route

TABLE = StructType().add("key", StringType()).add("count", IntegerType())
PROVENANCE = Provenance("shard-a", "zone-a#one", 1, {"in/b": 20, "in/a": 10}, 0.5)


def test_fitted_casts_orders_and_adds_where_rows_come_from() -> None:
    """A caller's types and order win; the columns of the metadata are the same in every row, none of them lost."""
    batch = pa.RecordBatch.from_pydict({"count": [1, 2], "key": ["a", "b"]})
    offsets = pa.map_(pa.string(), pa.int64())
    wanted = pa.schema(
        [
            ("key", pa.large_string()),
            ("_read_through", offsets),
            ("count", pa.int32()),
            ("_shard_id", pa.string()),
            ("_slot", pa.int32()),
        ]
    )

    rows = fitted(batch, wanted, PROVENANCE).to_pylist()

    assert [row["key"] for row in rows] == ["a", "b"]
    assert [row["count"] for row in rows] == [1, 2]
    assert rows[1]["_read_through"] == [("in/a", 10), ("in/b", 20)]
    assert {(row["_shard_id"], row["_slot"]) for row in rows} == {("shard-a", 1)}


def test_metadata_is_asked_of_no_store_and_must_not_hide_a_column() -> None:
    """A table that has such a name itself cannot have both."""
    whole = with_metadata(TABLE)

    assert whole.names == [*TABLE.names, *METADATA.names]
    assert table_columns(whole, include_metadata=True) == ["key", "count"]
    assert table_columns(TABLE, include_metadata=False) == ["key", "count"]
    with pytest.raises(OptionError, match="a schema without _slot, which the table has itself"):
        with_metadata(StructType().add("_slot", StringType()))


def test_table_is_named_unless_it_is_the_only_one() -> None:
    """The mistake names what there is."""
    tables = {"counts": ["key", "count"], "sums": ["key"]}

    assert chosen_table({"counts": ["key"]}, "") == "counts"
    require_columns_of(tables, "counts", ["count"])
    with pytest.raises(OptionError, match="option table: expected one of counts, sums; it is not"):
        chosen_table(tables, "")
    with pytest.raises(OptionError, match="none: the shards' stores show no tables; got 'x'"):
        chosen_table({}, "x")
    with pytest.raises(OptionError, match="option schema: expected columns of key; got 'count'"):
        require_columns_of(tables, "sums", ["count"])


@pytest.mark.parametrize("text", ["-1", "soon", "nan", "inf"])
def test_state_options_seconds_are_checked(text: str) -> None:
    """A bound that is none must not become "any age is good"."""
    with pytest.raises(OptionError, match="option maxStalenessSeconds: expected a number of secon"):
        state_options({"address": "http://a:1", "maxStalenessSeconds": text})


def test_endpoints_of_asks_standbys_first_if_they_may_answer() -> None:
    """Else the primary alone; who is leaving has no address, and is not asked."""
    route = Route(
        members=[ProcessSpec.ID(zone="z", suffix=name) for name in ("one", "two", "three")],
        endpoints=["http://one", "http://two", ""],
        primary=0,
    )

    assert endpoints_of(route, standbys=False) == ["http://one"]
    assert endpoints_of(route, standbys=True) == ["http://two", "http://one"]
    assert endpoints_of(Route(primary=-1), standbys=False) == []


def test_moves_fit_the_columns_they_are_declared_with() -> None:
    """Times bear their zone, and what nobody knows is null; a reader of few columns gets these."""
    move = ShardMove(
        shard="shard-a",
        kind=MoveKind.MOVE_KIND_HAND_OVER,
        member="zone-a#one",
        slot=0,
        from_slot=-1,
        revision=12,
        reason="balance",
        writer="zone-b#two",
        epoch=3,
    )
    move.time.FromMilliseconds(1_769_846_400_500)

    (batch,) = batches_of([move_row(move)], MOVES_TABLE)
    (few,) = batches_of([move_row(move)], StructType().add("zone", StringType()))

    (row,) = batch.to_pylist()
    assert set(row) == set(move_row(move)) == set(MOVES_TABLE.names)
    assert row["time"] == datetime(2026, 1, 31, 8, 0, 0, 500_000, tzinfo=UTC)
    assert (row["move"], row["zone"], row["from_slot"]) == ("hand-over", "zone-a", None)
    assert row["actor"] is row["plan_id"] is None
    assert few.to_pylist() == [{"zone": "zone-a"}]


def test_row_of_a_decision_has_its_rule_inputs_and_outcome_and_no_replica() -> None:
    """It moved nothing; of members alone it names no shard, either."""
    decision = ScalingDecision(
        action="scale",
        rule="members-busy",
        inputs={"cpu": 2.5},
        outcome=DecisionOutcome.DECISION_OUTCOME_OBSERVED,
    )
    move = ShardMove(
        kind=MoveKind.MOVE_KIND_DECISION,
        slot=-1,
        from_slot=-1,
        reason=decision.rule,
        decision=decision,
    )

    (batch,) = batches_of([move_row(move)], MOVES_TABLE)

    (row,) = batch.to_pylist()
    assert (row["move"], row["reason"], row["outcome"]) == ("scale", "members-busy", "observed")
    assert dict(row["inputs"]) == {"cpu": 2.5}
    assert row["shard_id"] is row["zone"] is row["member"] is row["slot"] is None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"since": "yesterday"}, "option since: expected a date or time in ISO 8601"),
        ({"selector": "app=x"}, "option selector: expected one of address"),
    ],
)
def test_moves_options_are_checked(options: dict[str, str], problem: str) -> None:
    """On the driver, before anybody is asked."""
    with pytest.raises(OptionError, match=problem):
        ShardMovesFormat({"address": "http://a:1", **options}).reader(MOVES_TABLE)
