"""What a reader of committed messages still has pending at the end of a journal."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field

from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.reader import read_batches
from broadsheet.journals.message.sequence_rules import SequenceOutcome
from broadsheet.journals.message.sequencer import Sequencer


@dataclass
class SequencedJournal:
    """A whole journal, sequenced."""

    pending: list[int] = field(default_factory=list)
    """Producers whose messages are neither committed nor rolled back."""
    outcomes: Counter[SequenceOutcome] = field(default_factory=Counter)
    messages: int = 0
    """As written, committed or not."""


async def sequenced(journals: JournalClient, journal: str) -> SequencedJournal:
    """Sequence a journal of JSON lines from its beginning to its end."""
    sequencer = Sequencer({})
    found = SequencedJournal()
    async with aclosing(read_batches(journals, journal, JsonType(), block=False)) as batches:
        async for batch in batches:
            found.messages += len(batch)
            index = 0
            while index < len(batch):
                queued = sequencer.queue(batch, index)
                index = queued.next_index
                found.outcomes.update(queued.outcomes)
                while sequencer.emitting:
                    run = sequencer.peek(1000)
                    assert run is not None, "everything fits in memory"
                    sequencer.consume(len(run))
    for source in sequencer.take_checkpoint(0).values():
        found.pending += [
            int.from_bytes(entry.id, "big") for entry in source.producers if entry.state.begin >= 0
        ]
    return found
