"""`make powercut SECONDS=600`: power cuts of everything that keeps data, until the time is over."""

from __future__ import annotations

import itertools
import logging
import secrets
import time

import click
import structlog

from tests.powercut.recorder import Fate, Nursery
from tests.powercut.run import at_data_sync, cut, cut_after_promises
from tests.powercut.subjects import SUBJECTS, modules_of

ROUNDS, CUTS, SYNCS = 3, 40, 20


@click.command()
@click.option("--seconds", default=600.0, show_default=True, help="How long.")
@click.option("--seed", type=int, default=None, help="The first one; drawn if not given.")
@click.option("--subject", "wanted", multiple=True, help="Only these.")
def main(*, seconds: float, seed: int | None, wanted: tuple[str, ...]) -> None:
    """Cut the power of every subject in turn; findings are printed, and make the run fail."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    chosen = [each for each in SUBJECTS if not wanted or each.name in wanted]
    assert chosen, f"expected one of {', '.join(each.name for each in SUBJECTS)}"
    first = secrets.randbelow(1 << 32) if seed is None else seed
    deadline = time.monotonic() + seconds
    cuts, findings = 0, 0
    with Nursery(*modules_of(chosen)) as nursery:
        for turn, subject in enumerate(itertools.cycle(chosen)):
            if time.monotonic() >= deadline:
                break
            number = turn // len(chosen)
            now, at = first + number, number % SYNCS + 1
            for found in itertools.chain(
                cut(subject, nursery, seed=now, rounds=ROUNDS, cuts=CUTS),
                *(
                    cut_after_promises(subject, nursery, at_data_sync(fate, at), seed=now)
                    for fate in (Fate.KILL, Fate.FAIL)
                ),
            ):
                cuts += 1
                if found is not None:
                    findings += 1
                    click.echo(str(found))
    click.echo(f"{cuts} cuts from seed {first} on, {findings} findings")
    if findings:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
