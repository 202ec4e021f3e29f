"""Journal specs in YAML: a tree by name."""

from __future__ import annotations

import pytest

from broadsheet.cli.journals.space import (
    changes_of,
    format_journal_space,
    parse_journal_space,
    tree_of_listing,
)
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire import journal_pb2

EXAMPLE = """
name: flights/
replication: 1
labels: [{name: content-type, value: application/x-ndjson}]
fragment: {length: 1048576, compression_codec: NONE, refresh_interval: 1m}
children:
- {name: flights/part-000}
- name: flights/part-001
  revision: 42
  fragment: {length: 2048}
  flags: O_RDONLY
- {name: flights/part-002, delete: true, revision: 7}
"""


def test_changes_of_tree_inherit_from_the_nearest_directory() -> None:
    """A directory's values hold for what lies below it unless the journal says otherwise."""
    first, second, third = changes_of(parse_journal_space(EXAMPLE, "journals.yaml"))

    assert first.upsert.name == "flights/part-000"
    assert first.upsert.replication == 1
    assert first.upsert.fragment.length == 1048576
    assert first.upsert.fragment.refresh_interval.seconds == 60
    assert second.upsert.fragment.length == 2048
    assert second.upsert.fragment.compression_codec == journal_pb2.NONE
    assert second.upsert.flags == journal_pb2.JournalSpec.O_RDONLY
    assert (third.delete, third.expect_mod_revision) == ("flights/part-002", 7)


def test_listing_as_tree_applied_again_changes_nothing() -> None:
    """`list -o yaml | apply` is a no-op."""
    specs = [c.upsert for c in changes_of(parse_journal_space(EXAMPLE, "journals.yaml"))[:2]]
    listed = [
        journal_pb2.ListResponse.Journal(spec=spec, mod_revision=5 + index)
        for index, spec in enumerate(specs)
    ]

    text = format_journal_space(tree_of_listing(listed))
    changes = changes_of(parse_journal_space(text, "again"))

    assert [change.upsert for change in changes] == specs
    assert [change.expect_mod_revision for change in changes] == [5, 6]
    assert text.startswith("name: flights/\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: a/\nchildren: [{name: b/c}]", r"children\[0\].name: expected a name below 'a/'"),
        ("name: a/b\nchildren: [{name: a/b/c}]", "a directory's name ends in '/'"),
        ("name: a/\nrevision: 3\nchildren: []", "a directory has no revision"),
        ("nom: a", "unknown field `nom`"),
    ],
)
def test_parse_tree_with_a_mistake_names_its_place(text: str, problem: str) -> None:
    """A tree that says something else than it looks like is refused."""
    with pytest.raises(ValidationError, match=problem):
        parse_journal_space(text, "journals.yaml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "name: a/b\nfragment: {compression_codec: LZ4}",
            "a/b.fragment.compression_codec: expected one of INVALID",
        ),
        ("name: a/b\nflags: RW", "a/b.flags: expected one of"),
        (
            "name: a/b\nfragment: {refresh_interval: soon}",
            "a/b.fragment.refresh_interval: expected a duration",
        ),
        ("name: a/b\ndelete: true", "a/b.revision: a deletion needs"),
    ],
)
def test_changes_of_tree_with_a_bad_value_names_the_field(text: str, problem: str) -> None:
    """Names that stand for numbers are checked, and the choices are listed."""
    with pytest.raises(ValidationError, match=problem):
        changes_of(parse_journal_space(text, "journals.yaml"))
