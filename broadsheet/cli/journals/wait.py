"""`shardctl journals wait`: wait until fragment stores have journals."""

from __future__ import annotations

import asyncio
import time

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.errors import NothingSelectedError
from broadsheet.cli.journals.selection import listed_journals
from broadsheet.cli.names import JournalNames
from broadsheet.cli.numbers import Seconds
from broadsheet.cli.options import Selector, command_options, option, require_selection
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import ValidationError

WAIT_LOOK_SECONDS = 0.5
"""Pause between two looks."""
NAMED_MAX = 5
"""Journals named by the error of a wait that was too long; the rest are counted."""


@command_options
class _WaitOptions:
    journals: JournalNames
    selector: Selector
    condition: str = option(
        "What each journal must come to: its store has all that was appended when the command began.",
        "--for",
        type=click.Choice(["stored"]),
        required=True,
    )
    timeout: float = option(
        "How long to wait; 0: look once.", type=Seconds(min=0), default=60.0, metavar="SECONDS"
    )


@cluster_command("wait", _WaitOptions)
async def wait_for_journals(connection: Connection, options: _WaitOptions) -> None:
    """Wait until the fragment store of each journal has it.

    Brokers publish what was appended at the latest after the journal's flush interval. Ends with status 4 if that takes
    too long, and says which journals are not stored.

    \b
    Examples:
      shardctl journals wait flights/part-000 --for=stored
      shardctl journals wait -l name --for=stored --timeout 120
    """
    require_selection("journal", options.journals, options.selector, changes=False)
    async with connection.journals() as client:
        heads = await _heads(client, options)
        deadline = time.monotonic() + options.timeout
        while True:
            for name, head in list(heads.items()):
                if await _stored_end(client, name) >= head:
                    del heads[name]
                    click.echo(f"{name} condition met")
            if not heads:
                return
            if time.monotonic() >= deadline:
                raise TimeoutError(_late(options.timeout, heads))
            await asyncio.sleep(WAIT_LOOK_SECONDS)


async def _heads(client: JournalClient, options: _WaitOptions) -> dict[str, int]:
    """Return the write head of each journal, bytes.

    Raises:
        ValidationError: a journal has no store.
        NothingSelectedError: there is no journal.
    """
    listed = (await listed_journals(client, options.journals, options.selector)).journals
    if not listed:
        raise NothingSelectedError("--selector", f"no journal matches {options.selector!r}")
    for each in listed:
        if not each.spec.fragment.stores:
            raise ValidationError("--for", f"{each.spec.name} has no fragment store")
    return {each.spec.name: await client.write_head(each.spec.name) for each in listed}


async def _stored_end(client: JournalClient, name: str) -> int:
    """Return the offset until which a store has a journal without a break, bytes."""
    end = 0
    for each in await client.list_fragments(name):
        if not each.spec.backing_store:
            break
        end = max(end, each.spec.end)
    return end


def _late(timeout: float, heads: dict[str, int]) -> str:
    told = "; ".join(
        f"{name} is not stored to {head}" for name, head in list(heads.items())[:NAMED_MAX]
    )
    more = f"; and {len(heads) - NAMED_MAX} more" if len(heads) > NAMED_MAX else ""
    return f"not within {timeout:g} s: {told}{more}"
