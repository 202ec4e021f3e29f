"""Publishes a text, a message a line: `python -m broadsheet.examples.word_count.publish FILE…`.

Each file is one transaction over both journals of lines: readers see all of it, or nothing yet.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import click

from broadsheet.examples.word_count.messages import LINE_JOURNALS, LINES, Line
from broadsheet.journals import (
    BROKER_ADDRESS_DEFAULT,
    JournalClient,
    MappedJournal,
    MessageClock,
    Publisher,
    new_producer_id,
)


async def publish_text(journals: JournalClient, text: str) -> int:
    """Publish the lines of a text in turn to the journals of lines; return how many there are."""
    clock = MessageClock()
    clock.update(time.time())
    publisher = Publisher(clock, new_producer_id())
    targets = [MappedJournal(journal, LINES.content_type) for journal in LINE_JOURNALS]
    lines = text.splitlines()
    for index, line in enumerate(lines):
        publisher.publish_uncommitted(targets[index % len(targets)], Line(text=line), LINES)
    for append in publisher.take_appends():
        await journals.append(append.journal, append.content)
    # Only now, because acknowledged messages must be present.
    for intent in publisher.build_ack_intents():
        await journals.append(intent.journal, intent.content)
    return len(lines)


@click.command()
@click.option("--broker", envvar="BROKER_ADDRESS", default=BROKER_ADDRESS_DEFAULT)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
def main(broker: str, files: tuple[Path, ...]) -> None:
    """Publish text files."""
    asyncio.run(_publish_files(broker, files))


async def _publish_files(broker: str, files: tuple[Path, ...]) -> None:
    async with JournalClient(broker) as journals:
        for file in files:
            count = await publish_text(journals, file.read_text(encoding="utf-8"))
            click.echo(f"published {count} lines of {file}")


if __name__ == "__main__":
    main()
