"""The streams, their confusing producers, and the comparison, without any server."""

from __future__ import annotations

import copy
from collections import defaultdict
from random import Random

import pytest

from broadsheet.examples.stream_sum.check import compare
from broadsheet.examples.stream_sum.messages import (
    CHUNKS,
    Chunk,
    Progress,
    StreamOrderError,
    StreamSum,
)
from broadsheet.examples.stream_sum.producer import Producer
from broadsheet.examples.stream_sum.source import StreamSource
from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.message.batch import MessageBatch, batch_of
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.journals.message.uuid import Flags

JOURNALS = ("in/a", "in/b", "in/c")


class Journals:
    """Content in memory, from which any range can be read as messages."""

    def __init__(self) -> None:
        self._content: dict[str, bytearray] = {name: bytearray() for name in JOURNALS}

    def append(self, journal: str, content: list[bytes]) -> None:
        """Write."""
        self._content[journal] += b"".join(content)

    def read(self, journal: str, begin: int, end: int | None = None) -> MessageBatch:
        """Return messages as written."""
        unframer = framing_for(NDJSON).unframer(journal=journal, offset=begin)
        batch, error = batch_of(
            journal, unframer.feed(bytes(self._content[journal][begin:end])), CHUNKS
        )
        assert error is None
        return batch


class Reader:
    """Sums streams up as a shard does: through a sequencer, with state and checkpoint that a crash takes back."""

    def __init__(self, journals: Journals) -> None:
        self._journals = journals
        self.sums: list[StreamSum] = []
        self._progress: dict[str, Progress] = {}
        self._sequencer = Sequencer({})
        self.commit()
        self.crash()

    def commit(self) -> None:
        """Make durable what was read."""
        sources = self._sequencer.take_checkpoint()
        self._committed = copy.deepcopy((sources, self._progress, self.sums))

    def crash(self) -> None:
        """Go back to the last commit."""
        sources, self._progress, self.sums = copy.deepcopy(self._committed)
        self._sequencer = Sequencer(sources, ring_messages=16)
        self._read = {journal: self._sequencer.offsets.get(journal, 0) for journal in JOURNALS}

    def read_all(self) -> None:
        """Read what is new."""
        for journal in JOURNALS:
            batch = self._journals.read(journal, self._read[journal])
            index = 0
            while index < len(batch):
                index = self._sequencer.queue(batch, index).next_index
                self._consume()
            if len(batch):
                self._read[journal] = int(batch.ends[-1])

    def _consume(self) -> None:
        while self._sequencer.emitting:
            run = self._sequencer.peek(100)
            if run is None:
                wanted = self._sequencer.replay_range()
                assert wanted is not None
                replayed = self._journals.read(wanted.journal, wanted.begin, wanted.end)
                self._sequencer.feed_replay(replayed)
                self._sequencer.end_replay()
                continue
            for flags, chunk in zip(run.flags, run.messages(), strict=True):
                if flags != Flags.ACK_TXN:
                    self._add(chunk)
            self._sequencer.consume(len(run))

    def _add(self, chunk: Chunk) -> None:
        progress = self._progress.pop(chunk.stream, Progress()).with_chunk(chunk)
        if chunk.eof:
            self.sums.append(progress.result(chunk.stream))
        else:
            self._progress[chunk.stream] = progress


@pytest.mark.parametrize("seed", range(6))
def test_stream_sum_every_producer_is_read_exactly_once(seed: int) -> None:
    """What producers repeat, roll back and abandon is allowed: a reader that crashes now and then, and remembers little
    of what is pending, gets every stream right. A chaos test that finds an error has found it elsewhere.
    """
    random = Random(seed)
    producers = [
        Producer(
            Random(random.random()), name=f"p{index}", journals=JOURNALS, transactional=index < 3
        )
        for index in range(4)
    ]
    journals = Journals()
    reader = Reader(journals)
    pending: dict[Producer, list[tuple[str, list[bytes]]]] = defaultdict(list)

    for step in range(1200):
        producer = random.choice(producers)
        if not pending[producer]:
            appends = producer.next_round(1.7e9 + step * 0.01)
            pending[producer] = [(append.journal, append.content) for append in appends]
        if pending[producer]:  # A round may be under way when the others do something.
            journals.append(*pending[producer].pop(0))
        if random.random() < 0.3:
            reader.read_all()
            random.choice((reader.commit, reader.crash, reader.read_all))()
    for producer in producers:
        for journal, content in pending[producer]:
            journals.append(journal, content)
        for append in producer.end(1.7e9 + 100):
            journals.append(append.journal, append.content)
    reader.read_all()

    expected = {name: one for each in producers for name, one in each.source.expected.items()}
    assert compare(expected, reader.sums).differences == ()
    counts = producers[0].counts + producers[1].counts + producers[2].counts + producers[3].counts
    assert all(
        counts[what] for what in ("forged", "repeated", "rolled back", "abandoned", "outside")
    )
    assert len(expected) > 100


def test_stream_sum_chunk_in_wrong_order_is_an_error() -> None:
    """Repeated, skipped, or after the end: each would be hidden by a sum that only adds."""
    first, second = Chunk(stream="s", index=0, data=b"a"), Chunk(stream="s", index=1, data=b"b")
    progress = Progress().with_chunk(first)

    assert progress.with_chunk(second).next_index == 2
    for wrong in (first, Chunk(stream="s", index=2)):
        with pytest.raises(StreamOrderError, match=r"stream s: expected chunk 1, got [02]"):
            progress.with_chunk(wrong)


def test_stream_sum_forged_chunk_would_show() -> None:
    """If a reader took one it would have another sum, or fail at the next chunk."""
    source = StreamSource(Random(1), name="s")
    for _ in range(50):
        source.next_chunk()
    forged = source.forged_chunk()

    following = source.next_chunk()
    while following.stream != forged.stream:
        following = source.next_chunk()

    assert following.index == forged.index
    assert following.data != forged.data


def test_stream_sum_comparison_names_each_difference() -> None:
    """Missing, wrong, twice, and of no known stream."""
    expected = {name: StreamSum(stream=name, sum=7, chunks=1) for name in ("a", "b", "c")}
    found = [StreamSum(stream=name, sum=value, chunks=1) for name, value in
             (("a", 7), ("a", 7), ("b", 8), ("d", 7))]  # fmt: skip

    comparison = compare(expected, found)

    assert comparison.right == 0
    assert [text.partition(":")[0] for text in comparison.differences] == [
        "1 streams without a sum",
        "2 sums that are wrong",
        "1 sums more than once",
    ]
    assert not comparison.only_missing
    assert compare(expected, found[:1]).only_missing
