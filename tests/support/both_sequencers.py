"""What of a journal a shard's application sees, and what Spark's source shows: two ways through the same rules."""

from __future__ import annotations

import random
from collections import deque

from consumer.core import transaction_events as tx
from consumer.core.transaction import TransactionMachine
from consumer.core.transaction_events import Demand, TxnLimits
from consumer.message.sequencer import Sequencer
from consumer.protocol.shard_pb2 import Checkpoint
from spark_bridge.journal_source.commit_scan import CommitScan
from spark_bridge.journal_source.journal_state import AT_THE_BEGINNING
from tests.support.commit_scans import scan_on
from tests.support.sequencing import Log


def shown_by_shard(log: Log, cuts: random.Random, *, ring_messages: int) -> list[int]:
    """Return where each message begins that is delivered to an application, in the order of deliveries.

    Args:
        log: The journal.
        cuts: Decides how it arrives, and where transactions end.
        ring_messages: Pending messages kept in memory.
    """
    return _Shard(log, cuts, ring_messages).run()


def shown_by_spark(log: Log, cuts: random.Random, *, pending_bytes: int) -> list[int]:
    """Return where each message begins that is a row of some micro-batch, in the order of the batches.

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
    return found


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
        self._machine = TransactionMachine(
            Sequencer({}, ring_messages=ring_messages),
            Checkpoint(),
            limits=TxnLimits(min_seconds=0.0, max_seconds=1e9, wait_for_ack=True),
        )

    def run(self) -> list[int]:
        """Read the journal to its end."""
        self._perform(self._machine.start(0.0))
        while not self._ended:
            self._perform(self._machine.on(self._event(), 0.0))
        return self._found

    def _event(self) -> tx.Event:
        if self._events:
            return self._events.popleft()
        match self._machine.demand:
            case Demand.REPLAY:
                return self._replay.popleft()
            case Demand.BATCH_IF_READY if self._cuts.random() < 0.5:
                return tx.InputIdle()
            case Demand.BATCH | Demand.BATCH_IF_READY:
                return self._input()
            case demand:
                raise AssertionError(f"nothing happens, and the machine wants {demand}")

    def _input(self) -> tx.Event:
        if self._next == len(self._log.messages):
            return tx.SourcesClosed()
        start, self._next = self._next, self._next + self._cuts.randint(1, 8)
        self._next = min(self._next, len(self._log.messages))
        return tx.BatchRead(self._log.batch(start, self._next))

    def _perform(self, instructions: tuple[tx.Instruction, ...]) -> None:
        for instruction in instructions:
            match instruction:
                case tx.BeginTxn():
                    self._events.append(tx.TxnBegan())
                case tx.Deliver(batch):
                    self._found += batch.begins
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
