"""Mappings from a published message to its journal.

A mapping is a function of the message. The mappings here spread messages over *partitions*: a callback that returns the
journals to choose among, called for every message so that a growing topic is noticed.

Source: gazette/core message/routines.go (ModuloMapping, RendezvousMapping, RandomMapping): the hash and its use, so
that Go and Python publishers of one topic agree on each key's journal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from broadsheet.journals.errors import NoPartitionsError
from broadsheet.runtime.errors import ValidationError

if TYPE_CHECKING:
    import pyarrow as pa

    from broadsheet.journals.message.column_texts import Indices


@dataclass(frozen=True, slots=True)
class MappedJournal:
    """The journal of a message, and the content type that selects the framing there."""

    journal: str
    content_type: str


# `Any`: the application's own message class.
Mapping: TypeAlias = Callable[[Any], MappedJournal]
KeyFunction: TypeAlias = Callable[[Any], bytes]
Partitions: TypeAlias = Callable[[], Sequence[MappedJournal]]
"""Returns the journals to choose among, in a stable order; the same object as long as they did not change."""

_RULES: Final = ("modulo", "rendezvous")
_CACHED_KEYS_MAX: Final = 8_192
"""Keys are cached because hashing is a loop in Python and keys repeat. A key of 20 bytes takes 260, all of them 2 MiB
(measured). Keys that never repeat fill the cache too: a larger one would let a process grow for hours without gain."""


def fnv1a_32(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash of `data`."""
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def modulo_mapping(key: KeyFunction, partitions: Partitions) -> Mapping:
    """Map a key to the partition whose index is the key's hash modulo their number.

    Cheap, but nearly every key moves when partitions are added.
    """
    hash_of = lru_cache(maxsize=_CACHED_KEYS_MAX)(fnv1a_32)

    def mapping(message: Any) -> MappedJournal:
        choices = _some(partitions())
        return choices[hash_of(key(message)) % len(choices)]

    return mapping


def rendezvous_mapping(key: KeyFunction, partitions: Partitions) -> Mapping:
    """Map a key to the partition whose own hash, combined with the key's, is the greatest.

    Only one key in N+1 moves when an (N+1)-th partition is added.
    """
    ranking = _Ranking(())

    def mapping(message: Any) -> MappedJournal:
        nonlocal ranking
        choices = _some(partitions())
        if ranking.choices is not choices:
            ranking = _Ranking(choices)
        return ranking.best(key(message))

    return mapping


def random_mapping(partitions: Partitions, random: Random) -> Mapping:
    """Map each message to a random partition, whatever its content."""

    def mapping(message: Any) -> MappedJournal:
        del message
        return random.choice(_some(partitions()))

    return mapping


class BatchMapping(Protocol):
    """Chooses the journal of each row."""

    def journals_of(self, rows: pa.RecordBatch) -> tuple[Sequence[MappedJournal], Indices]:
        """Return journals, and the index among them of each row's; shape (N,).

        Raises:
            NoPartitionsError: there is no journal to choose.
            ValidationError: the rows have no keys.
        """
        ...


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """The mapping of rows by a column, as `modulo_mapping` and `rendezvous_mapping` map its values one by one."""

    column: str
    """Texts, binary values, or other plain values, whose text in Arrow is the key: `true` of a truth value, `1` of the
    number 1.0. None may be null, and lists and structs are no keys."""
    partitions: Partitions
    """Returns the journals to choose among."""
    rule: Literal["modulo", "rendezvous"] = "modulo"

    def __post_init__(self) -> None:
        """Check the rule.

        Raises:
            ValidationError: there is no such rule.
        """
        if self.rule not in _RULES:
            raise ValidationError("rule", f"expected one of {', '.join(_RULES)}, got {self.rule!r}")

    def journals_of(self, rows: pa.RecordBatch) -> tuple[Sequence[MappedJournal], Indices]:
        """See `BatchMapping.journals_of`."""
        choices = _some(self.partitions())
        if self.column not in rows.schema.names:
            raise ValidationError(
                "column", f"expected one of {rows.schema.names}, got {self.column!r}"
            )
        import pyarrow as pa

        from broadsheet.journals.message.key_columns import (
            hashes_of,
            modulo_indices,
            plain_keys,
            rendezvous_indices,
        )

        found = rows.column(self.column)
        if pa.types.is_nested(found.type):
            raise ValidationError(
                "column", f"{self.column}: expected plain values for keys, got {found.type}"
            )
        # A dictionary may hold its null among its values.
        keys = plain_keys(found)
        if keys.null_count:
            raise ValidationError(
                "column", f"{self.column}: {keys.null_count} keys are null, expected none"
            )
        hashes = hashes_of(keys)
        if self.rule == "modulo":
            return choices, modulo_indices(hashes, len(choices))
        return choices, rendezvous_indices(hashes, [choice.journal for choice in choices])


class _Ranking:
    """The hashes of one list of partitions, and the best partition of recent keys."""

    def __init__(self, choices: Sequence[MappedJournal]) -> None:
        self.choices = choices
        self._hashes = [fnv1a_32(choice.journal.encode()) for choice in choices]
        self.best = lru_cache(maxsize=_CACHED_KEYS_MAX)(self._best)

    def _best(self, key: bytes) -> MappedJournal:
        key_hash = fnv1a_32(key)
        scores = [key_hash ^ name_hash for name_hash in self._hashes]
        return self.choices[scores.index(max(scores))]


def _some(choices: Sequence[MappedJournal]) -> Sequence[MappedJournal]:
    if not choices:
        raise NoPartitionsError
    return choices
