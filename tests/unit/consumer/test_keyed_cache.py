"""The cache of a keyed store's rows."""

from __future__ import annotations

import gc

from broadsheet.consumer.keyed.row_cache import RowCache

KEYS = 2_000


def test_cached_keys_are_nothing_that_a_garbage_collection_walks() -> None:
    """A collection holds up all threads for as long as it has objects to walk, and a cache has hundreds of thousands of
    keys: however they came, by a look-up or by a change, none is such an object.
    """
    cache = RowCache(1 << 30)
    gc.collect()
    before = len(gc.get_objects())
    keys = [b"%d" % number for number in range(KEYS)]
    cache.learn_keys(keys[:1000], [b"\x00\x01", b"\x00\x02"], [b"row", None] * 1000)
    for key in keys[1000:]:
        cache.change(key, b"\x00\x01", b"changed")
    cache.release(cache.take_changes())
    gc.collect()
    assert all(cache.get(key, b"\x00\x01") for key in keys)
    assert len(gc.get_objects()) - before < 100
