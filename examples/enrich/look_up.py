"""Enriches DataFrames in Spark tasks, by calls to the shards that keep the accounts.

By Arrow batches (`with_profiles`), or by the rows of a partition (`unusual_orders`); `usual.py` has a pandas UDF. For
each batch every shard is called once, all at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Row
from pyspark.sql.types import LongType, StringType, StructType

from broadsheet.examples.enrich.enrich_pb2 import LookUpRequest, LookUpResponse
from broadsheet.examples.enrich.enrich_pb2_grpc import ProfileServiceStub
from broadsheet.examples.enrich.store import Profile
from broadsheet.spark_bridge import TaskResolver

if TYPE_CHECKING:
    import pyarrow as pa

ACCOUNTS_ASKED_MAX = 5_000
"""Accounts in one question."""
UNUSUAL_FACTOR = 3
"""An order of so many times what the account usually spends is unusual."""


def look_up(resolver: TaskResolver, accounts: Iterable[str]) -> dict[str, Profile]:
    """Return the profiles of accounts, asking all shards at once."""
    wanted: dict[str, list[str]] = defaultdict(list)
    for account in dict.fromkeys(accounts):
        wanted[resolver.shard_of(account)].append(account)
    asked = [
        (
            part,
            resolver.stub(part[0], ProfileServiceStub).LookUp.future(LookUpRequest(accounts=part)),
        )
        for found in wanted.values()
        for part in _parts(found)
    ]
    return {
        account: profile
        for part, answer in asked
        for account, profile in zip(part, _profiles(answer.result()), strict=True)
    }


def mean_cents(profile: Profile) -> int | None:
    """Return what an account usually spends; None if it never paid."""
    payments, cents_total, _, _ = profile
    return cents_total // payments if payments else None


def with_profiles(orders: DataFrame, resolver: TaskResolver) -> DataFrame:
    """Add columns `payments`, `cents_total`, `cents_max` and `last_country` to rows that have an `account`."""

    def enrich(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            accounts = batch.column("account").to_pylist()
            profiles = look_up(resolver, accounts)
            found = list(zip(*(profiles[account] for account in accounts), strict=True))
            if not found:
                continue
            arrays = [pa.array(values) for values in found]
            names = ["payments", "cents_total", "cents_max", "last_country"]
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, *arrays], [*batch.schema.names, *names]
            )

    schema = StructType(list(orders.schema.fields))
    for name in ("payments", "cents_total", "cents_max"):
        schema.add(name, LongType())
    return orders.mapInArrow(enrich, schema.add("last_country", StringType()))


def unusual_orders(orders: DataFrame, resolver: TaskResolver) -> list[Row]:
    """Return the orders that are far above what their account usually spends."""

    def unusual(rows: Iterable[Row]) -> Iterator[Row]:
        batch = list(rows)
        profiles = look_up(resolver, (row.account for row in batch))
        for row in batch:
            mean = mean_cents(profiles[row.account])
            if mean is not None and row.cents > UNUSUAL_FACTOR * mean:
                yield row

    return orders.rdd.mapPartitions(unusual).collect()


def _parts(accounts: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(accounts), ACCOUNTS_ASKED_MAX):
        yield accounts[begin : begin + ACCOUNTS_ASKED_MAX]


def _profiles(answer: LookUpResponse) -> Iterator[Profile]:
    return zip(
        answer.payments, answer.cents_total, answer.cents_max, answer.last_country, strict=True
    )
