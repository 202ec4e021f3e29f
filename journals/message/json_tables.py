"""JSON messages of a batch as an Arrow table, by columns where that gives what a decoder of single messages gives.

Needs pyarrow, which is imported at first use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from broadsheet.journals.content.message_type import MessageRun, undecodable
from broadsheet.journals.message.declared_columns import declared_table
from broadsheet.journals.message.framing import Payloads
from broadsheet.journals.message.json_columns import doubles_of, read_lines
from broadsheet.journals.message.json_errors import why_not_json

if TYPE_CHECKING:
    import pyarrow as pa

_UNCHECKED_NESTING_MAX: Final = 256
"""Number of brackets in a JSON message up to which its nesting needs no check."""
_NESTING_MAX: Final = 400
"""Levels of objects and lists in a message that becomes columns; each may take two of the 1,000 calls of a thread."""
_OPENING_BRACE: Final = ord("{")
_LOWER: Final = 0x20
"""Makes an opening brace of an opening bracket, and of no other character."""
_CLOSING_BRACE: Final = ord("}")
_ASCII_END: Final = 128
_WHITE_SPACE: Final = b" \t\r\n"
"""That of JSON."""
_INTEGER_BITS: Final = 64
_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_exact = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal).decode
_encode_exact = msgspec.json.Encoder(decimal_format="number").encode
_SHOWN: Final = 40
"""Digits of a number in an error."""
_EXACT_DOUBLE_MAX: Final = 1 << 53
"""Up to here, either sign, each integer is a 64-bit floating-point number."""


def json_table(batch: MessageRun, schema: pa.Schema | None) -> pa.Table:
    """Return JSON messages as columns; see `table_of`.

    Raises:
        FramingError: a message cannot be read, or holds an integer that its column would round.
        pyarrow.ArrowException: the messages do not fit the columns, or one table.
    """
    import pyarrow as pa

    payloads = _objects(batch.payloads)
    if payloads is not None:
        try:
            return _json_columns(batch, payloads, schema)
        except pa.ArrowInvalid:
            pass  # Read value by value instead, which knows the rules of JSON and names the message that is none.
    values = list(_values(batch))
    if schema is None:
        # First, because Arrow has other limits, and would not name the place.
        _check_integers(batch, values, None)
        table = pa.Table.from_struct_array(pa.array(values))
        _check_integers(batch, values, table.schema)
        return table
    # Written again, because a decoder keeps the last of a field's values, and Arrow's reader refuses two. As decimals,
    # whose digits are those of the message.
    texts = [_encode_exact(_decode_exact(payload)) for payload in batch.payloads]
    return _json_columns(batch, Payloads.of(texts), schema)


def _objects(payloads: Sequence[bytes]) -> Payloads | None:
    """Return payloads that are in braces each, without white space around them; None if one is not.

    If a parser that knows no lines finds as many objects in them as they are, the payloads are these objects: no string
    of valid JSON holds a newline, and after a closing brace within an object no opening brace may follow, so that no
    object goes on in the next payload.
    """
    views = Payloads.of(payloads)
    edges = views.edges()
    if edges is None:
        return None
    if not _in_braces(edges):
        views = Payloads.of([each.strip(_WHITE_SPACE) for each in views])
        edges = views.edges()
    return views if edges is not None and _in_braces(edges) else None


def _in_braces(edges: tuple[NDArray[np.uint8], NDArray[np.uint8]]) -> bool:
    first, last = edges
    return bool((first == _OPENING_BRACE).all() and (last == _CLOSING_BRACE).all())


def _values(batch: MessageRun) -> Iterator[Any]:
    """Decode and yield JSON objects.

    Raises:
        FramingError: a message is not one; the error names its position.
    """
    for index, payload in enumerate(batch.payloads):
        try:
            yield _object(payload)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            cause = ValueError(f"not a JSON message: {why_not_json(payload, error)}")
            raise undecodable(batch, index, cause) from error


def _json_columns(batch: MessageRun, payloads: Payloads, schema: pa.Schema | None) -> pa.Table:
    """Return objects as columns.

    Raises:
        FramingError: a message cannot be read, or holds a number that its column cannot.
        pyarrow.ArrowException: the messages do not fit the columns, or one table.
    """
    content: Any = payloads.lines()
    if content is None:  # Something lies between them.
        payloads = Payloads.of(list(payloads))
        content = payloads.buffer
    codes = np.frombuffer(content, dtype=np.uint8)
    _check_nesting(batch, payloads, codes)
    check_text(batch, codes)
    if schema is not None:
        return declared_table(content, payloads, schema)
    table = read_lines(content, len(batch), None)
    if any(may_be_rounded(each) for each in doubles_of(table)):
        _check_integers(batch, list(_values(batch)), table.schema)
    return table


def may_be_rounded(numbers: Any) -> bool:
    """Tell whether numbers are so large that a conversion from integers to floating point may round, or has rounded."""
    import pyarrow.compute as pc

    bounds = pc.min_max(numbers).as_py()
    return bounds["min"] is not None and (max(-bounds["min"], bounds["max"]) >= _EXACT_DOUBLE_MAX)


def _check_integers(batch: MessageRun, values: Sequence[Any], schema: pa.Schema | None) -> None:
    """Refuse integers that no inferred column holds, or that the columns of a schema would round.

    Raises:
        FramingError: there is one; the error names its message and field.
    """
    import pyarrow as pa

    kind = None if schema is None else pa.struct(list(schema))
    for index, value in enumerate(values):
        if found := rounded_integer(value, kind):
            raise undecodable(
                batch,
                index,
                ValueError(
                    f"{found}, which a column without a schema would round; give a schema, with "
                    "decimal128(38, 0), uint64, or float64 if it may be rounded"
                ),
            )


def rounded_integer(value: Any, kind: pa.DataType | None, path: str = "") -> str | None:
    """Return path and text of the first integer that a column of an inferred type rounds; None if there is none.

    Args:
        value: A JSON value.
        kind: Its inferred type; None: only integers beyond 64 bits count.
        path: Of the value in its message.
    """
    import pyarrow as pa

    if isinstance(value, dict):
        kinds = {} if kind is None else {field.name: field.type for field in kind}
        parts = [
            (each, kinds.get(name), f"{path}.{name}" if path else name)
            for name, each in value.items()
        ]
    elif isinstance(value, list):
        inner = None if kind is None else kind.value_type
        parts = [(each, inner, f"{path}[{index}]") for index, each in enumerate(value)]
    elif type(value) is int:
        fits = value.bit_length() < _INTEGER_BITS or value == -(1 << (_INTEGER_BITS - 1))
        is_floating = kind is not None and pa.types.is_floating(kind)
        if fits and not (is_floating and int(float(value)) != value):
            return None
        return f"{path} is the integer {str(value)[:_SHOWN]}"
    else:
        return None
    return next(filter(None, (rounded_integer(*part) for part in parts)), None)


def _check_nesting(batch: MessageRun, payloads: Payloads, codes: NDArray[np.uint8]) -> None:
    """Refuse what is nested too deep: Arrow's parser overflows the thread's stack, which kills the process."""
    # The usual case: each message is too short for so many brackets.
    if int((payloads.ends - payloads.begins).max()) <= _UNCHECKED_NESTING_MAX:
        return
    opening = np.flatnonzero((codes | _LOWER) == _OPENING_BRACE)
    starts = payloads.begins - payloads.begins[0]
    bounds = opening.searchsorted(np.append(starts, len(codes)))
    for index in np.flatnonzero(np.diff(bounds) > _UNCHECKED_NESTING_MAX).tolist():
        try:
            value = msgspec.json.decode(batch.payloads[index])
        except RecursionError as error:
            raise undecodable(batch, index, error) from error
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue  # Not JSON: it has no nesting, and the parser refuses it.
        # From Python 3.12 on, the parser goes deeper than functions that follow the types of the columns can.
        if _is_nested_deeper(value, _NESTING_MAX):
            cause = RecursionError(
                f"maximum recursion depth exceeded: more than {_NESTING_MAX} levels"
            )
            raise undecodable(batch, index, cause)


def _is_nested_deeper(value: Any, depth: int) -> bool:
    """Tell whether a JSON value has objects and lists within each other on more levels than `depth`."""
    level = [value]
    for _ in range(depth + 1):
        inner = [each for each in level if isinstance(each, (dict, list))]
        level = [
            part for each in inner for part in (each.values() if isinstance(each, dict) else each)
        ]
    return bool(inner)


def check_text(batch: MessageRun, codes: NDArray[np.uint8]) -> None:
    """Refuse bytes that are not UTF-8, which Arrow's parsers pass on as text."""
    if int(codes.max(initial=0)) < _ASCII_END:
        return
    for index, payload in enumerate(batch.payloads):
        try:
            payload.decode("utf-8")
        except UnicodeDecodeError as error:
            raise undecodable(batch, index, error) from error
