"""Compacts both tables while shards write into them: `python -m broadsheet.examples.lakehouse.compact`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from broadsheet.examples.lakehouse.tables import compact_delta, compact_iceberg


@click.command()
@click.option("--directory", default="lakehouse", type=click.Path(path_type=Path))
@click.option("--rounds", default=5, show_default=True)
@click.option("--every", "seconds", default=2.0, show_default=True, help="Seconds between rounds.")
def main(directory: Path, rounds: int, seconds: float) -> None:
    """Join the tables' small files, some times."""
    for number in range(1, rounds + 1):
        time.sleep(seconds)
        delta, iceberg = compact_delta(directory), compact_iceberg(directory)
        click.echo(
            f"round {number}: Delta {delta[0]} files into {delta[1]}, Iceberg {iceberg[0]} into {iceberg[1]}"
        )


if __name__ == "__main__":
    main()
