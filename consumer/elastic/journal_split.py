"""Divisions of source journals: the record in etcd, the plan, and the sources of the shards that read the parts.

    /broadsheet.v1{root}/journal-splits/{journal}     the division: parts, phase; gone when no shard reads the journal

    preparing    the parts are made, and each shard that reads the journal gets them as sources behind it
    leaving      the journal's register says that it is divided: no publisher begins there; those that did go on to the
                 parts, and have all acknowledged that they published
    draining     transactions that are open in the journal are acknowledged or rolled back
    sealed       nothing is to come: a seal is the journal's end, and its place is in the spec. Shards read the journal
                 to there; once the checkpoints of all have, it is removed from their sources

The parts keep `after`, and where the seal is. So a primary that recovers from before the seal knows that the journal
comes first, and makes it a source again (`with_unread`).

Each step may be done again, by any member, at the same time: it changes nothing that is done. Nothing here waits or
writes; `broadsheet.consumer.member.journal_splitter` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from broadsheet.allocator.keys import SEPARATOR, AuxiliaryKeys
from broadsheet.journals.message.division import DIVIDED, JournalPart, is_divided
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.formats import Format
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.key_range import KeyRange, key_range_of, range_labels
from broadsheet.wire.labels import (
    CONTENT_TYPE,
    CONTENT_TYPE_RECOVERY_LOG,
    PUBLISHERS,
    PUBLISHERS_CHECKED,
    SEALED_AT,
    SPLIT_OF,
    label_set,
    union,
    value_of,
)
from broadsheet.wire.shard_pb2 import ShardSpec

JOURNAL_SPLIT: Final = Format(
    "the record of a divided journal", "let a member of that release finish it"
)


class JournalSplitPhase(StrEnum):
    """The state of a division."""

    PREPARING = "preparing"
    LEAVING = "leaving"
    DRAINING = "draining"
    SEALED = "sealed"


class PartRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A part, by its groups of keys."""

    journal: str
    begin: int
    end: int


class JournalSplitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A division that is not over."""

    parts: tuple[PartRecord, ...]
    phase: JournalSplitPhase = JournalSplitPhase.PREPARING
    reason: str = ""
    """What it waits for; empty: nothing."""

    def noted(self, phase: JournalSplitPhase, reason: str) -> JournalSplitRecord:
        """Return the record with what is told of it now; a phase that is over does not come back."""
        order = list(JournalSplitPhase)
        latest = max(phase, self.phase, key=order.index)
        return msgspec.structs.replace(self, phase=latest, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSplitPlan:
    """A division that can begin."""

    journal: str
    parts: tuple[JournalPart, ...]
    readers: tuple[str, ...]
    """Shards that read the journal."""

    @property
    def record(self) -> JournalSplitRecord:
        """Its first record."""
        return JournalSplitRecord(
            parts=tuple(
                PartRecord(journal=each.journal, begin=each.owned.begin, end=each.owned.end)
                for each in self.parts
            )
        )


def sealed_record(parts: Iterable[JournalPart]) -> JournalSplitRecord:
    """Return the record of a sealed journal that shards read still, or again."""
    return JournalSplitRecord(
        parts=tuple(
            PartRecord(journal=each.journal, begin=each.owned.begin, end=each.owned.end)
            for each in parts
        ),
        phase=JournalSplitPhase.SEALED,
    )


def journal_splits_prefix(root: str) -> bytes:
    """Return the prefix of the records of all divisions."""
    return AuxiliaryKeys(root).prefix + b"journal-splits/"


def journal_split_key(root: str, journal: str) -> bytes:
    """Return the key of the record of a division."""
    return journal_splits_prefix(root) + journal.encode()


def encode_journal_split(record: JournalSplitRecord) -> bytes:
    """Return the value of a record."""
    return msgspec.json.encode(record)


def decode_journal_split(value: bytes) -> JournalSplitRecord:
    """Decode a record.

    Raises:
        LaterFormatError: it needs a later reader.
        DocumentError: it is no record.
    """
    return JOURNAL_SPLIT.decode_json(value, JournalSplitRecord)


def plan_journal_split(
    journal: JournalSpec, at_group: int | None, *, shards: Iterable[ShardSpec]
) -> JournalSplitPlan:
    """Return the plan of a division.

    Args:
        journal: As its broker lists it.
        at_group: First group of keys of the second part; None: the middle of the journal's groups.
        shards: All of the cluster.

    Raises:
        ValidationError: it cannot be divided so; the error says why.
    """
    _check_journal(journal)
    owned = key_range_of(journal.labels)
    at = (owned.begin + owned.end) // 2 if at_group is None else at_group
    if not owned.begin < at < owned.end:
        raise ValidationError(
            "at_group",
            f"expected a group inside of {owned} of journal {journal.name}, that is {owned.begin + 1} to "
            f"{owned.end - 1}, got {at}"
            if owned.end - owned.begin > 1
            else f"journal {journal.name} has one group of keys, {owned}, which cannot be divided",
        )
    ranges = KeyRange(owned.begin, at), KeyRange(at, owned.end)
    return JournalSplitPlan(
        journal=journal.name,
        parts=tuple(JournalPart(f"{journal.name}-{each.begin:04x}", each) for each in ranges),
        readers=tuple(sorted(spec.id for spec in shards if reads(spec, journal.name))),
    )


def part_spec(journal: JournalSpec, part: JournalPart) -> JournalSpec:
    """Return the spec of a part: as that of the divided journal, with its own range of keys."""
    spec = JournalSpec()
    spec.CopyFrom(journal)
    spec.ClearField("suspend")
    spec.name = part.journal
    dropped = {SEALED_AT, *(label.name for label in DIVIDED.labels)}
    kept = label_set(
        *((each.name, each.value) for each in journal.labels.labels if each.name not in dropped)
    )
    spec.labels.CopyFrom(
        union(kept, label_set((SPLIT_OF, journal.name), *range_labels(part.owned)))
    )
    return spec


def with_labels(journal: JournalSpec, *pairs: tuple[str, str]) -> JournalSpec:
    """Return a spec with other labels added, or replaced."""
    spec = JournalSpec()
    spec.CopyFrom(journal)
    spec.labels.CopyFrom(union(journal.labels, label_set(*pairs)))
    return spec


def reads(spec: ShardSpec, journal: str) -> bool:
    """Report whether a journal is a source of a shard."""
    return any(_bare(each.journal) == journal for each in spec.sources)


def with_parts(spec: ShardSpec, journal: str, parts: Sequence[str]) -> ShardSpec | None:
    """Return the spec of a reader with the parts of a journal as sources behind it; None if it has them.

    Args:
        spec: Of the shard.
        journal: That is divided.
        parts: Names of its parts.
    """
    sources = {each.journal: each for each in spec.sources}
    added = {}
    for source in spec.sources:
        name, separator, meta = source.journal.partition(";")
        if name != journal:
            continue
        for part in parts:
            wanted = f"{part}{separator}{meta}"
            if wanted not in sources:
                added[wanted] = ShardSpec.Source(journal=wanted, after=source.journal)
    if not added:
        return None
    sources |= added
    changed = ShardSpec()
    changed.CopyFrom(spec)
    del changed.sources[:]
    changed.sources.extend(sources[name] for name in sorted(sources))
    return changed


def read_before(spec: ShardSpec, journal: str) -> str:
    """Return the divided journal among a shard's sources that another one is a part of; empty if there is none.

    It leaves the sources before its part does: while it is there, its parts are given to the shard again and again.
    """
    names = {each.journal for each in spec.sources}
    return next((each.after for each in sources_of(spec, journal) if each.after in names), "")


def sources_of(spec: ShardSpec, journal: str) -> list[ShardSpec.Source]:
    """Return the sources of a shard that are a journal: several, if suffixes tell them apart."""
    return [each for each in spec.sources if _bare(each.journal) == journal]


def without_sealed(spec: ShardSpec, journal: str, sealed: int) -> ShardSpec:
    """Return the spec of a shard that has read a divided journal to its seal: that one is no source any more.

    Args:
        spec: Of the shard.
        journal: That was divided.
        sealed: Offset behind its seal, bytes; the parts keep it.
    """
    changed = ShardSpec()
    changed.CopyFrom(spec)
    del changed.sources[:]
    for source in spec.sources:
        if _bare(source.journal) == journal:
            continue
        kept = changed.sources.add()
        kept.CopyFrom(source)
        if _bare(source.after) == journal:
            kept.after_offset = sealed
    return changed


def left_behind(spec: ShardSpec) -> dict[str, int]:
    """Return divided journals whose parts are sources while they are none, and the offsets behind their seals."""
    names = {each.journal for each in spec.sources}
    return {
        each.after: each.after_offset
        for each in spec.sources
        if each.after and each.after not in names
    }


def with_unread(spec: ShardSpec, unread: Mapping[str, str]) -> ShardSpec:
    """Return the spec of a shard with divided journals as sources again.

    Args:
        spec: Of the shard.
        unread: Their names, and the journal that each is read behind; empty: none.
    """
    sources = {each.journal: each for each in spec.sources}
    for name, after in unread.items():
        sources.setdefault(name, ShardSpec.Source(journal=name, after=after))
    changed = ShardSpec()
    changed.CopyFrom(spec)
    del changed.sources[:]
    for name in sorted(sources):
        source = changed.sources.add()
        source.CopyFrom(sources[name])
        if source.after in sources:
            source.after_offset = 0
    return changed


def check_parts_kept(held: ShardSpec, wanted: ShardSpec) -> None:
    """Check that a change of a shard keeps the parts of the journals that it goes on reading.

    Raises:
        ValidationError: a part would be read by no shard, or before the journal that it is a part of.
    """
    kept = {each.journal: each.after for each in wanted.sources}
    for source in held.sources:
        if source.after in kept and kept.get(source.journal) != source.after:
            raise ValidationError(
                "sources",
                f"expected {source.journal} (after: {source.after}), because journal {source.after} was divided: keep "
                f"what `shardctl shards list --format yaml` shows of {held.id}",
            )


def publishers_among(keys: Iterable[bytes], prefix: bytes, journal: str) -> list[str]:
    """Return the shards that published into a journal, by the keys of rollback records.

    Args:
        keys: Of all records.
        prefix: Of these keys.
        journal: The journal.
    """
    found = set()
    for key in keys:
        shard, _, rest = key[len(prefix) :].decode(errors="replace").partition(SEPARATOR)
        if rest.partition(SEPARATOR)[2] == journal:
            found.add(shard)
    return sorted(found)


def _bare(source: str) -> str:
    return source.partition(";")[0]


def _check_journal(journal: JournalSpec) -> None:
    name = journal.name
    if is_divided(journal.labels):
        raise ValidationError("journal", f"journal {name} is divided already: divide its parts")
    content_type = value_of(journal.labels, CONTENT_TYPE)
    if not content_type or content_type == CONTENT_TYPE_RECOVERY_LOG:
        raise ValidationError(
            "journal", f"expected a journal of messages with keys, {name} has none"
        )
    if value_of(journal.labels, PUBLISHERS) != PUBLISHERS_CHECKED:
        raise ValidationError(
            "journal",
            f"journal {name} has no label {PUBLISHERS}={PUBLISHERS_CHECKED}. Set it if all that publish there are "
            "shards of this cluster, and writers of this release or later: others, such as Gazette's publishers, do "
            "not see that a journal is divided, and Spark's sink is refused from then on",
        )
