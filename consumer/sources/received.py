"""Messages of other systems with what those say of them: keys, sequence numbers, headers, times.

A source's payloads are `Payload`s: bytes that carry the metadata along. Who takes batches finds it there
(`batch.payloads[i].metadata`); who takes single messages asks for it by the message type:

    KinesisSource("orders", WithMetadata(JsonType()))      # envelope.message is a Received
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from broadsheet.consumer.message.batch import MessageType

MetadataT = TypeVar("MetadataT")


class Payload(bytes, Generic[MetadataT]):
    """The content of one message, and its metadata."""

    metadata: MetadataT
    absent: bool
    """The system has a message here, but no content: Kafka calls it a tombstone."""

    def __new__(cls, content: bytes | None, metadata: MetadataT) -> Payload[MetadataT]:
        """Return the content as bytes; none at all if it is None."""
        payload = super().__new__(cls, content or b"")
        payload.metadata = metadata
        payload.absent = content is None
        return payload


@dataclass(frozen=True, slots=True)
class Received:
    """A message and its metadata."""

    content: Any
    """As the inner message type decodes it; None if there is none."""
    metadata: Any
    """`broadsheet.consumer.sources.kinesis.records.KinesisMetadata`,
    `broadsheet.consumer.sources.kafka.records.KafkaMetadata`.
    """


class WithMetadata:
    """Decodes to `Received`; for messages that a source brings, not for journals."""

    def __init__(self, inner: MessageType) -> None:
        """Wrap the message type of the content."""
        self._inner = inner
        self.content_type = inner.content_type

    def decode(self, payload: bytes) -> Any:
        """Return the `Received` of a payload."""
        if not isinstance(payload, Payload):
            raise ValueError("expected the payload of a source, which has metadata")
        content = None if payload.absent else self._inner.decode(payload)
        return Received(content, payload.metadata)

    def encode(self, message: Any) -> bytes:
        """Return the payload of the content alone."""
        return self._inner.encode(message.content)

    def uuid_of(self, payload: bytes) -> bytes:
        """Return the UUID of the content."""
        return self._inner.uuid_of(payload)

    def set_uuid(self, message: Any, uuid: bytes) -> None:
        """Stamp the content."""
        self._inner.set_uuid(message.content, uuid)

    def new_acknowledgement(self, journal: str) -> Any:
        """Return an acknowledgement of the inner type, received from nowhere."""
        return Received(self._inner.new_acknowledgement(journal), None)
