"""Sums of blocks: the same whatever pieces the content came in, and only of what was committed."""

from __future__ import annotations

from random import Random

from broadsheet.journals.block_sums import BLOCK_BYTES, BlockSums, decode_sums, encode_sums

CONTENT = Random(7).randbytes(3 * BLOCK_BYTES + 1_234)


def test_sums_do_not_depend_on_the_pieces_that_content_came_in() -> None:
    """Appends of any size make the sums that the whole content has, also in the file beside the fragment."""
    for piece in (1_000, BLOCK_BYTES, BLOCK_BYTES + 1, len(CONTENT)):
        sums = BlockSums()
        for begin in range(0, len(CONTENT), piece):
            fork = sums.fork()
            fork.update(CONTENT[begin : begin + piece])
            fork.settle()
            sums = fork
        stored = decode_sums(encode_sums(sums.length, sums.encoded()), len(CONTENT))

        assert stored is not None
        for known in (sums, stored):
            assert known.first_bad(0, CONTENT) is None
            assert known.first_bad(BLOCK_BYTES, CONTENT[BLOCK_BYTES:]) is None
            bad = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
            assert known.first_bad(0, bad) == (3 * BLOCK_BYTES, len(CONTENT))


def test_sums_of_a_commit_that_failed_leave_no_trace() -> None:
    """A batch whose commit failed was summed, too: the next one starts from what was committed."""
    sums = BlockSums()
    sums.update(CONTENT[:100])
    sums.settle()
    sums.fork().update(b"x" * len(CONTENT))
    good = sums.fork()
    good.update(CONTENT[100:])
    good.settle()

    assert good.first_bad(0, CONTENT) is None
    # Readers of before go on with theirs.
    assert (sums.length, sums.first_bad(0, CONTENT[:100])) == (100, None)


def test_damaged_file_of_sums_is_not_believed() -> None:
    """A flip or a cut anywhere in it, and the sums of other content, are none."""
    sums = BlockSums()
    sums.update(CONTENT)
    sums.settle()
    whole = encode_sums(sums.length, sums.encoded())
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << (position % 8)
        assert decode_sums(bytes(flipped), len(CONTENT)) is None
        assert decode_sums(whole[:position], len(CONTENT)) is None
    assert decode_sums(whole, len(CONTENT) + 1) is None
