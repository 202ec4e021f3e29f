"""Messages of other systems with their metadata: keys, sequence numbers, headers, times.

A source's payloads are `Payload`s: bytes that carry the metadata. A consumer of batches finds it there
(`batch.payloads[i].metadata`); a consumer of single messages requests it by the message type:

    KinesisSource("orders", WithMetadata(JsonType()))      # envelope.message is a Received
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

from broadsheet.consumer.application import RecordHeaders
from broadsheet.journals.message.batch import MessageType

MetadataT = TypeVar("MetadataT")


class Payload(bytes, Generic[MetadataT]):
    """The content of one message, and its metadata."""

    _metadata: MetadataT
    absent: bool
    """True for a message without content, which Kafka calls a tombstone."""

    def __new__(cls, content: bytes | None, metadata: MetadataT) -> Self:
        """Return the content as bytes, empty if it is None."""
        payload = cls._without_metadata(content)
        payload._metadata = metadata  # noqa: SLF001 - its own class makes it
        return payload

    @classmethod
    def _without_metadata(cls, content: bytes | None) -> Self:
        payload = super().__new__(cls, content or b"")
        payload.absent = content is None
        return payload

    @property
    def metadata(self) -> MetadataT:
        """The system's metadata of the message.

        Raises:
            ValueError: it is damaged; only where it is decoded when it is asked for.
        """
        return self._metadata

    @property
    def headers(self) -> RecordHeaders:
        """The message's headers, apart from its other metadata; a system that knows none has none.

        Raises:
            ValueError: they are damaged.
        """
        return ()


@dataclass(frozen=True, slots=True)
class Received:
    """A message and its metadata."""

    content: Any
    """The message as the inner type decodes it; None without content."""
    metadata: Any
    """`broadsheet.consumer.sources.kinesis.records.KinesisMetadata`,
    `broadsheet.consumer.sources.kafka.records.KafkaMetadata`.
    """


@runtime_checkable
class PreparesDecoding(Protocol):
    """A message type that must fetch something before it can decode, such as schemas."""

    def prepare(self, records: Iterable[tuple[bytes, RecordHeaders]]) -> None:
        """Fetch what these payloads, with their headers, need. It may wait, on a thread of the source's.

        Raises:
            SourceError: it cannot be fetched.
        """
        ...


def prepare_of(
    message_type: MessageType,
) -> Callable[[Iterable[tuple[bytes, RecordHeaders]]], None] | None:
    """Return what a source calls with payloads and headers before it passes them on; None: nothing need be fetched."""
    inner = message_type.inner if isinstance(message_type, WithMetadata) else message_type
    return inner.prepare if isinstance(inner, PreparesDecoding) else None


class WithMetadata:
    """Message type that decodes to `Received`; for messages of a source, not of journals."""

    def __init__(self, inner: MessageType) -> None:
        """Wrap the message type of the content."""
        self.inner = inner
        self.content_type = inner.content_type

    def decode(self, payload: bytes) -> Any:
        """Return the `Received` of a payload."""
        if not isinstance(payload, Payload):
            raise ValueError("expected the payload of a source, which has metadata")
        content = None if payload.absent else self.inner.decode(payload)
        # Damaged metadata is a damaged message, for who asks for both.
        return Received(content, payload.metadata)

    def encode(self, message: Any) -> bytes:
        """Return the payload of the content alone."""
        return self.inner.encode(message.content)

    def uuid_of(self, payload: bytes) -> bytes:
        """Return the UUID of the content."""
        return self.inner.uuid_of(payload)

    def set_uuid(self, message: Any, uuid: bytes) -> None:
        """Stamp the content."""
        self.inner.set_uuid(message.content, uuid)

    def new_acknowledgement(self, journal: str) -> Any:
        """Return an acknowledgement of the inner type, without metadata."""
        return Received(self.inner.new_acknowledgement(journal), None)
