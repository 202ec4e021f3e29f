"""`make fuzz SECONDS=120`: mutated bytes for all decoders, until the time is over."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from tests.fuzz.decoders import DECODERS
from tests.fuzz.run import fuzz, fuzz_for, mutant_of, problem_of, save

FOLDER = Path(".cache/fuzz")
_STEP = 250


@click.command()
@click.option("--seconds", default=0.0, help="How long; else --iterations of each decoder.")
@click.option("--iterations", default=100, show_default=True, help="Mutants of each decoder.")
@click.option("--seed", type=int, default=None, help="To repeat a run; drawn if not given.")
@click.option("--decoder", "wanted", multiple=True, help="Only those whose names begin so.")
@click.option("--only", type=int, default=None, help="One mutant, in this process.")
@click.option("--list", "listed", is_flag=True, help="Name the decoders.")
def main(
    *,
    seconds: float,
    iterations: int,
    seed: int | None,
    wanted: tuple[str, ...],
    only: int | None,
    listed: bool,
) -> None:
    """Feed every decoder mutants of valid bytes; findings are printed, and kept in .cache/fuzz."""
    chosen = [each for each in DECODERS if not wanted or each.name.startswith(wanted)]
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    if listed:
        click.echo("\n".join(each.name for each in chosen))
        return
    if only is not None:
        for each in chosen:
            data = mutant_of(each, each.seeds(), seed=seed, index=only)
            click.echo(f"{each.name} {data!r}: {problem_of(each, data)}")
        return
    click.echo(f"seed {seed}, {len(chosen)} decoders", err=True)
    runs = (
        fuzz_for(chosen, seed=seed, seconds=seconds, step=_STEP)
        if seconds
        else (
            (
                iterations // each.cost,
                list(fuzz(each, seed=seed, indices=range(iterations // each.cost))),
            )
            for each in chosen
        )
    )
    total = findings = 0
    for mutants, found in runs:
        total += mutants
        for finding in found:
            findings += 1
            click.echo(f"{finding.line(seed)}\n  kept: {save(finding, FOLDER)}")
    click.echo(f"seed {seed}: {total} mutants, {findings} findings")
    raise SystemExit(1 if findings else 0)


if __name__ == "__main__":
    main()
