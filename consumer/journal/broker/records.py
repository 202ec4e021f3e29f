"""Bodies of a journal's commit log."""

from __future__ import annotations

import msgspec


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, tag="k"):
    """First record of a log: the journal as of a moment when its open fragment was empty."""

    sequence: int
    head: int
    """Write head, and begin of the open fragment, bytes."""
    registers: bytes
    """Encoded LabelSet."""
    unconfirmed: bool
    """Acknowledged bytes were lost, and nobody has accepted that yet."""
    holes: tuple[tuple[int, int], ...]
    """Known spans [begin, end) without content, bytes."""
    reserved: int
    """No offset at or above this was ever shown to anyone, bytes; equal to the head if commits are synced."""
    synced: bool
    """Whether commits of this log are on the disk before they are acknowledged."""
    boot_id: str
    """Of the kernel that ran then: another one may have lost what was not synced."""
    first: int | None = None
    """Where the journal begins: what was before was removed on purpose, bytes. None in logs of earlier versions."""
    incarnation: bytes = b""
    """Of the journal; empty in logs that are older than incarnations."""
    epochs: tuple[tuple[int, int, int], ...] = ()
    """Number, nonce and first byte of each opening, ascending (`consumer.journal.broker.lineage`)."""
    ends: bool = True
    """The record's last byte is never zero, which tells a whole one from one cut off before zeros."""


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """One durable batch of appends."""

    sequence: int
    """One more than that of the record before."""
    begin: int
    end: int
    sums: tuple[tuple[int, bytes], ...]
    """Length and checksum of each part of [begin, end), in order; none if the bytes are in this record. A checksum is
    an XXH3 of 16 bytes, or a SHA-1 of 20, which earlier versions wrote."""
    at_ms: int
    """Wall time, Unix milliseconds."""
    registers: bytes | None
    """Encoded LabelSet after the batch, if it changed them."""
    confirms: bool
    """The batch accepted the loss of earlier bytes."""
    content: bytes | None
    """The bytes themselves if they are few: then one sync makes content and record durable."""
    ends: bool = True


class Reserve(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """Raises the offset below which a power loss may have hidden shown bytes."""

    sequence: int
    reserved: int
    ends: bool = True


class Trim(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """Raises the offset at which the journal begins, before the fragments below it are removed."""

    sequence: int
    first: int
    ends: bool = True


Record = Checkpoint | Commit | Reserve | Trim

_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_ENCODER = msgspec.msgpack.Encoder()


def encode_record(record: Record) -> bytes:
    """Return the body of a record."""
    return _ENCODER.encode(record)


def decode_record(body: bytes) -> Record:
    """Return the record of a body.

    Raises:
        msgspec.DecodeError: the body is of another version.
    """
    try:
        return _DECODER.decode(body)
    except (RecursionError, UnicodeDecodeError) as error:
        raise msgspec.DecodeError(str(error)) from error
