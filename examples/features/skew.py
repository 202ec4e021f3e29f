"""Publishes purchases, looks features up meanwhile, and compares them with the table to train on, row by row.

python -m broadsheet.examples.features.skew --users 100000

*Skew* is what a model is served and was not trained on. Feature stores have it because they compute features twice;
here both are reads of one state. With `--spark` the table is read by `spark.read.format("shard_state")`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
import pyarrow as pa

from broadsheet.consumer import CONSUMER_ADDRESS_DEFAULT
from broadsheet.examples.features.publish import append_all
from broadsheet.examples.features.purchases import JOURNALS, features_of, purchases
from broadsheet.journals import BROKER_ADDRESS_DEFAULT
from broadsheet.spark_bridge import KeyedReader, TaskResolver

FEATURES: Final = ("purchases", "spent", "last_at", "last_cents", "by_category")
_PURCHASES_AT_ONCE: Final = 20_000
_LOOK_UPS: Final = 200
"""Users who are looked up, one by one, between two batches of purchases."""


def reader_of(address: str, token: Mapping[str, int]) -> KeyedReader:
    """Return a reader whose answers have all purchases before offsets of their journals."""
    resolver = TaskResolver(address.split(","), mapping="modulo", journals=JOURNALS, token=token)
    return KeyedReader(resolver, columns=("user", *FEATURES))


def online(reader: KeyedReader, users: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return features as a model is served them: by key."""
    found = reader.get_many([(user,) for user in users])
    return {row["user"]: row for rows in found for row in rows}


def training(reader: KeyedReader) -> dict[str, dict[str, Any]]:
    """Return features as a model is trained on them: the whole table."""
    rows = pa.concat_tables(reader.scan(page_size=10_000)).to_pylist()
    return {row["user"]: row for row in rows}


def training_by_spark(address: str) -> dict[str, dict[str, Any]]:
    """Return the same as a DataFrame reads it."""
    from broadsheet.spark_bridge import register_formats, start_session

    spark = start_session("local[2]", app_name="features")
    try:
        register_formats(spark)
        options = {"address": address, "selector": "example=features", "table": "state"}
        table = spark.read.format("shard_state").options(**options).load()
        rows = table.select("user", *FEATURES).toArrow().to_pylist()
        return {row["user"]: row for row in rows}
    finally:
        spark.stop()


def skew(left: Mapping[str, Any], right: Mapping[str, Any]) -> int:
    """Return the number of users whose features differ, or are in one of both only."""
    return sum(left.get(user) != right.get(user) for user in left.keys() | right.keys())


def timed_look_ups(reader: KeyedReader, part: pa.Table) -> list[float]:
    """Look some users of purchases up, one after the other; return how long each took, seconds."""
    seconds = []
    for user in part.column("user").slice(0, _LOOK_UPS).to_pylist():
        began = time.perf_counter()
        reader.get(user)
        seconds.append(time.perf_counter() - began)
    return seconds


def streamed(address: str, broker: str, some: pa.Table) -> tuple[KeyedReader, list[float]]:
    """Publish purchases in parts, with look-ups behind each; return a reader that has all, and how long these took."""
    token: dict[str, int] = {}
    seconds: list[float] = []
    # One event loop for all parts: gRPC complains of one that is closed while another, the readers', goes on.
    with asyncio.Runner() as runner:
        for begin in range(0, len(some), _PURCHASES_AT_ONCE):
            part = some.slice(begin, _PURCHASES_AT_ONCE)
            token |= runner.run(append_all(broker, part))
            seconds += timed_look_ups(reader_of(address, token), part)
    return reader_of(address, token), sorted(seconds)


@click.command()
@click.option("--address", envvar="CONSUMER_ADDRESS", default=CONSUMER_ADDRESS_DEFAULT)
@click.option("--broker", envvar="BROKER_ADDRESS", default=BROKER_ADDRESS_DEFAULT)
@click.option("--users", default=100_000, help="How many.")
@click.option("--spark", is_flag=True, help="Read the table by Spark, too.")
def main(address: str, broker: str, users: int, spark: bool) -> None:
    """Publish purchases and compare what is served with what is trained on."""
    some = purchases(users, users, seed=int(time.time()))
    reader, seconds = streamed(address, broker, some)
    click.echo(
        f"{len(some)} purchases; {len(seconds)} look-ups meanwhile, half within "
        f"{seconds[len(seconds) // 2] * 1000:.1f} ms"
    )
    served = online(reader, [f"user-{number}" for number in range(users)])
    table = training(reader)
    expected = {user: {"user": user, **row} for user, row in features_of(some)}
    click.echo(
        f"{len(served)} users; skew of online and training values: {skew(served, table)} rows"
    )
    click.echo(f"differences from a batch over all purchases: {skew(table, expected)} rows")
    if spark:
        click.echo(
            f"skew of online values and Spark's: {skew(served, training_by_spark(address))} rows"
        )


if __name__ == "__main__":
    main()
