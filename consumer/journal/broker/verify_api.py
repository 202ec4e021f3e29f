"""The VerifyJournal RPC: every sealed fragment of a journal is read and compared with its sums.

On request, damaged bytes are given up:

    copy       what verifies of the fragment goes into files of its own
    declare    the journal's log says durably that the damaged bytes are holes
    replace    the pieces take the fragment's place, which is quarantined

A crash in between leaves the fragment, or the pieces, and a hole that is declared already.
"""

from __future__ import annotations

import asyncio

import grpc
import structlog

from consumer.journal.broker.block_sums import Span, sums_path
from consumer.journal.broker.faults import Context, RpcFault
from consumer.journal.broker.fragment_checks import FragmentChecks
from consumer.journal.broker.fragment_sums import copy_sound_pieces, place_pieces
from consumer.journal.broker.fragments import SealedFragment
from consumer.journal.broker.journal import Site, span_of
from consumer.journal.broker.journals import Served
from consumer.journal.broker.read import fragment_message
from consumer.journal.broker.resolution import Resolver
from consumer.journal.broker.store import StoreError
from consumer.protocol.alphabet import validate_journal
from consumer.protocol.auth import Capability, Claims
from consumer.protocol.fragments_pb2 import ByteSpan, VerifyJournalRequest, VerifyJournalResponse

VERIFICATIONS_MAX = 2
"""Fragments verified at once on request: each takes a processor, and the disk."""

logger = structlog.get_logger()


class VerifyHandler:
    """Verifies journals on request."""

    def __init__(self, resolver: Resolver, site: Site, checks: FragmentChecks) -> None:
        self._resolver = resolver
        self._site = site
        self._checks = checks
        self._turns = asyncio.Semaphore(VERIFICATIONS_MAX)

    async def verify(self, request: VerifyJournalRequest, claims: Claims, context: Context) -> None:
        """Verify one journal; tell about each fragment."""
        validate_journal(request.journal)
        # The caller has shown a token; what it must permit depends on the request.
        required = Capability.APPLY if request.discard_damaged else Capability.READ
        claims = self._resolver.authorize(context.invocation_metadata(), required)
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
            if served.journal.index.at(fragment.begin) is fragment:
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
        except OSError as error:
            response.error = str(error)
            return response
        response.damaged.extend(
            ByteSpan(begin=fragment.begin + begin, end=fragment.begin + end)
            for begin, end in verdict.damaged
        )
        if verdict.damaged and discards:
            await self._discard(served, fragment, verdict.damaged)
            response.discarded = True
        return response

    async def _discard(
        self, served: Served, fragment: SealedFragment, damaged: tuple[Span, ...]
    ) -> None:
        disk, journal = self._site.disk, served.journal
        pieces = await disk.run(copy_sound_pieces, disk, fragment, damaged)
        begin = fragment.begin
        try:
            await served.committer.declare_holes(
                [(begin + span[0], begin + span[1]) for span in damaged]
            )
        except StoreError as error:
            raise RpcFault(
                grpc.StatusCode.UNAVAILABLE, f"journal {journal.name}: {error}"
            ) from error
        await disk.run(place_pieces, disk, pieces)
        # In one step of the loop: readers find the fragment or its pieces.
        journal.index.remove(fragment)
        for piece in pieces:
            journal.index.add(piece.sealed)
        self._checks.forget(fragment.path)
        await disk.run(
            self._site.quarantine.put,
            fragment.path,
            why=f"damaged: {len(damaged)} spans were given up",
            journal=journal.name,
        )
        await disk.run(sums_path(fragment.path).unlink, missing_ok=True)
        logger.warning("fragment.discarded", journal=journal.name, begin=begin, spans=damaged)


async def _yield(length: int) -> None:
    """Let others have their turn."""
    del length
    await asyncio.sleep(0)
