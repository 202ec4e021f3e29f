"""Client of the Elastic service: split a shard's keys among two while it serves, merge two, and see how far that is."""

from __future__ import annotations

from collections.abc import Sequence

from broadsheet.consumer.client.log_journals import create_log_journals, missing_log_journals
from broadsheet.consumer.client.member_rpc import MemberClient, RpcMethod, shard_claims
from broadsheet.journals.client import JournalClient
from broadsheet.security.auth import Capability, expiring
from broadsheet.wire.elastic_pb2 import (
    CancelMergeRequest,
    CancelMergeResponse,
    CancelSplitRequest,
    CancelSplitResponse,
    ListJournalSplitsRequest,
    ListJournalSplitsResponse,
    ListMergesRequest,
    ListMergesResponse,
    ListSplitsRequest,
    ListSplitsResponse,
    MergeShardsRequest,
    MergeShardsResponse,
    RollBackTransactionRequest,
    RollBackTransactionResponse,
    SplitJournalRequest,
    SplitJournalResponse,
    SplitShardRequest,
    SplitShardResponse,
)
from broadsheet.wire.elastic_pb2_grpc import ElasticServiceStub
from broadsheet.wire.shard_pb2 import ApplyRequest

_SPLIT = RpcMethod(ElasticServiceStub, "SplitShard", SplitShardResponse)
_CANCEL = RpcMethod(ElasticServiceStub, "CancelSplit", CancelSplitResponse)
_LIST = RpcMethod(ElasticServiceStub, "ListSplits", ListSplitsResponse)
_SPLIT_JOURNAL = RpcMethod(ElasticServiceStub, "SplitJournal", SplitJournalResponse)
_LIST_JOURNALS = RpcMethod(ElasticServiceStub, "ListJournalSplits", ListJournalSplitsResponse)
_ROLL_BACK = RpcMethod(ElasticServiceStub, "RollBackTransaction", RollBackTransactionResponse)
_MERGE = RpcMethod(ElasticServiceStub, "MergeShards", MergeShardsResponse)
_CANCEL_MERGE = RpcMethod(ElasticServiceStub, "CancelMerge", CancelMergeResponse)
_LIST_MERGES = RpcMethod(ElasticServiceStub, "ListMerges", ListMergesResponse)


class ElasticClient(MemberClient):
    """Splits and merges shards. Any member can be asked."""

    async def plan_split(
        self, shard_id: str, *, at_group: int | None = None, child: str = ""
    ) -> SplitShardResponse:
        """Return the plan of a split; change nothing.

        Args:
            shard_id: The shard.
            at_group: First group of keys that the child gets, from 1; None: the median of the shard's measured load, or
                the middle of its range.
            child: Its id; empty: the shard's, and its first group.

        Raises:
            ValidationError: the shard cannot be split so; the error says why.
            RpcFailedError: there is no such shard.
        """
        return await self._split(shard_id, at_group, child, dry_run=True)

    async def split(
        self,
        shard_id: str,
        journals: JournalClient,
        *,
        at_group: int | None = None,
        child: str = "",
    ) -> SplitShardResponse:
        """Make the child's recovery log, then begin the split; return its plan. The members do the rest.

        Args:
            shard_id: The shard.
            journals: Client of the brokers of its log.
            at_group: As `plan_split`.
            child: As `plan_split`.

        Raises:
            ValidationError: the shard cannot be split so; the error says why.
            RpcFailedError: there is no such shard, or it changed meanwhile.
        """
        plan = await self._split(shard_id, at_group, child, dry_run=True)
        change = ApplyRequest.Change(upsert=plan.child)
        await create_log_journals(await missing_log_journals([change], journals), journals)
        return await self._split(shard_id, plan.given_begin, plan.child.id, dry_run=False)

    async def cancel_split(self, child: str) -> int:
        """Give a split up, as long as the child does not serve; return etcd's revision.

        Raises:
            ValidationError: it serves, or is no fork.
            RpcFailedError: there is no such shard, or it changed meanwhile.
        """
        response, _ = await self._rpc.request(
            _CANCEL, CancelSplitRequest(child=child), shard_claims(Capability.APPLY, child)
        )
        revision: int = response.revision
        return revision

    async def splits(self) -> Sequence[ListSplitsResponse.Split]:
        """Return the splits that are not over, by child."""
        response, _ = await self._rpc.request(_LIST, ListSplitsRequest(), expiring(Capability.LIST))
        return list(response.splits)

    async def merge(
        self, shard_id: str, other: str, *, survivor: str = "", dry_run: bool = False
    ) -> MergeShardsResponse:
        """Begin a merge of two neighbours of a family, or only plan it; return its plan. The members do the rest.

        Args:
            shard_id: One of the two.
            other: The other one.
            survivor: Which of them goes on with the keys of both; empty: the first.
            dry_run: Tell the plan, and change nothing.

        Raises:
            ValidationError: they cannot be merged so; the error says why.
            RpcFailedError: there is no such shard, or one changed meanwhile.
        """
        response, _ = await self._rpc.request(
            _MERGE,
            MergeShardsRequest(shard=shard_id, other=other, survivor=survivor, dry_run=dry_run),
            shard_claims(Capability.APPLY, shard_id, other),
        )
        return response

    async def cancel_merge(self, survivor: str) -> int:
        """Give a merge up, as long as the absorbed shard serves; return etcd's revision.

        Raises:
            ValidationError: the shard takes over no other one.
            RpcFailedError: there is no such shard, or it changed meanwhile.
        """
        response, _ = await self._rpc.request(
            _CANCEL_MERGE,
            CancelMergeRequest(survivor=survivor),
            shard_claims(Capability.APPLY, survivor),
        )
        revision: int = response.revision
        return revision

    async def merges(self) -> Sequence[ListMergesResponse.Merge]:
        """Return the merges that are not over, by survivor."""
        response, _ = await self._rpc.request(
            _LIST_MERGES, ListMergesRequest(), expiring(Capability.LIST)
        )
        return list(response.merges)

    async def split_journal(
        self, journal: str, *, at_group: int | None = None, dry_run: bool = False
    ) -> SplitJournalResponse:
        """Begin to divide a journal by key, or only plan it; return the plan. The members do the rest.

        Args:
            journal: Its name.
            at_group: First group of keys of the second part, from 1; None: the middle of the journal's groups.
            dry_run: Tell the plan, and change nothing.

        Raises:
            ValidationError: the journal cannot be divided so; the error says why.
            RpcFailedError: there is no such journal, or it is being divided.
        """
        response, _ = await self._rpc.request(
            _SPLIT_JOURNAL,
            SplitJournalRequest(journal=journal, at_group=at_group or 0, dry_run=dry_run),
            expiring(Capability.APPLY),
        )
        return response

    async def journal_splits(self) -> Sequence[ListJournalSplitsResponse.JournalSplit]:
        """Return the divisions of journals that are not over, by journal."""
        response, _ = await self._rpc.request(
            _LIST_JOURNALS, ListJournalSplitsRequest(), expiring(Capability.LIST)
        )
        return list(response.splits)

    async def roll_back_transaction(
        self, journal: str, producer: int, *, dry_run: bool = False
    ) -> RollBackTransactionResponse:
        """Roll back a transaction that a dead program left open in a journal, or only tell it.

        A `MessageWriter` that is alive is refused from then on, with an error.

        Args:
            journal: Its name.
            producer: Who published it, 48 bits.
            dry_run: Tell the transaction, and change nothing.

        Raises:
            ValidationError: it is not open, a shard's, or too young; the error says which.
            RpcFailedError: there is no such journal, or it is not known whether it was rolled back: ask again.
        """
        response, _ = await self._rpc.request(
            _ROLL_BACK,
            RollBackTransactionRequest(journal=journal, producer=producer, dry_run=dry_run),
            expiring(Capability.APPLY),
        )
        return response

    async def _split(
        self, shard_id: str, at_group: int | None, child: str, *, dry_run: bool
    ) -> SplitShardResponse:
        # The child's id is not known before the answer, so a token that names the shard alone would not cover it.
        claims = (
            shard_claims(Capability.APPLY, shard_id, child) if child else expiring(Capability.APPLY)
        )
        response, _ = await self._rpc.request(
            _SPLIT,
            SplitShardRequest(shard=shard_id, at_group=at_group or 0, child=child, dry_run=dry_run),
            claims,
        )
        return response
