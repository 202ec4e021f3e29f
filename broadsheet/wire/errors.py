"""Exceptions that journals and shards have in common."""

from __future__ import annotations

from broadsheet.runtime.errors import ServiceError
from broadsheet.wire import journal_pb2


class ApplyConflictError(ServiceError):
    """A spec's revision is not the expected one: read again, then apply again."""

    def __init__(self, header: journal_pb2.Header | None = None) -> None:
        super().__init__(
            "a spec was changed by another writer: its revision is not the expected one; list and apply again"
        )
        self.header = header
