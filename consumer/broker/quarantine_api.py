"""The ListQuarantine and PurgeQuarantine RPCs: what an operator does about data that was moved aside.

To restore an entry, the broker must be stopped: `python -m consumer.broker --restore`.
"""

from __future__ import annotations

from consumer.broker.disk import Disk
from consumer.broker.faults import Context
from consumer.broker.quarantine import Quarantine, Quarantined
from consumer.broker.resolution import Resolver, may_see
from consumer.errors import UnauthenticatedError
from consumer.protocol.auth import Claims
from consumer.protocol.fragments_pb2 import (
    ListQuarantineRequest,
    ListQuarantineResponse,
    PurgeQuarantineRequest,
    PurgeQuarantineResponse,
    QuarantineEntry,
)
from consumer.protocol.journal_pb2 import LabelSet


class QuarantineHandler:
    """Lists and purges the quarantine of a broker."""

    def __init__(self, resolver: Resolver, disk: Disk, quarantine: Quarantine) -> None:
        self._resolver = resolver
        self._disk = disk
        self._quarantine = quarantine

    async def list(
        self, request: ListQuarantineRequest, claims: Claims, context: Context
    ) -> ListQuarantineResponse:
        """Serve the entries whose journals the caller may see."""
        del request, context
        entries = await self._disk.run(self._quarantine.entries)
        return ListQuarantineResponse(
            header=self._resolver.header(),
            entries=[_message(entry) for entry in entries if _covers(claims, entry)],
        )

    async def purge(
        self, request: PurgeQuarantineRequest, claims: Claims, context: Context
    ) -> PurgeQuarantineResponse:
        """Remove one entry."""
        del context
        for entry in await self._disk.run(self._quarantine.entries):
            if entry.id == request.id and not _covers(claims, entry):
                raise UnauthenticatedError(f"the token does not cover {entry.id}")
        await self._disk.run(self._quarantine.purge, request.id)
        return PurgeQuarantineResponse(header=self._resolver.header())


def _covers(claims: Claims, entry: Quarantined) -> bool:
    """Tell whether claims cover an entry; one of no journal is for those alone who may see all."""
    return may_see(claims.selector, LabelSet(), entry.reason.journal)


def _message(entry: Quarantined) -> QuarantineEntry:
    return QuarantineEntry(
        id=entry.id,
        path=entry.reason.path,
        why=entry.reason.why,
        at=entry.reason.at,
        journal=entry.reason.journal,
        bytes=entry.bytes,
    )
