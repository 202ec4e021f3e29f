"""What a reader of committed messages sees of one journal, as it grows."""

from __future__ import annotations

from collections import Counter
from typing import Final

from consumer.message.batch import batch_of
from consumer.message.framing import NDJSON, framing_for
from consumer.message.sequence_rules import Outcome
from consumer.message.sequencer import Sequencer
from consumer.message.types import JsonType
from consumer.message.uuid import Flags
from consumer.simulation.broker import Appended

ENDLESS: Final = 1 << 30
"""Messages and bytes that its memory takes: it never reads twice."""


class CommittedView:
    """Follows one journal from its beginning. Messages are JSON with a number at `id`."""

    def __init__(self, journal: str) -> None:
        """Begin with nothing."""
        self._unframer = framing_for(NDJSON, journal=journal).unframer(journal=journal, offset=0)
        self._sequencer = Sequencer({}, ring_messages=ENDLESS, ring_bytes=ENDLESS)
        self._type = JsonType()
        self.outcomes: Counter[Outcome] = Counter()
        """Messages by what became of them."""

    def feed(self, appended: Appended) -> list[int]:
        """Return the numbers of messages that an append makes visible, in order."""
        frames = self._unframer.feed(appended.content)
        batch, error = batch_of(appended.journal, frames, self._type)
        assert error is None, f"{appended} is no message: {error}"
        seen: list[int] = []
        index = 0
        while index < len(batch):
            queued = self._sequencer.queue(batch, index)
            index = queued.next_index
            self.outcomes.update(queued.outcomes)
            while self._sequencer.emitting:
                run = self._sequencer.peek(ENDLESS)
                assert run is not None, "everything is in memory"
                seen += [
                    envelope.message["id"]
                    for envelope, flags in zip(run.envelopes(), run.flags, strict=True)
                    if flags != Flags.ACK_TXN
                ]
                self._sequencer.consume(len(run))
        return seen

    def pending(self) -> list[int]:
        """Return the producers whose messages were neither committed nor rolled back."""
        return [
            int.from_bytes(entry.id, "big")
            for source in self._sequencer.take_checkpoint().values()
            for entry in source.producers
            if entry.state.begin >= 0
        ]
