"""Waits until all alerts are in both tables, and compares them with those of the file.

`python -m broadsheet.examples.lakehouse.compare --days 31 --sinks http://localhost:8090`
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final, TypeAlias

import click
import pyarrow as pa

from broadsheet.consumer import CONSUMER_ADDRESS_DEFAULT, ShardClient
from broadsheet.examples.flights.dataset import unpack_flights
from broadsheet.examples.lakehouse.dataset import differences, expected_alerts
from broadsheet.examples.lakehouse.tables import delta_rows, iceberg_rows
from broadsheet.journals import BROKER_ADDRESS_DEFAULT, JournalClient

Tables: TypeAlias = "dict[str, pa.Table]"
_SECONDS_MAX: Final = 300.0
_POLL_SECONDS: Final = 1.0


async def read_all(address: str, journals: JournalClient) -> None:
    """Wait until the shards at a member have committed what their sources hold now."""
    async with ShardClient(address, timeout_seconds=_SECONDS_MAX) as client:
        for listed in (await client.list()).shards:
            sources = [source.journal for source in listed.spec.sources]
            heads = {each: await journals.write_head(each) for each in sources}
            await client.wait_read_through(listed.spec.id, heads, timeout_seconds=_SECONDS_MAX)


async def tables_of(
    expected: int, address: str, broker: str, sinks: str, directory: Path
) -> Tables:
    """Return the rows of both tables once everything was carried into them.

    Args:
        expected: So many alerts, which shards acknowledge a moment after they have read the last flight.
        address: A member that serves the flights' shards.
        broker: The journals'.
        sinks: A member that serves the sinks.
        directory: Of the tables.
    """
    deadline = time.monotonic() + _SECONDS_MAX
    async with JournalClient(broker) as journals:
        await read_all(address, journals)
        while True:
            await read_all(sinks, journals)
            tables = {"Delta": delta_rows(directory), "Iceberg": iceberg_rows(directory)}
            fewest = min(rows.num_rows for rows in tables.values())
            if fewest >= expected or time.monotonic() > deadline:
                return tables
            await asyncio.sleep(_POLL_SECONDS)


@click.command()
@click.option("--address", envvar="CONSUMER_ADDRESS", default=CONSUMER_ADDRESS_DEFAULT)
@click.option("--broker", envvar="BROKER_ADDRESS", default=BROKER_ADDRESS_DEFAULT)
@click.option("--sinks", default="http://localhost:8090", help="A member that serves the sinks.")
@click.option("--days", default=31, show_default=True)
@click.option("--directory", default="lakehouse", type=click.Path(path_type=Path))
def main(address: str, broker: str, sinks: str, days: int, directory: Path) -> None:
    """Compare the tables with one query over the file; the status is 1 if they differ."""
    expected = expected_alerts(unpack_flights(directory), days)
    tables = asyncio.run(tables_of(expected.num_rows, address, broker, sinks, directory))
    exact = True
    for name, rows in tables.items():
        missing, surplus = differences(expected, rows)
        exact &= not missing and not surplus
        click.echo(f"{name}: {rows.num_rows} alerts, {missing} missing, {surplus} surplus")
    raise SystemExit(0 if exact else 1)


if __name__ == "__main__":
    main()
