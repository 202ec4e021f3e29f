"""The lineage that is kept beside fragments: when it is trusted."""

from __future__ import annotations

import pytest

from broadsheet.broker.lineage import UNKNOWN, Lineage
from broadsheet.broker.stored_lineage import (
    BYTES_MAX,
    StoredLineage,
    decode_stored_lineage,
    lineage_of_fragments,
)

FIRST = Lineage(b"\x01" * 16, ((1, 2**63, 0), (2, 5, 100)))
LATER = FIRST.next_epoch(200)
OTHER = Lineage(b"\x02" * 16, ((1, 9, 0),))
NEWEST = "0-64.raw"


def stored(lineage: Lineage, *names: str) -> StoredLineage:
    """Return a lineage that fragments vouch for."""
    return StoredLineage(lineage, frozenset(names))


def test_document_returns_as_it_was_written() -> None:
    """Nonces have 64 bits, more than a double holds."""
    written = stored(FIRST, NEWEST, "64-80.raw")
    assert decode_stored_lineage(written.encode()) == written


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b'{"version":2,"incarnation":"01","epochs":[],"newest":[]}',
        b'{"version":1,"incarnation":"","epochs":[],"newest":[]}',
        b'{"version":1,"incarnation":"zz","epochs":[],"newest":[]}',
        b'{"version":1,"incarnation":"01","epochs":[[2,1,0],[1,1,0]],"newest":[]}',
        b'{"version":1,"incarnation":"01","epochs":[[1,1,5],[2,1,0]],"newest":[]}',
        b'{"version":1,"incarnation":"01","epochs":[[1,1]],"newest":[]}',
        b" " * (BYTES_MAX + 1),
    ],
)
def test_document_that_is_damaged_or_of_a_later_release_is_refused(content: bytes) -> None:
    """What cannot be read must not be guessed: then shards stop, and an operator decides."""
    with pytest.raises(ValueError, match=r"expected|Expected|missing|truncated"):
        decode_stored_lineage(content)


def test_newest_fragment_vouches_for_the_lineage() -> None:
    """A broker that knows nothing of lineages published after this one was written: its fragment is newer."""
    assert lineage_of_fragments([stored(FIRST, NEWEST)], NEWEST) == FIRST
    assert lineage_of_fragments([stored(FIRST, NEWEST)], "64-80.raw") == UNKNOWN
    assert lineage_of_fragments([stored(FIRST, NEWEST)], None) == UNKNOWN
    assert lineage_of_fragments([], NEWEST) == UNKNOWN


def test_stores_that_disagree_are_not_believed() -> None:
    """A spec may name a store that an earlier journal of this name used."""
    found = [stored(FIRST, NEWEST), stored(OTHER, NEWEST)]
    assert lineage_of_fragments(found, NEWEST) == UNKNOWN
    # The same journal's older store is no contradiction.
    assert lineage_of_fragments([stored(FIRST, NEWEST), stored(LATER, NEWEST)], NEWEST) == LATER
    assert lineage_of_fragments([stored(FIRST, NEWEST), stored(OTHER)], NEWEST) == FIRST
