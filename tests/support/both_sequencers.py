"""What of a journal a shard's application sees, and what Spark's source shows: two ways through the same rules."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from broadsheet.consumer.shard import transaction_events as tx
from broadsheet.consumer.shard.transaction_events import InputDemand, TxnLimits
from broadsheet.consumer.shard.transaction_machine import TransactionMachine
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.journals.message.uuid import Flags
from broadsheet.spark_bridge.journal_source.commit_scan import CommitScan
from broadsheet.spark_bridge.journal_source.journal_state import AT_THE_BEGINNING
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.commit_scans import scan_on
from tests.support.sequencing import Log


@dataclass(frozen=True)
class Shown:
    """What a reader made of a journal."""

    begins: list[int]
    """Of each message that is shown, in that order."""
    offset: int
    """Below which everything was sequenced."""
    producers: dict[int, tuple[int, int]]
    """By id: the last clock committed or rolled back, and where the pending messages begin."""


def shown_by_shard(log: Log, cuts: random.Random, *, ring_messages: int) -> Shown:
    """Return what is delivered to an application.

    Args:
        log: The journal.
        cuts: Decides how it arrives, and where transactions end.
        ring_messages: Pending messages kept in memory.
    """
    return _Shard(log, cuts, ring_messages).run()


def shown_by_spark(log: Log, cuts: random.Random, *, pending_bytes: int) -> Shown:
    """Return what the rows of the micro-batches are.

    Args:
        log: The journal.
        cuts: Decides how it arrives, where micro-batches end, and when the query is restarted.
        pending_bytes: Memory for places of pending messages.
    """
    state, found = AT_THE_BEGINNING, list[int]()
    scan = CommitScan(state, stretch_bytes=1, pending_bytes=pending_bytes)
    for message in log.messages:
        if message is not log.messages[-1] and cuts.random() < 0.7:
            continue
        batch = scan_on(scan, log, head=message.end, chunk_messages=cuts.randint(1, 20))
        state = batch.end
        found += batch.begins.tolist()
        if cuts.random() < 0.3:
            scan = CommitScan(state, stretch_bytes=1, pending_bytes=pending_bytes)
    producers = {key: (known.min_clock, known.begin) for key, known in state.producers.items()}
    return Shown(found, state.offset, producers)


class _Shard:
    """A transaction machine, and who performs what it orders."""

    def __init__(self, log: Log, cuts: random.Random, ring_messages: int) -> None:
        self._log = log
        self._cuts = cuts
        self._next = 0
        self._found: list[int] = []
        self._replay: deque[tx.Event] = deque()
        self._events: deque[tx.Event] = deque()
        self._ended = False
        self._sequencer = Sequencer({}, ring_messages=ring_messages)
        self._machine = TransactionMachine(
            self._sequencer,
            Checkpoint(),
            limits=TxnLimits(min_seconds=0.0, max_seconds=1e9, wait_for_ack=True),
        )

    def run(self) -> Shown:
        """Read the journal to its end."""
        self._perform(self._machine.start(0.0))
        while not self._ended:
            self._perform(self._machine.on(self._event(), 0.0))
        source = self._sequencer.take_checkpoint(0)[self._log.journal]
        producers = {
            int.from_bytes(entry.id, "big"): (entry.state.last_ack, entry.state.begin)
            for entry in source.producers
        }
        return Shown(self._found, source.read_through, producers)

    def _event(self) -> tx.Event:
        if self._events:
            return self._events.popleft()
        match self._machine.demand:
            case InputDemand.REPLAY:
                return self._replay.popleft()
            case InputDemand.BATCH_IF_READY if self._cuts.random() < 0.5:
                return tx.InputIdle()
            case InputDemand.BATCH | InputDemand.BATCH_IF_READY:
                return self._input()
            case demand:
                raise AssertionError(f"nothing happens, and the machine wants {demand}")

    def _input(self) -> tx.Event:
        if self._next == len(self._log.messages):
            return tx.SourcesClosed()
        start, self._next = self._next, self._next + self._cuts.randint(1, 8)
        self._next = min(self._next, len(self._log.messages))
        for index in range(start + 1, self._next):
            message = self._log.messages[index]
            if not message.clock and message.flags == Flags.ACK_TXN and self._cuts.random() < 0.5:
                self._next = index  # So that it stands at the head of a batch.
                break
        return tx.BatchRead(self._log.batch(start, self._next))

    def _perform(self, instructions: tuple[tx.Instruction, ...]) -> None:
        for instruction in instructions:
            match instruction:
                case tx.BeginTxn():
                    self._events.append(tx.TxnBegan())
                case tx.Deliver(batch):
                    self._found += batch.begins.tolist()
                    self._events.append(tx.BatchDelivered(len(batch)))
                case tx.Finalize():
                    self._events.append(tx.TxnFinalized({}, {}))
                case tx.StartCommit():
                    self._events += [tx.CommitStarted(), tx.CommitResolved(None)]
                case tx.StartReplay(_, begin, end):
                    self._replay.append(tx.ReplayRead(self._log.between(begin, end)))
                    self._replay.append(tx.ReplayEnded())
                case tx.Finish():
                    self._ended = True
                case tx.Fail(cause):
                    raise cause
                case _:
                    pass
