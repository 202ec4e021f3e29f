"""The shards and journals of a hosted processor, from what a driver names and what a broker has."""

from __future__ import annotations

from typing import Any

import pytest

from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.cluster.query_plan import (
    QueryPlan,
    QueryShards,
    Sources,
    groups_of,
    plan_query,
)
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, label_set

OUTPUT = MappedJournal("out", NDJSON)


def _journal(name: str, content_type: str = NDJSON) -> JournalSpec:
    spec = JournalSpec(name=name, replication=3, labels=label_set((CONTENT_TYPE, content_type)))
    spec.fragment.stores.append("s3://bucket/")
    spec.fragment.retention.FromSeconds(60)
    spec.fragment.path_postfix_template = "a={{.}}"
    return spec


def _plan(groups: list[tuple[str, ...]], *known: JournalSpec) -> QueryPlan:
    return plan_query(
        groups,
        [OUTPUT],
        {each.name: each for each in known},
        QueryShards(name="app", hot_standbys=1),
        root="/broadsheet/app",
    )


@pytest.mark.parametrize(
    ("sources", "groups"),
    [
        ("in/", (("in/a",), ("in/b",))),
        ("in/b", (("in/b",),)),
        (["in/b", "in/a"], (("in/b",), ("in/a",))),
        ([["in/a", "in/b"], "other"], (("in/a", "in/b"), ("other",))),
    ],
)
def test_sources_by_prefix_name_and_lists_are_the_journals_of_shards(
    sources: Sources, groups: Any
) -> None:
    """A journal is a shard's, unless a list says which journals share one."""
    assert groups_of(sources, ["in/b", "in/a"], ["out", "app/logs/"]) == groups


@pytest.mark.parametrize(
    ("sources", "found", "problem"),
    [
        ("in/", [], "expected journals below in/; there is none"),
        ("", [], "expected the name of a journal"),
        ([], [], "expected the name of a journal"),
        (["a", []], [], "expected the name of a journal"),
        (["a", ["b", "a"]], [], "a: expected once"),
        ("out/", ["out/in"], "out/rows is written by the query itself"),
        ("app/", ["app/in"], "app/logs/ is written by the query itself"),
    ],
)
def test_sources_that_are_none_or_the_query_s_own_are_refused(
    sources: Sources, found: list[str], problem: str
) -> None:
    """What the query writes must not come back as its input, not even at a later start."""
    with pytest.raises(ValidationError, match=problem):
        groups_of(sources, found, ["out/rows", "app/logs/"])


def test_shards_are_named_by_journals_however_they_are_listed() -> None:
    """State is found by the shard's id: a journal that is listed elsewhere must not get another shard's state."""
    plan = _plan([("in/b",), ("in/a", "in/c")], *map(_journal, ("in/a", "in/b", "in/c")))

    assert [spec.id for spec in plan.shards] == ["app/in/b", "app/in/a"]
    assert [source.journal for source in plan.shards[1].sources] == ["in/a", "in/c"]
    assert {spec.recovery_log_prefix for spec in plan.shards} == {"app/logs"}
    assert {spec.hint_prefix for spec in plan.shards} == {"/broadsheet/app.hints"}


def test_output_that_does_not_exist_is_made_like_the_source_and_kept() -> None:
    """Results go to the source's stores, without its retention; a journal that exists is left as it is."""
    (made,) = _plan([("in",)], _journal("in")).new_journals

    assert (made.name, made.replication) == ("out", 3)
    assert list(made.fragment.stores) == ["s3://bucket/"]
    assert not made.fragment.HasField("retention")
    assert not made.fragment.path_postfix_template
    assert _plan([("in",)], _journal("in"), _journal("out")).new_journals == ()


@pytest.mark.parametrize(
    ("group", "known", "problem"),
    [
        ("in", [], "sources: journal in does not exist"),
        ("in", [_journal("in", CONTENT_TYPE_RECOVERY_LOG)], "sources: in is a recovery log"),
        ("out", [_journal("out")], "output: out is a source"),
        ("in", [_journal("in"), _journal("out", "text/csv")], "output: journal out: expected"),
    ],
)
def test_plan_of_journals_that_do_not_fit_is_refused(
    group: str, known: list[JournalSpec], problem: str
) -> None:
    """A wrong journal is named before anything is made."""
    with pytest.raises(ValidationError, match=problem):
        _plan([(group,)], *known)
