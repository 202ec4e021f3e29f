"""Content of stored fragments that is verified block by block, in whatever pieces it comes."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings, strategies as st

from broadsheet.journals.block_sums import BLOCK_BYTES, BlockSums, StoredSums
from broadsheet.journals.errors import JournalDamagedError
from broadsheet.journals.fragment_content import (
    SHORT_BYTES_MAX,
    FragmentContent,
    KnownSums,
    WantedSpan,
    span_to_read,
)
from tests.support.stored_fragments import stored_fragment

BEGIN = 1_001
CONTENT = Random(5).randbytes(SHORT_BYTES_MAX + 3 * BLOCK_BYTES + 77)
FRAGMENT = stored_fragment(BEGIN, CONTENT)


def _known() -> KnownSums:
    sums = BlockSums()
    sums.update(CONTENT)
    sums.settle()
    return KnownSums(StoredSums(len(CONTENT), sums.encoded()), agree=False)


KNOWN = _known()
offsets = st.integers(0, len(CONTENT))


@settings(max_examples=40, deadline=None)
@given(
    ends=st.tuples(offsets, offsets).filter(lambda ends: ends[0] != ends[1]),
    pieces=st.lists(st.integers(5_000, 200_000), min_size=1, max_size=6),
    ranged=st.booleans(),
    rotten=st.none() | st.integers(0, len(CONTENT) - 1),
)
def test_what_is_delivered_is_what_was_written(
    ends: tuple[int, int], pieces: list[int], ranged: bool, rotten: int | None
) -> None:
    """Plan: any span, by a range or from the fragment's begin, in pieces of any sizes, with one byte changed somewhere.
    Why: a block that is cut by pieces must be neither skipped nor judged twice.
    """
    begin, end = BEGIN + min(ends), BEGIN + max(ends)
    wanted = WantedSpan(FRAGMENT, "", begin, end)
    first, last = span_to_read(wanted, KNOWN) if ranged else (FRAGMENT.begin, FRAGMENT.end)
    stored = bytearray(CONTENT)
    if rotten is not None:
        stored[rotten] ^= 1
    encoded = bytes(stored[first - BEGIN : last - BEGIN])

    content = FragmentContent(wanted, first, known=KNOWN)
    delivered, position, is_damaged = bytearray(), 0, False
    try:
        while position < len(encoded) and not content.is_complete:
            size = pieces[0]
            pieces = [*pieces[1:], size]
            for piece in content.feed(encoded[position : position + size]):
                delivered += piece
            position += size
        if not content.is_complete:
            delivered += b"".join(content.finish())
    except JournalDamagedError:
        is_damaged = True

    expected = CONTENT[begin - BEGIN : end - BEGIN]
    judged_begin, judged_end = span_to_read(wanted, KNOWN)
    assert is_damaged is (rotten is not None and judged_begin <= BEGIN + rotten < judged_end)
    assert expected[: len(delivered)] == delivered
    assert is_damaged or delivered == expected
