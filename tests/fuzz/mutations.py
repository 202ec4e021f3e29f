"""Mutations of valid bytes, drawn from one seeded generator.

Half of them know nothing of the format (bits, cuts, splices, numbers); the others read the bytes as JSON and change
one value of it, so that what is wrong is not the syntax.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

NESTED: Final = 1_500
"""Brackets: more than Python's recursion limit."""
_NUMBERS: Final = (
    0,
    1,
    -1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    1 << 20,
    (1 << 31) - 1,
    -(1 << 31),
    (1 << 63) - 1,
)
_TEXTS: Final = (
    b"null",
    b"-1",
    b"1e400",
    b"9" * 400,
    b"NaN",
    b'"\\ud800"',
    b"\xff\xfe",
    b"\x00",
    b"[" * NESTED + b"]" * NESTED,
    b'{"a":' * NESTED + b"1" + b"}" * NESTED,
)
_VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    "",
    "x",
    "\ud800",
    "\0",
    -1,
    0,
    1 << 63,
    1 << 64,
    10**400,
    -0.5,
    1e308,
    float("inf"),
    float("nan"),
    [],
    [None],
    {},
    {"": 0},
    "9" * 5_000,
    "2026-02-30T25:00:00Z",
)

Mutation = Callable[[Random, bytearray], None]


def mutant(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Return one mutant of one of the seeds."""
    data = bytearray(random.choice(seeds))
    if data.startswith((b"{", b"[")) and random.random() < 0.5:
        changed = _changed_json(random, bytes(data))
        if changed is not None:
            return changed
    if random.random() < 0.08:
        other = random.choice(seeds)
        cut = random.randrange(len(data) + 1)
        return bytes(data[:cut]) + other[random.randrange(len(other) + 1) :]
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        random.choice(_BLIND)(random, data)
    return bytes(data)


def _flip(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice(
            (0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x2C, 0x0A)
        )


def _number(random: Random, data: bytearray) -> None:
    """Overwrite what may be a length, an offset or a count."""
    size = random.choice((2, 4, 8))
    if len(data) < size:
        return
    at = random.randrange(len(data) - size + 1)
    if random.random() < 0.5:
        at -= at % size
    value = random.choice((*_NUMBERS, len(data), random.randrange(-300, 300))) % (1 << (8 * size))
    data[at : at + size] = value.to_bytes(size, random.choice(("little", "big")))


def _cut(random: Random, data: bytearray) -> None:
    del data[random.randrange(len(data) + 1) :]


def _delete(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    del data[at : at + random.choice((1, 1, 2, 8, 40))]


def _repeat(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    part = data[at : at + random.choice((1, 4, 16, 64))]
    data[at:at] = part * random.choice((1, 2, 50))


def _insert(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.choice(_TEXTS)


def _varint(random: Random, data: bytearray) -> None:
    """Insert the longest number that protobuf knows."""
    at = random.randrange(len(data) + 1)
    data[at:at] = random.choice((b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\xff\xff\xff\xff\x07"))


_BLIND: Final[tuple[Mutation, ...]] = (
    _flip,
    _flip,
    _flip,
    _set,
    _number,
    _number,
    _cut,
    _delete,
    _repeat,
    _insert,
    _varint,
)


def _changed_json(random: Random, data: bytes) -> bytes | None:
    """Return a document with one value or key of it changed; None if the bytes are no JSON."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    places = list(_places(document))
    if not places:
        return None
    holder, key = random.choice(places)
    draw = random.random()
    if draw < 0.15 and isinstance(holder, dict):
        del holder[key]
    elif draw < 0.25 and isinstance(holder, dict):
        holder[random.choice(("", "x", str(key).upper(), "\0"))] = holder.pop(key)
    elif draw < 0.4:
        holder[key] = random.choice(places)[0]  # perhaps itself: then it cannot be written
    else:
        holder[key] = random.choice(_VALUES)
    try:
        text = json.dumps(document, ensure_ascii=random.random() < 0.5)
    except (ValueError, RecursionError):
        return None
    tail = b"\n" if data.endswith(b"\n") else b""
    return text.encode("utf-8", errors="surrogatepass") + tail


def _places(value: Any) -> Sequence[tuple[Any, Any]]:
    """Return every place of a document that holds a value: its dict or list, and the key."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        each = pending.pop()
        items = each.items() if isinstance(each, dict) else enumerate(each)
        for key, inner in items:
            found.append((each, key))
            if isinstance(inner, (dict, list)):
                pending.append(inner)
    return found
