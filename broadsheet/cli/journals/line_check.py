"""The check of lines that are appended as they are: readers of the journal must be able to decode each."""

from __future__ import annotations

from broadsheet.journals.content.content_type import ContentType
from broadsheet.journals.content.message_type import MessageType
from broadsheet.journals.content.registry import registered
from broadsheet.journals.topic import message_type_of
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, value_of


def line_check(spec: JournalSpec) -> LineCheck | None:
    """Return the check of a journal's lines; None if its content type is none of messages, so any bytes will do.

    Raises:
        ValidationError: the journal's content is no lines.
    """
    content_type = value_of(spec.labels, CONTENT_TYPE)
    if content_type == CONTENT_TYPE_RECOVERY_LOG:
        raise ValidationError(
            "--lines", f"{spec.name} is a recovery log: only its shard appends to it"
        )
    content = registered(content_type)
    if content is None:
        return None
    if not content.is_text:
        raise ValidationError(
            "--lines",
            f"messages of {spec.name} are of {content.name}, which are no lines: use shardctl journals publish",
        )
    return LineCheck(spec.name, content, message_type_of(content, spec, None))


class LineCheck:
    """Check of the lines of one journal, block by block."""

    def __init__(self, journal: str, content: ContentType, message_type: MessageType) -> None:
        self._content = content
        self._message_type = message_type
        self._unframer = content.framing.unframer(journal=journal, offset=0)
        self._rest = b""
        self._line = 1
        """Number of the line at which the next message begins."""

    def checked(self, block: bytes) -> bytes:
        """Return the messages that end in a block, which readers can decode; the last line gets the newline it lacks.

        Raises:
            ValidationError: a line is no message; the error has its number.
        """
        # Without its end, the line and the first one of the next append would be one to readers.
        content = self._rest + (block if block.endswith(b"\n") else block + b"\n")
        frames = self._unframer.feed(content[len(self._rest) :])
        for payload in frames.payloads:
            try:
                self._message_type.uuid_of(payload)
                self._message_type.decode(payload)
            except ValueError as error:
                raise ValidationError(
                    f"line {self._line}", self._problem(payload, error)
                ) from error
            self._line += 1 + payload.count(b"\n")
        # A record whose quote is open is appended with its end.
        complete = len(content) - self._unframer.pending_bytes
        self._rest = content[complete:]
        return content[:complete]

    def require_complete(self) -> None:
        """Refuse an input that ends within a message.

        Raises:
            ValidationError: it does.
        """
        if self._unframer.pending_bytes:
            raise ValidationError(f"line {self._line}", "a quote is not closed")

    def _problem(self, payload: bytes, error: ValueError) -> str:
        if not payload.strip():
            return f"it is empty, and no message of {self._content.name}"
        return f"no message of {self._content.name}: {' '.join(str(error).split())}"
