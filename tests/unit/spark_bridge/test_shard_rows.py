"""The table of replicas: what of a listing, and of what members tell, stands in which column."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import StringType, StructType

from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.shard_tables.access import (
    NoMemberAnsweredError,
    access_of,
    first_answer,
    options_of,
    selector_of,
)
from broadsheet.spark_bridge.shard_tables.columns import batches_of, require_columns
from broadsheet.spark_bridge.shard_tables.shard_listing import members_of, shard_rows
from broadsheet.spark_bridge.shard_tables.shards_format import SHARDS_TABLE, ShardsFormat
from broadsheet.wire.journal_pb2 import Header, ProcessSpec, Route
from broadsheet.wire.labels import label_set
from broadsheet.wire.shard_pb2 import ListResponse, ReplicaStatus, ShardSpec
from broadsheet.wire.state_pb2 import ReplicaProgress


def _listing() -> ListResponse:
    spec = ShardSpec(
        id="shard-a",
        sources=[ShardSpec.Source(journal="in/a", min_offset=7)],
        hot_standbys=1,
        labels=label_set(("app", "x"), ("app", "y"), ("env", "z")),
    )
    spec.max_txn_duration.FromMilliseconds(1_500)
    served = ListResponse.Shard(
        spec=spec,
        mod_revision=12,
        create_revision=11,
        route=Route(
            members=[
                ProcessSpec.ID(zone="zone-a", suffix="one"),
                ProcessSpec.ID(zone="zone-b", suffix="two"),
            ],
            primary=1,
            endpoints=["", "http://two:80"],
        ),
        status=[
            ReplicaStatus(code=ReplicaStatus.FAILED, errors=["no disk", "older"]),
            ReplicaStatus(code=ReplicaStatus.PRIMARY),
        ],
    )
    unserved = ListResponse.Shard(spec=ShardSpec(id="shard-b", disable=True))
    header = Header(etcd=Header.Etcd(revision=13))
    return ListResponse(header=header, shards=[served, unserved])


def test_shard_rows_each_replica_has_a_row_and_an_unserved_shard_has_one() -> None:
    """Two replicas and a shard without any are three rows; what no member told is empty, not zero."""
    told = ReplicaProgress(
        shard="shard-a", behind_bytes=30, behind_seconds=-1, read_through={"in/a": 70}
    )

    standby, primary, unserved = shard_rows(_listing(), {("shard-a", "zone-b#two"): told})

    assert (standby["member"], standby["status"]) == ("zone-a#one", "FAILED")
    assert (standby["last_error"], standby["errors"]) == ("no disk", ["no disk", "older"])
    assert standby.get("slot") is standby.get("bytes_behind") is standby["endpoint"] is None
    assert (primary["zone"], primary["slot"], primary["status"]) == ("zone-b", 0, "PRIMARY")
    assert (primary["bytes_behind"], primary["lag_seconds"]) == (30, None)
    assert primary["read_through"] == [("in/a", 70)]
    assert primary["labels"] == [("app", ["x", "y"]), ("env", ["z"])]
    assert (primary["max_txn_seconds"], primary["revision"]) == (1.5, 13)
    assert (unserved["shard_id"], unserved["disable"], unserved.get("member")) == (
        "shard-b",
        True,
        None,
    )


def test_shard_rows_fit_the_columns_they_are_declared_with() -> None:
    """Every column of every row is one of the table, of its type; and a caller may want only some, in any order."""
    rows = list(shard_rows(_listing(), {}))

    (batch,) = batches_of(rows, SHARDS_TABLE)
    (narrow,) = batches_of(
        rows, StructType().add("status", StringType()).add("shard_id", StringType())
    )

    assert {key for row in rows for key in row} <= set(SHARDS_TABLE.names)
    assert batch.num_rows == 3
    assert batch.to_pylist()[0]["sources"] == [{"journal": "in/a", "min_offset": 7}]
    assert narrow.schema.names == ["status", "shard_id"]


def test_require_columns_names_what_there_is() -> None:
    """A misspelt column would come as nulls, and be found out much later."""
    with pytest.raises(OptionError, match=r"option schema: expected columns of shards: shard_id"):
        require_columns(StructType().add("shard", StringType()), SHARDS_TABLE, name="shards")


def test_members_of_leaves_out_those_without_an_address() -> None:
    """Who is leaving cannot be asked."""
    assert members_of(_listing()) == {"zone-b#two": "http://two:80"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "option address: expected the address of a member"),
        ({"address": "http://a:1,,http://b:2"}, "option address: expected the address of a member"),
        (
            {"address": "http://a:1", "selector": "env=("},
            "option selector: expected a label selector",
        ),
        ({"address": "http://a:1", "progress": "maybe"}, "option progress: expected true or false"),
        ({"address": "http://a:1", "adress": "x"}, "option adress: expected one of address"),
        ({"address": "http://a:1", "path": "x"}, "option path: expected none"),
    ],
)
def test_shards_format_wrong_option_is_named(options: dict[str, str], problem: str) -> None:
    """Each mistake is told on the driver, before a task starts."""
    with pytest.raises(OptionError) as raised:
        ShardsFormat(options).reader(SHARDS_TABLE)

    assert problem in str(raised.value)


def test_access_of_takes_several_addresses_and_keys_from_a_file(tmp_path: Any) -> None:
    """Keys never stand in an option, which Spark shows in plans."""
    keys = tmp_path / "keys"
    options = {"address": "http://a:1, b:2", "authKeysFile": str(keys)}

    access = access_of(options_of(options, known=("selector",)))

    assert access.addresses == ("http://a:1", "b:2")
    with pytest.raises(OptionError, match="option authKeysFile: expected a file"):
        access.auth()
    keys.write_text("c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U=\n")
    assert access.auth() is not None
    assert selector_of(options_of({"selector": "env=b"}, known=("selector",))) == "env=b"


async def test_first_answer_passes_over_members_that_are_gone() -> None:
    """One address of several is enough; if none answers, each is named with its cause."""
    from broadsheet.runtime.errors import EndpointError

    async def ask(address: str) -> str:
        if address == "alive":
            return address
        raise EndpointError(address, "connection refused")

    assert await first_answer(["gone", "alive"], ask) == "alive"
    with pytest.raises(NoMemberAnsweredError, match=r"gone: .*refused; away: .*refused"):
        await first_answer(["gone", "away"], ask)
