"""Which messages of a read follow from each other."""

from __future__ import annotations

import pytest

from broadsheet.journals.reader import ReadProgress, ReadSpan
from broadsheet.journals.wire import ReadChunk
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire import journal_pb2 as pb


def _metadata(offset: int, begin: int, end: int, head: int = 0) -> pb.ReadResponse:
    fragment = pb.Fragment(journal="abcd", begin=begin, end=end, compression_codec=pb.NONE)
    return pb.ReadResponse(offset=offset, write_head=head or end, fragment=fragment)


def _chunk(progress: ReadProgress, offset: int, content: bytes) -> ReadSpan:
    return progress.on_chunk(ReadChunk(offset, content))


def test_chunks_advance_the_offset() -> None:
    """The plain case: a fragment in two pieces, then the next fragment."""
    progress = ReadProgress(5)

    progress.on_metadata(_metadata(5, 0, 10))
    first, second = _chunk(progress, 5, b"abc"), _chunk(progress, 8, b"de")
    progress.on_metadata(_metadata(10, 10, 12))

    assert (first, second) == (ReadSpan(5, b"abc"), ReadSpan(8, b"de"))
    assert (progress.offset, progress.write_head) == (10, 12)


def test_content_at_the_end_of_an_open_fragment_goes_on_in_it() -> None:
    """A brief tail: the fragment, and the journal, end where the content does; of its sum nothing is known."""
    progress = ReadProgress(5)
    metadata = _metadata(5, 0, 10)
    metadata.fragment.sum.part1 = 7

    progress.on_metadata(metadata)
    _chunk(progress, 5, b"abcde")
    span = _chunk(progress, 10, b"fgh")

    assert span == ReadSpan(10, b"fgh")
    assert (progress.offset, progress.write_head) == (13, 13)
    assert progress.fragment is not None
    assert (progress.fragment.end, progress.fragment.HasField("sum")) == (13, False)


def test_content_behind_a_sealed_fragment_is_refused() -> None:
    """It ends for good: what follows is another one, and must be described."""
    progress = ReadProgress(5)
    metadata = _metadata(5, 0, 10)
    metadata.fragment.mod_time = 1_700_000_000

    progress.on_metadata(metadata)
    _chunk(progress, 5, b"abcde")

    with pytest.raises(ValidationError, match="expected content in"):
        _chunk(progress, 10, b"fgh")


def test_jump_is_told_once_with_the_first_bytes_after_the_hole() -> None:
    """A hole in the journal must be seen by whoever counts offsets, and only once, even over a broken stream."""
    progress = ReadProgress(5)

    progress.on_metadata(_metadata(20, 20, 30))
    progress.on_opened()
    progress.on_metadata(_metadata(20, 20, 30))
    first, second = _chunk(progress, 20, b"ab"), _chunk(progress, 22, b"cd")

    assert first == ReadSpan(20, b"ab", jumped=True)
    assert second == ReadSpan(22, b"cd")


def test_head_is_taken_from_the_first_answer_without_a_jump() -> None:
    """Asking for the head is no hole, wherever it is."""
    progress = ReadProgress(-1)

    progress.on_metadata(
        pb.ReadResponse(status=pb.OFFSET_NOT_YET_AVAILABLE, offset=40, write_head=40)
    )

    assert (progress.offset, progress.write_head, progress.jumped) == (40, 40, False)


def test_refusal_without_a_head_keeps_the_one_known() -> None:
    """A broker that does not serve the journal knows nothing of its head."""
    progress = ReadProgress(5, write_head=30)

    progress.on_metadata(pb.ReadResponse(status=pb.NOT_JOURNAL_BROKER))

    assert progress.write_head == 30


def test_end_offset_completes_also_by_a_jump_past_it() -> None:
    """Nothing is left to wait for once the bytes below the end are gone."""
    progress = ReadProgress(5, end_offset=10)

    progress.on_metadata(_metadata(20, 20, 30))

    assert progress.complete


@pytest.mark.parametrize(
    ("offset", "content", "told"),
    [
        (4, b"x", "expected content in"),
        (5, b"too long", "expected content in"),
        (8, b"ab", "end_offset 9"),
    ],
)
def test_chunk_that_does_not_follow_is_refused(offset: int, content: bytes, told: str) -> None:
    """Bytes seen before, beyond the fragment or beyond the end asked for must not be delivered."""
    progress = ReadProgress(5, end_offset=9)
    progress.on_metadata(_metadata(5, 0, 10))

    with pytest.raises(ValidationError, match=told):
        _chunk(progress, offset, content)

    assert progress.offset == 5


def test_content_before_metadata_of_the_same_rpc_is_refused() -> None:
    """What a fragment is must be said again after a reconnection."""
    progress = ReadProgress(5)
    progress.on_metadata(_metadata(5, 0, 10))
    progress.on_opened()

    with pytest.raises(ValidationError, match="metadata before content"):
        _chunk(progress, 5, b"x")


@pytest.mark.parametrize(
    "response",
    [
        _metadata(4, 0, 10),
        pb.ReadResponse(),
    ],
)
def test_metadata_that_goes_back_or_names_no_fragment_is_refused(
    response: pb.ReadResponse,
) -> None:
    """An empty answer is none, and old offsets would be delivered twice."""
    with pytest.raises(ValidationError):
        ReadProgress(5).on_metadata(response)
