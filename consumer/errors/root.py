"""The root of the consumer framework's exceptions."""

from __future__ import annotations


class ConsumerError(Exception):
    """Root of the consumer framework's exceptions."""
