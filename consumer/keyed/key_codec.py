"""Keys as bytes: equal keys have equal bytes, and the order of bytes is the order in which keys are processed.

    field = 00, of null  |  01, then the value:
        integers, dates (days), timestamps (µs)     8 bytes, big-endian, sign bit flipped
        floating-point numbers                      8 bytes in total order; −0 is 0, and there is one NaN, the last
        decimals                                    16 bytes, unscaled, as integers
        texts, bytes                                00 written as 00 FF, then 00 00
        truth values                                one byte

Fields follow each other. No key's bytes begin with another key's, so what follows a key needs no separator.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa

from broadsheet.runtime.errors import ValidationError

_NULL: Final = b"\x00"
_PRESENT: Final = b"\x01"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
_SIGN: Final = 1 << 63
_BITS: Final = (1 << 64) - 1
_BIG: Final = 1 << 127
_DECIMAL_BYTES: Final = 16
_pack: Final = struct.Struct(">Q").pack
_unpack_from: Final = struct.Struct(">Q").unpack_from
_float_bits: Final = struct.Struct(">d")

_ERRORS: Final = (TypeError, ValueError, AttributeError, ArithmeticError, struct.error)
"""What an encoding raises for a value of another type."""

Encode: TypeAlias = Callable[[Any], bytes]
Decode: TypeAlias = Callable[[bytes, int], tuple[Any, int]]


def sortable(number: int) -> bytes:
    """Return a signed 64-bit integer as 8 bytes in the same order."""
    return _pack((number + _SIGN) & _BITS)


def from_sortable(content: bytes, offset: int = 0) -> int:
    """Return the integer that `sortable` encoded at an offset."""
    number: int = _unpack_from(content, offset)[0]
    return number - _SIGN


class KeyCodec:
    """Encodes and decodes keys of some fields."""

    def __init__(self, schema: pa.Schema) -> None:
        """Choose the encodings.

        Raises:
            ValidationError: a field has a type that no key has.
        """
        self.schema = schema
        self.is_plain = all(map(_is_plain, schema.types))
        """Whether decoded keys are the values that Arrow gives of them."""
        codecs = [_codec(field.name, field.type) for field in schema]
        self._encodes = [encode for encode, _ in codecs]
        self._decodes = [decode for _, decode in codecs]

    def encode(self, key: Sequence[Any]) -> bytes:
        """Return the bytes of a key.

        Raises:
            ValidationError: it has another number of fields, or one of another type; the error names it.
        """
        if len(key) != len(self._encodes):
            raise ValidationError(
                "key",
                f"expected {len(self._encodes)} fields ({', '.join(self.schema.names)}), got {len(key)}",
            )
        try:
            return b"".join(
                _NULL if value is None else _PRESENT + encode(value)
                for value, encode in zip(key, self._encodes, strict=True)
            )
        except _ERRORS as error:
            raise self._unfit(key, error) from error

    def encode_prefix(self, fields: Sequence[Any], text: str = "") -> bytes:
        """Return how the bytes of keys begin that have some leading fields.

        Args:
            fields: The leading fields.
            text: Beginning of the next field, which is text; empty: of any value.

        Raises:
            ValidationError: there are more fields than a key has, one is of another type, or the next one is no text.
        """
        count = len(fields)
        if count > len(self._encodes):
            raise ValidationError(
                "prefix",
                f"expected at most {len(self._encodes)} fields ({', '.join(self.schema.names)}), got {count}",
            )
        leading = KeyCodec(pa.schema([self.schema.field(at) for at in range(count)]))
        try:
            begin = leading.encode(fields)
        except ValidationError as error:
            raise ValidationError(
                error.field_path.replace("key", "prefix", 1), error.problem
            ) from error
        if not text:
            return begin
        following = self.schema.field(count) if count < len(self._encodes) else None
        if following is None or not pa.types.is_string(following.type):
            what = (
                "no further field" if following is None else f"{following.name}: {following.type}"
            )
            raise ValidationError(
                "text_prefix", f"expected none: behind the prefix a key has {what}, and no text"
            )
        return begin + _PRESENT + text.encode().replace(b"\x00", b"\x00\xff")

    def encode_all(self, columns: Sequence[Sequence[Any]]) -> list[bytes]:
        """Return the bytes of keys.

        Args:
            columns: Of each field the values of all keys.

        Raises:
            ValidationError: a value is of another type; the error names its field.
        """
        parts = []
        for field, values, encode in zip(self.schema, columns, self._encodes, strict=True):
            try:
                parts.append(
                    [_NULL if value is None else _PRESENT + encode(value) for value in values]
                )
            except _ERRORS as error:
                raise ValidationError(
                    f"key.{field.name}", f"expected {field.type}: {error}"
                ) from error
        return parts[0] if len(parts) == 1 else list(map(b"".join, zip(*parts, strict=True)))

    def decode(self, content: bytes, offset: int = 0) -> tuple[tuple[Any, ...], int]:
        """Return the key at an offset, and where it ends."""
        values: list[Any] = []
        for decode in self._decodes:
            if content[offset : offset + 1] == _NULL:
                values.append(None)
                offset += 1
            else:
                value, offset = decode(content, offset + 1)
                values.append(value)
        return tuple(values), offset

    def _unfit(self, key: Sequence[Any], error: Exception) -> ValidationError:
        for field, value, encode in zip(self.schema, key, self._encodes, strict=True):
            try:
                if value is not None:
                    encode(value)
            except _ERRORS as cause:
                return ValidationError(
                    f"key.{field.name}", f"expected {field.type}, got {value!r:.80}: {cause}"
                )
        return ValidationError("key", str(error))


def _is_plain(type_: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(type_) or types.is_integer(type_) or types.is_boolean(type_))


def _codec(name: str, type_: pa.DataType) -> tuple[Encode, Decode]:
    if pa.types.is_integer(type_) and str(type_) != "uint64":
        return _encode_int, _decode_int
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return _encode_text, _decode_text
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return _encode_bytes, _decode_bytes
    if pa.types.is_floating(type_):
        return _encode_float, _decode_float
    if pa.types.is_boolean(type_):
        return _encode_bool, _decode_bool
    if pa.types.is_date32(type_):
        return _encode_date, _decode_date
    if pa.types.is_timestamp(type_):
        return _encode_time, _decode_aware if type_.tz else _decode_naive
    if pa.types.is_decimal128(type_):
        return _decimals(type_.scale)
    raise ValidationError(
        name,
        "expected a key of text, bytes, integers up to 64 bits (not uint64), floating-point numbers, truth values, "
        f"dates, timestamps or decimal128, got {type_}",
    )


def _encode_int(value: Any) -> bytes:
    if type(value) is not int:
        raise TypeError(f"an integer, not {type(value).__name__}")
    if not -_SIGN <= value < _SIGN:
        raise ValueError("beyond 64 bits")
    return _pack(value + _SIGN)


def _decode_int(content: bytes, offset: int) -> tuple[int, int]:
    return from_sortable(content, offset), offset + 8


def _encode_bytes(value: Any) -> bytes:
    return bytes(value).replace(b"\x00", b"\x00\xff") + b"\x00\x00"


def _decode_bytes(content: bytes, offset: int) -> tuple[bytes, int]:
    end = offset
    while True:
        end = content.index(b"\x00", end)
        if content[end + 1] == 0:
            break
        end += 2
    return content[offset:end].replace(b"\x00\xff", b"\x00"), end + 2


def _encode_text(value: Any) -> bytes:
    return _encode_bytes(value.encode())


def _decode_text(content: bytes, offset: int) -> tuple[str, int]:
    found, end = _decode_bytes(content, offset)
    return found.decode(), end


def _encode_float(value: Any) -> bytes:
    if math.isnan(value):
        return b"\xff" * 8
    bits = int.from_bytes(_float_bits.pack(value or 0.0))
    return _pack(bits | _SIGN if bits < _SIGN else bits ^ _BITS)


def _decode_float(content: bytes, offset: int) -> tuple[float, int]:
    bits: int = _unpack_from(content, offset)[0]
    if bits == _BITS:
        return math.nan, offset + 8
    number: float = _float_bits.unpack(_pack(bits ^ _SIGN if bits >= _SIGN else bits ^ _BITS))[0]
    return number, offset + 8


def _encode_bool(value: Any) -> bytes:
    if type(value) is not bool:
        raise TypeError(f"a truth value, not {type(value).__name__}")
    return b"\x01" if value else b"\x00"


def _decode_bool(content: bytes, offset: int) -> tuple[bool, int]:
    return content[offset] == 1, offset + 1


def _encode_date(value: Any) -> bytes:
    return _pack(value.toordinal() - _EPOCH_DAY + _SIGN)


def _decode_date(content: bytes, offset: int) -> tuple[date, int]:
    return date.fromordinal(from_sortable(content, offset) + _EPOCH_DAY), offset + 8


def _encode_time(value: Any) -> bytes:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return _pack((aware - _EPOCH) // _MICROSECOND + _SIGN)


def _decode_aware(content: bytes, offset: int) -> tuple[datetime, int]:
    return _EPOCH + from_sortable(content, offset) * _MICROSECOND, offset + 8


def _decode_naive(content: bytes, offset: int) -> tuple[datetime, int]:
    value, end = _decode_aware(content, offset)
    return value.replace(tzinfo=None), end


def _decimals(scale: int) -> tuple[Encode, Decode]:
    def encode(value: Any) -> bytes:
        sign, digits, exponent = Decimal(value).as_tuple()
        if not isinstance(exponent, int):
            raise ValueError("not finite")
        shift = exponent + scale
        number = int("".join(map(str, digits)) or "0")
        if shift < 0 and number % 10**-shift:
            raise ValueError(f"more than {scale} decimals")
        number = number * int(10**shift) if shift >= 0 else number // int(10**-shift)
        return (_BIG - number if sign else _BIG + number).to_bytes(_DECIMAL_BYTES)

    def decode(content: bytes, offset: int) -> tuple[Decimal, int]:
        end = offset + _DECIMAL_BYTES
        number = int.from_bytes(content[offset:end]) - _BIG
        # From its digits, because arithmetic would round to the precision of the thread's context.
        digits = tuple(map(int, str(abs(number))))
        return Decimal((int(number < 0), digits, -scale)), end

    return encode, decode
