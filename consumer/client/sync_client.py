"""Client of the Shard service for programs without an event loop: drivers, notebooks, command lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from broadsheet.allocator.ops import TXN_OPERATIONS_MAX
from broadsheet.consumer.client.endpoints import Addresses
from broadsheet.consumer.client.loop_thread import LoopThread
from broadsheet.consumer.client.referenced_journals import verify_referenced_journals
from broadsheet.consumer.client.shard_client import ShardClient, ShardTable
from broadsheet.journals.client import JournalClient
from broadsheet.journals.transport import TransportPolicy
from broadsheet.security.auth import ClientAuth
from broadsheet.security.tls import TlsConfig
from broadsheet.wire.journal_pb2 import ApplyRequest as JournalApply, LabelSelector
from broadsheet.wire.shard_pb2 import (
    ApplyRequest,
    ApplyResponse,
    GetHintsResponse,
    ListResponse,
    StatResponse,
)


class SyncShardClient:
    """A blocking `ShardClient`: it runs on a separate loop thread, and raises the same errors.

    Threads may share it. Processes may not: neither gRPC's channels nor threads survive a fork, so in a forked process
    each method raises a `RuntimeError` that says so; open another client there.
    """

    def __init__(
        self,
        address: Addresses,
        *,
        auth: ClientAuth | None = None,
        timeout_seconds: float = 10.0,
        tls: TlsConfig | None = None,
    ) -> None:
        """Connect; arguments and errors are those of `ShardClient`."""
        self._client = ShardClient(address, auth=auth, timeout_seconds=timeout_seconds, tls=tls)
        self._tls = tls
        self._thread = LoopThread(name=f"shard client {address}")
        self._closed = False
        try:
            self._thread.call(self._client.__aenter__())
        except BaseException:
            self._thread.close()
            raise

    @property
    def address(self) -> str:
        """The member that is asked."""
        return self._client.address

    def list(self, wanted: LabelSelector | None = None) -> ListResponse:
        """See `ShardClient.list`."""
        return self._thread.call(self._client.list(wanted))

    def watch(
        self, wanted: LabelSelector | None = None, *, unreachable_seconds: float = 60.0
    ) -> Iterator[ShardTable]:
        """See `ShardClient.watch`."""
        tables = self._client.watch(wanted, unreachable_seconds=unreachable_seconds)

        async def following() -> ShardTable:
            return await anext(tables)

        try:
            while True:
                yield self._thread.call(following())
        finally:
            self._thread.call(tables.aclose())

    def stat(
        self,
        shard_id: str,
        *,
        read_through: Mapping[str, int] | None = None,
        timeout_seconds: float | None = None,
    ) -> StatResponse:
        """See `ShardClient.stat`."""
        return self._thread.call(
            self._client.stat(shard_id, read_through=read_through, timeout_seconds=timeout_seconds)
        )

    def wait_read_through(
        self, shard_id: str, offsets: Mapping[str, int], *, timeout_seconds: float
    ) -> StatResponse:
        """See `ShardClient.wait_read_through`."""
        return self._thread.call(
            self._client.wait_read_through(shard_id, offsets, timeout_seconds=timeout_seconds)
        )

    def apply(
        self, changes: Sequence[ApplyRequest.Change], *, batch_size: int = TXN_OPERATIONS_MAX
    ) -> ApplyResponse:
        """See `ShardClient.apply`."""
        return self._thread.call(self._client.apply(changes, batch_size=batch_size))

    def get_hints(self, shard_id: str) -> GetHintsResponse:
        """See `ShardClient.get_hints`."""
        return self._thread.call(self._client.get_hints(shard_id))

    def unassign(
        self, shard_ids: Sequence[str], *, only_failed: bool = False, dry_run: bool = False
    ) -> tuple[str, ...]:
        """See `ShardClient.unassign`."""
        return self._thread.call(
            self._client.unassign(shard_ids, only_failed=only_failed, dry_run=dry_run)
        )

    def verify_referenced_journals(
        self,
        changes: Sequence[ApplyRequest.Change],
        *,
        broker_address: str,
        broker_auth: ClientAuth | None = None,
    ) -> None:
        """Check the journals that upserted specs name; see `verify_referenced_journals`.

        The files for TLS are those for members.
        """
        self._thread.call(_verify(changes, self._journals(broker_address, broker_auth)))

    def create_log_journals(
        self,
        changes: Sequence[ApplyRequest.Change],
        *,
        broker_address: str,
        broker_auth: ClientAuth | None = None,
    ) -> tuple[str, ...]:
        """See `ShardClient.create_log_journals`. The files for TLS are those for members."""
        journals = self._journals(broker_address, broker_auth)
        return self._thread.call(_create_logs(self._client, changes, journals))

    def apply_journals(
        self,
        changes: Sequence[JournalApply.Change],
        *,
        broker_address: str,
        broker_auth: ClientAuth | None = None,
    ) -> None:
        """See `JournalClient.apply`. The files for TLS are those for members."""
        self._thread.call(_apply_journals(self._journals(broker_address, broker_auth), changes))

    def _journals(self, address: str, auth: ClientAuth | None) -> JournalClient:
        return JournalClient(address, auth=auth, policy=TransportPolicy(tls=self._tls))

    def close(self) -> None:
        """Close the connection and end the thread. Idempotent."""
        if not self._closed and not self._thread.is_a_forks_copy:
            self._closed = True
            try:
                self._thread.call(self._client.__aexit__(None, None, None))
            finally:
                self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


async def _verify(changes: Sequence[ApplyRequest.Change], journals: JournalClient) -> None:
    async with journals:
        await verify_referenced_journals(changes, journals)


async def _create_logs(
    client: ShardClient, changes: Sequence[ApplyRequest.Change], journals: JournalClient
) -> tuple[str, ...]:
    async with journals:
        return await client.create_log_journals(changes, journals)


async def _apply_journals(journals: JournalClient, changes: Sequence[JournalApply.Change]) -> None:
    async with journals:
        await journals.apply(changes)
