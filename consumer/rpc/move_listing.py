"""Answers ListMoves, from the ledger in etcd: any member can."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from allocator.errors import ValidationError
from allocator.key_space import KeySpace
from allocator.leader.move_log import Ledger
from allocator.model import ItemId
from consumer.errors import BoundExceededError
from consumer.key_space import is_visible, spec_of
from consumer.move_messages import shard_moves
from consumer.protocol.allocation_pb2 import ListMovesRequest, ListMovesResponse
from consumer.protocol.auth import Claims
from consumer.protocol.shard_pb2 import ShardSpec

PAGE_ENTRIES = 256
PAGE_ENTRIES_MAX = 1024
"""Transactions of one answer: of some hundred moves each it is below what a client takes."""


def _milliseconds(since: Timestamp) -> int:
    try:
        return since.ToMilliseconds()
    except ValueError as error:
        raise ValidationError("since", f"expected a time: {error}") from error


class MoveListing:
    """Lists moves for one member."""

    def __init__(self, ledger: Ledger, key_space: KeySpace) -> None:
        """Prepare.

        Args:
            ledger: Has them.
            key_space: Tells which shards a caller may see.
        """
        self._ledger = ledger
        self._key_space = key_space

    async def page(self, request: ListMovesRequest, claims: Claims) -> ListMovesResponse:
        """Return a page of the moves that the request and the caller's claims select.

        Raises:
            ValidationError: the page's token is none of ours, or its time is none.
            BoundExceededError: the page is too large.
        """
        if request.page_size > PAGE_ENTRIES_MAX:
            raise BoundExceededError(
                f"page_size: expected at most {PAGE_ENTRIES_MAX}, got {request.page_size}"
            )
        if request.page_token and not self._ledger.is_key(request.page_token):
            raise ValidationError("page_token", "expected the next_page_token of an answer before")
        size = request.page_size or PAGE_ENTRIES
        since = _milliseconds(request.since) if request.HasField("since") else 0
        entries = await self._ledger.entries(after=request.page_token, since_milliseconds=since)
        page = entries[:size]
        moves = [
            move
            for kv in page
            for move in shard_moves(kv)
            if request.shard in ("", move.shard)
            and request.member in ("", move.member)
            and self._may_see(move.shard, claims)
        ]
        token = page[-1].key if len(entries) > size else b""
        return ListMovesResponse(moves=moves, next_page_token=token)

    def _may_see(self, shard_id: str, claims: Claims) -> bool:
        """Tell whether the caller's claims cover a shard; of one that is gone only the id can be judged."""
        item = self._key_space.items.get(ItemId(shard_id))
        spec = ShardSpec(id=shard_id) if item is None else spec_of(item)
        return is_visible(spec, claims.selector)
