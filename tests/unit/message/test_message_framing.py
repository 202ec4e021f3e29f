"""Framings: exact bytes, any split into chunks, and bytes that belong to no frame."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from broadsheet.journals.content import csv
from broadsheet.journals.content.arrow import ARROW_STREAM
from broadsheet.journals.content.csv import CSV
from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.content.protobuf import PROTOBUF_FIXED
from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.errors import ContentTypeError, FramingError
from broadsheet.journals.message import framing
from broadsheet.journals.message.framing import FIXED_MAGIC, Frames

LINES = framing_for(NDJSON)
FIXED = framing_for(PROTOBUF_FIXED)
FIXED_FRAME = FIXED_MAGIC + b"\x14\x00\x00\x00test message content"


def feed_all(content: bytes, *, content_type: str, chunk: int, offset: int = 100) -> Frames:
    """Unframe `content` in chunks of `chunk` bytes."""
    unframer = framing_for(content_type).unframer(journal="a/j", offset=offset)
    found: list[Frames] = []
    skipped: tuple[tuple[int, int], ...] = ()
    for at in range(0, len(content), chunk):
        frames = unframer.feed(content[at : at + chunk])
        found.append(frames)
        skipped += frames.skipped
    begins = [begin for frames in found for begin in frames.begins.tolist()]
    ends = [end for frames in found for end in frames.ends.tolist()]
    payloads = [payload for frames in found for payload in frames.payloads]
    return frames_at(begins, ends, payloads, skipped)


def frames_at(
    begins: Sequence[int],
    ends: Sequence[int],
    payloads: Sequence[bytes],
    skipped: tuple[tuple[int, int], ...] = (),
) -> Frames:
    """Return frames at these offsets."""
    return Frames(
        np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64), payloads, skipped
    )


def test_framing_for_recovery_log_is_refused() -> None:
    """Plan: a content type that is no message framing. Why: the error names journal, type and choices."""
    with pytest.raises(ContentTypeError, match=r"a/log .*recoverylog.*x-ndjson"):
        framing_for("application/x-gazette-recoverylog", journal="a/log")


def test_framing_for_missing_content_type_says_so() -> None:
    """Plan: a journal without the label. Why: 'missing' is another mistake than 'wrong'."""
    with pytest.raises(ContentTypeError, match="a/j has missing content type"):
        framing_for("", journal="a/j")


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
def test_lines_any_chunks_give_the_same_frames(chunk: int) -> None:
    """Plan: cut lines anywhere. Why: spans end where the broker's buffers do."""
    content = b'{"a":1}\n\n{"long":"xxxxxxxxxxxxxxxx"}\n'

    frames = feed_all(content, content_type=NDJSON, chunk=chunk)

    assert frames == frames_at(
        [100, 108, 109], [108, 109, 137], [b'{"a":1}', b"", b'{"long":"xxxxxxxxxxxxxxxx"}']
    )


def test_lines_incomplete_line_is_pending() -> None:
    """Plan: end within a line. Why: the reader must know that the read cut a message."""
    unframer = LINES.unframer(journal="a/j", offset=0)

    frames = unframer.feed(b"a line\nextra")

    assert frames.payloads == [b"a line"]
    assert unframer.pending_bytes == 5


def test_lines_frame_appends_newline_and_refuses_inner_ones() -> None:
    """Plan: exact bytes; a payload with a newline. Why: it would be read as two messages."""
    assert LINES.frame(b"{}") == b"{}\n"
    with pytest.raises(ValueError, match="newline"):
        LINES.frame(b"{\n}")


@pytest.mark.parametrize("framing_type", [NDJSON, PROTOBUF_FIXED])
def test_unframer_endless_frame_is_refused(
    framing_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plan: lower the limit, exceed it. Why: a lost newline or a corrupt length must not fill memory."""
    monkeypatch.setattr(framing, "FRAME_BYTES_MAX", 10)
    unframer = framing_for(framing_type).unframer(journal="a/j", offset=40)

    error = unframer.feed(FIXED_MAGIC + b"\x0b\x00\x00\x00" + b"xxxx").error

    with pytest.raises(FramingError, match=r"a/j .*offset 40: a frame of 1[12] bytes or more"):
        raise error or AssertionError("no error")


@pytest.mark.parametrize("read_around", [False, True])
@pytest.mark.parametrize("chunk", [7, 10_000])
@pytest.mark.parametrize(
    ("framing_type", "fits", "too_long"),
    [
        (NDJSON, b"x" * 64, b"x" * 65),
        (CSV, b'"' + b"x" * 61 + b'\n"', b'"' + b"x" * 31 + b"\n" + b"x" * 31 + b'"'),
        (CSV, b"x" * 64, b"x" * 65),
        (PROTOBUF_FIXED, b"x" * 64, b"x" * 65),
        (ARROW_STREAM, b"x" * 64, b"x" * 65),
    ],
)
def test_readers_of_any_mode_take_what_writers_may_write(
    framing_type: str,
    fits: bytes,
    too_long: bytes,
    chunk: int,
    read_around: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The longest message and one that is a byte longer, arriving whole or in parts: the first is written and read, the
    second neither, wherever its bytes are cut; else a row is committed at which readers stop.
    """
    for module in (framing, csv):
        monkeypatch.setattr(module, "FRAME_BYTES_MAX", 64)
    writer = framing_for(framing_type)
    whole = writer.frame(fits)
    with pytest.raises(ValueError, match="message of 65 bytes; readers take 64 at most"):
        writer.frame(too_long)
    overhead = len(whole) - len(fits)
    prefix = FIXED_MAGIC + b"\x41\x00\x00\x00" if overhead > 1 else b""
    foreign = prefix + too_long + (b"" if prefix else b"\n")
    content = whole + foreign + whole

    unframer = writer.unframer(journal="a/j", offset=0, read_around=read_around)
    payloads: list[bytes] = []
    error = None
    for at in range(0, len(content), chunk):
        frames = unframer.feed(content[at : at + chunk])
        payloads += frames.payloads
        error = frames.error
        if error is not None:
            break

    if read_around:
        assert payloads == [fits, fits]
    else:
        assert payloads == [fits]
        assert error is not None
        assert error.offset == len(whole)


def test_fixed_frame_has_exact_bytes() -> None:
    """Plan: compare with a frame written by hand. Why: the format is shared with other languages."""
    assert FIXED.frame(b"test message content") == FIXED_FRAME
    assert FIXED.frame(b"") == FIXED_MAGIC + bytes(4)


@pytest.mark.parametrize("chunk", [1, 3, 8, 11, 28, 29, 500])
def test_fixed_any_chunks_give_the_same_frames(chunk: int) -> None:
    """Plan: cut headers and payloads anywhere. Why: spans end where the broker's buffers do."""
    content = FIXED_FRAME + FIXED.frame(b"") + FIXED.frame(b"foo message")

    frames = feed_all(content, content_type=PROTOBUF_FIXED, chunk=chunk)

    assert frames == frames_at(
        [100, 128, 136], [128, 136, 155], [b"test message content", b"", b"foo message"]
    )


@pytest.mark.parametrize("chunk", [1, 5, 8, 16, 500])
def test_fixed_bytes_before_magic_are_skipped_and_reported(chunk: int) -> None:
    """Plan: garbage, with a torn magic in it, before and between frames. Why: one bad append must not hide the rest."""
    garbage = b"foobar" + FIXED_MAGIC[:3] + b"x" * 8
    content = garbage + FIXED_FRAME + b"yy" + FIXED_FRAME

    frames = feed_all(content, content_type=PROTOBUF_FIXED, chunk=chunk)

    assert frames.payloads == [b"test message content"] * 2
    assert frames.begins.tolist() == [117, 147]
    skipped = [offset for begin, end in frames.skipped for offset in range(begin, end)]
    assert skipped == [*range(100, 117), 145, 146]


@pytest.mark.parametrize("cut", range(1, 28))
def test_fixed_cut_frame_is_pending_at_every_position(cut: int) -> None:
    """Plan: end anywhere within a frame. Why: the reader must know that the read cut a message."""
    unframer = FIXED.unframer(journal="a/j", offset=0)

    assert unframer.feed(FIXED_FRAME[:cut]).payloads == []

    assert unframer.pending_bytes == cut
    assert unframer.feed(FIXED_FRAME[cut:]).payloads == [b"test message content"]
    assert unframer.pending_bytes == 0


def test_fixed_lone_trailing_newline_is_no_frame() -> None:
    """Plan: a newline after the last frame. Why: tools that append lines leave one; it cuts no message."""
    unframer = FIXED.unframer(journal="a/j", offset=0)

    assert unframer.feed(FIXED_FRAME + b"\n").payloads == [b"test message content"]

    assert unframer.pending_bytes == 0
    resumed = unframer.feed(FIXED_FRAME)
    assert resumed.begins == [29]
    assert resumed.skipped == ((28, 29),)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1000])
def test_csv_newline_between_quotes_ends_no_record(chunk: int) -> None:
    """Plan: records with newlines and doubled quotes, in chunks of any size. Why: Go's reader takes them so too."""
    records = [b'u,1,"two\n\nlines"', b"u,2,", b'u,3,"a ""quoted"" \n word"', b"", b'u,4,""']
    content = b"".join(record + b"\n" for record in records)

    frames = feed_all(content + b'u,5,"open\n', content_type=CSV, chunk=chunk)

    assert frames.payloads == records
    assert [
        content[b - 100 : e - 100] for b, e in zip(frames.begins, frames.ends, strict=True)
    ] == [record + b"\n" for record in records]


def test_csv_open_quote_is_pending_and_refused() -> None:
    """Plan: half a record. Why: a reader must know that more is to come; a writer must not write it."""
    unframer = framing_for(CSV).unframer(journal="a/j", offset=0)
    unframer.feed(b'u,"a\nb')

    assert unframer.pending_bytes == 6
    with pytest.raises(ValueError, match="not closed"):
        framing_for(CSV).frame(b'u,"a')
