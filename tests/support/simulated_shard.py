"""A shard on journals and a store that are plain lists: everything that may happen happens in a random order, and the
shard may die between any two things.

It runs the real transaction machine and sequencer. Its application notes the number in each message and publishes it
on, so that afterwards one can compare: numbers written, numbers in the store, numbers that a reader of the output sees.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from consumer.core import transaction_events as tx
from consumer.core.delivery import DeliveryLimits
from consumer.core.transaction import TransactionMachine
from consumer.core.transaction_events import Demand, TxnLimits
from consumer.message.batch import MessageBatch
from consumer.message.sequencer import Sequencer
from consumer.message.uuid import Flags
from consumer.protocol.shard_pb2 import Checkpoint
from tests.support.message_batches import FRAME_BYTES, Written, WrittenJournal

LIMITS = TxnLimits(min_seconds=1.0, max_seconds=4.0, wait_for_ack=True)


@dataclass
class World:
    """What outlives a crash."""

    inputs: list[WrittenJournal]
    output: WrittenJournal = field(default_factory=lambda: WrittenJournal("out/a"))
    stored: tuple[int, ...] = ()
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    fence: int = 0
    last_producer: int = 1000
    clock: int = 1_000_000
    commits: int = 0

    def tick(self) -> int:
        """Return a clock for the next message that is published."""
        self.clock += 1
        return self.clock


@dataclass
class _Append:
    """Bytes on their way to the output."""

    messages: list[Written]
    waits_for_commit: bool = False
    is_ack: bool = False


class SimulatedShard:
    """One life of the shard, from its restore to its crash or its end."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.finished = False
        self.failure: BaseException | None = None
        self._random = random
        world.fence += 1
        self._fence = world.fence
        world.last_producer += 1
        self._producer = world.last_producer
        self._state = list(world.stored)
        self._positions = {
            journal.name: self._start_of(journal, world.checkpoint) for journal in world.inputs
        }
        self._now = 0.0
        self._timer: float | None = None
        self._answer: Callable[[], tx.Event] | None = None
        self._appends: deque[_Append] = deque()
        self._recovered_appends: deque[_Append] = deque()
        """Acknowledgements of the restored checkpoint: they overtake what is published, or are overtaken by it."""
        self._published = False
        self._commit: tuple[tuple[int, ...], Checkpoint, list[_Append]] | None = None
        self._committed = True
        self._replay: deque[MessageBatch] = deque()
        restored = Checkpoint.FromString(world.checkpoint.SerializeToString())
        self._machine = TransactionMachine(
            Sequencer(restored.sources, ring_messages=random.choice((1, 2, 5, 100))),
            restored,
            limits=LIMITS,
            delivery=DeliveryLimits(messages_max=random.choice((1, 2, 10))),
        )
        self._perform(self._machine.start(self._now))

    def step(self) -> None:
        """Let one of the things happen that may happen now."""
        self._random.choice(self._possible())()

    def write_more(self) -> bool:
        """Return whether some input is still unread."""
        return any(self._positions[j.name] < j.write_head for j in self.world.inputs)

    @staticmethod
    def _start_of(journal: WrittenJournal, checkpoint: Checkpoint) -> int:
        if journal.name not in checkpoint.sources:
            return 0
        return checkpoint.sources[journal.name].read_through

    # -- what may happen

    def _possible(self) -> list[Callable[[], None]]:
        possible: list[Callable[[], None]] = [self._let_time_pass]
        if self._answer is not None:
            possible.append(self._answer_callback)
        if self._appends and (self._committed or not self._appends[0].waits_for_commit):
            possible.append(partial(self._write_append, self._appends))
        if self._recovered_appends:
            possible.append(partial(self._write_append, self._recovered_appends))
        if self._commit is not None and not any(a in self._appends for a in self._commit[2]):
            possible.append(self._make_durable)
        demand = self._machine.demand
        if demand in (Demand.BATCH, Demand.BATCH_IF_READY):
            possible.extend(
                partial(self._read, journal)
                for journal in self.world.inputs
                if self._positions[journal.name] < journal.write_head
            )
            if not self.write_more():
                possible.append(lambda: self._on(tx.SourcesClosed()))
        if demand is Demand.BATCH_IF_READY:
            possible.append(lambda: self._on(tx.InputIdle()))
        if demand is Demand.REPLAY:
            possible.append(self._read_replay)
        return possible

    def _let_time_pass(self) -> None:
        self._now += self._random.choice((0.3, 1.0, 3.0))
        if self._timer is not None and self._now >= self._timer:
            self._timer = None
            self._on(tx.Ticked())

    def _answer_callback(self) -> None:
        answer, self._answer = self._answer, None
        assert answer is not None
        self._on(answer())

    def _write_append(self, appends: deque[_Append]) -> None:
        append = appends.popleft()
        self.world.output.batch(*append.messages)
        if self._random.random() < 0.1:  # The answer was lost and the append repeated.
            self.world.output.batch(*append.messages)
        if append.is_ack:
            self._on(tx.AckResolved(self.world.output.name, self.world.output.write_head))

    def _make_durable(self) -> None:
        assert self._commit is not None
        state, checkpoint, _ = self._commit
        self._commit = None
        if self._fence != self.world.fence:
            self._on(tx.CommitResolved(PermissionError("fenced")))
            return
        self.world.stored = state
        self.world.checkpoint = checkpoint
        self.world.commits += 1
        self._committed = True
        self._on(tx.CommitResolved())

    def _read(self, journal: WrittenJournal) -> None:
        begin = self._positions[journal.name]
        count = self._random.randint(1, 6)
        end = min(journal.write_head, begin + count * FRAME_BYTES)
        self._positions[journal.name] = end
        self._on(tx.BatchRead(journal.read(begin, end)))

    def _read_replay(self) -> None:
        if self._replay:
            self._on(tx.ReplayRead(self._replay.popleft()))
        else:
            self._on(tx.ReplayEnded())

    # -- what is ordered

    def _on(self, event: tx.Event) -> None:
        self._perform(self._machine.on(event, self._now))

    def _perform(self, instructions: tuple[tx.Instruction, ...]) -> None:
        for instruction in instructions:
            match instruction:
                case tx.BeginTxn():
                    self._answer = tx.TxnBegan
                case tx.Deliver():
                    self._answer = partial(self._deliver, instruction)
                case tx.Finalize():
                    self._answer = self._finalize
                case tx.StartCommit(checkpoint):
                    self._answer = partial(self._start_commit, checkpoint)
                case tx.AppendAcks(intents, recovered):
                    self._append_acks(intents[self.world.output.name], recovered=recovered)
                case tx.StartReplay(name, begin, end):
                    journal = next(j for j in self.world.inputs if j.name == name)
                    middle = begin + (end - begin) // FRAME_BYTES // 2 * FRAME_BYTES
                    parts = (journal.read(begin, middle), journal.read(middle, end))
                    self._replay = deque(part for part in parts if len(part) > 0)
                case tx.SetTimer(at):
                    self._timer = at
                case tx.Finish():
                    self.finished = True
                case tx.Fail(cause):
                    self.failure = cause
                case tx.PublishProgress() | tx.RecordTxn():
                    pass

    def _deliver(self, order: tx.Deliver) -> tx.Event:
        assert Flags.ACK_TXN not in order.batch.flags
        consumed = len(order.batch)
        if self._random.random() < 0.2:
            consumed = self._random.randint(1 if order.first else 0, consumed)
        for payload in order.batch.payloads[:consumed]:
            self._state.append(int(payload))
            message = Written(self._producer, self.world.tick(), Flags.CONTINUE_TXN, payload)
            self._appends.append(_Append([message]))
            self._published = True
        return tx.BatchDelivered(consumed)

    def _finalize(self) -> tx.Event:
        intents = {}
        if self._published:
            intents[self.world.output.name] = f"{self._producer} {self.world.tick()}".encode()
            self._published = False
        return tx.TxnFinalized(intents)

    def _start_commit(self, checkpoint: Checkpoint) -> tx.Event:
        assert self._commit is None, "two commits at once"
        durable = Checkpoint.FromString(checkpoint.SerializeToString())
        self._commit = (tuple(self._state), durable, list(self._appends))
        self._committed = False
        return tx.CommitStarted()

    def _append_acks(self, intent: bytes, *, recovered: bool) -> None:
        producer, clock = map(int, intent.split())
        message = Written(producer, clock, Flags.ACK_TXN, b"0")
        appends = self._recovered_appends if recovered else self._appends
        appends.append(_Append([message], waits_for_commit=not recovered, is_ack=True))


def read_committed(journal: WrittenJournal) -> list[int]:
    """Return the numbers that a reader of committed messages sees in a journal."""
    sequencer = Sequencer({}, ring_messages=10_000)
    batch = journal.read(0, journal.write_head)
    seen: list[int] = []
    index = 0
    while index < len(batch):
        queued = sequencer.queue(batch, index)
        index = queued.next_index
        while sequencer.emitting:
            run = sequencer.peek(100)
            assert run is not None, "everything fits in memory"
            seen.extend(
                int(payload)
                for payload, flags in zip(run.payloads, run.flags, strict=True)
                if flags != Flags.ACK_TXN
            )
            sequencer.consume(len(run))
    return seen
