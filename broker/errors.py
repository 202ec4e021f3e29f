"""Exceptions of the embedded broker."""

from __future__ import annotations

from broadsheet.runtime.errors import ServiceError


class BrokerDataError(ServiceError):
    """A broker's data directory is in use, damaged, or of another version; `path` names it."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"broker data at {path}: {detail}")
        self.path = path
        self.detail = detail
