"""State variables: a value, a list or a map for each key, of declared types, whose rows may expire.

    value   one row
    list    one row while it is short; then chunks, and a head that counts them, so that to append reads no element
    map     a row for each entry, in the order of its keys

Expiry is set by writes, never by reads. Each element of a list, and each entry of a map, has its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from broadsheet.consumer.keyed.key_codec import KeyCodec
from broadsheet.consumer.keyed.row_types import Decoding, StateRowType
from broadsheet.consumer.keyed.state_rows import (
    content_of,
    expiry_of,
    new_row,
    row_prefix,
    schema_of,
)
from broadsheet.consumer.keyed.ttl import filed_at, is_expired
from broadsheet.runtime.errors import ValidationError

CHUNK_BYTES: Final = 4096
"""Length from which a list is kept in chunks, and of the elements that one transaction adds to a chunk."""
_INLINE, _HEAD = b"\x00", b"\x01"
_ARRAY: Final = struct.Struct(">BI")
_ARRAY_32: Final = 0xDD
_BOUNDS: Final = struct.Struct(">II")
_SEQUENCE: Final = struct.Struct(">I")


class RowAccess(Protocol):
    """The rows that variables read and write: `KeyedStore` is one, and so is its last commit, for reading."""

    def get(self, place: bytes, suffix: bytes) -> bytes | None:
        """Return a row."""
        ...

    def rows_of(self, place: bytes, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return rows in order."""
        ...

    def put(self, place: bytes, suffix: bytes, row: bytes | None) -> None:
        """Change a row."""
        ...

    def file(self, time_ms: int, place: bytes, suffix: bytes) -> None:
        """Have a sweep look at a row."""
        ...

    def unfile(self, time_ms: int, place: bytes, suffix: bytes) -> None:
        """Have no sweep look at a row."""
        ...


class Current:
    """The key whose rows variables mean, and the time by which they expire."""

    def __init__(self) -> None:
        self.key: bytes | None = None
        self.place = b""
        self.batch_ms = 0
        self.transaction = 0
        """Counts transactions."""


@dataclass(frozen=True, slots=True)
class VariableType:
    """Number and types of a variable, as they are registered in the store."""

    name: str
    suffix: bytes
    """The number: beginning of its rows' suffixes."""
    row_type: StateRowType
    schema_id: bytes
    """Of rows that are written."""
    decoders: Mapping[bytes, Decoding]
    """By schema id of what was written."""
    ttl_ms: int | None = None
    key_codec: KeyCodec | None = None
    """Of a map."""
    key_type: StateRowType | None = None
    """Of a map."""


class Variable:
    """The part that all kinds of variables share."""

    def __init__(self, type_: VariableType, rows: RowAccess, current: Current) -> None:
        self.type = type_
        self._prefix = row_prefix(type_.schema_id)
        self._rows = rows
        self._current = current

    def over(self, rows: RowAccess, current: Current) -> Self:
        """Return the same variable over other rows."""
        other = copy(self)
        other._rows, other._current = rows, current  # noqa: SLF001 - of the same class
        return other

    def exists(self) -> bool:
        """Tell whether the key has anything of this variable."""
        raise NotImplementedError

    def committed(self) -> Any:
        """Return all that the key has of this variable, as a query shows it."""
        raise NotImplementedError

    def expire(self, place: bytes, suffix: bytes) -> None:
        """Remove a row if it is expired; else have a sweep look at it later."""
        row = self._rows.get(place, suffix)
        expiry = None if row is None else expiry_of(row)
        if expiry is None:
            return
        if is_expired(expiry, self._current.batch_ms):
            self._rows.put(place, suffix, None)
        else:
            self._rows.file(self._filed_at(expiry), place, suffix)

    def _place(self) -> bytes:
        if self._current.key is None:
            raise ValidationError(
                self.type.name,
                "expected to be used while a key's rows or timers are handled: there is no key",
            )
        return self._current.place

    def _expiry(self) -> int | None:
        ttl = self.type.ttl_ms
        return None if ttl is None else self._current.batch_ms + ttl

    def _filed_at(self, expiry_ms: int) -> int:
        return filed_at(expiry_ms, self.type.ttl_ms or 0)

    def _live(self, row: bytes | None) -> bytes | None:
        """Return a row unless it is expired."""
        if row is None or is_expired(expiry_of(row), self._current.batch_ms):
            return None
        return row

    def _write(self, place: bytes, suffix: bytes, expiry_ms: int | None, content: bytes) -> None:
        if expiry_ms is not None:
            self._refile(place, suffix, expiry_ms)
        self._rows.put(place, suffix, new_row(self.type.schema_id, expiry_ms, content))

    def _load(self, suffix: bytes, expiry_ms: int | None, content: bytes) -> None:
        """Write a row that there is not, so no former one is looked up."""
        place = self._place()
        if expiry_ms is not None:
            self._rows.file(self._filed_at(expiry_ms), place, suffix)
        self._rows.put(place, suffix, new_row(self.type.schema_id, expiry_ms, content))

    def _refile(self, place: bytes, suffix: bytes, expiry_ms: int) -> None:
        before = self._rows.get(place, suffix)
        former = None if before is None else expiry_of(before)
        filed = self._filed_at(expiry_ms)
        if former is not None:
            if self._filed_at(former) == filed:
                return
            self._rows.unfile(self._filed_at(former), place, suffix)
        self._rows.file(filed, place, suffix)

    def _value(self, row: bytes) -> Any:
        fields = self._decoding(row).decode(content_of(row))
        return self.type.row_type.value_of(fields)

    def _decoding(self, row: bytes) -> Decoding:
        return self.type.decoders[schema_of(row)]

    def _encoded(self, value: Any) -> bytes:
        try:
            return self.type.row_type.encode(value)
        except ValidationError as error:
            raise error.under(self.type.name) from error


class ValueState(Variable):
    """One value for each key."""

    def get(self) -> Any:
        """Return the value, a fresh object each time; None if there is none."""
        row = self._live(self._rows.get(self._place(), self.type.suffix))
        return None if row is None else self._value(row)

    def exists(self) -> bool:
        """Tell whether there is a value."""
        return self._live(self._rows.get(self._place(), self.type.suffix)) is not None

    def update(self, value: Any) -> None:
        """Set the value.

        Raises:
            ValidationError: it does not fit the declared type; the error names variable and field.
        """
        content = self._encoded(value)
        if self.type.ttl_ms is None:
            self._rows.put(self._place(), self.type.suffix, self._prefix + content)
        else:
            self._write(self._place(), self.type.suffix, self._expiry(), content)

    def clear(self) -> None:
        """Remove the value; nothing if there is none."""
        self._rows.put(self._place(), self.type.suffix, None)

    def load(self, value: Any, expiry_ms: int | None) -> None:
        """Set the value of a key that has none, with the expiry that it came with; raises as `update` does."""
        self._load(self.type.suffix, expiry_ms, self._encoded(value))

    def committed(self) -> Any:
        """Return the value, as a query shows it."""
        return self.get()


class MapState(Variable):
    """A map for each key. Its entries are in the order of their keys."""

    def get(self, key: Any) -> Any:
        """Return the value of an entry, a fresh object each time; None if there is none.

        Raises:
            ValidationError: the key does not fit the declared type.
        """
        row = self._live(self._rows.get(self._place(), self._suffix(key)))
        return None if row is None else self._value(row)

    def contains(self, key: Any) -> bool:
        """Tell whether there is an entry."""
        return self._live(self._rows.get(self._place(), self._suffix(key))) is not None

    def put(self, key: Any, value: Any) -> None:
        """Set an entry.

        Raises:
            ValidationError: key or value do not fit the declared types; the error names variable and field.
        """
        self._write(self._place(), self._suffix(key), self._expiry(), self._encoded(value))

    def load(self, key: Any, value: Any, expiry_ms: int | None) -> None:
        """Add an entry that there is not, with the expiry that it came with; raises as `put` does."""
        self._load(self._suffix(key), expiry_ms, self._encoded(value))

    def remove(self, key: Any) -> None:
        """Remove an entry; nothing if there is none."""
        self._rows.put(self._place(), self._suffix(key), None)

    def exists(self) -> bool:
        """Tell whether there is any entry."""
        return any(True for _ in self._live_rows())

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield (key, value) as of the first step, whatever changes meanwhile."""
        for suffix, row in self._live_rows():
            yield self._key(suffix), self._value(row)

    def keys(self) -> Iterator[Any]:
        """Yield the keys as of the first step."""
        for suffix, _ in self._live_rows():
            yield self._key(suffix)

    def values(self) -> Iterator[Any]:
        """Yield the values as of the first step, in the order of their keys."""
        for _, row in self._live_rows():
            yield self._value(row)

    def clear(self) -> None:
        """Remove all entries."""
        place = self._place()
        for suffix, _ in self._rows.rows_of(place, self.type.suffix):
            self._rows.put(place, suffix, None)

    def committed(self) -> dict[Any, Any]:
        """Return the entries, as a query shows them."""
        return dict(self.items())

    def _live_rows(self) -> Iterator[tuple[bytes, bytes]]:
        for suffix, row in self._rows.rows_of(self._place(), self.type.suffix):
            if self._live(row) is not None:
                yield suffix, row

    def _suffix(self, key: Any) -> bytes:
        codec, key_type = self.type.key_codec, self.type.key_type
        assert codec is not None, "it is a map"
        assert key_type is not None, "it is a map"
        try:
            return self.type.suffix + codec.encode(key_type.fields_of(key))
        except ValidationError as error:
            raise error.under(self.type.name) from error

    def _key(self, suffix: bytes) -> Any:
        codec, key_type = self.type.key_codec, self.type.key_type
        assert codec is not None, "it is a map"
        assert key_type is not None, "it is a map"
        return key_type.value_of(codec.decode(suffix, len(self.type.suffix))[0])


class ListState(Variable):
    """A list for each key."""

    def __init__(self, type_: VariableType, rows: RowAccess, current: Current) -> None:
        super().__init__(type_, rows, current)
        self._open = 0, b"", 0
        """Transaction, key and number of the chunk that takes further elements: others are written once."""

    def get(self) -> Iterator[Any]:
        """Yield the elements, as of the first step, whatever changes meanwhile."""
        for row in self._chunks(self._place()):
            for expiry, *fields in self._elements(row):
                if not is_expired(expiry, self._current.batch_ms):
                    yield self.type.row_type.value_of(fields)

    def exists(self) -> bool:
        """Tell whether there is any element."""
        return any(True for _ in self.get())

    def put(self, values: Iterable[Any]) -> None:
        """Set the list; an empty one is cleared.

        Raises:
            ValidationError: an element does not fit the declared type; the error names variable and field.
        """
        elements = self._encoded_elements(values)
        self.clear()
        self._add(elements, self._expiry())

    def append(self, value: Any) -> None:
        """Add an element at the end; raises as `put` does."""
        self._add(self._encoded_elements((value,)), self._expiry())

    def extend(self, values: Iterable[Any]) -> None:
        """Add elements at the end; raises as `put` does."""
        self._add(self._encoded_elements(values), self._expiry())

    def load(self, elements: Sequence[tuple[Any, int | None]]) -> None:
        """Add elements at the end, each with the expiry that it came with; raises as `put` does."""
        encode = self.type.row_type.encode_element
        try:
            encoded = [encode(value, expiry) for value, expiry in elements]
        except ValidationError as error:
            raise error.under(self.type.name) from error
        self._add(encoded, min((each for _, each in elements if each is not None), default=None))

    def clear(self) -> None:
        """Remove all elements."""
        place = self._place()
        base = self._rows.get(place, self.type.suffix)
        if base is not None and content_of(base)[:1] == _HEAD:
            first, following = self._bounds(base)
            for number in range(first, following):
                self._rows.put(place, self._chunk(number), None)
        self._rows.put(place, self.type.suffix, None)
        self._open = 0, b"", 0

    def committed(self) -> list[Any]:
        """Return the elements, as a query shows them."""
        return list(self.get())

    def expire(self, place: bytes, suffix: bytes) -> None:
        """Remove the expired elements of a row; have a sweep look at the others later."""
        row = self._rows.get(place, suffix)
        if row is None or expiry_of(row) is None:
            return
        kept = [
            element
            for element in self._elements(row)
            if not is_expired(element[0], self._current.batch_ms)
        ]
        if kept:
            self._write_again(place, suffix, kept)
            # A rebuilt index files a row at its exact expiry, so the rest may belong to the same 64th of the TTL: the
            # write then assumes that the row is still filed, but the sweep has removed the entry.
            written = self._rows.get(place, suffix)
            if written is not None and (expiry := expiry_of(written)) is not None:
                self._rows.file(self._filed_at(expiry), place, suffix)
            return
        self._rows.put(place, suffix, None)
        if suffix != self.type.suffix:
            self._forget_chunk(place, suffix)

    def _forget_chunk(self, place: bytes, suffix: bytes) -> None:
        """Let the head begin behind chunks that are gone, so that a list which only grows does not grow it."""
        base = self._rows.get(place, self.type.suffix)
        if base is None or content_of(base)[:1] != _HEAD:
            return
        first, following = self._bounds(base)
        while first < following and self._rows.get(place, self._chunk(first)) is None:
            first += 1
        self._write_head(place, first, following)
        if first == following:
            self._rows.put(place, self.type.suffix, None)

    def _write_again(
        self, place: bytes, suffix: bytes, elements: Sequence[tuple[Any, ...]]
    ) -> None:
        type_ = self.type.row_type
        encoded = [
            type_.encode_element(type_.value_of(fields), expiry) for expiry, *fields in elements
        ]
        earliest = min((each[0] for each in elements if each[0] is not None), default=None)
        self._write_elements(place, suffix, encoded, earliest)

    def _encoded_elements(self, values: Iterable[Any]) -> list[bytes]:
        expiry = self._expiry()
        try:
            return [self.type.row_type.encode_element(value, expiry) for value in values]
        except ValidationError as error:
            raise error.under(self.type.name) from error

    def _add(self, elements: Sequence[bytes], earliest: int | None) -> None:
        """Add elements, none of which expires before a time; None: none ever does."""
        if not elements:
            return
        place, suffix = self._place(), self.type.suffix
        base = self._rows.get(place, suffix)
        if base is None:
            if sum(map(len, elements)) <= CHUNK_BYTES:
                self._write_elements(place, suffix, elements, earliest)
                return
            self._add_chunks(place, (0, 0), elements, earliest)
        elif content_of(base)[:1] == _INLINE:
            if schema_of(base) != self.type.schema_id:
                self._write_again(place, suffix, self._elements(base))
                base = self._rows.get(place, suffix) or b""
            if len(base) + sum(map(len, elements)) <= CHUNK_BYTES:
                self._append_to(place, suffix, base, elements, earliest)
                return
            # The row becomes the first chunk.
            if (expiry := expiry_of(base)) is not None:
                self._rows.unfile(self._filed_at(expiry), place, suffix)
                self._rows.file(self._filed_at(expiry), place, self._chunk(0))
            self._rows.put(place, self._chunk(0), base)
            self._add_chunks(place, (0, 1), elements, earliest)
        else:
            first, following = self._bounds(base)
            if self._open == (self._current.transaction, place, following - 1):
                chunk = self._rows.get(place, self._chunk(following - 1))
                if chunk is not None and len(chunk) < CHUNK_BYTES:
                    self._append_to(place, self._chunk(following - 1), chunk, elements, earliest)
                    return
            self._add_chunks(place, (first, following), elements, earliest)

    def _add_chunks(
        self,
        place: bytes,
        bounds: tuple[int, int],
        elements: Sequence[bytes],
        earliest: int | None,
    ) -> None:
        first, following = bounds
        part: list[bytes] = []
        size = 0
        for element in elements:
            if part and size + len(element) > CHUNK_BYTES:
                self._write_elements(place, self._chunk(following), part, earliest)
                part, size, following = [], 0, following + 1
            part.append(element)
            size += len(element)
        self._write_elements(place, self._chunk(following), part, earliest)
        self._write_head(place, first, following + 1)
        self._open = self._current.transaction, place, following

    def _write_head(self, place: bytes, first: int, following: int) -> None:
        content = _HEAD + _BOUNDS.pack(first, following)
        self._rows.put(place, self.type.suffix, new_row(self.type.schema_id, None, content))

    def _write_elements(
        self, place: bytes, suffix: bytes, elements: Sequence[bytes], earliest: int | None
    ) -> None:
        content = b"".join((_INLINE, _ARRAY.pack(_ARRAY_32, len(elements)), *elements))
        self._write(place, suffix, earliest, content)

    def _append_to(
        self,
        place: bytes,
        suffix: bytes,
        row: bytes,
        elements: Sequence[bytes],
        earliest: int | None,
    ) -> None:
        """Add elements behind those of a row, which need not be decoded."""
        content = content_of(row)
        _, count = _ARRAY.unpack_from(content, 1)
        behind = content[1 + _ARRAY.size :]
        header = _ARRAY.pack(_ARRAY_32, count + len(elements))
        # The row's is the earliest of its elements'.
        expiry = expiry_of(row)
        if expiry is None or (earliest is not None and earliest < expiry):
            expiry = earliest
        self._write(place, suffix, expiry, b"".join((_INLINE, header, behind, *elements)))

    def elements_in(self, row: bytes) -> int:
        """Return the number of elements that a row has, expired ones too; a head has none."""
        content = content_of(row)
        if content[:1] == _HEAD:
            return 0
        _, count = _ARRAY.unpack_from(content, 1)
        return int(count)

    def _elements(self, row: bytes) -> list[tuple[Any, ...]]:
        return self._decoding(row).decode_elements(content_of(row)[1:])

    def _chunks(self, place: bytes) -> list[bytes]:
        base = self._rows.get(place, self.type.suffix)
        if base is None:
            return []
        if content_of(base)[:1] == _INLINE:
            return [base]
        rows = dict(self._rows.rows_of(place, self.type.suffix))
        # A query looks twice, and a commit may be in between: then what was scanned holds.
        base = rows.pop(self.type.suffix, None)
        if base is not None and content_of(base)[:1] == _INLINE:
            return [base]
        return list(rows.values())

    def _bounds(self, head: bytes) -> tuple[int, int]:
        first, following = _BOUNDS.unpack_from(content_of(head), 1)
        return first, following

    def _chunk(self, number: int) -> bytes:
        return self.type.suffix + _SEQUENCE.pack(number)


KINDS: Final[Mapping[str, type[ValueState] | type[ListState] | type[MapState]]] = {
    each.__name__: each for each in (ValueState, ListState, MapState)
}
"""By the name that is registered."""


class CommittedRows:
    """The rows of a store's last commit; they cannot be changed."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def get(self, place: bytes, suffix: bytes) -> bytes | None:
        """Return a row."""
        row: bytes | None = self._store.committed(place, suffix)
        return row

    def rows_of(self, place: bytes, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return rows in order."""
        rows: list[tuple[bytes, bytes]] = self._store.committed_scan(place, prefix)
        return rows

    def put(self, place: bytes, suffix: bytes, row: bytes | None) -> None:
        """Refuse."""
        raise ValidationError("", "expected no change: this is the state as of the last commit")

    def file(self, time_ms: int, place: bytes, suffix: bytes) -> None:
        """Refuse."""
        self.put(place, suffix, None)

    def unfile(self, time_ms: int, place: bytes, suffix: bytes) -> None:
        """Refuse."""
        self.put(place, suffix, None)
