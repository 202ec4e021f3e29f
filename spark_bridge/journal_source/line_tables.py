"""Finds messages and their UUIDs in JSON lines, without Python work for each line.

Publishers write `_meta` last or first. Whole chunks of such lines are searched at once; other lines are parsed one by
one.

    ...,"_meta":{"uuid":"8d5a7f00-c6d2-11f0-8400-9b5c1ddad2f3"}}
    {"_meta":{"uuid":"8d5a7f00-c6d2-11f0-8400-9b5c1ddad2f3"...

Pure.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from broadsheet.journals.content.json import NDJSON, json_uuid_of
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.framing import FRAME_BYTES_MAX
from broadsheet.spark_bridge.journal_source.message_table import (
    DAMAGED,
    FrameTables,
    MessageTable,
    Offsets,
    table_of,
)

_UUID_CHARACTERS: Final = 36
_HYPHENS: Final = (8, 13, 18, 23)
_NEWLINE: Final = ord("\n")
_WORD: Final = 8
_ALL_TRUE: Final = np.uint64(0x0101010101010101)
"""Eight booleans in a word."""
Uuids: TypeAlias = NDArray[np.uint8]
"""Shape (M, 16)."""


class _Template:
    """The text around a UUID at a fixed place of a line."""

    def __init__(self, before: bytes, after: bytes) -> None:
        self.size = len(before) + _UUID_CHARACTERS + len(after)
        """Bytes."""
        self._window = -(-self.size // _WORD) * _WORD
        hyphens = len(before) + np.array(_HYPHENS)
        digits = np.setdiff1d(len(before) + np.arange(_UUID_CHARACTERS), hyphens)
        text = bytearray(before + b"-" * _UUID_CHARACTERS + after).ljust(self._window, b"\0")
        mask = bytearray(b"\xff" * self.size).ljust(self._window, b"\0")
        for digit in digits.tolist():
            text[digit] = mask[digit] = 0
        masks = np.frombuffer(mask, dtype=np.uint64)
        texts = np.frombuffer(text, dtype=np.uint64)
        self._fixed = [(word, masks[word], texts[word]) for word in np.flatnonzero(masks).tolist()]
        # Slices are copied in one piece each; picked by an array of indices, each byte would be.
        cuts = np.flatnonzero(np.diff(digits) > 1) + 1
        self._digits = [slice(int(run[0]), int(run[-1]) + 1) for run in np.split(digits, cuts)]

    def match(self, buffer: NDArray[np.uint8], places: Offsets) -> tuple[NDArray[np.bool_], Uuids]:
        """Find the template at places of a buffer.

        Args:
            buffer: Lines, and `_WORD` bytes more, because whole words are compared.
            places: Where the template should begin in each of N lines; -1 if the line has no room for it.

        Returns:
            The lines that match, shape (N,), and the UUIDs of those, shape (M, 16).
        """
        matching = places >= 0
        if not matching.any():
            return matching, np.zeros((0, 16), dtype=np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(buffer, self._window)
        found = windows[np.where(matching, places, 0)]
        words = found.view(np.uint64)
        for word, mask, text in self._fixed:
            matching &= (words[:, word] & mask) == text
        digits = np.concatenate([found[:, each] for each in self._digits], axis=1)
        # Checked line by line, so that the result for one never depends on the others that arrive with it.
        matching &= _are_hexadecimal(digits)
        return matching, _bytes_of(digits if matching.all() else digits[matching])


def _are_hexadecimal(digits: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Tell for each row of 32 characters whether all are hexadecimal digits."""
    # Differences below zero wrap to large ones.
    each = (digits - ord("0") < 10) | ((digits | 0x20) - ord("a") < 6)
    first, second, third, fourth = each.view(np.uint64).T
    return np.asarray((first & second & third & fourth) == _ALL_TRUE)


def _bytes_of(digits: NDArray[np.uint8]) -> Uuids:
    """Return the bytes that rows of 32 hexadecimal digits stand for."""
    nibbles = (digits & 0xF) + 9 * (digits >> 6)
    pairs = nibbles.view("<u2")
    return ((pairs << 4) | (pairs >> 8)).astype(np.uint8)


# The key's quote begins a string, because within a string a backslash would precede it; the braces close it and the
# whole message. So this is the `_meta` of the message and not of something in it.
_LAST: Final = _Template(b',"_meta":{"uuid":"', b'"}}')
_FIRST: Final = _Template(b'{"_meta":{"uuid":"', b'"')


class LineTables:
    """Turns a journal's lines into tables as they arrive."""

    def __init__(self, journal: str) -> None:
        self._journal = journal
        self._pending = b""
        self._offset = 0

    def restart(self, offset: int) -> None:
        """Go on at `offset`, where a line begins; a line under way is dropped."""
        self._pending, self._offset = b"", offset

    def feed(self, content: bytes) -> MessageTable:
        """Take the bytes that follow, and return the messages that end in them.

        Raises:
            FramingError: a line is no JSON message, or longer than `FRAME_BYTES_MAX`.
        """
        buffer = self._pending + content
        starts, stops = bounds_of_lines(buffer)
        used = int(stops[-1]) + 1 if len(stops) else 0
        self._pending = buffer[used:]
        # Content without a line end would otherwise fill the memory. A line that is whole counts too, so that it does
        # not depend on how the bytes arrive.
        if len(buffer) > FRAME_BYTES_MAX:
            begins, sizes = np.append(starts, used), np.append(stops - starts, len(self._pending))
            for index in np.flatnonzero(sizes > FRAME_BYTES_MAX)[:1].tolist():
                at = self._offset + int(begins[index])
                detail = f"a line of more than {FRAME_BYTES_MAX} bytes"
                raise FramingError(self._journal, offset=at, detail=detail)
        try:
            uuids = uuids_of_lines(buffer, starts, stops)
        except NoMessageError as error:
            at = self._offset + error.position
            raise FramingError(self._journal, offset=at, detail=str(error)) from error
        begins, ends = starts + self._offset, stops + (self._offset + 1)
        self._offset += used
        return table_of(begins, ends, uuids)


class NoMessageError(ValueError):
    """A line is not a JSON message."""

    def __init__(self, position: int, problem: str) -> None:
        super().__init__(problem)
        self.position = position
        """Offset of the line in the buffer, bytes."""


def bounds_of_lines(buffer: bytes) -> tuple[Offsets, Offsets]:
    """Return the offsets of each whole line and of its newline, shape (N,) each, bytes."""
    codes = np.frombuffer(buffer, dtype=np.uint8)
    stops = np.flatnonzero(codes == _NEWLINE)
    starts = np.empty_like(stops)
    starts[:1] = 0
    starts[1:] = stops[:-1] + 1
    return starts, stops


def uuids_of_lines(buffer: bytes, starts: Offsets, stops: Offsets) -> bytes:
    """Return the UUIDs of N lines, 16 bytes each, one after the other; zero bytes for a line without one.

    Raises:
        NoMessageError: a line is not a JSON message, or its UUID is invalid.
    """
    uuids, errors = _uuids_and_errors(buffer, starts, stops)
    for index, error in errors.items():
        raise NoMessageError(int(starts[index]), str(error)) from error
    return uuids


def _uuids_and_errors(
    buffer: bytes, starts: Offsets, stops: Offsets
) -> tuple[bytes, dict[int, ValueError]]:
    """Return the UUIDs of N lines, zero bytes for those that are not messages, and the errors of these."""
    # The last line is compared like all others: if it were parsed instead, the result would depend on what follows it.
    codes = np.frombuffer(buffer + bytes(_WORD), dtype=np.uint8)
    uuids = np.zeros((len(stops), 16), dtype=np.uint8)
    errors: dict[int, ValueError] = {}
    todo = np.arange(len(stops))
    for template, from_end in ((_LAST, True), (_FIRST, False)):
        if not len(todo):
            break
        places = stops[todo] - template.size if from_end else starts[todo]
        # A place outside its line counts as no match.
        places = np.where(stops[todo] - starts[todo] >= template.size, places, -1)
        matching, found = template.match(codes, places)
        uuids[todo[matching]] = found
        todo = todo[~matching]
    for index in todo.tolist():
        try:
            uuid = json_uuid_of(buffer[int(starts[index]) : int(stops[index])])
        except ValueError as error:
            errors[index] = error
        else:
            uuids[index] = np.frombuffer(uuid, dtype=np.uint8)
    return uuids.tobytes(), errors


def _uuid_of_line(line: bytes) -> bytes:
    """Return the UUID of one line, by the same rules as for many."""
    return uuids_of_lines(line, np.array([0]), np.array([len(line)]))


class LineTablesAroundDamage:
    """Turns a journal's lines into tables in which lines that are not messages are damaged records."""

    def __init__(self, journal: str) -> None:
        self._journal = journal
        self.restart(0)

    def restart(self, offset: int) -> None:
        """Go on at `offset`, where a line begins; a line under way is dropped."""
        self._offset, self._pending = offset, b""
        self._slow: FrameTables | None = None

    def feed(self, content: bytes) -> MessageTable:
        """Add the next bytes, and return the messages and damaged records that end in them."""
        if self._slow is not None:
            return self._slow.feed(content)
        buffer = self._pending + content
        starts, stops = bounds_of_lines(buffer)
        used = int(stops[-1]) + 1 if len(stops) else 0
        if max(len(buffer) - used, int((stops - starts).max(initial=0))) > FRAME_BYTES_MAX:
            # The line is too long; the unframer knows where it began, and bounds memory.
            self._slow = FrameTables(self._journal, NDJSON, _uuid_of_line, read_around=True)
            self._slow.restart(self._offset)
            return self._slow.feed(buffer)
        uuids, errors = _uuids_and_errors(buffer, starts, stops)
        table = table_of(starts + self._offset, stops + (self._offset + 1), uuids)
        table.flags[list(errors)] = DAMAGED
        self._pending, self._offset = buffer[used:], self._offset + used
        return table
