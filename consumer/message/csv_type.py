"""CSV messages, a record each, with their UUID as the first field.

Source: gazette/core message/csv_framing.go (CSVRecord).
"""

from __future__ import annotations

import csv
import io
from typing import Any

from consumer.message.framing import CSV
from consumer.message.uuid import NIL_UUID, format_uuid

_UUID_CHARACTERS = 36
_LINE_END = "\r\n"


class CsvType:
    """Messages are lists of strings, the first of which is the UUID's text; all have as many fields."""

    content_type = CSV

    def __init__(self, *, columns: int) -> None:
        """Describe records of so many columns, the UUID left out: acknowledgements have as many, empty."""
        self._columns = columns

    def decode(self, payload: bytes) -> Any:
        """Return the fields of a payload."""
        try:
            records = list(
                csv.reader(io.StringIO(payload.decode("utf-8"), newline=""), strict=True)
            )
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"not a CSV record: {error}") from error
        if len(records) != 1:
            raise ValueError(f"expected one CSV record, got {len(records)}")
        return records[0]

    def encode(self, message: Any) -> bytes:
        """Return a record without its line end."""
        text = io.StringIO(newline="")
        # The writer quotes a field that holds a character of its line end, and no other line ends.
        csv.writer(text, lineterminator=_LINE_END).writerow(message)
        return text.getvalue().removesuffix(_LINE_END).encode("utf-8")

    def uuid_of(self, payload: bytes) -> bytes:
        """Return the UUID of the first field; zero bytes if that is empty."""
        text = payload.partition(b",")[0].strip(b'"').decode("ascii", errors="replace")
        if not text:
            return NIL_UUID
        try:
            uuid = bytes.fromhex(text.replace("-", ""))
        except ValueError:
            uuid = b""
        if len(text) != _UUID_CHARACTERS or len(uuid) != len(NIL_UUID):
            raise ValueError(f"the first field {text!r} is no UUID")
        return uuid

    def set_uuid(self, message: Any, uuid: bytes) -> None:
        """Replace the first field."""
        message[0] = format_uuid(uuid)

    def new_acknowledgement(self, journal: str) -> Any:
        """Return empty fields."""
        del journal
        return [""] * (1 + self._columns)
