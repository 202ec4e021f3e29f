"""The table from keys to shards: which journal publishers choose, and which shard has which groups of it. Pure.

key ── rule of publishers ──► journal ── group of the key, xxh3_64 mod 4,096 ──► range ──► shard ──► primary
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from broadsheet.consumer.elastic.family import is_fork
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.key_range import GROUPS, key_range_of, uncovered
from broadsheet.wire.keys_pb2 import KeyRule, KeyTable, KeyTableRange
from broadsheet.wire.shard_pb2 import ShardSpec

RULE_NAMES: Final[Mapping[str, KeyRule.ValueType]] = MappingProxyType(
    {
        "": KeyRule.KEY_RULE_UNSPECIFIED,
        "modulo": KeyRule.KEY_RULE_MODULO,
        "rendezvous": KeyRule.KEY_RULE_RENDEZVOUS,
    }
)
"""Rules by the names that `broadsheet.journals.message.partitioning` has for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedShard:
    """A shard, and its primary if it has one."""

    spec: ShardSpec
    primary: str = ""
    """As `zone#suffix`."""
    endpoint: str = ""
    admin_endpoint: str = ""


def key_table_of(
    shards: Sequence[ServedShard],
    rule: KeyRule.ValueType,
    journals: Sequence[str],
    *,
    origins: Mapping[str, str] = MappingProxyType({}),
) -> KeyTable:
    """Return the table of some shards; its version is not set.

    Args:
        shards: The selected ones.
        rule: How publishers choose a journal; unspecified: all shards read the same journals.
        journals: Those that publishers choose among, in their order; none: all that the shards read, by name.
        origins: The journal that each part of a divided one is a part of, for those that are no sources any more.

    Raises:
        ValidationError: keys have no shard, or several; the error names the journal and the groups.
    """
    if rule not in RULE_NAMES.values():
        raise ValidationError("rule", f"expected modulo or rendezvous, got {rule}")
    # A fork owns nothing before its split is done; then it is none any more.
    serving = [one for one in shards if not is_fork(one.spec)]
    read = {one.spec.id: _journals(one.spec, origins) for one in serving}
    if not serving:
        raise ValidationError("selector", "expected shards that have keys, and it selects none")
    chosen = tuple(journals) or tuple(sorted(set().union(*read.values())))
    table = KeyTable(rule=rule, journals=chosen, groups=GROUPS)
    if rule == KeyRule.KEY_RULE_UNSPECIFIED:
        if any(each != set(chosen) for each in read.values()):
            raise ValidationError(
                "rule",
                "expected modulo or rendezvous, as publishers choose a key's journal, because the shards read "
                f"different journals: {', '.join(sorted(set().union(*read.values())))}",
            )
        table.ranges.extend(_ranges(0, "all journals", serving))
        return table
    if not chosen:
        raise ValidationError("journals", "expected at least one: the shards read none")
    for index, journal in enumerate(chosen):
        readers = [one for one in serving if journal in read[one.spec.id]]
        table.ranges.extend(_ranges(index, journal, readers))
    return table


def _ranges(index: int, journal: str, readers: Sequence[ServedShard]) -> Sequence[KeyTableRange]:
    owned = {one.spec.id: key_range_of(one.spec.labels) for one in readers}
    if problem := uncovered(owned.values()):
        shown = ", ".join(f"{shard_id} {keys}" for shard_id, keys in owned.items()) or "no shard"
        raise ValidationError(
            f"journals[{index}]",
            f"expected shards that divide all keys of {journal}, but {problem} (selected: {shown})",
        )
    return [
        KeyTableRange(
            journal=index,
            begin=owned[one.spec.id].begin,
            end=owned[one.spec.id].end,
            shard=one.spec.id,
            primary=one.primary,
            endpoint=one.endpoint,
            admin_endpoint=one.admin_endpoint,
        )
        for one in sorted(readers, key=lambda one: owned[one.spec.id])
    ]


def _journals(spec: ShardSpec, origins: Mapping[str, str]) -> set[str]:
    """Return a shard's sources without the suffixes that distinguish readers, and with no parts of divided journals.

    Publishers choose the divided journal, and reach its parts behind that choice.
    """
    behind = {source.journal.partition(";")[0]: source.after for source in spec.sources}
    found = set()
    for name in behind:
        while before := behind.get(name) or origins.get(name):
            name = before.partition(";")[0]
        found.add(name)
    return found
