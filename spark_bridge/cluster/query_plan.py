"""The shards and the journals of a hosted processor: which there are, given the journals that exist.

    a source journal, or a group of them  ─►  a shard NAME/JOURNAL, named after the (first) journal
    NAME/logs/NAME/JOURNAL                     its recovery log
    the journals of output and side output    made as the first source is, if they do not exist

A shard's id has the whole name of its journal, so that its state is found again however the sources are listed.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.keys import hints_prefix
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, label_set, value_of
from broadsheet.wire.shard_pb2 import ShardSpec

HINT_BACKUPS: Final = 2
TXN_SECONDS_MAX: Final = 1.0
"""Longest transaction while rows keep coming; with none left, it ends at once."""

Sources: TypeAlias = str | Sequence[str | Sequence[str]]
"""The prefix of journals, which ends in `/`, or the name of one; or several names, each a shard's, or each list of
names a shard's.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryShards:
    """Settings of the shards that run a hosted processor."""

    name: str = ""
    """Begins the shards' ids and the names of their recovery logs; empty: the cluster's root, without its first `/`."""
    hot_standbys: int | None = None
    """Standbys of each shard; None: one, if the cluster has more than one member."""
    txn_seconds_max: float = TXN_SECONDS_MAX
    """Longest transaction while rows keep coming."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPlan:
    """The shards of a query, and the journals that it needs."""

    shards: tuple[ShardSpec, ...]
    new_journals: tuple[JournalSpec, ...]
    """Journals of output that do not exist."""


def sources_prefix(sources: Sources) -> str:
    """Return the prefix that sources are; empty if they are names."""
    return sources if isinstance(sources, str) and sources.endswith("/") else ""


def groups_of(
    sources: Sources, found: Sequence[str], own: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """Return the journals of each shard.

    Args:
        sources: As the user gives them.
        found: The journals below the prefix, if they are a prefix.
        own: What the query writes itself: journals of output, and the prefix of its recovery logs.

    Raises:
        ValidationError: there is none, or one is named twice, or the prefix has journals that the query writes.
    """
    if prefix := sources_prefix(sources):
        if written := [each for each in own if each.startswith(prefix)]:
            # Of the next start they would be sources.
            raise ValidationError(
                "sources",
                f"{', '.join(written)} is written by the query itself, and below {prefix}",
            )
        if not found:
            raise ValidationError("sources", f"expected journals below {prefix}; there is none")
        return tuple((each,) for each in sorted(found))
    listed = (sources,) if isinstance(sources, str) else sources
    groups = tuple((each,) if isinstance(each, str) else tuple(each) for each in listed)
    names = [name for group in groups for name in group]
    if not names or not all(names) or not all(groups):
        raise ValidationError(
            "sources", "expected the name of a journal, a prefix that ends in /, or a list of names"
        )
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValidationError("sources", f"{', '.join(sorted(twice))}: expected once")
    return groups


def plan_query(
    groups: Sequence[Sequence[str]],
    outputs: Sequence[MappedJournal],
    known: Mapping[str, JournalSpec],
    shards: QueryShards,
    *,
    root: str,
) -> QueryPlan:
    """Return the plan of a query.

    Args:
        groups: The journals of each shard.
        outputs: The journals that its rows go to.
        known: Those of all these journals that exist.
        shards: Settings, with a name and a number of standbys.
        root: Prefix of the cluster's keys in etcd.

    Raises:
        ValidationError: a source does not exist, or an output is a source, or has another content type.
    """
    sources = [name for group in groups for name in group]
    for name in sources:
        if name not in known:
            raise ValidationError("sources", f"journal {name} does not exist; apply it first")
        if value_of(known[name].labels, CONTENT_TYPE) == CONTENT_TYPE_RECOVERY_LOG:
            raise ValidationError("sources", f"{name} is a recovery log; expected journals of rows")
    for output in outputs:
        _check_output(output, sources, known)
    missing = {each.journal: each for each in outputs if each.journal not in known}
    return QueryPlan(
        shards=tuple(_shard(group, shards, root) for group in groups),
        new_journals=tuple(_output_journal(each, known[sources[0]]) for each in missing.values()),
    )


def _check_output(
    output: MappedJournal, sources: Sequence[str], known: Mapping[str, JournalSpec]
) -> None:
    if output.journal in sources:
        raise ValidationError(
            "output", f"{output.journal} is a source: rows would come back without end"
        )
    if output.journal not in known:
        return
    content_type = value_of(known[output.journal].labels, CONTENT_TYPE)
    if content_type != output.content_type:
        raise ValidationError(
            "output",
            f"journal {output.journal}: expected label {CONTENT_TYPE}={output.content_type}, got {content_type!r}",
        )


def _shard(group: Sequence[str], shards: QueryShards, root: str) -> ShardSpec:
    spec = ShardSpec(
        id=f"{shards.name}/{group[0]}",
        sources=[ShardSpec.Source(journal=journal) for journal in group],
        recovery_log_prefix=f"{shards.name}/logs",
        hint_prefix=hints_prefix(root),
        hint_backups=HINT_BACKUPS,
        hot_standbys=shards.hot_standbys or 0,
    )
    spec.max_txn_duration.FromMilliseconds(round(shards.txn_seconds_max * 1000))
    return spec


def _output_journal(output: MappedJournal, source: JournalSpec) -> JournalSpec:
    spec = JournalSpec(
        name=output.journal,
        replication=source.replication,
        labels=label_set((CONTENT_TYPE, output.content_type)),
        fragment=source.fragment,
    )
    # Results are kept until somebody says for how long; and a template names labels of the source.
    spec.fragment.ClearField("retention")
    spec.fragment.ClearField("path_postfix_template")
    return spec
