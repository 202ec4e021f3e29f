"""Client of the Shard service, for programs that run on an event loop.

Any member of the cluster can be asked: it answers from its mirror, or forwards to the shard's primary. An answer other
than OK is raised as an exception of the `ShardError` family or `ApplyConflictError`. A failure is raised as the
server's own exception (a `ValidationError` names the field), or as an `EndpointError` that names the address.

Source: gazette/core consumer/shard_client.go (ListShards, ApplyShardsInBatches, default claims).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing

import grpc

from broadsheet.allocator.ops import TXN_OPERATIONS_MAX
from broadsheet.consumer.client.log_journals import create_log_journals, missing_log_journals
from broadsheet.consumer.client.member_rpc import (
    TOKEN_LIFE_SECONDS,
    MemberClient,
    RpcMethod,
    error_of_status,
    shard_claims,
)
from broadsheet.consumer.client.referenced_journals import verify_referenced_journals
from broadsheet.consumer.errors import NoShardPrimaryError, ShardStoppedError
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.errors import EndpointError, RpcFailedError
from broadsheet.security.auth import Capability, expiring
from broadsheet.wire.errors import ApplyConflictError
from broadsheet.wire.journal_pb2 import JournalSpec, LabelSelector
from broadsheet.wire.shard_pb2 import (
    ApplyRequest,
    ApplyResponse,
    GetHintsRequest,
    GetHintsResponse,
    ListRequest,
    ListResponse,
    StatRequest,
    StatResponse,
    Status,
    UnassignRequest,
    UnassignResponse,
)
from broadsheet.wire.shard_pb2_grpc import ShardStub
from broadsheet.wire.validation_shard import (
    validate_hints_response,
    validate_shard_apply_response,
    validate_shard_list_response,
    validate_stat_response,
    validate_unassign_response,
)
from broadsheet.wire.watch_pb2 import WatchShardsRequest, WatchShardsResponse
from broadsheet.wire.watch_pb2_grpc import WatchServiceStub

HAND_OVER_PAUSE_SECONDS_MAX = 0.5
"""Longest pause between two questions about a shard that has no primary at the moment."""
WATCH_SECONDS = 600.0
"""Life of one call of a watch; the next continues it."""
WATCH_SILENCE_SECONDS = 30.0
"""Silence after which a watched member counts as gone; a live one sends something every ten seconds."""
POLL_SECONDS = 2.0
"""Pause between two lists of a watch at a member without WatchShards."""
UNASSIGN_SHARDS_MAX = 100
"""Shards unassigned in one request: each may have several replicas, and etcd takes 128 operations."""

_LIST = RpcMethod(ShardStub, "List", ListResponse)
_STAT = RpcMethod(ShardStub, "Stat", StatResponse)
_GET_HINTS = RpcMethod(ShardStub, "GetHints", GetHintsResponse)
_UNASSIGN = RpcMethod(ShardStub, "Unassign", UnassignResponse)
_APPLY = RpcMethod(ShardStub, "Apply", ApplyResponse)
_WATCH_SHARDS = RpcMethod(WatchServiceStub, "WatchShards", WatchShardsResponse)


class ShardTable(Mapping[str, ListResponse.Shard]):
    """Shards by id, as of one revision of etcd, kept current by `ShardClient.watch`."""

    def __init__(self) -> None:
        self._shards: dict[str, ListResponse.Shard] = {}
        self._coming: dict[str, ListResponse.Shard] | None = None
        """The rows of a table that is sent again, until all have come."""
        self._changed: set[str] = set()
        self.revision = 0
        """Of etcd; 0 before the first state is complete."""
        self.cluster_id = 0
        """Of etcd."""
        self.changed: frozenset[str] = frozenset()
        """Ids of the shards that came, went or changed with the last state."""

    def resume(self) -> None:
        """Forget an incomplete new beginning, because another call comes."""
        self._coming = None

    def apply(self, response: WatchShardsResponse) -> bool:
        """Apply a response; report whether the table now shows another state than before."""
        if response.reset:
            self._coming = {}
        rows = self._shards if self._coming is None else self._coming
        for shard in response.shards:
            rows[shard.spec.id] = shard
        for shard_id in response.removed:
            rows.pop(shard_id, None)
        self._changed.update(shard.spec.id for shard in response.shards)
        self._changed.update(response.removed)
        if response.more:
            return False
        is_new = self._coming is not None
        if self._coming is not None:
            self._changed |= self._shards.keys() - self._coming.keys()
            self._shards, self._coming = self._coming, None
        self.revision = response.header.etcd.revision
        self.cluster_id = response.header.etcd.cluster_id
        self.changed, self._changed = frozenset(self._changed), set()
        return is_new or bool(self.changed)

    def changes_to(self, listing: ListResponse) -> WatchShardsResponse:
        """Return the response of a watch that would bring this table to a whole listing."""
        etcd = listing.header.etcd
        response = WatchShardsResponse(header=listing.header)
        if self.revision == 0 or etcd.cluster_id != self.cluster_id:
            response.reset = True
            response.shards.extend(listing.shards)
        elif etcd.revision < self.revision:
            # Another member answered, and lags behind the former one: what it shows is over.
            response.header.etcd.revision = self.revision
        else:
            listed = {shard.spec.id for shard in listing.shards}
            response.shards.extend(
                shard for shard in listing.shards if self._shards.get(shard.spec.id) != shard
            )
            response.removed.extend(sorted(self._shards.keys() - listed))
        return response

    def __getitem__(self, shard_id: str) -> ListResponse.Shard:
        return self._shards[shard_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)


class ShardClient(MemberClient):
    """Lists, inspects and changes shards."""

    async def list(self, wanted: LabelSelector | None = None) -> ListResponse:
        """Return the selected shards (all, without a selector) with their routes and statuses."""
        request = ListRequest(selector=wanted)
        claims = expiring(Capability.LIST, request.selector, life_seconds=TOKEN_LIFE_SECONDS)
        response, _ = await self._rpc.request(_LIST, request, claims)
        validate_shard_list_response(response)
        self._rpc.learn(shard.route for shard in response.shards)
        return response

    async def watch(
        self,
        wanted: LabelSelector | None = None,
        *,
        unreachable_seconds: float = 60.0,
        poll_seconds: float = POLL_SECONDS,
    ) -> AsyncGenerator[ShardTable, None]:
        """Yield the table of the selected shards, again after each change, without end.

        The table is one object, which the iteration keeps up to date. States that follow each other quickly may be
        skipped. If the member leaves or dies, the table goes on at another one, from the revision that it has. A
        member without WatchShards, such as a Gazette consumer, is asked for its list again and again.

        Args:
            wanted: Selects shards; None: all.
            unreachable_seconds: How long to go on without any member that answers.
            poll_seconds: Pause between two such lists.

        Raises:
            EndpointError: no member answered for that long.
            UnauthenticatedError, NotAuthorizedError: a member answered, and needs another key.
        """
        table = ShardTable()
        backoff = Backoff(max_seconds=HAND_OVER_PAUSE_SECONDS_MAX)
        now = asyncio.get_running_loop().time
        heard = now()
        while True:
            begun = now()
            try:
                async with aclosing(self._news(wanted, table, poll_seconds)) as responses:
                    async for response in responses:
                        heard = now()
                        backoff.reset()
                        self._rpc.learn(shard.route for shard in response.shards)
                        if table.apply(response):
                            yield table
                        # The next call has another token.
                        if not response.more and now() - begun > WATCH_SECONDS:
                            break
            except (EndpointError, TimeoutError) as error:
                if now() - heard > unreachable_seconds:
                    raise EndpointError(
                        self.address, f"no member answered for {unreachable_seconds} s: {error}"
                    ) from error
            await backoff.sleep()

    async def _news(
        self, wanted: LabelSelector | None, table: ShardTable, poll_seconds: float
    ) -> AsyncGenerator[WatchShardsResponse, None]:
        try:
            async with aclosing(self._watched(wanted, table)) as responses:
                async for response in responses:
                    yield response
        except RpcFailedError as error:
            if error.code != grpc.StatusCode.UNIMPLEMENTED.name:
                raise
            yield table.changes_to(await self.list(wanted))
            # The next call asks for WatchShards first, because another member may answer it by then.
            await asyncio.sleep(poll_seconds)

    def _watched(
        self, wanted: LabelSelector | None, table: ShardTable
    ) -> AsyncGenerator[WatchShardsResponse, None]:
        table.resume()
        life_seconds = WATCH_SECONDS + 2 * WATCH_SILENCE_SECONDS
        request = WatchShardsRequest(
            selector=wanted,
            resume_revision=table.revision,
            resume_cluster_id=table.cluster_id,
        )
        return self._rpc.stream(
            _WATCH_SHARDS,
            request,
            expiring(Capability.LIST, request.selector, life_seconds=life_seconds),
            timeout_seconds=life_seconds,
            silence_seconds=WATCH_SILENCE_SECONDS,
        )

    async def stat(
        self,
        shard_id: str,
        *,
        read_through: Mapping[str, int] | None = None,
        timeout_seconds: float | None = None,
    ) -> StatResponse:
        """Return a shard's progress, once it has read through the offsets given.

        Args:
            shard_id: The shard.
            read_through: Offsets to wait for, bytes by journal.
            timeout_seconds: Deadline; waiting for offsets may take longer than other requests.

        Raises:
            ShardError: there is no such shard, it has no primary, or it stopped.
            TimeoutError: the deadline passed first.
        """
        life_seconds = max(TOKEN_LIFE_SECONDS, timeout_seconds or 0.0)
        response, cause = await self._rpc.request(
            _STAT,
            StatRequest(shard=shard_id, read_through=read_through or {}),
            shard_claims(Capability.READ, shard_id, life_seconds=life_seconds),
            timeout_seconds=timeout_seconds,
        )
        if response.status != Status.OK:
            raise error_of_status(shard_id, response.status, response.header, cause)
        validate_stat_response(response)
        self._rpc.learn((response.header.route,))
        return response

    async def wait_read_through(
        self, shard_id: str, offsets: Mapping[str, int], *, timeout_seconds: float
    ) -> StatResponse:
        """Return a shard's progress once it has read through `offsets`, even if its primary changes meanwhile.

        Where `stat` raises because the shard stops, has no primary or its process is gone, this method asks the
        successor.

        Args:
            shard_id: The shard.
            offsets: Bytes by journal.
            timeout_seconds: How long to wait in all.

        Raises:
            ShardNotFoundError: there is no such shard.
            TimeoutError: the time passed first; its cause is what was met last, if anything.
        """
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        backoff = Backoff(max_seconds=HAND_OVER_PAUSE_SECONDS_MAX)
        met: Exception | None = None
        while (remaining := deadline - asyncio.get_running_loop().time()) > 0:
            try:
                return await self.stat(shard_id, read_through=offsets, timeout_seconds=remaining)
            except (NoShardPrimaryError, ShardStoppedError, EndpointError) as error:
                met = error
                await asyncio.sleep(min(backoff.next_seconds(), remaining))
        raise TimeoutError(
            f"shard {shard_id} did not read through {dict(offsets)} within {timeout_seconds} s"
        ) from met

    async def apply(
        self,
        changes: Sequence[ApplyRequest.Change],
        *,
        batch_size: int = TXN_OPERATIONS_MAX,
        on_applied: Callable[[int], None] | None = None,
    ) -> ApplyResponse:
        """Apply changes in consecutive batches; each batch is atomic.

        Args:
            changes: In this order.
            batch_size: Most changes a batch; 0 makes one of all.
            on_applied: Called with the number of changes that were applied so far, after each batch.

        Returns:
            The last batch's answer.

        Raises:
            ApplyConflictError: a revision was not the expected one. Batches before that stay applied; its notes tell
                how many changes those were.
        """
        applied = 0
        response = ApplyResponse()
        for batch in _batches(changes, batch_size):
            try:
                response = await self._apply_batch(batch)
            except Exception as error:
                if applied:
                    error.add_note(f"the first {applied} of {len(changes)} changes were applied")
                raise
            applied += len(batch)
            if on_applied is not None:
                on_applied(applied)
        return response

    async def get_hints(self, shard_id: str) -> GetHintsResponse:
        """Return the recovery hints of a shard.

        Raises:
            ShardNotFoundError: there is no such shard.
        """
        response, _ = await self._rpc.request(
            _GET_HINTS,
            GetHintsRequest(shard=shard_id),
            shard_claims(Capability.READ, shard_id),
        )
        if response.status != Status.OK:
            raise error_of_status(shard_id, response.status, response.header)
        validate_hints_response(response)
        return response

    async def unassign(
        self, shard_ids: Sequence[str], *, only_failed: bool = False, dry_run: bool = False
    ) -> tuple[str, ...]:
        """Take shards away from their members, which restarts them; return those that were affected.

        Args:
            shard_ids: The shards; unknown ones are passed over.
            only_failed: Leave healthy primaries alone.
            dry_run: Only tell.

        Raises:
            ApplyConflictError: an assignment changed meanwhile. Earlier batches of 100 stay done.
        """
        affected: list[str] = []
        for begin in range(0, len(shard_ids), UNASSIGN_SHARDS_MAX):
            batch = list(shard_ids[begin : begin + UNASSIGN_SHARDS_MAX])
            response, _ = await self._rpc.request(
                _UNASSIGN,
                UnassignRequest(shards=batch, only_failed=only_failed, dry_run=dry_run),
                shard_claims(Capability.APPLY, *batch),
            )
            validate_unassign_response(response)
            if response.status != Status.OK:
                raise ApplyConflictError(None)
            affected.extend(response.shards)
        return tuple(affected)

    async def verify_referenced_journals(
        self,
        changes: Sequence[ApplyRequest.Change],
        journals: JournalClient,
        *,
        planned: Iterable[JournalSpec] = (),
    ) -> None:
        """Check that the journals named by upserted specs exist and have the right content type.

        Args:
            changes: The changes.
            journals: Client of the brokers.
            planned: Journals that are to be created before the changes are applied.

        Raises:
            ValidationError: one is missing or of another content type; the field and the journal are named.
        """
        await verify_referenced_journals(changes, journals, planned=planned)

    async def create_log_journals(
        self, changes: Sequence[ApplyRequest.Change], journals: JournalClient
    ) -> tuple[str, ...]:
        """Create the journals of recovery logs that upserted specs name and that do not exist; return their names.

        A log gets the spec of another log below its prefix, or else replication, stores and codec of the shard's first
        source.

        Raises:
            ServiceError: a broker refused one, or could not be reached.
        """
        logs = await missing_log_journals(changes, journals)
        await create_log_journals(logs, journals)
        return tuple(log.name for log in logs)

    async def _apply_batch(self, batch: Sequence[ApplyRequest.Change]) -> ApplyResponse:
        response, _ = await self._rpc.request(
            _APPLY,
            ApplyRequest(changes=batch),
            expiring(Capability.APPLY, life_seconds=TOKEN_LIFE_SECONDS),
        )
        validate_shard_apply_response(response)
        if response.status == Status.ETCD_TRANSACTION_FAILED:
            raise ApplyConflictError(response.header)
        if response.status != Status.OK:
            raise error_of_status(batch[0].upsert.id or batch[0].delete, response.status, None)
        return response


def _batches(
    changes: Sequence[ApplyRequest.Change], batch_size: int
) -> Iterator[list[ApplyRequest.Change]]:
    """Split changes by count, and by etcd's limit for one transaction, because hints are a second operation."""
    batch: list[ApplyRequest.Change] = []
    operations = 0
    for change in changes:
        cost = 2 if change.HasField("primary_hints") else 1
        full = len(batch) >= batch_size or operations + cost > TXN_OPERATIONS_MAX
        if batch and batch_size > 0 and full:
            yield batch
            batch, operations = [], 0
        batch.append(change)
        operations += cost
    if batch:
        yield batch
