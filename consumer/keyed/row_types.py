"""Types of rows: what users declare of state, input and output, and how a state row is encoded.

A declaration is a msgspec Struct, a dataclass, an Arrow schema, a table schema as Spark writes it, or the type of a
single value, such as `int` or `list[str]`. Values of the first two are instances; of schemas they are tuples.

    row        MessagePack [field, field, …]
    element    MessagePack [expiry or nil, field, field, …], of a list

What is written is decoded once before it is accepted, so that no value is committed which does not survive that. Stored
rows name the declaration that wrote them: a later one that adds, removes, reorders or widens fields reads them by name.
"""

from __future__ import annotations

import dataclasses
import struct
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property, partial
from typing import (
    Annotated,
    Any,
    Final,
    TypeAlias,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import pyarrow as pa

from broadsheet.consumer.keyed.ddl import parse_ddl
from broadsheet.runtime.errors import ValidationError

# `Any`: the type of a single value may be an alias such as `list[str]`, which is no class.
Declared: TypeAlias = str | pa.Schema | type | Any
"""A declaration of rows."""
SINGLE: Final = "value"
"""Name of the field of a single value."""
_DECIMAL: Final = pa.decimal128(38, 18)
"""Of a field that is declared as Python's Decimal."""
_COLUMNS: Final[Mapping[Any, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
    datetime: pa.timestamp("us", "UTC"),
    Decimal: _DECIMAL,
}
_WIDER: Final[Mapping[str, frozenset[str]]] = {
    "int8": frozenset({"int16", "int32", "int64", "float", "double"}),
    "int16": frozenset({"int32", "int64", "float", "double"}),
    "int32": frozenset({"int64", "float", "double"}),
    "int64": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"binary"}),
    "binary": frozenset({"string"}),
}
"""Types of fields, and those that they may become in a later declaration: those of Avro's schema resolution."""
_NOT_NULL: Final = " not null"
"""Stands in the text of a type behind what is in lists, maps and structs and may not be null."""
_SINGLE: Final = struct.Struct("<f")
_ERRORS: Final = (
    msgspec.MsgspecError,
    TypeError,
    OverflowError,
    RecursionError,
    UnicodeEncodeError,
)
"""What msgspec raises for values that it cannot encode, or does not accept."""


class Field(msgspec.Struct, frozen=True, array_like=True):
    """A field of a declaration, as it is stored beside the rows."""

    name: str
    type: str
    """As text, which two declarations of the same type share."""
    nullable: bool


class StateRowType:
    """One declaration."""

    def __init__(self, declared: Declared) -> None:
        """Read it.

        Raises:
            ValidationError: it is none, has no fields, or a field has a type that cannot be kept.
        """
        self._class: type | None = None
        self._is_single = False
        self._declared: pa.Schema | None = None
        if isinstance(declared, str):
            declared = parse_ddl(declared)
        if isinstance(declared, pa.Schema):
            self._declared = declared
            hints = {field.name: _hint_of(field) for field in declared}
            stored = [Field(each.name, str(each.type), each.nullable) for each in declared]
        else:
            if _has_fields(declared):
                self._class = declared
                hints = _hints_of_class(declared)
            else:
                self._is_single = True
                hints = {SINGLE: _within_64_bits(declared)}
            stored = [_stored(name, hint) for name, hint in hints.items()]
        if not hints:
            raise ValidationError("", "expected at least one field")
        self.names: tuple[str, ...] = tuple(hints)
        self.fields: tuple[Field, ...] = tuple(stored)
        self._hints = hints
        try:
            self._row = msgspec.msgpack.Decoder(tuple[(*hints.values(),)])  # type: ignore[misc]
            self._elements = msgspec.msgpack.Decoder(list[tuple[(int | None, *hints.values())]])  # type: ignore[misc]
        except TypeError as error:
            raise ValidationError("", f"expected types that msgspec can decode: {error}") from error

    @property
    def schema(self) -> pa.Schema:
        """The columns of such rows.

        Raises:
            ValidationError: a field of a class has no type of columns.
        """
        if self._declared is None:
            self._declared = pa.schema([_column_of(*each) for each in self._hints.items()])
        return self._declared

    @property
    def shown_type(self) -> pa.DataType:
        """The type of a column of such values: a struct unless it is a single value; text if columns have none."""
        if not self._has_columns:
            return pa.string()
        return self.schema.field(0).type if self._is_single else pa.struct(list(self.schema))

    @cached_property
    def _checks(self) -> Sequence[tuple[int, Check]]:
        """Of fields that columns could not show: one row would keep all of a scan from being shown."""
        return _checks_of(self.schema) if self._has_columns else ()

    @cached_property
    def _has_columns(self) -> bool:
        try:
            return bool(self.schema)
        except ValidationError:
            return False

    def shown(self, value: Any) -> Any:
        """Return a value as such a column takes it; as JSON if it is shown as text."""
        if not self._has_columns:
            return msgspec.json.encode(value).decode()
        if self._is_single:
            return value
        return dict(zip(self.names, self.fields_of(value), strict=True))

    def fields_of(self, value: Any) -> Sequence[Any]:
        """Return the fields of a value, in order.

        Raises:
            ValidationError: it is no such value, or has another number of fields.
        """
        if self._is_single:
            return (value,)
        if self._class is not None:
            if type(value) is not self._class:
                raise ValidationError(
                    "", f"expected a {self._class.__name__}, got {type(value).__name__}"
                )
            return [getattr(value, name) for name in self.names]
        if not isinstance(value, tuple | list):
            raise ValidationError(
                "", f"expected a tuple of ({', '.join(self.names)}), got {type(value).__name__}"
            )
        if len(value) != len(self.names):
            raise ValidationError(
                "", f"expected {len(self.names)} fields ({', '.join(self.names)}), got {len(value)}"
            )
        return value

    def value_of(self, fields: Sequence[Any]) -> Any:
        """Return the value of these fields: an instance of the declared class, a tuple, or a single value."""
        if self._is_single:
            return fields[0]
        if self._class is None:
            return tuple(fields)
        return self._class(**dict(zip(self.names, fields, strict=True)))

    def encode(self, value: Any) -> bytes:
        """Return a row of a value.

        Raises:
            ValidationError: the value does not fit; the error names the field.
        """
        fields = self.fields_of(value)
        try:
            content = msgspec.msgpack.encode(fields)
            self._row.decode(content)
        except _ERRORS as error:
            raise self._unfit(fields, error) from error
        for place, check in self._checks:
            if fields[place] is not None:
                check(fields[place], self.names[place])
        return content

    def encode_element(self, value: Any, expiry_ms: int | None) -> bytes:
        """Return an element of a list.

        Raises:
            ValidationError: as `encode`.
        """
        self.encode(value)
        return msgspec.msgpack.encode((expiry_ms, *self.fields_of(value)))

    def decode(self, content: bytes) -> Sequence[Any]:
        """Return the fields of a row that this declaration wrote."""
        fields: tuple[Any, ...] = self._row.decode(content)
        return fields

    def decode_elements(self, content: bytes) -> list[tuple[Any, ...]]:
        """Return (expiry, *fields) of each of a MessagePack array of elements."""
        rows: list[tuple[Any, ...]] = self._elements.decode(content)
        return rows

    def _unfit(self, fields: Sequence[Any], error: Exception) -> ValidationError:
        for name, field in zip(self.names, fields, strict=True):
            try:
                content = msgspec.msgpack.encode((field,))
                msgspec.msgpack.decode(content, type=tuple[self._hints[name]])  # type: ignore[name-defined]
            except _ERRORS as cause:
                text = str(cause).replace(" - at `$[0]`", "").replace("$[0]", "$")
                return ValidationError(name, f"{text}, got {field!r:.80}")
        return ValidationError("", str(error))


class Evolution:
    """Reads rows of an earlier declaration with the present one, field by field, by name."""

    def __init__(self, written: Sequence[Field], wanted: StateRowType) -> None:
        """Compare the two.

        Raises:
            ValidationError: a field changed its type in a way that values do not survive, or was added without being
                nullable; the error names it.
        """
        self._wanted = wanted
        places = {field.name: place for place, field in enumerate(written)}
        self._places: list[int | None] = []
        self._conversions: list[Conversion | None] = []
        for field in wanted.fields:
            place = places.get(field.name)
            if place is None:
                if not field.nullable:
                    raise ValidationError(
                        field.name, "expected a nullable type of a field that stored rows lack"
                    )
            else:
                _check_widening(written[place], field)
            self._places.append(place)
            former = None if place is None else written[place].type
            self._conversions.append(_conversion(former, field.type))

    def decode(self, content: bytes) -> Sequence[Any]:
        """Return the fields of a row, as the present declaration has them."""
        moved = self._moved(msgspec.msgpack.decode(content))
        return self._wanted.decode(msgspec.msgpack.encode(moved))

    def decode_elements(self, content: bytes) -> list[tuple[Any, ...]]:
        """Return (expiry, *fields) of each of a MessagePack array of elements."""
        rows = [(row[0], *self._moved(row[1:])) for row in msgspec.msgpack.decode(content)]
        return self._wanted.decode_elements(msgspec.msgpack.encode(rows))

    def _moved(self, fields: Sequence[Any]) -> list[Any]:
        moved = [None if place is None else fields[place] for place in self._places]
        return [
            value if convert is None or value is None else convert(value)
            for value, convert in zip(moved, self._conversions, strict=True)
        ]


Conversion: TypeAlias = Callable[[Any], Any]
"""Makes of a stored value one of a wider type."""
Decoding = StateRowType | Evolution
"""What decodes the rows of one schema id."""


def require_no_rename(written: Sequence[Field], wanted: Sequence[Field]) -> None:
    """Refuse a declaration in which a new field stands where the one before had another, with its type.

    Args:
        written: The declaration before.
        wanted: The next one.

    Raises:
        ValidationError: a field seems to be renamed, so that its values would read as null; the error names it.
    """
    former, names = {each.name for each in written}, {each.name for each in wanted}
    for before, after in zip(written, wanted, strict=False):
        is_renamed = before.name not in names and after.name not in former
        if is_renamed and fits(before.type, after.type):
            raise ValidationError(
                after.name,
                f"expected the name {before.name}, as this field is stored: renamed, it would be read as null. Keep "
                "the name, or add a field of another meaning behind the others",
            )


def fits(written: str, wanted: str) -> bool:
    """Tell whether values that were written as one type can be read as another, both as text."""
    if written == wanted or wanted in _WIDER.get(written, ()):
        return True
    # What is in a list, a map or a struct may be null now.
    return _NOT_NULL not in wanted and written.replace(_NOT_NULL, "") == wanted


def _conversion(written: str | None, wanted: str) -> Conversion | None:
    """Return what makes of a stored value one of the wider type; None: it is one."""
    if written == "string" and wanted == "binary":
        return str.encode
    if written == "binary" and wanted == "string":
        # As Avro's reader: bytes that are no text become replacement characters.
        return partial(bytes.decode, errors="replace")
    if wanted == "float" and written != wanted:
        return _as_single
    return None


def _as_single(value: float) -> float:
    """Return the number of single precision next to it, which is what a field of this type holds."""
    rounded: float = _SINGLE.unpack(_SINGLE.pack(value))[0]
    return rounded


def _check_widening(written: Field, wanted: Field) -> None:
    if not fits(written.type, wanted.type):
        raise ValidationError(
            wanted.name,
            f"expected {written.type} as it is stored, or a wider type, got {wanted.type}; give it another name",
        )
    if written.nullable and not wanted.nullable:
        raise ValidationError(wanted.name, "expected a nullable type, as it was stored with")


# -- Arrow's types as Python's


def _hint_of(field: pa.Field) -> Any:
    hint = _plain_hint(field.name, field.type)
    return Union[hint, None] if field.nullable else hint  # noqa: UP007 - of a value


def _plain_hint(name: str, type_: pa.DataType) -> Any:
    if pa.types.is_integer(type_):
        return _bounded(type_)
    for matches, hint in _HINTS:
        if matches(type_):
            return hint
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return list[_hint_of(type_.value_field)]  # type: ignore[misc]
    if pa.types.is_map(type_):
        return dict[_plain_hint(name, type_.key_type), _hint_of(type_.item_field)]  # type: ignore[misc]
    if pa.types.is_struct(type_):
        return TypedDict(name, {each.name: _hint_of(each) for each in type_})  # type: ignore[operator]  # functional
    if pa.types.is_timestamp(type_):
        return datetime
    raise ValidationError(name, f"expected a type that state can hold, got {type_}")


_HINTS: Final[Sequence[tuple[Callable[[pa.DataType], bool], Any]]] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_floating, float),
    (pa.types.is_string, str),
    (pa.types.is_large_string, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_large_binary, bytes),
    (pa.types.is_date32, date),
    (pa.types.is_decimal, Decimal),
)


def _bounded(type_: pa.DataType) -> Any:
    bits = type_.bit_width
    if pa.types.is_signed_integer(type_):
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    else:
        low, high = 0, (1 << bits) - 1
    # msgspec's bounds are 64-bit and signed themselves; MessagePack keeps the others out.
    limits = {"ge": low} | ({"le": high} if high < 1 << 63 else {})
    return Annotated[int, msgspec.Meta(**limits)]


# -- decimals, whose digits MessagePack does not bound

Check: TypeAlias = Callable[[Any, str], None]
"""Raises a ValidationError for a value that a field of a name does not hold."""


def _checks_of(schema: pa.Schema) -> list[tuple[int, Check]]:
    """Return the checks of a table's fields, each with the field's place."""
    checks = [_check_of(field.type) for field in schema]
    return [(place, check) for place, check in enumerate(checks) if check is not None]


def _check_of(type_: pa.DataType) -> Check | None:
    """Return the check of the decimals in a type; None if there are none."""
    if pa.types.is_decimal(type_):
        return partial(_check_decimal, type_)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        element = _check_of(type_.value_field.type)
        return None if element is None else partial(_check_each, element, list)
    if pa.types.is_map(type_):
        parts = ((_check_of(type_.key_type), dict.keys), (_check_of(type_.item_type), dict.values))
        return _all_of([partial(_check_each, check, of) for check, of in parts if check])
    if pa.types.is_struct(type_):
        fields = ((each.name, _check_of(each.type)) for each in type_)
        return _all_of([partial(_check_within, check, name) for name, check in fields if check])
    return None


def _check_decimal(type_: pa.DataType, value: Decimal, name: str) -> None:
    if not value.is_finite():
        raise ValidationError(name, f"expected a number of {type_}, got {value}")
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "it is finite"
    written = "".join(map(str, digits)).rstrip("0")
    exponent += len(digits) - len(written)
    if written and (
        exponent < -type_.scale or len(written) + exponent > type_.precision - type_.scale
    ):
        raise ValidationError(
            name,
            f"expected at most {type_.precision - type_.scale} digits before the point and {type_.scale} behind it "
            f"({type_}), got {value!s:.80}",
        )


def _check_each(check: Check, of: Callable[[Any], Iterable[Any]], value: Any, name: str) -> None:
    for each in of(value):
        if each is not None:
            check(each, name)


def _check_within(check: Check, field: str, value: Mapping[str, Any], name: str) -> None:
    if value.get(field) is not None:
        check(value[field], f"{name}.{field}")


def _all_of(checks: Sequence[Check]) -> Check | None:
    def check(value: Any, name: str) -> None:
        for each in checks:
            each(value, name)

    return check if checks else None


# -- classes


def _has_fields(declared: Any) -> bool:
    if not isinstance(declared, type) or get_origin(declared) is not None:
        return False
    return issubclass(declared, msgspec.Struct) or dataclasses.is_dataclass(declared)


def _hints_of_class(declared: Any) -> dict[str, Any]:
    if issubclass(declared, msgspec.Struct):
        names = declared.__struct_fields__
    else:
        names = tuple(field.name for field in dataclasses.fields(declared) if field.init)
    hints = get_type_hints(declared, include_extras=True)
    return {name: _within_64_bits(hints[name]) for name in names}


def _within_64_bits(hint: Any) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] if hint is int else hint


def _stored(name: str, hint: Any) -> Field:
    bare, nullable = _without_none(hint)
    try:
        return Field(name, str(_column_type(name, bare)), nullable)
    except ValidationError:
        return Field(name, str(bare), nullable)


def _column_of(name: str, hint: Any) -> pa.Field:
    bare, nullable = _without_none(hint)
    return pa.field(name, _column_type(name, bare), nullable)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        parts = [each for each in get_args(hint) if each is not type(None)]
        nullable = len(parts) < len(get_args(hint))
        return (parts[0] if len(parts) == 1 else Union[tuple(parts)]), nullable  # noqa: UP007
    return hint, False


def _column_type(name: str, hint: Any) -> pa.DataType:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _column_type(name, args[0])
    if origin is list:
        item, nullable = _without_none(args[0])
        return pa.list_(pa.field("item", _column_type(name, item), nullable))
    if origin is dict:
        item, nullable = _without_none(args[1])
        key = _column_type(name, args[0])
        return pa.map_(key, pa.field("value", _column_type(name, item), nullable))
    found = _COLUMNS.get(hint) if isinstance(hint, typing.Hashable) else None
    if found is None:
        raise ValidationError(name, f"expected a type that columns have, got {hint}")
    return found
