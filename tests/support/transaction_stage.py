"""A transaction machine on a clock of the test's own, event by event."""

from __future__ import annotations

from collections.abc import Mapping

from broadsheet.consumer.shard import transaction_events as tx
from broadsheet.consumer.shard.transaction_events import (
    Activity,
    Event,
    InputDemand,
    Instruction,
    TxnLimits,
)
from broadsheet.consumer.shard.transaction_machine import DeliveryLimits, TransactionMachine
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.message_batches import WrittenJournal, single


class Stage:
    """A machine, a clock, and what it said last."""

    def __init__(
        self,
        *,
        recovered: Checkpoint | None = None,
        min_seconds: float = 0.0,
        max_seconds: float = 10.0,
        wait_for_ack: bool = True,
        ring_messages: int = 100,
        delivery: DeliveryLimits | None = None,
        wake_at: float | None = None,
        holds: bool = False,
    ) -> None:
        checkpoint = recovered or Checkpoint()
        self.now = 100.0
        self.sequenced: list[tx.RecordSequenced] = []
        self.machine = TransactionMachine(
            Sequencer(checkpoint.sources, ring_messages=ring_messages),
            checkpoint,
            limits=TxnLimits(
                min_seconds=min_seconds, max_seconds=max_seconds, wait_for_ack=wait_for_ack
            ),
            delivery=delivery,
            wake_at=wake_at,
            holds=holds,
        )
        self.started = self.machine.start(self.now)

    def takes(self) -> InputDemand:
        """Return what input it can take now."""
        return self.machine.demand

    def activity(self) -> Activity:
        """Return what it waits for now."""
        return self.machine.activity

    def story(self) -> str:
        """Return what it went through of late."""
        return self.machine.story()

    def on(self, event: Event, *, later: float = 0.0) -> tuple[Instruction, ...]:
        """Let time pass, then an event happen; return what it orders."""
        self.now += later
        found = self.machine.on(event, self.now)
        self.sequenced += [i for i in found if isinstance(i, tx.RecordSequenced)]
        return tuple(i for i in found if not isinstance(i, tx.RecordSequenced))

    def consume(self, count: int) -> tuple[Instruction, ...]:
        """Begin a transaction and consume the delivery that follows."""
        delivered = self.on(tx.TxnBegan())
        assert isinstance(delivered[0], tx.Deliver), self.story()
        return self.on(tx.BatchDelivered(count))

    def close(self, intents: Mapping[str, bytes] | None = None) -> Checkpoint:
        """Go from a `Finalize` to a started commit; return its checkpoint."""
        found = dict(intents or {})
        last = dict(list(found.items())[-1:])
        (start,) = self.on(tx.TxnFinalized(found, last))
        assert isinstance(start, tx.StartCommit), self.story()
        self.on(tx.CommitStarted())
        return start.checkpoint


def kinds(instructions: tuple[Instruction, ...]) -> list[type[Instruction]]:
    """Return the types of instructions."""
    return [type(instruction) for instruction in instructions]


def committed_one(stage: Stage, journal: WrittenJournal, clock: int = 10) -> None:
    """Run one transaction of one message up to its started commit, with one acknowledgement to write."""
    stage.on(tx.BatchRead(journal.batch(single(clock))))
    stage.consume(1)
    assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]
    stage.close({"out/a": b"ack"})
