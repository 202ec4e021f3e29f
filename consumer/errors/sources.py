"""Sources of messages that are no journals: streams and topics of other systems."""

from __future__ import annotations

from consumer.errors.root import ConsumerError


class SourceError(ConsumerError):
    """A stream or topic cannot be read as it was asked for."""

    def __init__(self, source: str, detail: str) -> None:
        """Say which source failed, and how.

        Args:
            source: Name of the stream, topic, or part of it.
            detail: What was met, and what to do if that is known.
        """
        super().__init__(f"source {source}: {detail}")
        self.source = source
        self.detail = detail


class SourceUnavailableError(SourceError, ConnectionError):
    """The system does not answer now, or refuses for a while; nothing about the request is wrong."""


class SourceDataLossError(SourceError):
    """What should follow the checkpoint is not there any more, or something else is in its place."""
