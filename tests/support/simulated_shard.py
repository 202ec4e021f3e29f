"""A shard on journals and a store that are plain lists: everything that may happen happens in a random order, and the
shard may die between any two things.

It runs the real transaction machine and sequencer. Its application notes the number in each message and publishes it
to one of two outputs, or to none, so that afterwards one can compare: numbers written, numbers in the store, numbers
that a reader of each output sees, and what that reader still has pending.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random

from broadsheet.consumer.shard import transaction_events as tx
from broadsheet.consumer.shard.transaction_events import InputDemand, TxnLimits
from broadsheet.consumer.shard.transaction_machine import DeliveryLimits, TransactionMachine
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.rollback import Rollback, brought_forward
from broadsheet.journals.message.sequence_rules import SequenceOutcome
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.journals.message.uuid import Flags, build_uuid, parse_uuid
from broadsheet.runtime.story import noting
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.message_batches import FRAME_BYTES, Written, WrittenJournal

_UUID_BYTES = 16
_PAYLOAD_BYTES = 12

LIMITS = TxnLimits(min_seconds=1.0, max_seconds=4.0, wait_for_ack=True)


@dataclass
class World:
    """What outlives a crash."""

    inputs: list[WrittenJournal]
    outputs: list[WrittenJournal] = field(
        default_factory=lambda: [WrittenJournal("out/a"), WrittenJournal("out/b")]
    )
    rollbacks: dict[tuple[int, str], Rollback] = field(default_factory=dict)
    """On file, by producer and journal."""
    stored: tuple[int, ...] = ()
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    fence: int = 0
    last_producer: int = 1000
    clock: int = 1_000_000
    commits: int = 0

    def tick(self) -> int:
        """Return a clock for the next message that is published."""
        self.clock += 10
        return self.clock

    def output_of(self, number: int) -> WrittenJournal | None:
        """Return where a number is published."""
        return [*self.outputs, None][number % 3]


@dataclass
class _Append:
    """Bytes on their way to an output."""

    output: WrittenJournal
    messages: list[Written]
    waits_for_commit: bool = False
    is_ack: bool = False
    after: Rollback | None = None
    """Must be on file first."""
    behind: Collection[_Append] = ()
    """Must have been written before."""


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
        self._appends: list[deque[_Append]] = [deque() for _ in world.outputs]
        self._recovered_appends: list[deque[_Append]] = [deque() for _ in world.outputs]
        """Acknowledgements of the restored checkpoint: they overtake what is published, or are overtaken by it."""
        self._undoing: deque[_Append] = deque()
        """Rollbacks of former producers, which overtake everything but the journal's own intent, or are overtaken."""
        self._keeping: list[Rollback] = []
        self._touched: set[str] = set()
        self._published: dict[str, None] = {}
        self._acknowledged: set[str] = set()
        """Outputs that took messages of an earlier transaction of this life."""
        self._carries = random.random() < 0.5
        """Whether the running transaction is small."""
        self._carried: dict[str, list[Written]] = {}
        """By output: messages that are to go with the acknowledgement."""
        self._commit: tuple[tuple[int, ...], Checkpoint, list[_Append]] | None = None
        self._committed = True
        self._replay: deque[MessageBatch] = deque()
        restored = Checkpoint.FromString(world.checkpoint.SerializeToString())
        self._take_over(restored)
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

    def story(self) -> str:
        """Return what its machine went through of late."""
        return self._machine.story()

    def write_more(self) -> bool:
        """Return whether some input is still unread."""
        return any(self._positions[j.name] < j.write_head for j in self.world.inputs)

    @property
    def undone(self) -> bool:
        """Whether everything that former lives left is rolled back."""
        return not self._undoing

    def _take_over(self, restored: Checkpoint) -> None:
        forward = brought_forward(self.world.rollbacks.values(), restored.ack_intents)
        for rollback in forward:
            self.world.rollbacks[rollback.producer, rollback.journal] = rollback
            output = self._output(rollback.journal)
            intents = self._recovered_appends[self.world.outputs.index(output)]
            self._undoing.append(_Append(output, _messages_of(rollback.content), behind=intents))
        self._random.shuffle(self._undoing)

    def _output(self, name: str) -> WrittenJournal:
        return next(output for output in self.world.outputs if output.name == name)

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
        queues = [*self._appends, *self._recovered_appends, self._undoing]
        possible.extend(
            partial(self._write_append, queue) for queue in queues if queue and self._may(queue[0])
        )
        possible.extend(partial(self._keep, rollback) for rollback in self._keeping)
        pending = [append for queue in self._appends for append in queue]
        if self._commit is not None and not any(a in pending for a in self._commit[2]):
            possible.append(self._make_durable)
        demand = self._machine.demand
        if demand in (InputDemand.BATCH, InputDemand.BATCH_IF_READY):
            possible.extend(
                partial(self._read, journal)
                for journal in self.world.inputs
                if self._positions[journal.name] < journal.write_head
            )
            if not self.write_more():
                possible.append(lambda: self._on(tx.SourcesClosed()))
        if demand is InputDemand.BATCH_IF_READY:
            possible.append(lambda: self._on(tx.InputIdle()))
        if demand is InputDemand.REPLAY:
            possible.append(self._read_replay)
        return possible

    def _may(self, append: _Append) -> bool:
        return (
            (self._committed or not append.waits_for_commit)
            and append.after not in self._keeping
            and not append.behind
        )

    def _keep(self, rollback: Rollback) -> None:
        self._keeping.remove(rollback)
        self.world.rollbacks[rollback.producer, rollback.journal] = rollback

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
        output = append.output
        output.batch(*append.messages)
        if self._random.random() < 0.1:  # The answer was lost and the append repeated.
            output.batch(*append.messages)
        if append.is_ack:
            self._on(tx.AckResolved(output.name, output.write_head))

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
                case tx.StartCommit(checkpoint, _):
                    self._answer = partial(self._start_commit, checkpoint)
                case tx.AppendAcks(intents, recovered):
                    self._append_acks(intents, recovered=recovered)
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
            output = self.world.output_of(int(payload))
            if output is not None:
                self._publish(output, payload)
        return tx.BatchDelivered(consumed)

    def _publish(self, output: WrittenJournal, payload: bytes) -> None:
        clock = self.world.tick()
        message = Written(self._producer, clock, Flags.CONTINUE_TXN, payload)
        if self._carries and output.name in self._acknowledged:
            self._carried.setdefault(output.name, []).append(message)
            self._published[output.name] = None
            return
        append = _Append(output, [message])
        if output.name not in self._touched:
            self._touched.add(output.name)
            append.after = Rollback(
                journal=output.name,
                producer=self._producer,
                clock=clock - 1,
                content=build_uuid(self._producer, clock - 1, Flags.ACK_TXN),
            )
            self._keeping.append(append.after)
        self._appends[self.world.outputs.index(output)].append(append)
        self._published[output.name] = None

    def _finalize(self) -> tx.Event:
        if self._random.random() < 0.2:  # It has become large in the end.
            for name, messages in self._carried.items():
                output = self._output(name)
                self._appends[self.world.outputs.index(output)].append(_Append(output, messages))
            self._carried = {}
        acknowledgements = {
            name: build_uuid(self._producer, self.world.tick(), Flags.ACK_TXN)
            for name in self._published
        }
        intents = {
            name: b"".join(map(_frame, self._carried.get(name, []))) + acknowledgement
            for name, acknowledgement in acknowledgements.items()
        }
        self._acknowledged |= self._published.keys()
        self._published, self._carried = {}, {}
        self._carries = self._random.random() < 0.5
        return tx.TxnFinalized(intents, dict(list(acknowledgements.items())[-1:]))

    def _start_commit(self, checkpoint: Checkpoint) -> tx.Event:
        assert self._commit is None, "two commits at once"
        durable = Checkpoint.FromString(checkpoint.SerializeToString())
        pending = [append for queue in self._appends for append in queue]
        self._commit = (tuple(self._state), durable, pending)
        self._committed = False
        return tx.CommitStarted()

    def _append_acks(self, intents: Mapping[str, bytes], *, recovered: bool) -> None:
        queues = self._recovered_appends if recovered else self._appends
        for name, intent in intents.items():
            output = self._output(name)
            append = _Append(
                output, _messages_of(intent), waits_for_commit=not recovered, is_ack=True
            )
            queues[self.world.outputs.index(output)].append(append)


@contextmanager
def judged(*shards: SimulatedShard) -> Iterator[None]:
    """Add the stories of shards to a check of them that fails."""
    with ExitStack() as stack:
        for shard in shards:
            stack.enter_context(noting(shard.story))
        yield


def _frame(message: Written) -> bytes:
    uuid = build_uuid(message.producer, message.clock, message.flags)
    return uuid + message.payload.ljust(_PAYLOAD_BYTES)


def _messages_of(intent: bytes) -> list[Written]:
    """Return the messages of an intent: framed ones, if it carries any, and the UUID of its acknowledgement."""
    *begins, last = range(0, len(intent), _UUID_BYTES + _PAYLOAD_BYTES)
    messages = [
        Written(*parse_uuid(intent[begin : begin + _UUID_BYTES]), _payload_of(intent, begin))
        for begin in begins
    ]
    return [*messages, Written(*parse_uuid(intent[last:]), b"0")]


def _payload_of(intent: bytes, begin: int) -> bytes:
    return intent[begin + _UUID_BYTES : begin + _UUID_BYTES + _PAYLOAD_BYTES].strip()


@dataclass
class Seen:
    """What a reader of committed messages makes of a journal."""

    numbers: list[int]
    outcomes: Counter[SequenceOutcome]
    pending: int
    """Producers whose messages were neither committed nor rolled back."""


def read_committed(journal: WrittenJournal) -> Seen:
    """Read a journal from its beginning to its end."""
    sequencer = Sequencer({}, ring_messages=10_000)
    batch = journal.read(0, journal.write_head)
    seen = Seen([], Counter(), 0)
    index = 0
    while index < len(batch):
        queued = sequencer.queue(batch, index)
        index = queued.next_index
        seen.outcomes.update(queued.outcomes)
        while sequencer.emitting:
            run = sequencer.peek(100)
            assert run is not None, "everything fits in memory"
            seen.numbers.extend(
                int(payload)
                for payload, flags in zip(run.payloads, run.flags, strict=True)
                if flags != Flags.ACK_TXN
            )
            sequencer.consume(len(run))
    for source in sequencer.take_checkpoint().values():
        seen.pending += sum(entry.state.begin >= 0 for entry in source.producers)
    return seen
