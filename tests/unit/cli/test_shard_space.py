"""Shard specs in YAML: hoisting, pushing down, and the errors people meet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from broadsheet.cli.shards.space import (
    LabelNode,
    ShardNode,
    ShardSpace,
    SourceNode,
    changes_of,
    format_shard_space,
    hoist,
    parse_shard_space,
    push_down,
    space_of_listing,
)
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire import shard_pb2

EXAMPLE = """
common:
  max_txn_duration: 1s
  labels: [{name: app, value: flights}, {name: tier, value: gold}]
shards:
- id: part-000
  sources: [{journal: my/topic/part-000}]
  revision: 123
- id: part-001
  sources: [{journal: my/topic/part-001, min_offset: 42}]
  labels: [{name: tier, value: lead}]
- {id: part-002, delete: true, revision: 456}
"""


def test_changes_of_file_applies_common_to_every_shard() -> None:
    """What is said once holds for all, and a shard's own label wins over the common one."""
    first, second, third = changes_of(parse_shard_space(EXAMPLE, "specs.yaml"))

    assert first.expect_mod_revision == 123
    assert first.upsert.max_txn_duration.seconds == 1
    assert [(label.name, label.value) for label in first.upsert.labels.labels] == [
        ("app", "flights"),
        ("tier", "gold"),
    ]
    assert second.expect_mod_revision == 0
    assert second.upsert.sources[0].min_offset == 42
    assert [(label.name, label.value) for label in second.upsert.labels.labels] == [
        ("app", "flights"),
        ("tier", "lead"),
    ]
    assert (third.delete, third.expect_mod_revision) == ("part-002", 456)


def test_listing_as_file_applied_again_changes_nothing() -> None:
    """`list -o yaml | apply` is a no-op: the file carries every field and each revision."""
    specs = [change.upsert for change in changes_of(parse_shard_space(EXAMPLE, "specs.yaml"))[:2]]
    listed = [
        shard_pb2.ListResponse.Shard(spec=spec, mod_revision=7 + index)
        for index, spec in enumerate(specs)
    ]

    text = format_shard_space(space_of_listing(listed))
    changes = changes_of(parse_shard_space(text, "again"))

    assert [change.upsert for change in changes] == specs
    assert [change.expect_mod_revision for change in changes] == [7, 8]
    assert text.count("max_txn_duration") == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "specs.yaml: is empty"),
        ("shards: [", "specs.yaml: is not YAML"),
        ("shards: [{id: a, nonsense: 1}]", r"line 1: shards\[0\]: unknown field `nonsense`"),
        ("shards: [{hot_standbys: 1}]", r"shards\[0\]: missing required field `id`"),
        ("shards: [{id: a, hot_standbys: many}]", r"shards\[0\].hot_standbys: expected"),
        ("common: {delete: true}\nshards: []", "unknown field `delete`"),
        ("- a", "specs.yaml"),
    ],
)
def test_parse_file_with_a_mistake_names_its_place(text: str, problem: str) -> None:
    """An editor of a hundred shards must be told which line of thought is wrong."""
    with pytest.raises(ValidationError, match=problem):
        parse_shard_space(text, "specs.yaml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("shards: [{id: abcd, max_txn_duration: 1}]", "max_txn_duration"),
        (
            "shards: [{id: abcd, max_txn_duration: soon}]",
            r"shards\[0\].max_txn_duration: expected a duration",
        ),
        ("shards: [{id: abcd, delete: true}]", r"shards\[0\].revision: a deletion needs"),
        ("shards: [{id: abcd, hot_standbys: -1}]", r"shards\[0\].hot_standbys: -1 is out of range"),
    ],
)
def test_changes_of_file_with_a_bad_value_names_the_field(text: str, problem: str) -> None:
    """Values that YAML accepts but a spec does not are refused before anything is sent."""
    with pytest.raises(ValidationError, match=problem):
        changes_of(parse_shard_space(text, "specs.yaml"))


_labels = st.dictionaries(
    st.sampled_from(["app", "tier", "zone"]), st.sampled_from(["x", "y"]), max_size=3
).map(lambda found: tuple(LabelNode(name, value) for name, value in sorted(found.items())))


def _behind_each_other(names: list[str]) -> Iterator[SourceNode]:
    for before, name in zip(["", *names], names, strict=False):
        yield SourceNode(name, after=before)


_shards = st.builds(
    ShardNode,
    id=st.text("abc", min_size=4, max_size=6),
    revision=st.integers(-1, 3),
    sources=st.lists(st.sampled_from(["src/one", "src/two"]), max_size=2, unique=True).map(
        lambda names: tuple(_behind_each_other(sorted(names)))
    ),
    max_txn_duration=st.sampled_from(["", "1s", "2s"]),
    disable=st.booleans(),
    hot_standbys=st.integers(0, 2),
    labels=_labels,
)


@given(st.lists(_shards, max_size=4))
def test_push_down_undoes_hoist(shards: list[ShardNode]) -> None:
    """Whatever the shards share, saying it once loses nothing and adds nothing."""
    space = ShardSpace(shards=tuple(shards))

    assert push_down(hoist(space)) == space
