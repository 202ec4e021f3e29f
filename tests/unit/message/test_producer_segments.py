"""Checkpoints of journals with many producers: what a transaction's costs, and that nothing is lost on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from broadsheet.journals.message.checkpoint import (
    build_checkpoint,
    encoded,
    packed_segment,
    put_together,
    segment_id,
    unpacked_segment,
)
from broadsheet.journals.message.producers import FilingLimits, JournalProducers, ProducerCounts
from broadsheet.journals.message.sequencer import PRODUCER_BYTES, Sequencer
from broadsheet.journals.message.uuid import CLOCK_UNITS_PER_SECOND
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.sequencer_logs import ACK, CONTINUE, OUTSIDE, queue_all
from tests.support.sequencing import Log, plain

JOURNAL = "a/journal"
SMALL = FilingLimits(recent_max=6, recent_kept=3, recent_seconds=5.0, filed_min=2)


class Kept:
    """What a store that keeps segments holds."""

    def __init__(self) -> None:
        self.checkpoint = b""
        self.segments: dict[bytes, bytes] = {}

    def commit(self, sources: Mapping[str, Checkpoint.Source]) -> int:
        """Keep a checkpoint; return the bytes written."""
        written = encoded(build_checkpoint(sources, {}))
        self.checkpoint = written.checkpoint
        self.segments |= written.new_segments
        self.segments = {each: self.segments[each] for each in written.named}
        return len(self.checkpoint) + sum(map(len, written.new_segments.values()))

    def restored(self) -> Checkpoint:
        """Return the whole checkpoint."""
        return put_together(Checkpoint.FromString(self.checkpoint), self.segments)


def _consume(
    sequencer: Sequencer, log: Log, start: int = 0, *, now_seconds: float | None = None
) -> None:
    """Sequence the log's messages from index `start` to the end, and consume what they commit."""
    batch, index = log.batch(start), 0
    while index < len(batch):
        index = sequencer.queue(batch, index, now_seconds=now_seconds).next_index
        while sequencer.emitting:
            run = sequencer.peek(1000)
            if run is not None:
                sequencer.consume(len(run))
                continue
            replay = sequencer.replay_range()
            assert replay is not None
            sequencer.feed_replay(log.between(replay.begin, replay.end))
            sequencer.end_replay()


def _flooded(producers: int) -> dict[str, Checkpoint.Source]:
    """Return the sources of a checkpoint with so many producers."""
    source = Checkpoint.Source(read_through=1000)
    for number in range(1, producers + 1):
        source.producers.add(
            id=number.to_bytes(6, "big"), state=Checkpoint.ProducerState(last_ack=5, begin=-1)
        )
    return {JOURNAL: source}


def _bytes_a_transaction(producers: int) -> int:
    """Return what one more message writes, behind a journal's so many silent producers."""
    sequencer, kept = Sequencer(_flooded(producers), filing=FilingLimits()), Kept()
    kept.commit(sequencer.take_checkpoint())
    log = Log(JOURNAL)
    log.append(0xFFFF_0000_0001, 7, OUTSIDE)
    queue_all(sequencer, log)
    sequencer.consume(1)
    return kept.commit(sequencer.take_checkpoint())


def test_transaction_costs_the_same_with_any_number_of_silent_producers() -> None:
    """Plan: one message behind 1,000 silent producers, and behind 60,000.

    Why: a flood of producers would otherwise make each later transaction write megabytes, for a day.
    """
    assert _bytes_a_transaction(60_000) == _bytes_a_transaction(1_000)
    assert _bytes_a_transaction(60_000) < 5_000


def test_checkpoint_of_few_producers_has_no_segments() -> None:
    """Plan: as many producers as a checkpoint may name, and one more. Why: ordinary checkpoints stay Gazette's."""
    limits = FilingLimits()
    few, many = _flooded(limits.recent_max), _flooded(limits.recent_max + 1)

    assert Sequencer(few, filing=limits).take_checkpoint() == few
    assert Sequencer(many, filing=limits).take_checkpoint()[JOURNAL].segments


def test_store_without_segments_is_given_whole_checkpoints() -> None:
    """Plan: many producers, no filing. Why: a user's own store knows nothing of segments, and must lose nobody."""
    sources = _flooded(1_000)

    assert Sequencer(sources).take_checkpoint() == sources


def test_producers_with_something_pending_stay_in_the_checkpoint() -> None:
    """Plan: many begin a transaction and fall silent. Why: a Gazette member that takes over must know them."""
    sequencer, log = Sequencer({}, filing=SMALL), Log(JOURNAL)
    for producer in range(1, 21):
        log.append(producer, 5, CONTINUE if producer <= 10 else OUTSIDE)
    _consume(sequencer, log)

    source = sequencer.take_checkpoint()[JOURNAL]

    assert source.segments
    named = {int.from_bytes(entry.id, "big") for entry in source.producers}
    assert named == set(range(1, 11)) | {18, 19, 20}


DAY_UNITS = 24 * 3600 * CLOCK_UNITS_PER_SECOND


def _stopped(producers: int) -> JournalProducers:
    """Return so many producers that stopped within a transaction, and two that went on for a day and more."""
    found = JournalProducers()
    for number in range(producers):
        found.heard(number, 7 + number).hold(100 * number, 9 + number)
    found.reading.advance(0.0)
    for second in range(10):
        found.reading.advance(60.0 * second)
    for number in (producers, producers + 1):
        found.heard(number, DAY_UNITS + 1_000_000)
    return found


def test_transaction_costs_the_same_with_any_number_of_writers_that_died_within_theirs() -> None:
    """Plan: 1,000 and 60,000 producers that stopped within a transaction a day ago, and one more message.

    Why: each writer that crashes leaves one, for ever; they would make each transaction write megabytes.
    """
    sizes: list[int] = []
    for number in (1_000, 60_000):
        producers, kept = _stopped(number), Kept()
        kept.commit({JOURNAL: producers.incremental_source(10, FilingLimits())})
        producers.heard(number, DAY_UNITS + 1_000_001)
        sizes.append(kept.commit({JOURNAL: producers.incremental_source(20, FilingLimits())}))

    assert sizes[0] == sizes[1] < 5_000


def test_transaction_costs_the_same_with_any_number_of_open_ones_if_those_are_filed() -> None:
    """Plan: 1,000 and 60,000 producers that just began a transaction, one that goes on, and no Gazette member. Why:
    without that, each commit names them all, megabytes of them.
    """
    limits, sizes = FilingLimits(files_pending=True), list[int]()
    for number in (1_000, 60_000):
        sequencer, kept, log = Sequencer({}, filing=limits), Kept(), Log(JOURNAL)
        for producer in range(1, number + 1):
            log.append(producer, 5, CONTINUE)
        _consume(sequencer, log)
        kept.commit(sequencer.take_checkpoint())
        start = len(log.messages)
        log.append(17, 6, CONTINUE)
        _consume(sequencer, log, start)
        sizes.append(kept.commit(sequencer.take_checkpoint()))
        assert plain(kept.restored().sources) == plain(sequencer.whole_sources())

    assert max(sizes) < 5_000


@pytest.mark.parametrize("number", [3, 2_000])
def test_checkpoints_of_many_open_transactions_follow_each_change(number: int) -> None:
    """Plan: clocks and begins change, producers come, are forgotten and go on; each checkpoint equals one made at
    once. Why: entries that did not change are not made again, and one that is outdated would lose messages.
    """
    producers = JournalProducers()
    for each in range(number):
        producers.heard(each, 5).begin = 10 + each
    for step, changed in enumerate((0, 1, number - 1, number, 2)):
        producer = producers.heard(changed, 7)
        if step % 2:
            producer.begin = 1_000 + step
        else:
            producer.settle(50 + step)
        if step == 3:
            producers.by_id[0].begin = -1
            producers.forget(producers.by_id[0])

        found = producers.incremental_source(step, FilingLimits(recent_max=number + 9))

        assert found == producers.source(step)
        assert len(found.producers) == len(producers.by_id)


def test_a_writer_that_died_within_a_transaction_is_restored_as_it_was() -> None:
    """Plan: filed with others, heard again, filed again, and each time restored. Why: if its successor acknowledges its
    messages, they are read again from where they begin.
    """
    producers, kept = _stopped(400), Kept()
    expected = {number: (7 + number, 100 * number) for number in range(400)}
    for number in (400, 401):
        expected[number] = (DAY_UNITS + 1_000_000, -1)

    for acknowledged in (None, 5, 6):
        if acknowledged is not None:
            producers.heard(acknowledged, 0).settle(DAY_UNITS + 2_000_000)
            expected[acknowledged] = (DAY_UNITS + 2_000_000, -1)
            producers.reading.advance(700.0 + 60.0 * acknowledged)
        source = producers.incremental_source(10, FilingLimits())
        kept.commit({JOURNAL: source})
        restored = JournalProducers.restored(kept.restored().sources[JOURNAL])
        assert source.segments
        assert {
            each.id: (each.min_clock, each.begin) for each in restored.by_id.values()
        } == expected


def test_a_writer_that_stopped_lately_within_a_transaction_stays_named() -> None:
    """Plan: the same, 23 hours ago; and a day ago, but it is being emitted. Why: a Gazette member that takes over knows
    no segments, and forgets such a producer only after a day; what is emitted changes its state without being heard.
    """
    lately, emitted = _stopped(400), _stopped(400)
    for each in lately.by_id.values():
        if each.begin != -1:
            each.settle(3600 * CLOCK_UNITS_PER_SECOND + 1_000_001)
            each.hold(1, 3600 * CLOCK_UNITS_PER_SECOND + 1_000_002)
    kept = emitted.by_id[17]

    assert len(lately.incremental_source(10, FilingLimits()).producers) == 402
    named = emitted.incremental_source(10, FilingLimits(), keep=kept).producers
    assert {int.from_bytes(each.id, "big") for each in named} == {17, 400, 401}


@pytest.mark.parametrize(
    "limits",
    [
        SMALL,
        replace(SMALL, pending_seconds=50 / CLOCK_UNITS_PER_SECOND),
        replace(SMALL, files_pending=True),
    ],
    ids=["named", "filed after a while", "filed"],
)
@pytest.mark.parametrize("seed", range(8))
def test_restored_producers_are_those_that_were_checkpointed(
    seed: int, limits: FilingLimits
) -> None:
    """Plan: producers come, fall silent, are heard again, roll back, are forgotten; each checkpoint is compared with
    the whole state, and now and then a new life begins from it.

    Why: a producer lost or made older counts messages twice; one made younger loses them.
    """
    random, kept, log = Random(seed), Kept(), Log(JOURNAL)
    sequencer = Sequencer({}, filing=limits, producers_bytes_max=40 * PRODUCER_BYTES)
    now = 0.0
    for _ in range(120):
        now += random.choice((0.0, 1.0, 4.0))
        start = len(log.messages)
        for _ in range(random.randint(1, 12)):
            producer, clock = random.randint(1, 60), random.randint(1, 1000)
            log.append(producer, clock, random.choice((OUTSIDE, OUTSIDE, ACK, CONTINUE)))
        _consume(sequencer, log, start, now_seconds=now)
        kept.commit(sequencer.take_checkpoint(random.choice((0.0, 20.0))))
        restored = kept.restored()
        assert plain(restored.sources) == plain(sequencer.whole_sources())
        if random.random() < 0.1:
            sequencer = Sequencer(
                restored.sources, filing=limits, producers_bytes_max=40 * PRODUCER_BYTES
            )


def test_segments_stay_few_and_are_written_seldom() -> None:
    """Plan: 4,000 producers come one a transaction. Why: what is written must not grow with those that came before."""
    sequencer, kept, log = Sequencer({}, filing=SMALL), Kept(), Log(JOURNAL)
    written = 0
    for producer in range(1, 4_001):
        log.append(producer, 5, OUTSIDE)
        _consume(sequencer, log, producer - 1)
        written += kept.commit(sequencer.take_checkpoint())

    assert len(kept.segments) <= 12
    assert written / 4_000 < 1_000


def test_too_many_producers_are_forgotten_longest_silent_first() -> None:
    """Plan: room for 10; 8 of one journal, then 15 of another. Why: memory is bounded, and a flood meets itself."""
    sequencer = Sequencer({}, filing=SMALL, producers_bytes_max=10 * PRODUCER_BYTES)
    quiet, flooded = Log("a/quiet"), Log("b/flooded")
    for producer in range(1, 5):
        quiet.append(producer, 5, OUTSIDE)
    for producer in range(1, 16):
        flooded.append(producer, 5, CONTINUE if producer == 1 else OUTSIDE)
    _consume(sequencer, quiet)
    _consume(sequencer, flooded)
    kept = Kept()

    kept.commit(sequencer.take_checkpoint())

    assert sequencer.producer_counts() == ProducerCounts(known=10, filed=0, evicted=9)
    left = plain(kept.restored().sources)
    assert set(left["a/quiet"][1]) == {1, 2, 3, 4}
    assert set(left["b/flooded"][1]) == {1, 11, 12, 13, 14, 15}


def test_go_life_in_between_leaves_a_checkpoint_that_stands_alone() -> None:
    """Plan: a member that knows no segments restores the checkpoint's own part, commits, and ours takes over again.

    Why: what it wrote must be read as it is; segments of before are of another state.
    """
    kept, log = Kept(), Log(JOURNAL)
    kept.commit(Sequencer(_flooded(300), filing=SMALL).take_checkpoint())
    unaware = Checkpoint.FromString(kept.checkpoint)
    for source in unaware.sources.values():
        source.ClearField("segments")
        source.ClearField("forgotten")
    other = Sequencer(unaware.sources)
    log.append(7, 9, OUTSIDE)
    _consume(other, log)
    theirs = build_checkpoint(other.take_checkpoint(), {})
    kept.checkpoint = theirs.SerializeToString(deterministic=True)

    assert kept.restored() == theirs
    assert plain(theirs.sources)[JOURNAL][1] == {
        7: (9, -1),
        298: (5, -1),
        299: (5, -1),
        300: (5, -1),
    }
    ours = Sequencer(kept.restored().sources, filing=SMALL)
    kept.commit(ours.take_checkpoint())
    assert plain(kept.restored().sources) == plain(theirs.sources)


@pytest.mark.parametrize("damage", ["missing", "other content"])
def test_checkpoint_whose_segment_is_not_there_is_refused(damage: str) -> None:
    """Plan: a table restored without the other. Why: to go on would count repeats twice, in silence."""
    kept = Kept()
    kept.commit(Sequencer(_flooded(300), filing=SMALL).take_checkpoint())
    if damage == "missing":
        kept.segments.clear()
    else:
        kept.segments = dict.fromkeys(kept.segments, packed_segment([(1, 1)], ()))

    with pytest.raises(ValueError, match=r"segment [0-9a-f]{32} of silent producers of a/journal"):
        kept.restored()


def test_sequencer_refuses_a_checkpoint_without_its_segments() -> None:
    """Plan: a store returns what it was given. Why: such a store of the user's would lose producers in silence."""
    sources = Sequencer(_flooded(300), filing=SMALL).take_checkpoint()

    with pytest.raises(ValueError, match="put_together"):
        Sequencer(sources)


@pytest.mark.parametrize(
    "content", [b"", b"\x01", b"\x02\0\0\0\0", b"\x01\0\0\0\x01", b"\x01\0\0\0\0\0"]
)
def test_malformed_segments_are_refused(content: bytes) -> None:
    """Plan: content cut short, or of another version. Why: stored bytes are not to be trusted."""
    with pytest.raises(ValueError, match=r"segment of|producer ids of"):
        unpacked_segment(content)


def test_segment_holds_what_was_packed() -> None:
    """Plan: the greatest ids and clocks. Why: they are 48 and 64 bits."""
    content = packed_segment([(2**48 - 1, 2**64 - 1), (0, 0)], [2**48 - 1, 7])

    read = unpacked_segment(content)

    assert read.clocks == {2**48 - 1: 2**64 - 1, 0: 0}
    assert (read.begins, read.forgotten) == ({}, [2**48 - 1, 7])
    assert len(segment_id(content)) == 16

    read = unpacked_segment(packed_segment([(3, 4), (5, 6)], [7], [(5, 2**63 - 1)]))

    assert (read.clocks, read.begins, read.forgotten) == ({3: 4, 5: 6}, {5: 2**63 - 1}, [7])


def test_producer_that_was_forgotten_twice_does_not_come_back() -> None:
    """Plan: filed, forgotten, heard once more with an older clock, forgotten again; then restored.

    Why: what a segment says of it is no longer true; it would take the producer's next messages for repeats.
    """
    producers, kept = JournalProducers(), Kept()
    for producer in range(1, 41):
        producers.heard(producer, 100)
    kept.commit({JOURNAL: producers.incremental_source(10, SMALL)})
    producers.forget(producers.by_id[1])
    kept.commit({JOURNAL: producers.incremental_source(20, SMALL)})
    producers.forget(producers.heard(1, 50))

    kept.commit({JOURNAL: producers.incremental_source(30, SMALL)})

    assert set(plain(kept.restored().sources)[JOURNAL][1]) == set(range(2, 41))


def test_checkpoint_with_an_id_that_is_none_is_refused() -> None:
    """Plan: an id of 7 bytes. Why: stored bytes may be damaged, and no later checkpoint could be written."""
    sources = {
        JOURNAL: Checkpoint.Source(producers=[Checkpoint.Source.ProducerEntry(id=b"7 bytes")])
    }

    with pytest.raises(ValueError, match="a/journal by 7 bytes"):
        put_together(build_checkpoint(sources, {}), {})
