"""Partitioning: the choice of a message's journal by its key.

A mapping is a function of the message. The mappings here spread messages over *partitions*: a callback that returns the
journals to choose among, called for every message so that a growing topic is noticed. A `PartitionRule` is one way to
choose; it has a form for single keys and one for columns of keys, without a loop over rows, which agree. Publishers,
the Spark sink, `publish_dataframe` and the routing of keys to shards all choose by these rules.

A key is bytes: of a text its UTF-8 bytes, of a column of texts or binary values the bytes of each, of other plain
columns their text in Arrow. Columns need pyarrow (`broadsheet[spark]`), which is imported at first use.

Source: gazette/core message/routines.go (ModuloMapping, RendezvousMapping, RandomMapping): the hash and its use, so
that Go and Python publishers of one topic agree on each key's journal.
"""

from __future__ import annotations

import collections.abc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

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

Hashes: TypeAlias = npt.NDArray[np.uint32]

_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193
_BLOCK_BYTES: Final = 16
"""Bytes of each key that are fetched at once; fetching one byte of each takes as long."""
_UINT16_MAX = np.iinfo(np.uint16).max
_MISSING: Final = sys.maxsize
"""An index that no list has."""
_CACHED_KEYS_MAX: Final = 8_192
"""Keys are cached because hashing is a loop in Python and keys repeat. A key of 20 bytes takes 260, all of them 2 MiB
(measured). Keys that never repeat fill the cache too: a larger one would let a process grow for hours without gain."""


def fnv1a_32(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash of `data`."""
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value


def field_key(field: str) -> KeyFunction:
    """Return the function that takes a field of a message for its key, as `KeyColumn` takes a column.

    Args:
        field: Name of a dict's item or of an object's attribute; of a list, as CSV records are, `f1` for the first
            field behind the UUID, `f2` and so on.

    Returns:
        A function that raises ValidationError if a message has no such field, or a value there that is no key: texts,
        bytes, whole numbers and truth values are keys.
    """
    index = int(field[1:]) if field[:1] == "f" and field[1:].isdecimal() else None

    def key(message: Any) -> bytes:
        try:
            if isinstance(message, collections.abc.Mapping):
                value = message[field]
            elif isinstance(message, list):
                value = message[_MISSING if index is None else index]
            else:
                value = getattr(message, field)
        except (LookupError, AttributeError) as error:
            raise ValidationError("key", f"the message has no field {field!r}") from error
        return _key_bytes(field, value)

    return key


def _key_bytes(field: str, value: Any) -> bytes:
    """Return the bytes that `KeyColumn` would take for a value, so that both choose the same journal."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int):
        return str(value).encode()
    if isinstance(value, bytes):
        return value
    # No float: the text of a number with a fraction depends on who writes it, so its key would move.
    shown = "null" if value is None else f"{type(value).__name__} {value!r}"[:60]
    raise ValidationError(
        "key", f"{field}: expected a text, a whole number or a truth value, got {shown}"
    )


def modulo_mapping(key: KeyFunction, partitions: Partitions) -> Mapping:
    """Map a key to the partition whose index is the key's hash modulo their number.

    Cheap, but nearly every key moves when partitions are added.
    """
    hash_of = lru_cache(maxsize=_CACHED_KEYS_MAX)(fnv1a_32)

    def mapping(message: Any) -> MappedJournal:
        choices = _some(partitions())
        return choices[hash_of(key(message)) % len(choices)]

    return _with_key(mapping, key)


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

    return _with_key(mapping, key)


def _with_key(mapping: Mapping, key: KeyFunction) -> Mapping:
    """Let a mapping tell its key, by which a publisher chooses among the parts of a divided journal."""
    mapping.key = key  # type: ignore[attr-defined]  # Each mapping is a function object of its own.
    return mapping


def random_mapping(partitions: Partitions, random: Random) -> Mapping:
    """Map each message to a random partition, whatever its content."""

    def mapping(message: Any) -> MappedJournal:
        del message
        return random.choice(_some(partitions()))

    return mapping


def modulo_indices(hashes: Hashes, journals: Sequence[str]) -> Indices:
    """Return the index of each key's journal, by the rule of `modulo_mapping`."""
    return (hashes % np.uint32(len(journals))).astype(np.int64)


def rendezvous_indices(hashes: Hashes, journals: Sequence[str]) -> Indices:
    """Return the index of each key's journal, by the rule of `rendezvous_mapping`."""
    best = np.zeros(len(hashes), dtype=np.int64)
    best_scores = np.zeros(len(hashes), dtype=np.uint32)
    for index, journal in enumerate(journals):
        scores = hashes ^ np.uint32(fnv1a_32(journal.encode()))
        # A score of 0 does not exceed the initial one, so the first journal always counts.
        better = scores > best_scores if index else np.ones(len(hashes), dtype=bool)
        best[better] = index
        best_scores[better] = scores[better]
    return best


@dataclass(frozen=True, slots=True)
class PartitionRule:
    """One way to choose a journal by a key, for single keys and for columns of them."""

    mapping: Callable[[KeyFunction, Partitions], Mapping]
    """Returns the mapping of messages one by one."""
    indices: Callable[[Hashes, Sequence[str]], Indices]
    """Returns the index of each key's journal, shape (N,), given the keys' hashes and the journals' names."""


RULES: Final[collections.abc.Mapping[str, PartitionRule]] = MappingProxyType(
    {
        "modulo": PartitionRule(modulo_mapping, modulo_indices),
        "rendezvous": PartitionRule(rendezvous_mapping, rendezvous_indices),
    }
)
"""Rules by name."""


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
        if self.rule not in RULES:
            raise ValidationError("rule", f"expected one of {', '.join(RULES)}, got {self.rule!r}")

    def journals_of(self, rows: pa.RecordBatch) -> tuple[Sequence[MappedJournal], Indices]:
        """See `BatchMapping.journals_of`."""
        choices = _some(self.partitions())
        if self.column not in rows.schema.names:
            raise ValidationError(
                "column", f"expected one of {rows.schema.names}, got {self.column!r}"
            )
        import pyarrow as pa

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
        names = [choice.journal for choice in choices]
        return choices, RULES[self.rule].indices(hashes_of(keys), names)


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


def hashes_of(column: Any) -> Hashes:
    """Return the FNV-1a hash of each key of a column without nulls; shape (N,)."""
    return fnv1a_32_of(_key_texts(column))


def fnv1a_32_of(texts: Any) -> Hashes:
    """Return the hash of each string or binary value, shape (N,): position by position, longest values first."""
    import pyarrow.compute as pc

    from broadsheet.journals.message.column_texts import content_of

    lengths = pc.binary_length(texts).to_numpy(zero_copy_only=False)
    content = np.frombuffer(content_of(texts), dtype=np.uint8)
    begins = np.cumsum(lengths, dtype=np.int64) - lengths
    order = stable_order(lengths.max(initial=0) - lengths)
    begins, descending = begins[order], -lengths[order]
    hashes = np.full(len(lengths), _FNV_OFFSET, dtype=np.uint32)
    prime = np.uint32(_FNV_PRIME)
    blocks = _blocks(content)
    for position in range(int(lengths.max(initial=0))):
        count = int(np.searchsorted(descending, -position, side="left"))
        place = position % _BLOCK_BYTES
        if not place:
            block = blocks[begins[:count] + position].view(np.uint8).reshape(count, _BLOCK_BYTES)
        hashes[:count] = (hashes[:count] ^ block[:count, place]) * prime
    found = np.empty_like(hashes)
    found[order] = hashes
    return found


def _blocks(content: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
    """Return the block that begins at each byte, shape (bytes + 1,); the last ones are padded with arbitrary bytes."""
    padded = np.append(content, np.zeros(_BLOCK_BYTES, dtype=np.uint8))
    return np.ndarray((len(content) + 1,), f"V{_BLOCK_BYTES}", padded, strides=(1,))


def stable_order(values: npt.NDArray[np.signedinteger[Any]]) -> Indices:
    """Return indices that sort non-negative values stably; narrow integers, because NumPy radix-sorts those."""
    small = not len(values) or values.max() <= _UINT16_MAX
    return np.argsort(values.astype(np.uint16) if small else values, kind="stable")


def key_bytes_of(column: Any) -> list[bytes]:
    """Return each key of a column without nulls."""
    texts = _key_texts(column).to_pylist()
    return [each.encode() if isinstance(each, str) else each for each in texts]


def plain_keys(column: Any) -> Any:
    """Return keys without their layout: a dictionary's values, texts and binaries that lie one after the other."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from broadsheet.journals.message.plain_columns import plain_type

    kind = plain_type(column.type, widens=False)
    # Others, such as times with nanoseconds, have a text of their own.
    is_layout = kind is not None and (
        pa.types.is_dictionary(column.type) or pa.types.is_string(kind) or pa.types.is_binary(kind)
    )
    return pc.cast(column, kind) if is_layout else column


def _key_texts(column: Any) -> Any:
    import pyarrow as pa

    from broadsheet.journals.message.column_texts import plain_text

    plain = plain_keys(column)
    return plain if pa.types.is_binary(plain.type) else plain_text(plain)
