"""Mistakes of YAML documents: the line, the place, and the field that was probably meant."""

from __future__ import annotations

from typing import Any

import pytest

from broadsheet.cli.context_file import ContextsFile
from broadsheet.cli.journals.space import JournalNode
from broadsheet.cli.shards.space import ShardSpace
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.yaml_documents import decode_yaml
from broadsheet.security.auth import parse_identities

_SHARED = "common: &c {hot_standby: 1}\nshards:\n- {id: a, <<: *c}"
_OF_ITSELF = "name: a/\nchildren: &c\n- {name: a/b, children: *c}"


@pytest.mark.parametrize(
    ("document_type", "text", "problem"),
    [
        (ShardSpace, "shard: []", "line 1: unknown field `shard`: did you mean `shards`?"),
        (
            ShardSpace,
            "shards:\n- id: a\n  hot_standby: 1",
            "line 3: shards[0]: unknown field `hot_standby`: did you mean `hot_standbys`?",
        ),
        (
            ShardSpace,
            "common:\n  labels:\n  - name: a\n    values: b",
            "line 4: common.labels[0]: unknown field `values`: did you mean `value`?",
        ),
        (
            ShardSpace,
            "shards:\n- id: a\n- id: b\n  sources:\n  - journals: x",
            "line 5: shards[1].sources[0]: unknown field `journals`: did you mean `journal`?",
        ),
        (ShardSpace, "common: {maxTxnDuration: 1s}", "did you mean `max_txn_duration`?"),
        (ShardSpace, _SHARED, "line 1: common: unknown field `hot_standby`"),
        (
            ShardSpace,
            "shards:\n- id: a\nhot_standbys: 2",
            "line 3: unknown field `hot_standbys`: it belongs in `common` or in an entry of `shards`",
        ),
        (
            JournalNode,
            "name: a\nlengths: 1",
            "line 2: unknown field `lengths`: did you mean `length`, which belongs in `fragment`?",
        ),
        (
            JournalNode,
            "name: a/\nchildren:\n- name: a/b/\n  children:\n  - {name: a/b/c, fragment: {store: []}}",
            "line 5: children[0].children[0].fragment: unknown field `store`: did you mean `stores`?",
        ),
        (
            ContextsFile,
            "contexts:\n  live:\n    addresses: x",
            "line 3: contexts.live: unknown field `addresses`: did you mean `address`?",
        ),
        (ContextsFile, "zebra: 1", "unknown field `zebra`: expected one of `current`, `contexts`"),
    ],
)
def test_unknown_field_is_answered_with_its_line_and_what_was_meant(
    document_type: type[Any], text: str, problem: str
) -> None:
    """At every level of nesting: the reader of a file of a thousand shards needs the line, and the right name."""
    with pytest.raises(ValidationError) as refused:
        decode_yaml(text, document_type, "f.yaml")

    assert str(refused.value).startswith("f.yaml: line ")
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("shards:\n- id: a\n  hot_standbys: x", "line 3: shards[0].hot_standbys: expected `int`"),
        ("shards:\n- hot_standbys: 1", "line 2: shards[0]: missing required field `id`"),
        ("shards:\n- id: a\n  sources: x", "line 3: shards[0].sources: expected a list, got text"),
        ("- id: a", "line 1: expected a map, got a list"),
    ],
)
def test_value_of_another_type_is_told_with_its_line(text: str, problem: str) -> None:
    """The library counts entries from 0 and knows no lines, which an editor shows."""
    with pytest.raises(ValidationError) as refused:
        decode_yaml(text, ShardSpace, "f.yaml")

    assert str(refused.value).startswith(f"f.yaml: {problem}")


def test_identities_are_told_in_the_same_way() -> None:
    """A misspelt selector of an identity would be one that permits everything."""
    with pytest.raises(ValidationError, match=r"line 4: identities\[0\]: unknown field `selectr`"):
        parse_identities(
            b"identities:\n- identity: a\n  capabilities: [READ]\n  selectr: app=billing\n"
        )


@pytest.mark.parametrize("text", [_OF_ITSELF, "children: &c\n- {nom: a, children: *c}"])
def test_alias_of_what_it_is_part_of_is_refused(text: str) -> None:
    """Such a file has no end; it ended in a traceback."""
    with pytest.raises(ValidationError, match=r"^f: is nested too deep|^f: line 2: "):
        decode_yaml(text, JournalNode, "f")
