"""The VerifyJournal RPC: every sealed fragment of a journal is read and compared with its checksums.

On request, damaged bytes are given up:

- *copy*: intact parts of the fragment go into separate files.
- *declare*: the log of the journal says durably that the damaged bytes are holes.
- *replace*: the pieces take the place of the fragment, which is quarantined.

A crash in between leaves the fragment, or the pieces, and a hole that is already declared.
"""

from __future__ import annotations

import asyncio

import grpc
import structlog

from broadsheet.broker.faults import Context, RpcFault
from broadsheet.broker.fragment_checks import FragmentChecks
from broadsheet.broker.fragment_deletion import remove_fragments
from broadsheet.broker.fragment_sums import copy_sound_pieces, place_pieces
from broadsheet.broker.fragments import SealedFragment, record_path
from broadsheet.broker.journal import Site, span_of
from broadsheet.broker.journals import Served
from broadsheet.broker.publishing import MissingCopyError
from broadsheet.broker.read import fragment_message
from broadsheet.broker.resolution import JournalResolver
from broadsheet.broker.store import JournalStoreError
from broadsheet.journals.block_sums import BlockSpan, DamagedContentError, sums_path
from broadsheet.security.auth import Capability, Claims
from broadsheet.wire.alphabet import validate_journal
from broadsheet.wire.fragments_pb2 import ByteSpan, VerifyJournalRequest, VerifyJournalResponse

_log = structlog.get_logger()


VERIFICATIONS_MAX = 2
"""Most fragments verified at once on request, because each occupies a processor and the disk."""


class VerifyHandler:
    """Verifies journals on request."""

    def __init__(self, resolver: JournalResolver, site: Site, checks: FragmentChecks) -> None:
        self._resolver = resolver
        self._site = site
        self._checks = checks
        self._turns = asyncio.Semaphore(VERIFICATIONS_MAX)

    async def verify(self, request: VerifyJournalRequest, claims: Claims, context: Context) -> None:
        """Verify one journal and report each fragment."""
        validate_journal(request.journal)
        # The caller has shown a token; the permission it needs depends on the request.
        required = Capability.APPLY if request.discard_damaged else Capability.READ
        claims = await self._resolver.authorize(context, required)
        resolution = await self._resolver.resolve(
            request.journal, claims, min_revision=0, proxied=None
        )
        first = VerifyJournalResponse(status=resolution.status, header=resolution.header)
        if resolution.entry is None:
            await context.write(first)
            return
        served = await self._resolver.serve(resolution.entry)
        fragments = list(served.journal.index)
        first.fragments = len(fragments)
        await context.write(first)
        for fragment in fragments:
            present = served.journal.index.at(fragment.begin)
            if present is not None and present.path == fragment.path:
                await context.write(
                    await self._verify(served, fragment, discards=request.discard_damaged)
                )

    async def _verify(
        self, served: Served, fragment: SealedFragment, *, discards: bool
    ) -> VerifyJournalResponse:
        response = VerifyJournalResponse(
            fragment=fragment_message(served.journal.name, span_of(fragment))
        )
        try:
            verdict = await self._checks.verify(fragment, _yield)
        except (OSError, DamagedContentError) as error:
            return await self._without_file(served, fragment, response, error, discards=discards)
        if verdict.damaged and await self._checks.heal(fragment):
            return response
        response.damaged.extend(
            ByteSpan(begin=fragment.begin + begin, end=fragment.begin + end)
            for begin, end in verdict.damaged
        )
        if verdict.damaged and discards:
            await self._discard(served, fragment, verdict.damaged)
            response.discarded = True
        return response

    async def _without_file(
        self,
        served: Served,
        fragment: SealedFragment,
        response: VerifyJournalResponse,
        error: OSError | DamagedContentError,
        *,
        discards: bool,
    ) -> VerifyJournalResponse:
        """Report a fragment that has no file to take intact parts from; give all of it up, if that is asked for."""
        if isinstance(error, DamagedContentError):
            response.error = f"its only copy, {error.where}, is damaged"
            response.damaged.add(begin=fragment.begin, end=fragment.end)
        else:
            response.error = str(error)
        if not discards or not isinstance(error, (DamagedContentError, MissingCopyError)):
            return response
        if fragment is served.journal.index.newest:
            response.error += "; it stays, because it tells where the journal ends"
            return response
        try:
            # A store that is not mounted, for example, has nothing: then nothing is given up.
            if not await self._site.publisher.lists_any(served.journal, fragment):
                response.error += "; it stays, because its store lists nothing of this journal"
                return response
            await remove_fragments(self._site, served, [fragment])
        except (OSError, JournalStoreError) as failure:
            response.error += f"; it was not given up: {failure}"
            return response
        response.ClearField("damaged")
        response.damaged.add(begin=fragment.begin, end=fragment.end)
        response.error, response.discarded = "", True
        return response

    async def _discard(
        self, served: Served, fragment: SealedFragment, damaged: tuple[BlockSpan, ...]
    ) -> None:
        disk, journal = self._site.disk, served.journal
        pieces = await disk.run(copy_sound_pieces, disk, fragment, damaged)
        begin = fragment.begin
        try:
            await served.committer.declare_holes(
                [(begin + span[0], begin + span[1]) for span in damaged]
            )
            await self._site.publisher.remove_copy(journal, fragment)
        except (OSError, JournalStoreError) as error:
            raise RpcFault(
                grpc.StatusCode.UNAVAILABLE, f"journal {journal.name}: {error}"
            ) from error
        await disk.run(place_pieces, disk, pieces)
        # Both happen in one step of the loop, so that readers find the fragment or its pieces.
        journal.index.remove(fragment)
        for piece in pieces:
            journal.index.add(piece.sealed)
        self._site.publisher.offer(journal, [piece.sealed for piece in pieces])
        self._checks.forget(fragment.path)
        await disk.run(
            self._site.quarantine.put,
            fragment.path,
            why=f"damaged: {len(damaged)} spans were given up",
            journal=journal.name,
        )
        for left in (sums_path(fragment.path), record_path(fragment.path)):
            await disk.run(left.unlink, missing_ok=True)
        _log.warning("fragment.discarded", journal=journal.name, begin=begin, spans=damaged)


async def _yield(length: int) -> None:
    """Let other tasks run."""
    del length
    await asyncio.sleep(0)
