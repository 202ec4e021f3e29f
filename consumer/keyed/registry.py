"""The registry of a store's variables: their numbers, and every declaration that rows were written with.

It is kept with the state, so that a later version of a processor reads by name what an earlier one wrote.
"""

from __future__ import annotations

from typing import Final

import msgspec

from broadsheet.consumer.keyed.key_codec import KeyCodec
from broadsheet.consumer.keyed.row_types import (
    Declared,
    Decoding,
    Evolution,
    Field,
    StateRowType,
    require_no_rename,
)
from broadsheet.consumer.keyed.state_rows import VARIABLE_BYTES
from broadsheet.consumer.keyed.variables import VariableType
from broadsheet.runtime.errors import ValidationError

REGISTRY: Final = b"variables"
REMOVAL: Final = b"removal"
_NUMBERS_MAX: Final = (1 << 16) - 1


class _Stored(msgspec.Struct):
    number: int
    kind: str
    schemas: list[list[Field]]
    """By schema id."""
    key: list[Field] = []
    """Of a map."""


class Removal(msgspec.Struct):
    """Variables that are removed, and how far the removal of their rows has come."""

    numbers: list[int] = []
    begin: bytes = b""
    """Place and suffix of the first row that was not looked at."""

    @property
    def suffixes(self) -> frozenset[bytes]:
        """The bytes with which the suffixes of their rows begin."""
        return frozenset(map(_two_bytes, self.numbers))

    def encode(self) -> bytes:
        """Return the content to store."""
        return msgspec.msgpack.encode(self)


class Registry:
    """The variables of one store."""

    def __init__(self, content: bytes | None, removal: bytes | None = None) -> None:
        """Read what is stored; None: nothing is.

        Args:
            content: Of the name `REGISTRY`.
            removal: Of the name `REMOVAL`.
        """
        self.removal = (
            Removal() if removal is None else msgspec.msgpack.decode(removal, type=Removal)
        )
        self._variables: dict[str, _Stored] = (
            {} if content is None else msgspec.msgpack.decode(content, type=dict[str, _Stored])
        )
        self.has_changed = False
        self._new: set[str] = set()
        """Variables of which no row can be stored."""

    def encode(self) -> bytes:
        """Return the content to store."""
        return msgspec.msgpack.encode(self._variables)

    def register(
        self, name: str, kind: str, declared: Declared, ttl_ms: int | None, key: Declared | None
    ) -> VariableType:
        """Return the type of a variable; note it if it is new.

        Raises:
            ValidationError: the declaration is none, or rows that were written with an earlier one cannot be read with
                it; the error names variable and field.
        """
        try:
            row_type = StateRowType(declared)
            key_type = None if key is None else StateRowType(key)
            codec = None if key_type is None else KeyCodec(key_type.schema)
            stored = self._stored(name, kind, key_type)
            fields = list(row_type.fields)
            if fields not in stored.schemas:
                if stored.schemas:
                    require_no_rename(stored.schemas[-1], fields)
                stored.schemas.append(fields)
                self.has_changed = True
            decoders: dict[bytes, Decoding] = {
                _two_bytes(number): row_type if schema == fields else Evolution(schema, row_type)
                for number, schema in enumerate(stored.schemas)
            }
        except ValidationError as error:
            raise error.under(name) from error
        return VariableType(
            name,
            _two_bytes(stored.number),
            row_type,
            _two_bytes(stored.schemas.index(fields)),
            decoders,
            ttl_ms,
            codec,
            key_type,
        )

    def remove(self, name: str) -> bool:
        """Forget a variable, and have its rows removed; return whether it was there.

        Its number stays taken until the last row is gone, so a variable of the same name begins without any.
        """
        stored = self._variables.pop(name, None)
        if stored is None:
            return False
        self.has_changed = True
        if name in self._new:
            # Nothing is stored of a variable that is declared and removed in one start.
            self._new.remove(name)
            return True
        # From the beginning: earlier rows may be this one's.
        self.removal = Removal([*self.removal.numbers, stored.number])
        return True

    def _stored(self, name: str, kind: str, key_type: StateRowType | None) -> _Stored:
        keys = [] if key_type is None else list(key_type.fields)
        stored = self._variables.get(name)
        if stored is None:
            taken = [each.number for each in self._variables.values()]
            number = 1 + max([*taken, *self.removal.numbers], default=0)
            if number > _NUMBERS_MAX:
                raise ValidationError("", f"expected at most {_NUMBERS_MAX} variables")
            stored = self._variables[name] = _Stored(number, kind, [], keys)
            self._new.add(name)
            self.has_changed = True
        if stored.kind != kind:
            raise ValidationError("", f"expected a {stored.kind}, as it is stored, got a {kind}")
        # Whether a key may be null changes nothing of how keys are stored.
        if [(each.name, each.type) for each in stored.key] != [
            (each.name, each.type) for each in keys
        ]:
            raise ValidationError(
                "", "expected the type of keys that it is stored with: keys cannot change"
            )
        return stored


def _two_bytes(number: int) -> bytes:
    return number.to_bytes(VARIABLE_BYTES)
