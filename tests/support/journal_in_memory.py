"""A journal behind a scripted broker: what its appends wrote, in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

from broadsheet.wire import journal_pb2 as pb
from tests.support.scripted_broker import Context, committed, received

Requests = AsyncIterator[pb.AppendRequest]


class JournalInMemory:
    """What a scripted broker wrote."""

    def __init__(self) -> None:
        self.content = b""

    def write(self, content: bytes) -> pb.AppendResponse:
        """Append, and return the answer to it."""
        begin = len(self.content)
        self.content += content
        return committed(begin, len(self.content))

    async def take(self, requests: Requests, context: Context) -> pb.AppendResponse:
        """Behave well."""
        content, commits = await received(requests)
        assert commits
        return self.write(content)
