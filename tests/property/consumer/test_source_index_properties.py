"""The index of shards by source, against the plain way to find them."""

from __future__ import annotations

from hypothesis import given, strategies as st

from broadsheet.allocator.model import ItemId
from broadsheet.consumer.resolver.resolver import ShardsBySource
from broadsheet.wire.shard_pb2 import ShardSpec

journals = st.sampled_from(["journal/a", "journal/b", "journal/b;suffix"])
steps = st.lists(
    st.tuples(st.sampled_from(["one", "two", "three"]), st.none() | st.lists(journals, max_size=3))
)


@given(steps)
def test_index_equals_a_search_after_any_changes(
    changes: list[tuple[str, list[str] | None]],
) -> None:
    """Shards come, change their sources (naming some twice) and go; the answer is in order of shard ids."""
    index = ShardsBySource()
    specs: dict[str, ShardSpec] = {}
    for shard_id, sources in changes:
        specs.pop(shard_id, None)
        if sources is None:
            index.replace(ItemId(shard_id), None)
            continue
        spec = specs[shard_id] = ShardSpec(
            id=shard_id, sources=[ShardSpec.Source(journal=name) for name in sources]
        )
        index.replace(ItemId(shard_id), spec)

    for journal in ("journal/a", "journal/b", "journal/b;suffix", "journal/none"):
        found = [each for each, spec in sorted(specs.items()) if journal in _names(spec)]
        assert list(index.reading(journal)) == found


def _names(spec: ShardSpec) -> set[str]:
    return {source.journal for source in spec.sources}
