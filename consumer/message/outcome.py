"""What sequencing made of a message.

Source: gazette/core message/sequencer.go (QueueOutcome).
"""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """Each message has exactly one of the first eleven; the last two may come on top."""

    OUTSIDE_COMMIT = 0
    """Committed by itself."""
    OUTSIDE_ALREADY_ACKED = 1
    """A duplicate."""
    CONTINUE_BEGIN_SPAN = 2
    """First pending message of its producer."""
    CONTINUE_EXTEND_SPAN = 3
    """Another pending message."""
    CONTINUE_DUPLICATE = 4
    """A duplicate of a pending message."""
    CONTINUE_ALREADY_ACKED = 5
    """A duplicate of a committed message."""
    ACK_COMMIT_RING = 6
    """Commits pending messages, all of them in memory."""
    ACK_COMMIT_REPLAY = 7
    """Commits pending messages, some of which must be read again."""
    ACK_EMPTY = 8
    """Commits nothing but itself."""
    ACK_ROLLBACK = 9
    """Discards its producer's pending messages."""
    ACK_ROLLBACK_LOST_PROGRESS = 10
    """A rollback to before what was already committed: the producer lost state, its messages are at-least-once until
    it catches up. An operator should know."""
    UNKNOWN_FLAGS = 11
    """Its flags are of a later version; it was taken as committed by itself. An operator should know."""
    SPAN_DISCARDED = 12
    """It is committed by itself while its producer has messages pending, which are lost: the producer mixes both ways
    of publishing in one journal. An operator should know."""
