"""Operations in the bytes of a log: cut anywhere, between bytes that are none."""

from __future__ import annotations

import struct

import pytest

from broadsheet.consumer.recoverylog.operation import (
    DecodedOp,
    Desync,
    OperationDecoder,
    WrittenBytes,
    framed,
    next_checksum,
)
from broadsheet.wire.recorded_op_pb2 import RecordedOp
from tests.support.recorded_ops import OpChain

START = 1000
"""Offset of the first byte, in these tests."""
Found = tuple[str, int, int, bytes]


def decoded(*pieces: bytes) -> list[Found]:
    """Feed pieces, and return (kind, begin, end, content); written bytes of one write are joined."""
    decoder, found = OperationDecoder(START), list[Found]()
    for piece in pieces:
        for each in decoder.feed(piece):
            if isinstance(each, DecodedOp):
                found.append(("op", each.begin, each.end, each.payload))
                assert RecordedOp.FromString(each.payload) == each.op
                if each.op.write.length:
                    found.append(("bytes", each.begin, each.end, bytes(each.content)))
                else:
                    assert not each.content
            elif isinstance(each, WrittenBytes):
                kind, begin, end, content = found.pop()
                assert kind == "bytes"
                found.append((kind, begin, end, content + bytes(each.content)))
            else:
                found.append(("none", each.begin, each.end, b""))
    return found


def log_of_each_kind() -> tuple[bytes, list[Found]]:
    """Return a log with operations, raw bytes and others, and what is in it."""
    chain = OpChain(1)
    ops = [
        chain.create("/a"),
        chain.write(1, 0, b"some bytes"),
        chain.write(1, 0, b""),
        chain.set_property("/p", "1"),
    ]
    content, found = b"", list[Found]()
    for each in ops:
        begin = START + len(content)
        content += each.framed
        found.append(("op", begin, START + len(content), each.payload))
        if each.raw:
            found.append(("bytes", begin, START + len(content), each.raw))
    return content, found


def test_checksum_chains_payloads() -> None:
    """CRC-32C of all of them, one after the other."""
    assert next_checksum(0, b"1") == 0x90F599E3
    assert next_checksum(0x90F599E3, b"2") == 0x7355C460


def test_operations_are_found_whole_and_cut_at_every_byte() -> None:
    """Offsets are of the log; the end of a write is behind its raw bytes. Every cut in two, and single bytes."""
    content, expected = log_of_each_kind()

    assert decoded(content) == expected
    for cut in range(1, len(content)):
        assert decoded(content[:cut], content[cut:]) == expected
    assert decoded(*(content[at : at + 1] for at in range(len(content)))) == expected


def test_raw_bytes_may_look_like_operations() -> None:
    """They are counted, not looked at."""
    chain = OpChain(1)
    inner = framed(b"not this one")
    write, after = chain.write(1, 0, inner + inner), chain.nothing()

    found = decoded(write.framed + after.framed)
    assert [kind for kind, *_ in found] == ["op", "bytes", "op"]
    assert found[1][3] == inner + inner


@pytest.mark.parametrize("garbage", [b"x", b"garbage!", b"\x66\x33\x93", b"\x66" * 50, bytes(100)])
def test_bytes_between_operations_are_passed_over(garbage: bytes) -> None:
    """Wherever the content is cut, and also if they begin like a frame."""
    chain = OpChain(1)
    first, second = chain.create("/a"), chain.create("/b")
    content = garbage + first.framed + garbage + garbage + second.framed

    for cut in range(len(content) + 1):
        found = decoded(content[:cut], content[cut:])
        assert [each[3] for each in found if each[0] == "op"] == [first.payload, second.payload]
        skipped = sum(end - begin for kind, begin, end, _ in found if kind == "none")
        assert skipped == 3 * len(garbage)


def test_frame_of_something_else_is_passed_over() -> None:
    """It has the magic number and a length, but holds no operation."""
    other = framed(b"\xff\xff\xff")
    op = OpChain(1).create("/a")

    assert decoded(other + op.framed) == [
        ("none", START, START + len(other), b""),
        ("op", START + len(other), START + len(other) + len(op.framed), op.payload),
    ]


def test_write_of_less_than_nothing_is_no_operation() -> None:
    """A length below zero would have us go back."""
    odd = framed(RecordedOp(write=RecordedOp.Write(fnode=1, length=-5)).SerializeToString())
    op = OpChain(1).create("/a")

    assert [kind for kind, *_ in decoded(odd + op.framed)] == ["none", "op"]


def test_length_beyond_all_reason_is_no_operation() -> None:
    """No recorder writes it, so nothing is waited for: the operations behind it are found."""
    chain = OpChain(1)
    op, next_op = chain.create("/a"), chain.create("/b")
    odd = b"\x66\x33\x93\x36" + struct.pack("<I", 1 << 30)
    endless = framed(RecordedOp(write=RecordedOp.Write(length=1 << 60)).SerializeToString())

    for between in (odd, endless):
        found = decoded(op.framed + between + next_op.framed)
        assert [kind for kind, *_ in found] == ["op", "none", "op"]


def test_decoder_knows_what_it_waits_for() -> None:
    """Offset of what is not whole yet, and raw bytes to come."""
    chain = OpChain(1)
    create, write = chain.create("/a"), chain.write(1, 0, b"0123456789")
    decoder = OperationDecoder(0)

    list(decoder.feed(create.framed + write.framed[:5]))
    assert (decoder.offset, decoder.raw_bytes) == (len(create.framed), 0)
    found = list(decoder.feed(write.framed[5:-4]))
    assert (decoder.offset, decoder.raw_bytes) == (len(create.framed + write.framed) - 4, 4)
    assert not any(isinstance(each, Desync) for each in found)
    list(decoder.feed(write.framed[-4:]))
    assert (decoder.offset, decoder.raw_bytes) == (len(create.framed + write.framed), 0)
