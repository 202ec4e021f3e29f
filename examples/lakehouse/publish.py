"""Publishes flights, a day in a transaction: `python -m broadsheet.examples.lakehouse.publish --days 31`."""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from pathlib import Path
from typing import Final

import click

from broadsheet.examples.flights.dataset import unpack_flights
from broadsheet.examples.flights.messages import FLIGHT_JOURNALS, FLIGHTS
from broadsheet.examples.lakehouse.dataset import flights_by_day
from broadsheet.journals import (
    BROKER_ADDRESS_DEFAULT,
    JournalClient,
    JsonType,
    KeyColumn,
    MappedJournal,
    MessageClock,
    Publisher,
    new_producer_id,
)

_BY_AIRCRAFT: Final = KeyColumn(
    "aircraft", lambda: [MappedJournal(each, FLIGHTS.content_type) for each in FLIGHT_JOURNALS]
)


async def publish(
    broker: str, file: Path, days: int, *, skipped_days: int = 0, pause_seconds: float = 0.0
) -> int:
    """Publish the flights of days but the first ones, with a pause behind each day; return how many."""
    clock = MessageClock()
    publisher, flights = Publisher(clock, new_producer_id()), 0
    async with JournalClient(broker) as journals:
        for rows in islice(flights_by_day(file, days), skipped_days, None):
            clock.update(time.time())
            publisher.publish_batch(_BY_AIRCRAFT, rows, JsonType())
            for pending in publisher.take_appends():
                await journals.append(pending.journal, pending.content)
            # Only now, because acknowledged messages must be present.
            for intent in publisher.build_ack_intents():
                await journals.append(intent.journal, intent.content)
            flights += rows.num_rows
            await asyncio.sleep(pause_seconds)
    return flights


@click.command()
@click.option("--broker", envvar="BROKER_ADDRESS", default=BROKER_ADDRESS_DEFAULT)
@click.option("--days", default=31, help="Of 2013, from its first one on.", show_default=True)
@click.option("--skip", default=0, help="Days that were published before.", show_default=True)
@click.option("--pause", default=0.0, show_default=True, help="Seconds behind each day.")
@click.option("--directory", default="lakehouse", type=click.Path(path_type=Path))
def main(broker: str, days: int, skip: int, pause: float, directory: Path) -> None:
    """Publish flights into the journals of departures."""
    file = unpack_flights(directory)
    flights = asyncio.run(publish(broker, file, days, skipped_days=skip, pause_seconds=pause))
    click.echo(f"{flights} flights of {days - skip} days published")


if __name__ == "__main__":
    main()
