"""A transaction's changes over what is stored: as if they had been made."""

from __future__ import annotations

from hypothesis import given, strategies as st

from broadsheet.consumer.stores.rocksdb.database import PendingWrites, changes_between, overlaid

KEYS = st.binary(min_size=1, max_size=2)
STORED = st.dictionaries(KEYS, st.binary(max_size=1), max_size=12)
CHANGES = st.dictionaries(KEYS, st.none() | st.binary(max_size=1), max_size=12)


@given(stored=STORED, layers=st.lists(CHANGES, max_size=3), begin=KEYS, end=st.none() | KEYS)
def test_scan_sees_what_a_dictionary_would_hold(
    stored: dict[bytes, bytes],
    layers: list[dict[bytes, bytes | None]],
    begin: bytes,
    end: bytes | None,
) -> None:
    """Whatever is stored, changed, deleted and put back, in several transactions, in any range."""
    expected: dict[bytes, bytes | None] = dict(stored)
    pending = []
    for layer in layers:
        expected.update(layer)
        pending.append(PendingWrites())
        pending[-1].of("f").update(layer)

    def within(key: bytes) -> bool:
        return key >= begin and (end is None or key < end)

    changes = changes_between(pending, "f", begin, end)
    seen = overlaid(iter(sorted(item for item in stored.items() if within(item[0]))), changes)

    wanted = [(key, value) for key, value in expected.items() if value is not None and within(key)]
    assert list(seen) == sorted(wanted)
