"""Table schemas as Spark writes them, as Arrow schemas: `user string, amount decimal(10,2) NOT NULL`.

Source: Spark SQL's grammar of data types (SqlBaseParser.g4: colTypeList, dataType), for the types that Arrow has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from broadsheet.runtime.errors import ValidationError

_WORD: Final = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\w+|[<>(),:])")
_PLAIN: Final = {
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL_DEFAULT: Final = (10, 0)
"""Precision and scale of `decimal` alone."""


def parse_ddl(text: str) -> pa.Schema:
    """Return the columns of a table schema.

    Raises:
        ValidationError: it is none; the error names the place.
    """
    parser = _Parser(text)
    fields = parser.fields(end="")
    if len({field.name for field in fields}) < len(fields):
        raise ValidationError("", f"expected distinct names of columns, got {text!r}")
    return pa.schema(fields)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._words = self._split(text)
        self._at = 0

    def fields(self, *, end: str) -> list[pa.Field]:
        """Take `name type` pairs up to `end`, which is taken too."""
        fields = [self._field()]
        while (word := self._take()) == ",":
            fields.append(self._field())
        if word != end:
            raise self._wrong(f"{end or 'the end'} or a comma", word)
        return fields

    def _field(self) -> pa.Field:
        name = self._take()
        if not re.fullmatch(r"\w+|`.*`", name):
            raise self._wrong("the name of a column", name)
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        if self._peek() == ":":
            self._take()
        type_ = self._type()
        nullable = True
        if self._peek().lower() == "not":
            self._take()
            self._expect("null")
            nullable = False
        if self._peek().lower() == "comment":
            self._take()
            self._take()
        return pa.field(name, type_, nullable)

    def _type(self) -> pa.DataType:
        word = self._take()
        name = word.lower()
        if name in ("varchar", "char"):
            self._numbers()
            return pa.string()
        if name in ("decimal", "dec", "numeric"):
            numbers = self._numbers() if self._peek() == "(" else _DECIMAL_DEFAULT
            return pa.decimal128(numbers[0], numbers[1] if len(numbers) > 1 else 0)
        if name == "array":
            self._expect("<")
            items = self._type()
            self._expect(">")
            return pa.list_(items)
        if name == "map":
            self._expect("<")
            keys = self._type()
            self._expect(",")
            values = self._type()
            self._expect(">")
            return pa.map_(keys, values)
        if name == "struct":
            self._expect("<")
            return pa.struct(self.fields(end=">"))
        if name not in _PLAIN:
            raise self._wrong("a type", word)
        return _PLAIN[name]

    def _numbers(self) -> Sequence[int]:
        self._expect("(")
        numbers = []
        while (word := self._take()) != ")":
            if word.isdecimal():
                numbers.append(int(word))
            elif word != ",":
                raise self._wrong("a number", word)
        if not numbers:
            raise self._wrong("a number", ")")
        return numbers

    def _expect(self, wanted: str) -> None:
        word = self._take()
        if word.lower() != wanted:
            raise self._wrong(repr(wanted), word)

    def _peek(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _take(self) -> str:
        word = self._peek()
        self._at += 1
        return word

    def _wrong(self, expected: str, found: str) -> ValidationError:
        got = repr(found) if found else "the end"
        return ValidationError("", f"expected {expected} in the schema {self._text!r}, got {got}")

    def _split(self, text: str) -> list[str]:
        words, at = [], 0
        stripped = text.rstrip()
        while at < len(stripped):
            match = _WORD.match(stripped, at)
            if match is None:
                raise ValidationError("", f"expected a table schema, got {text!r} (at {at})")
            words.append(match[1])
            at = match.end()
        return words
