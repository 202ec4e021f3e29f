"""Micro-batches of a journal against one read of it from end to end."""

from __future__ import annotations

import json
import random

import numpy as np
from hypothesis import given, settings, strategies as st

from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.journals.message.uuid import Flags
from broadsheet.spark_bridge.journal_source.byte_runs import RunCutter, partitions_of
from broadsheet.spark_bridge.journal_source.commit_scan import CommitScan, ScanLimits, ScannedBatch
from broadsheet.spark_bridge.journal_source.journal_state import AT_THE_BEGINNING, JournalState
from tests.support.commit_scans import plan_again, scan_on
from tests.support.sequencing import Log, replay

CUTS = st.integers(0, 2**32).map(random.Random)
"""Where to cut: by a seed, since a draw for each cut takes far longer than the cut."""
PENDING_BYTES = [1, 1000, 1_000_000]
KINDS = ["continue"] * 4 + ["ack", "rollback", "part", "repeat", "repeat", "single", "no clock"]
OUTSIDE, CONTINUE, ACK = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """A journal of producers that mix transactions, rolled back in whole or in part too, with single messages, repeat
    appends, and opt out of sequencing.
    """
    choices = draw(CUTS)
    log = Log()
    clocks = dict.fromkeys(range(1, 5), 16)
    acked = dict.fromkeys(range(1, 5), 16)
    for _ in range(draw(st.integers(1, 60))):
        producer = choices.randint(1, 3)
        size = choices.choice([5, 10, 40])
        match choices.choice(KINDS):
            case "continue":
                clocks[producer] += 16
                log.append(producer, clocks[producer], CONTINUE, size=size)
            case "ack" | "part" as kind:
                # A partial rollback commits all but the newest message, whose clock is used once more.
                back = 16 if kind == "part" and clocks[producer] - acked[producer] > 16 else -16
                clocks[producer] -= back
                acked[producer] = clocks[producer]
                log.append(producer, clocks[producer], ACK, size=size)
            case "rollback":
                clocks[producer] = acked[producer]
                log.append(producer, acked[producer], ACK, size=size)
            case "repeat":
                for message in log.messages[-choices.randint(1, 4) :]:
                    if message.flags != ACK:
                        log.append(message.producer, message.clock, message.flags, size=size)
            case "single":
                producer = choices.choice([producer, 4, 4])
                clocks[producer] += 16
                acked[producer] = clocks[producer]  # What it leaves pending is lost.
                log.append(producer, clocks[producer], OUTSIDE, size=size)
            case _:
                log.append(producer, 0, choices.choice([OUTSIDE, CONTINUE, ACK]), size=size)
    log.append(4, clocks[4] + 16, OUTSIDE)
    return log


def committed(log: Log) -> list[int]:
    """Return where each committed message begins, acknowledgements left out, as one sequencer finds it."""
    sequencer = Sequencer({})
    batch = log.batch()
    begins: list[int] = []
    index = 0
    while index < len(batch):
        index = sequencer.queue(batch, index).next_index
        while sequencer.emitting:
            run = sequencer.peek(1000)
            if run is None:
                replay(sequencer, log)
                continue
            begins += run.begins[run.flags != ACK].tolist()
            sequencer.consume(len(run))
    return begins


@given(logs(), CUTS)
@settings(max_examples=80, deadline=None)
def test_commit_scan_cut_anywhere_equals_one_read(log: Log, cuts: random.Random) -> None:
    """Plan: any write heads and limits, restarts from the state as JSON, tiny rings. Why: exactly once, in order.

    Each micro-batch planned again from its two states holds the same messages, and no limit stops progress.
    """
    state = AT_THE_BEGINNING
    scan = CommitScan(state, stretch_bytes=1, pending_bytes=cuts.choice(PENDING_BYTES))
    found: list[int] = []
    head = 0
    end = log.messages[-1].end
    for step in range(10_000):
        assert step < 9_999, "no progress"
        if cuts.randrange(3) == 0:
            kept = json.loads(json.dumps(state.to_json()))
            scan = CommitScan(
                JournalState.from_json(kept),
                stretch_bytes=1,
                pending_bytes=cuts.choice(PENDING_BYTES),
            )
        if state.offset == head:
            if head == end:
                break
            head = cuts.choice([m.end for m in log.messages if m.end > head])
        limits = ScanLimits(
            rows_max=cuts.choice([1, 2, 5, 1000]),
            bytes_max=cuts.choice([1, 12, 60, 10_000]),
        )

        batch = scan_on(scan, log, head=head, limits=limits, chunk_messages=cuts.randint(1, 20))

        assert batch.end.offset > state.offset
        again = plan_again(log, state, batch.end)
        assert sorted(again.begins.tolist()) == sorted(batch.begins.tolist())
        found += batch.begins.tolist()
        state = batch.end
    assert found == committed(log)


@given(logs(), st.integers(1, 9), st.booleans())
@settings(max_examples=60, deadline=None)
def test_commit_scan_rows_limit_is_exceeded_by_one_transaction_at_most(
    log: Log, rows_max: int, live: bool
) -> None:
    """Plan: a limit on rows alone. Why: admission control must bound batches, though transactions stay whole."""
    state = AT_THE_BEGINNING
    scan = CommitScan(state, stretch_bytes=1)
    end = log.messages[-1].end
    clocks = {m.begin: (m.producer, m.clock) for m in log.messages}
    while state.offset < end:
        if not live:
            scan = CommitScan(state, stretch_bytes=1)
        batch = scan_on(scan, log, head=end, limits=ScanLimits(rows_max=rows_max))
        assert len(batch.begins) <= rows_max or len({clocks[b][0] for b in batch.begins}) == 1
        state = batch.end


@given(logs(), st.integers(1, 200), CUTS)
@settings(max_examples=100, deadline=None)
def test_partitions_of_hold_exactly_the_wanted_bytes(
    log: Log, bytes_max: int, cuts: random.Random
) -> None:
    """Plan: content of partitions arrives in chunks cut anywhere. Why: tasks trust the runs and look no further."""
    content = b"".join(
        b"%c" % (65 + i % 50) * (m.end - m.begin) for i, m in enumerate(log.messages)
    )
    wanted = [m for m in log.messages if cuts.random() < 0.5]
    order = cuts.sample(wanted, len(wanted))

    partitions = partitions_of(
        log.journal,
        np.array([m.begin for m in order], dtype=np.int64),
        np.array([m.end for m in order], dtype=np.int64),
        bytes_max=bytes_max,
    )

    kept = b""
    for partition in partitions:
        cutter = RunCutter(partition.runs())
        at = partition.begin
        while at < partition.end:
            stop = min(partition.end, at + cuts.randint(1, 50))
            for offset, piece in cutter.take(at, content[at:stop]):
                assert content[offset : offset + len(piece)] == piece
                kept += piece
            at = stop
        assert cutter.exhausted
        longest = max(m.end - m.begin for m in wanted)
        assert partition.end - partition.begin <= max(bytes_max, longest)
    assert kept == b"".join(content[m.begin : m.end] for m in wanted)


@given(logs(), st.integers(1, 100))
@settings(max_examples=60, deadline=None)
def test_stretches_hold_the_same_bytes_as_messages(log: Log, stretch_bytes: int) -> None:
    """Plan: one scan by messages, one by stretches. Why: stretches are what a batch of millions is planned with."""
    end = log.messages[-1].end
    single = scan_on(CommitScan(AT_THE_BEGINNING, stretch_bytes=1), log, head=end)
    joined = scan_on(CommitScan(AT_THE_BEGINNING, stretch_bytes=stretch_bytes), log, head=end)

    assert single.rows == joined.rows == len(single.begins)
    assert len(joined.begins) <= len(single.begins)
    sizes = joined.ends - joined.begins
    assert sizes.max(initial=0) <= stretch_bytes + max(m.end - m.begin for m in log.messages)
    assert _bytes_of(joined) == _bytes_of(single)


def _bytes_of(batch: ScannedBatch) -> list[int]:
    ranges = zip(batch.begins.tolist(), batch.ends.tolist(), strict=True)
    return sorted(each for begin, end in ranges for each in range(begin, end))
