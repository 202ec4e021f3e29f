"""Divisions of journals as the Elastic service begins and lists them, and the leaving of a journal by a publisher."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import Compare, Put, prefix_range_end
from broadsheet.consumer.elastic.journal_split import (
    JournalSplitPlan,
    JournalSplitRecord,
    decode_journal_split,
    encode_journal_split,
    journal_split_key,
    journal_splits_prefix,
    plan_journal_split,
)
from broadsheet.consumer.errors import SplitConflictError, SplitDelayedError
from broadsheet.consumer.registry.key_space import shard_of
from broadsheet.consumer.resolver.local_shards import LocalShards
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.formats import FormatLevel
from broadsheet.wire.elastic_pb2 import (
    JournalPart,
    LeaveJournalResponse,
    ListJournalSplitsResponse,
    SourceProgressResponse,
    SplitJournalRequest,
    SplitJournalResponse,
)

_log = structlog.get_logger()


class JournalSplits:
    """Begins and lists divisions. The leader's member does the rest (`JournalSplitter`)."""

    def __init__(
        self, membership: LocalMember, local_shards: LocalShards, journals: JournalClient
    ) -> None:
        """Bind to a member.

        Args:
            membership: Of this process; divisions are written to its etcd.
            local_shards: The shards that run here.
            journals: Lists the journals, and learns which are divided.
        """
        self._key_space = membership.key_space
        self._keys = membership.key_space.keys
        self._etcd = membership.etcd
        self._formats = membership.formats
        self._local_shards = local_shards
        self._journals = journals

    async def begin(self, request: SplitJournalRequest) -> SplitJournalResponse:
        """Begin a division, or return its plan.

        Raises:
            ValidationError: the journal cannot be divided so; the error says why.
            JournalNotFoundError: there is no such journal.
            SplitConflictError: it is being divided.
            FormatLevelError: a member of an earlier release would read the parts too early.
        """
        spec = (await self._journals.get(request.journal)).spec
        plan = plan_journal_split(
            spec,
            request.at_group or None,
            shards=(shard_of(item).spec for item in self._key_space.items.values()),
        )
        response = _plan_answer(plan)
        if request.dry_run:
            return response
        if self._formats is not None:
            await self._formats.require(
                FormatLevel.DIVIDED_JOURNALS, what="a journal that is divided"
            )
        key = journal_split_key(self._keys.root, plan.journal)
        result = await self._etcd.txn(
            (Compare.absent(key),), (Put(key, encode_journal_split(plan.record)),)
        )
        if not result.succeeded:
            raise SplitConflictError(
                f"journal {plan.journal} is being divided already: see `shardctl journals splits`"
            )
        _log.info(
            "journal_split.begun",
            journal=plan.journal,
            parts=[f"{each.journal} {each.owned}" for each in plan.parts],
        )
        response.revision = result.header.revision
        return response

    async def list(self) -> ListJournalSplitsResponse:
        """Return the divisions that are not over."""
        prefix = journal_splits_prefix(self._keys.root)
        found = await self._etcd.get_range(prefix, prefix_range_end(prefix))
        response = ListJournalSplitsResponse()
        for kv in found.kvs:
            journal = kv.key[len(prefix) :].decode(errors="replace")
            try:
                record = decode_journal_split(kv.value)
            except DocumentError as error:
                response.splits.add(journal=journal, reason=str(error))
                continue
            response.splits.add(
                journal=journal,
                parts=_parts_of(record),
                phase=record.phase.value,
                reason=record.reason,
            )
        return response

    async def leave(self, shard_id: str, journal: str) -> LeaveJournalResponse:
        """Have a shard's primary here publish into a journal's parts, and all that it published acknowledged.

        Raises:
            SplitDelayedError: not now: it has no primary here, or rests.
            EndpointError: no broker tells the parts.
        """
        shard = self._local_shards.shards.get(ItemId(shard_id))
        if shard is None or not shard.primary:
            raise SplitDelayedError(f"shard {shard_id} has no primary here")
        await self._journals.learn_divided(journal)
        held = await shard.settle_publishing()
        return LeaveJournalResponse(
            assignment_key=held.key, assignment_create_revision=held.create_revision
        )

    def source_progress(self, shard_id: str, source: str) -> SourceProgressResponse:
        """Tell how far the committed checkpoint of a shard's primary here has read a source.

        Raises:
            SplitDelayedError: not now: it has no primary here, or does not serve.
        """
        shard = self._local_shards.shards.get(ItemId(shard_id))
        if shard is None or not shard.primary:
            raise SplitDelayedError(f"shard {shard_id} has no primary here")
        return SourceProgressResponse(read_through=shard.committed_through(source))


def _plan_answer(plan: JournalSplitPlan) -> SplitJournalResponse:
    return SplitJournalResponse(parts=_parts_of(plan.record), readers=plan.readers)


def _parts_of(record: JournalSplitRecord) -> Sequence[JournalPart]:
    return [
        JournalPart(journal=each.journal, begin=each.begin, end=each.end) for each in record.parts
    ]
