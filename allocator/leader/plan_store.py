"""The stored plan in etcd: a head and its chunks.

    plan          {"epoch": 7, "generation": 3, "chunks": 2, "digest": "…"}
    plan/000000   bytes
    plan/000001   bytes

Chunks are written first, the head last, each write fenced by the epoch. If the chunks do not match the digest, there is
no plan for the reader: the writer died half way, or is still writing.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec
import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.leader.leadership import Fence
from broadsheet.allocator.leader.stored_plan import StoredPlan, unpack_or_none
from broadsheet.allocator.ops import Delete, Get, Put, prefix_range_end
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.formats import Format

CHUNK_BYTES = 1024 * 1024
"""Size of a chunk, below etcd's default limit of a request, 1.5 MiB."""

PLAN: Final = Format("the head of a leader's plan", "this release makes a plan of its own")

_log = structlog.get_logger()


class PlanHead(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a stored plan: it describes the chunks."""

    epoch: int
    """The leadership that stored the plan."""
    generation: int
    """Grows with every plan that was stored, over all leaders."""
    chunks: int
    digest: str


@dataclass(frozen=True, slots=True)
class FoundPlan:
    """A stored plan, as read back."""

    head: PlanHead
    plan: StoredPlan


class PlanStore:
    """Reads and writes the plan of one root. The plan is only a help for the next leader: a failed write stops
    nothing.
    """

    def __init__(self, etcd: Etcd, keys: AuxiliaryKeys) -> None:
        self._etcd = etcd
        self._keys = keys
        self._generation = 0

    async def load(self) -> FoundPlan | None:
        """Return the stored plan, if it is complete."""
        head_key = self._keys.plan()
        try:
            found = await self._etcd.txn(
                (),
                (
                    Get(head_key),
                    Get(self._keys.plan_prefix, prefix_range_end(self._keys.plan_prefix)),
                ),
            )
        except EtcdError as error:
            _log.warning("plan.load_failed", cause=str(error))
            return None
        heads, chunks = found.gets
        if not heads:
            return None
        try:
            head = PLAN.decode_json(heads[0].value, PlanHead)
        except DocumentError as error:
            _log.warning("plan.unreadable", cause=str(error))
            return None
        # Also of a plan that turns out to be incomplete, because the number must grow with every plan stored.
        self._generation = max(self._generation, head.generation)
        packed = b"".join(kv.value for kv in chunks)
        plan = unpack_or_none(packed) if _digest(packed) == head.digest else None
        # Its writer died half way, or is still writing.
        if plan is None:
            _log.warning(
                "plan.incomplete", key=heads[0].key, epoch=head.epoch, generation=head.generation
            )
            return None
        return FoundPlan(head, plan)

    async def store(self, packed: bytes, fence: Fence) -> bool:
        """Replace the stored plan. False if that failed; leadership may then be lost.

        Args:
            packed: A packed `StoredPlan`.
            fence: The fence of the current leadership.
        """
        self._generation += 1
        chunks = [packed[at : at + CHUNK_BYTES] for at in range(0, len(packed), CHUNK_BYTES)]
        head = PlanHead(
            epoch=fence.epoch,
            generation=self._generation,
            chunks=len(chunks),
            digest=_digest(packed),
        )
        end = prefix_range_end(self._keys.plan_prefix)
        try:
            for number, chunk in enumerate(chunks[:-1]):
                put = Put(self._keys.plan(number), chunk)
                # Another leader writes its own plan by now.
                if not (await self._etcd.txn(fence.compares, (put,))).succeeded:
                    return False
            last = len(chunks) - 1
            result = await self._etcd.txn(
                fence.compares,
                (
                    Put(self._keys.plan(last), chunks[last]),
                    Delete(self._keys.plan(last + 1), end),
                    Put(self._keys.plan(), msgspec.json.encode(head)),
                ),
            )
        except EtcdError as error:
            _log.warning("plan.store_failed", cause=str(error))
            return False
        return result.succeeded


def _digest(packed: bytes) -> str:
    return blake2b(packed, digest_size=16).hexdigest()
