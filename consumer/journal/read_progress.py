"""Where a read stands: which bytes were delivered, and whether the broker's next message follows from them.

Pure: messages in, spans out. It outlives the RPCs of one reader, so a retry asks for the first undelivered byte.

Source: gazette/core broker/client/reader.go (offset tracking, jumps), rpc_extensions.go (ReadResponse.Validate).
"""

from __future__ import annotations

from dataclasses import dataclass

from allocator.errors import ValidationError
from consumer.journal.wire import ReadChunk
from consumer.protocol.alphabet import require
from consumer.protocol.identity_pb2 import JournalIdentity
from consumer.protocol.journal_pb2 import Fragment, ReadResponse, Status
from consumer.protocol.validation_journal import validate_read_response


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """Consecutive bytes of a journal."""

    offset: int
    """Of the first byte."""
    content: bytes
    jumped: bool = False
    """The bytes before `offset` that had not been delivered are gone from the journal (a hole)."""

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self.offset + len(self.content)


@dataclass(slots=True)
class ReadProgress:
    """What was delivered, and what the current RPC said about the fragment being read."""

    offset: int
    """First undelivered byte; -1 is the write head, until an answer names it."""
    end_offset: int = 0
    """Reading is complete here; 0 is nowhere."""
    write_head: int = 0
    """As of the newest answer."""
    fragment: Fragment | None = None
    """The fragment that holds `offset`, as of the newest answer; without a sum where it has grown since."""
    jumped: bool = False
    """A hole was met, and the bytes after it were not delivered yet."""
    identity: JournalIdentity | None = None
    """Of the journal, as of the newest answer that told it; None from brokers that tell none."""
    in_fragment: bool = False
    """The current RPC has described the fragment that its next chunk belongs to."""

    @property
    def complete(self) -> bool:
        """Whether every byte below `end_offset` was delivered or is gone."""
        return 0 < self.end_offset <= self.offset

    def on_opened(self) -> None:
        """Expect metadata before content: a new RPC was opened."""
        self.in_fragment = False

    def on_metadata(self, response: ReadResponse) -> None:
        """Take a message without content.

        Raises:
            ValidationError: it contradicts itself or goes back.
        """
        validate_read_response(response)
        if response.HasField("identity"):
            self.identity = response.identity
        if response.status in (Status.OK, Status.OFFSET_NOT_YET_AVAILABLE):
            self.write_head = response.write_head
        if response.status != Status.OK:
            if response.status == Status.OFFSET_NOT_YET_AVAILABLE and self.offset < 0:
                self.offset = response.offset
            return
        require(
            response.HasField("fragment"), "fragment", "expected one beside status OK, got none"
        )
        require(
            response.offset >= self.offset,
            "offset",
            f"expected {self.offset} or more, which was asked for, got {response.offset}",
        )
        self.jumped |= 0 <= self.offset < response.offset
        self.offset = response.offset
        self.fragment = response.fragment
        self.in_fragment = True

    def on_chunk(self, chunk: ReadChunk) -> ReadSpan:
        """Take a chunk and return what it adds.

        One that begins where an open fragment ended goes on in it (`consumer.protocol.read_metadata`).

        Raises:
            ValidationError: it goes back, or leaves its fragment.
        """
        offset, content = chunk.offset, chunk.content
        end = offset + len(content)
        if self.fragment is None or not self.in_fragment:
            raise ValidationError("content", "expected metadata before content")
        if offset == self.offset == self.fragment.end and not self.fragment.mod_time:
            self._grow(self.fragment, end)
        require(
            self.offset <= offset and end <= self.fragment.end,
            "offset",
            f"expected content in [{self.offset}, {self.fragment.end}), got [{offset}, {end})",
        )
        require(
            not self.end_offset or end <= self.end_offset,
            "offset",
            f"expected no content from end_offset {self.end_offset} on, got [{offset}, {end})",
        )
        span = ReadSpan(offset, content, jumped=self.jumped or offset > self.offset)
        self.offset = end
        self.jumped = False
        return span

    def _grow(self, fragment: Fragment, end: int) -> None:
        """Take note that the open fragment has come to `end`, and with it the journal."""
        fragment.end = end
        fragment.ClearField("sum")
        self.write_head = max(self.write_head, end)
