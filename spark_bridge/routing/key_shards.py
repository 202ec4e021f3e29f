"""Maps keys to shards: to the reader of the journal to which messages of the key are published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from broadsheet.journals.message.partitioning import (
    RULES,
    KeyFunction,
    MappedJournal,
    Mapping as JournalMapping,
    Partitions,
)
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.routing.routes import ShardRoute

MappingFactory = Callable[[KeyFunction, Partitions], JournalMapping]
"""`modulo_mapping`, `rendezvous_mapping`, or an application's function of the same shape, which can be pickled."""


class KeyShards:
    """Maps keys to shards as publishers map them to journals; can be pickled."""

    def __init__(
        self, factory: MappingFactory, journals: Sequence[str], shard_by_journal: Mapping[str, str]
    ) -> None:
        """Map keys.

        Args:
            factory: The mapping by which publishers choose among `journals`.
            journals: In the publishers' order.
            shard_by_journal: The reader of each journal.
        """
        self._recipe = (factory, tuple(journals), dict(shard_by_journal))
        choices = tuple(MappedJournal(journal, "") for journal in journals)
        self._journal_of = factory(_itself, lambda: choices)
        self._shard_by_journal = shard_by_journal

    def shard_of(self, key: str | bytes) -> str:
        """Return the id of the shard that has a key.

        Args:
            key: Bytes; or text, which means its UTF-8 bytes.

        Raises:
            TypeError: the key is something else; convert it to the bytes that publishers make of it.
        """
        if not isinstance(key, str | bytes):
            raise TypeError(
                f"key: expected bytes or text as publishers hash it, got {type(key).__name__}"
            )
        mapped = self._journal_of(key.encode() if isinstance(key, str) else key)
        return self._shard_by_journal[mapped.journal]

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._recipe


def key_mapping_of(
    mapping: str | MappingFactory,
    routes: Iterable[ShardRoute],
    *,
    journals: Sequence[str] | None = None,
) -> KeyShards:
    """Return the mapping of keys to shards.

    Args:
        mapping: `modulo`, `rendezvous`, or a function like those of `broadsheet.journals.message.partitioning`.
        routes: The shards.
        journals: Those that publishers choose among, in the publishers' order; None: all that the shards read, by name.

    Raises:
        ValidationError: the mapping is unknown, or a journal is read by none or several of the shards.
    """
    if isinstance(mapping, str) and mapping not in RULES:
        known = " or ".join(RULES)
        raise ValidationError("mapping", f"expected {known}, or a function, got {mapping!r}")
    factory = RULES[mapping].mapping if isinstance(mapping, str) else mapping
    readers: dict[str, list[str]] = {}
    for route in routes:
        for journal in route.sources:
            readers.setdefault(journal, []).append(route.shard_id)
    chosen = tuple(sorted(readers) if journals is None else journals)
    if not chosen:
        raise ValidationError("journals", "expected at least one: the shards read none")
    for index, journal in enumerate(chosen):
        found = readers.get(journal, [])
        if len(found) != 1:
            raise ValidationError(
                f"journals[{index}]",
                f"expected one of the shards to read {journal}, found {', '.join(found) or 'none'}",
            )
    return KeyShards(factory, chosen, {journal: readers[journal][0] for journal in chosen})


def _itself(key: bytes) -> bytes:
    return key
