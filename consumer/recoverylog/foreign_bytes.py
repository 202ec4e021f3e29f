"""Foreign bytes in a recovery log, and what makes the log playable behind them.

A journal takes appends from all that may append. Bytes that are no whole operation, such as the first part of one,
take those that follow for their own rest: operations of the recorder are swallowed, and players miss them for ever.

A recorder sees that something stands between two of its appends, because it knows where the first one ended. Then it
reads what is there, as players do (`examined`). If they would miss an operation, it appends zeros until what the
foreign bytes began is complete, and its own operations once more: players pass over what does not follow, and take what
does.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broadsheet.consumer.errors import LogDataLossError
from broadsheet.consumer.recoverylog.operation import (
    DecodedOp,
    Desync,
    OperationDecoder,
    next_checksum,
)

COMPLETION_BYTES_MAX: Final = 128 << 20
"""Zeros that complete what foreign bytes began; a frame and the raw bytes of a write take less."""


@dataclass(slots=True, kw_only=True)
class OwnOperations:
    """Operations of a recorder: the numbers [first_seq, next_seq). Not frozen: every commit makes one."""

    author: int
    first_seq: int
    first_checksum: int
    next_seq: int


@dataclass(frozen=True, slots=True)
class Examined:
    """The operations of a recorder as players find them."""

    heard: bool
    """Players find all of them, in order, and the one that comes next."""
    wanted_bytes: int
    """Zeros after which players find an operation that is appended then."""
    foreign: bool
    """Something else than operations of the recorder is there."""


def examined(log: str, begin: int, contents: Sequence[bytes], own: OwnOperations) -> Examined:
    """Read a part of a log as players do.

    Args:
        log: Named by the error.
        begin: Offset of the part, bytes, where players have passed all before it.
        contents: The part, up to the log's end.
        own: The operations that it should hold.

    Raises:
        LogDataLossError: another recorder's operation took a number of ours, so that players follow the other.
    """
    decoder = OperationDecoder(begin)
    expected, checksum, foreign = own.first_seq, own.first_checksum, False
    for content in contents:
        for found in decoder.feed(content):
            if not isinstance(found, DecodedOp):
                foreign |= isinstance(found, Desync)
                continue
            foreign |= found.op.author != own.author
            # Players pass over all others.
            if (found.op.seq_no, found.op.checksum) != (expected, checksum):
                continue
            if found.op.author != own.author:
                raise LogDataLossError(
                    log,
                    f"operation {expected} at {found.begin} is of author {found.op.author:#x}, and ours is "
                    f"{own.author:#x}: find the other recorder and stop it, then unassign the shard "
                    "(shardctl shards unassign). Recovery follows our operations, which are behind it",
                )
            expected, checksum = expected + 1, next_checksum(checksum, found.payload)
    wanted_bytes = completion_bytes(decoder)
    foreign |= wanted_bytes > 0
    return Examined(expected == own.next_seq and not wanted_bytes, wanted_bytes, foreign)


def completion_bytes(decoder: OperationDecoder) -> int:
    """Return the number of zeros that complete what has begun; the decoder is fed with them.

    A length that was cut off is completed first, and tells how much more there must be.

    Args:
        decoder: Has read the log up to its end; its state is of no use afterwards.
    """
    fed = 0
    while 0 < (wanted := decoder.wanted_bytes) <= COMPLETION_BYTES_MAX - fed:
        for _ in decoder.feed(bytes(wanted)):
            pass
        fed += wanted
    return fed + decoder.wanted_bytes
