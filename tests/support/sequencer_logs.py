"""Journals for a sequencer, written as (producer, clock, flags), and what is delivered of them."""

from __future__ import annotations

from broadsheet.journals.message.sequencer import Queued, Sequencer
from broadsheet.journals.message.uuid import Flags
from tests.support.sequencing import Log, deliver_all

OUTSIDE, CONTINUE, ACK = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN

A, B, C = 0x0100000000AA, 0x0100000000BB, 0x0100000000CC


def log_of(*messages: tuple[int, int, int]) -> Log:
    """Return a journal of (producer, clock, flags); each message is 10 bytes long."""
    log = Log()
    for producer, clock, flags in messages:
        log.append(producer, clock, flags)
    return log


def clocks(log: Log, sequencer: Sequencer | None = None) -> list[int]:
    """Return the clocks of what is delivered from a whole journal."""
    return [message.clock for message in deliver_all(sequencer or Sequencer({}), log)]


def queue_all(sequencer: Sequencer, log: Log) -> Queued:
    """Sequence a journal that emits nothing before its last message."""
    queued = sequencer.queue(log.batch())
    assert queued.next_index == len(log.messages)
    return queued
