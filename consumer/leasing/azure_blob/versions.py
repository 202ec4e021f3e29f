"""What a version of a record in blobs says: which blobs were read, and under which fence.

The fence is part of it because Azure compares ETags only: a record's version tells whether the fence that a writer
claims to have is that of the record that it read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from consumer.leasing.record import Version

_SEPARATOR: Final = " "
"""In no ETag and no lease id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedVersion:
    """A version, taken apart."""

    etag: str
    """Of the record's blob; empty: there is none, the record stands in its checkpoint's."""
    fence: int
    token: str = ""
    """The id of the native lease on the blob, where there is one."""
    checkpoint_etag: str = ""
    """Of its checkpoint's own blob, where there is one."""

    @classmethod
    def parsed(cls, version: Version) -> Self:
        """Take a version apart."""
        etag, fence, token, checkpoint_etag = version.split(_SEPARATOR)
        return cls(etag=etag, fence=int(fence), token=token, checkpoint_etag=checkpoint_etag)

    def text(self) -> Version:
        """Return the version."""
        parts = (self.etag, str(self.fence), self.token, self.checkpoint_etag)
        return Version(_SEPARATOR.join(parts))
