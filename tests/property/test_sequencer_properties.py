"""The sequencer against a naive one, and against crashes at every point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings, strategies as st

from broadsheet.journals.message.checkpoint import build_checkpoint, encoded, put_together
from broadsheet.journals.message.producers import FilingLimits
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.journals.message.uuid import CLOCK_UNITS_PER_SECOND, Flags
from broadsheet.wire import shard_pb2
from tests.support.sequencing import (
    Log,
    Message,
    NaiveSequencer,
    messages_of,
    plain,
)

OUTSIDE, CONTINUE, ACK = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN
ENDLESS = 1 << 60
"""Bytes. With fewer, what is in memory differs from the naive one's, and nothing else does."""
JOURNALS = ("a/one", "a/two;meta")


@st.composite
def arbitrary_logs(draw: st.DrawFn) -> tuple[list[Log], list[tuple[Log, int, int]]]:
    """Journals of any messages at all, and the batches in which they arrive."""
    logs = [Log(journal) for journal in JOURNALS]
    batches: list[tuple[Log, int, int]] = []
    message = st.tuples(
        st.integers(1, 3),
        st.integers(0, 12),
        st.sampled_from([OUTSIDE, CONTINUE, CONTINUE, CONTINUE, ACK, ACK, 0x200]),
        st.integers(1, 9),
    )
    for _ in range(draw(st.integers(1, 8))):
        log = logs[draw(st.integers(0, 1))]
        start = len(log.messages)
        for producer, clock, flags, size in draw(st.lists(message, min_size=1, max_size=10)):
            log.append(producer, clock, flags, size=size)
        batches.append((log, start, len(log.messages)))
    return logs, batches


class Twins:
    """A sequencer and a naive one that are given the same."""

    def __init__(self, logs: list[Log], data: st.DataObject) -> None:
        self.logs = logs
        self.data = data
        self.ring_messages = data.draw(st.sampled_from([1, 2, 3, 100]))
        self.ring_bytes = data.draw(st.sampled_from([1, 4000, ENDLESS]))
        self.now = 0.0
        self.restore({})

    def restore(self, sources: dict[str, shard_pb2.Checkpoint.Source]) -> None:
        """Start both from a checkpoint."""
        self.seen: dict[str, float] = {}
        """When each journal last brought messages."""
        self.real = Sequencer(sources, ring_messages=self.ring_messages, ring_bytes=self.ring_bytes)
        self.naive = NaiveSequencer(
            sources,
            logs=self.logs,
            ring_messages=self.ring_messages,
            ring_bytes=ENDLESS,
        )

    def run(self, log: Log, start: int, stop: int) -> None:
        """Sequence a batch with both and compare all that can be seen."""
        batch = log.batch(start, stop)
        passed = self.data.draw(st.sampled_from([0.0, 3.0, 6.0])) / CLOCK_UNITS_PER_SECOND
        self.now += passed
        index = 0
        while index < len(batch):
            self.naive.pass_time(
                log.journal, self.now - self.seen.setdefault(log.journal, self.now)
            )
            self.seen[log.journal] = self.now
            queued = self.real.queue(batch, index, now_seconds=self.now)
            todo = log.messages[start + index : start + queued.next_index]
            index = queued.next_index
            self._settle(log, todo)
            while self.real.emitting:
                self._consume_some(log, todo)
            assert not todo
            assert not self.naive.emitting
            assert dict(self.real.offsets) == self.naive.offsets
            self._compare_checkpoints()

    def _settle(self, log: Log, todo: list[Message]) -> None:
        """Give the naive one what commits nothing, and an acknowledgement, but no message that commits itself."""
        while todo and not self.naive.emitting:
            if self.naive.commits_by_itself(log.journal, todo[0]):
                return
            self.naive.queue(log.journal, todo.pop(0))

    def _consume_some(self, log: Log, todo: list[Message]) -> None:
        run = self.real.peek(self.data.draw(st.integers(1, 4)))
        if run is None:
            self._replay(log)
            self._compare_checkpoints()
            return
        expected = messages_of(run)[: self.data.draw(st.integers(1, len(run)))]
        self.real.consume(len(expected))
        for message in expected:
            if not self.naive.emitting:
                self.naive.queue(log.journal, todo.pop(0))
            assert self.naive.step() == message
            self._settle(log, todo)
        assert dict(self.real.offsets) == self.naive.offsets
        if self.real.emitting and self.real.peek(1) is None:
            return  # Where the next message begins is known to the naive one only.
        self._compare_checkpoints()

    def _replay(self, log: Log) -> None:
        wanted = self.real.replay_range()
        assert wanted is not None
        assert wanted.journal == log.journal
        batch = log.between(wanted.begin, wanted.end)
        cut = self.data.draw(st.integers(0, len(batch)))
        for part in (batch.span(0, cut), batch.span(cut, len(batch))):
            self.real.feed_replay(part)
        self.real.end_replay()

    def _compare_checkpoints(self) -> None:
        assert self.real.has_pending() == bool(self.naive.pending)
        if self.ring_bytes == ENDLESS:
            assert self.real.pending_messages == len(self.naive.ring)
        if self.data.draw(st.booleans()):
            horizon = self.data.draw(st.sampled_from([0.0, 4.5, 100.0])) / CLOCK_UNITS_PER_SECOND
            taken = self.real.take_checkpoint(horizon)
            # In the middle of a run the real one forgets nobody.
            in_run = self.real.emits_run
            assert plain(taken) == self.naive.take_checkpoint(0.0 if in_run else horizon)
            if not self.real.emitting and self.data.draw(st.booleans()):
                self.restore(taken)


@given(arbitrary_logs(), st.data())
@settings(max_examples=120, deadline=None)
def test_sequencer_any_messages_equals_naive_sequencer(
    arrived: tuple[list[Log], list[tuple[Log, int, int]]], data: st.DataObject
) -> None:
    """Plan: any flags and clocks, tiny rings, any splits, restores. Why: batches must change nothing."""
    logs, batches = arrived
    twins = Twins(logs, data)

    for log, start, stop in batches:
        twins.run(log, start, stop)


@dataclass
class Upstream:
    """Producers that publish both in transactions and outside of them, retry appends, crash and come back."""

    log: Log = field(default_factory=Log)
    clocks: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0, 3: 0})
    written: dict[int, list[Message]] = field(default_factory=dict)
    open_spans: dict[int, list[Message]] = field(default_factory=dict)
    committed: list[bytes] = field(default_factory=list)
    incarnation: dict[int, int] = field(default_factory=lambda: {1: 1, 2: 2, 3: 3})
    intents: dict[int, Message] = field(default_factory=dict)

    def publish(self, slot: int, flags: int) -> None:
        """Append a new message."""
        producer = self.incarnation[slot]
        self.clocks[slot] += 16
        message = self.log.append(producer, self.clocks[slot], flags)
        self.written.setdefault(slot, []).append(message)
        match flags:
            case Flags.CONTINUE_TXN:
                self.open_spans.setdefault(slot, []).append(message)
            case Flags.ACK_TXN:
                self.committed += [m.payload for m in self.open_spans.pop(slot, [])]
                self.committed.append(message.payload)
                self.intents[slot] = message
            case _:
                self.open_spans.pop(slot, None)  # what it leaves pending is lost
                self.committed.append(message.payload)

    def opt_out(self, slot: int, flags: int) -> None:
        """Append a message without a clock: it is delivered, whatever its flags say, and commits nothing."""
        message = self.log.append(self.incarnation[slot], 0, flags)
        self.committed.append(message.payload)

    def retry(self, slot: int, count: int) -> None:
        """Append the last messages once more, as a client does that lost the answer.

        An append holds one acknowledgement at most: the next one waits for the next commit. Nor does it hold one before
        a message that commits itself: re-sent, the acknowledgement would take back what that one committed.
        """
        written = self.written.get(slot, [])[-count:]
        while not _is_one_append([message.flags for message in written]):
            written.pop(0)
        for message in written:
            self.log.append(message.producer, message.clock, message.flags, message.payload)

    def crash(self, slot: int) -> None:
        """Lose the open span; the next incarnation re-sends the last acknowledgement, which rolls the span back."""
        self.open_spans.pop(slot, None)
        self.written.pop(slot, None)
        intent = self.intents.get(slot)
        if intent is not None:
            self.log.append(intent.producer, intent.clock, ACK, intent.payload)
        self.incarnation[slot] += 10


def _is_one_append(flags: list[int]) -> bool:
    acknowledged = flags.index(ACK) if ACK in flags else len(flags)
    return ACK not in flags[acknowledged + 1 :] and OUTSIDE not in flags[acknowledged:]


@st.composite
def upstreams(draw: st.DrawFn) -> Upstream:
    """What some producers wrote."""
    upstream = Upstream()
    kinds = ["continue"] * 3 + ["ack", "outside", "opt out", "retry", "crash"]
    event = st.tuples(st.sampled_from(kinds), st.integers(1, 3))
    for kind, slot in draw(st.lists(event, min_size=1, max_size=40)):
        match kind:
            case "continue":
                upstream.publish(slot, CONTINUE)
            case "ack":
                upstream.publish(slot, ACK)
            case "outside":
                upstream.publish(slot, OUTSIDE)
            case "opt out":
                upstream.opt_out(slot, draw(st.sampled_from([OUTSIDE, CONTINUE, ACK])))
            case "retry":
                upstream.retry(slot, draw(st.integers(1, 4)))
            case _:
                upstream.crash(slot)
    return upstream


class Downstream:
    """A consumer that commits now and then, and crashes now and then."""

    def __init__(
        self, upstream: Upstream, data: st.DataObject, *, filing: FilingLimits | None = None
    ) -> None:
        self.log = upstream.log
        self.data = data
        self.filing = filing
        self.segments: dict[bytes, bytes] = {}
        self.durable: tuple[dict[str, shard_pb2.Checkpoint.Source], list[bytes]] = ({}, [])
        self.crashes_left = 6
        self.restart()

    def restart(self) -> None:
        """Go on from what is durable."""
        sources, delivered = self.durable
        ring = self.data.draw(st.sampled_from([1, 2, 4, 100]))
        self.sequencer = Sequencer(sources, ring_messages=ring, filing=self.filing)
        self.delivered = list(delivered)
        self.offset = max((source.read_through for source in sources.values()), default=0)

    def maybe_commit_or_crash(self) -> bool:
        """Return whether it crashed."""
        choice = self.data.draw(st.sampled_from(["go on", "go on", "commit", "crash"]))
        if choice == "commit":
            self.durable = (self.stored(), list(self.delivered))
        elif choice == "crash" and self.crashes_left:
            self.crashes_left -= 1
            self.restart()
            return True
        return False

    def stored(self) -> dict[str, shard_pb2.Checkpoint.Source]:
        """Return a checkpoint as a store gives it back."""
        written = encoded(build_checkpoint(self.sequencer.take_checkpoint(), {}))
        self.segments |= written.new_segments
        self.segments = {each: self.segments[each] for each in written.named}
        checkpoint = shard_pb2.Checkpoint.FromString(written.checkpoint)
        return dict(put_together(checkpoint, self.segments).sources)

    def run(self) -> list[bytes]:
        """Read to the end and return what was consumed."""
        end = self.log.messages[-1].end
        while self.offset < end:
            rest = self.log.between(self.offset, end)
            batch = rest.span(0, self.data.draw(st.integers(1, len(rest))))
            self.offset = int(batch.ends[-1])
            self._run_batch(int(batch.begins[0]), int(batch.ends[-1]))
        return self.delivered

    def _run_batch(self, begin: int, end: int) -> None:
        batch = self.log.between(begin, end)
        index = 0
        while index < len(batch):
            index = self.sequencer.queue(batch, index).next_index
            if self.maybe_commit_or_crash():
                return
            while self.sequencer.emitting:
                self._advance()
                if self.maybe_commit_or_crash():
                    return

    def _advance(self) -> None:
        run = self.sequencer.peek(self.data.draw(st.integers(1, 3)))
        if run is not None:
            count = self.data.draw(st.integers(1, len(run)))
            self.delivered += run.payloads[:count]
            self.sequencer.consume(count)
            return
        wanted = self.sequencer.replay_range()
        assert wanted is not None
        batch = self.log.between(wanted.begin, wanted.end)
        for index in range(len(batch)):
            self.sequencer.feed_replay(batch.span(index, index + 1))
            while (part := self.sequencer.peek(1)) is not None:
                self.delivered += part.payloads
                self.sequencer.consume(1)
        self.sequencer.end_replay()


FILED = FilingLimits(
    recent_max=0, recent_kept=0, recent_seconds=0.0, filed_min=1, files_pending=True
)
"""Every producer is filed at every checkpoint, also within its transaction, but for the one that is being emitted."""


@given(upstreams(), st.data(), st.sampled_from([None, FILED]))
@settings(max_examples=160, deadline=None)
def test_sequencer_crashes_anywhere_delivers_exactly_once(
    upstream: Upstream, data: st.DataObject, filing: FilingLimits | None
) -> None:
    """Plan: commit or crash between any two calls, with producers named or filed. Why: the promise of the whole system
    rests here.
    """
    delivered = Downstream(upstream, data, filing=filing).run() if upstream.log.messages else []

    assert sorted(delivered) == sorted(upstream.committed)


def eventful_log() -> Log:
    """Return a journal with each kind of event: interleaving, replay, duplicates, rollback, partial acknowledgement."""
    log = Log()
    for producer, clock, flags in (
        (1, 16, CONTINUE), (2, 16, CONTINUE), (1, 32, CONTINUE), (3, 16, OUTSIDE),
        (3, 32, OUTSIDE), (3, 32, OUTSIDE), (3, 48, OUTSIDE), (1, 32, CONTINUE),
        (1, 48, CONTINUE), (1, 64, ACK), (2, 32, CONTINUE), (2, 48, CONTINUE),
        (2, 56, ACK), (1, 80, CONTINUE), (1, 64, ACK), (2, 64, CONTINUE),
        (4, 0, OUTSIDE), (2, 80, CONTINUE), (2, 72, ACK), (2, 80, CONTINUE), (2, 96, ACK),
    ):  # fmt: skip
        log.append(producer, clock, flags)
    return log


def steps_of(log: Log, sequencer: Sequencer, *, offset: int) -> Iterator[list[bytes]]:
    """Sequence from `offset` to the end, one message at a time; yield what each step consumed, often nothing."""
    batch = log.between(offset, log.messages[-1].end)
    index = 0
    while index < len(batch):
        index = sequencer.queue(batch, index).next_index
        yield []
        wanted = sequencer.replay_range()
        if wanted is not None:
            replayed = log.between(wanted.begin, wanted.end)
            for at in range(len(replayed)):
                sequencer.feed_replay(replayed.span(at, at + 1))
                yield []
                yield from consumed_one_by_one(sequencer)
            sequencer.end_replay()
            yield []
        yield from consumed_one_by_one(sequencer)


def consumed_one_by_one(sequencer: Sequencer) -> Iterator[list[bytes]]:
    """Consume what is ready, yielding each message."""
    while sequencer.emitting and (run := sequencer.peek(1)) is not None:
        sequencer.consume(1)
        yield list(run.payloads)


@pytest.mark.parametrize("ring_messages", [1, 2, 100])
def test_sequencer_restored_at_every_step_delivers_the_rest_exactly(ring_messages: int) -> None:
    """Plan: checkpoint after every single step of a run, restore, and read on. Why: no point may be left to chance."""
    log = eventful_log()
    whole = [p for step in steps_of(log, Sequencer({}), offset=0) for p in step]
    first = Sequencer({}, ring_messages=ring_messages)
    before: list[bytes] = []

    for step in steps_of(log, first, offset=0):
        before += step
        sources = first.take_checkpoint()
        offset = sources[log.journal].read_through
        second = Sequencer(sources, ring_messages=ring_messages)
        after = [p for later in steps_of(log, second, offset=offset) for p in later]
        assert before + after == whole
