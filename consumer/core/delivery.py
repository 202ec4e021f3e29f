"""How much of a committed sequence is handed to the application at once."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

from consumer.message.batch import MessageBatch
from consumer.message.uuid import Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryLimits:
    """How much the application is handed at once.

    The timer and the commit of the transaction before are noticed between deliveries, so these bound how late.
    """

    messages_max: int = 4096
    bytes_max: int = 4 << 20
    """Payload bytes; a single larger message is still delivered."""


def leading_acks(batch: MessageBatch) -> int:
    """Return how many acknowledgements stand at the front of a batch."""
    count = 0
    for flags in batch.flags:
        if flags != Flags.ACK_TXN:
            break
        count += 1
    return count


def before_ack(batch: MessageBatch) -> MessageBatch:
    """Return the messages ahead of the first acknowledgement, which ends an emission and so is the last, if any."""
    stop = len(batch)
    while stop > 0 and batch.flags[stop - 1] == Flags.ACK_TXN:
        stop -= 1
    return batch if stop == len(batch) else batch.span(0, stop)


def bounded(batch: MessageBatch, bytes_max: int) -> MessageBatch:
    """Return as many messages as fit in `bytes_max`, one at least."""
    # Frames are no smaller than their payloads, so where the whole range fits nothing need be added up.
    if batch.ends[-1] - batch.begins[0] <= bytes_max:
        return batch
    totals = list(accumulate(map(len, batch.payloads)))
    fitting = max(1, bisect_right(totals, bytes_max))
    return batch if fitting == len(batch) else batch.span(0, fitting)
