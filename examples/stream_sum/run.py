"""Publishes streams for a while, and checks that every one comes out right: `python -m
broadsheet.examples.stream_sum.run`.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time

import click

from broadsheet.allocator import TaskGroup
from broadsheet.examples.stream_sum.check import Comparison, all_sums, compare
from broadsheet.examples.stream_sum.publish import Producers
from broadsheet.journals import BROKER_ADDRESS_DEFAULT, JournalClient

_LOOK_SECONDS = 0.5


@click.command()
@click.option("--broker", envvar="BROKER_ADDRESS", default=BROKER_ADDRESS_DEFAULT)
@click.option("--seconds", default=10.0, help="How long to publish.")
@click.option("--seed", type=int, help="Chooses the streams, and all that is done to them.")
@click.option("--patience", default=60.0, help="Seconds to wait for the last sums.")
def main(broker: str, seconds: float, seed: int | None, patience: float) -> None:
    """Publish random interleaved streams, wait for their sums, and compare."""
    chosen = secrets.randbelow(1 << 31) if seed is None else seed
    comparison = asyncio.run(_run(broker, seconds, chosen, patience))
    for difference in comparison.differences:
        click.echo(f"different: {difference}")
    click.echo(
        f"{'exactly once' if comparison.exact else 'NOT exactly once'}: {comparison.right} sums right"
    )
    sys.exit(0 if comparison.exact else 1)


async def _run(broker: str, seconds: float, seed: int, patience_seconds: float) -> Comparison:
    click.echo(f"seed {seed}")
    producers = Producers(seed=seed)
    async with JournalClient(broker) as journals:
        async with TaskGroup() as group:
            group.start_soon(producers.run(journals), name="producers")
            await asyncio.sleep(seconds)
            producers.end()
        made = ("chunks", "forged", "repeated", "committed", "rolled back", "abandoned", "outside")
        click.echo(", ".join(f"{what} {producers.count(what)}" for what in made))
        deadline = time.monotonic() + patience_seconds
        while True:
            names = producers.expected
            # Journals may have the sums of earlier runs.
            found = [one for one in await all_sums(journals) if one.stream in names]
            comparison = compare(names, found)
            if not comparison.only_missing or comparison.exact or time.monotonic() >= deadline:
                return comparison
            await asyncio.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    main()
