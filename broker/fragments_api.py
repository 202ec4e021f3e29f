"""The ListFragments, FragmentStoreHealth, FragmentSums, DeleteFragments, VerifyJournal and quarantine RPCs.

Source: gazette/core broker/fragments_api.go, fragment_store_health_api.go. Only published fragments have URLs. A store
that this broker does not serve means its own directory, and that is what is probed then.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Sequence
from pathlib import Path

import grpc
import structlog

from broadsheet.broker.disk import Disk
from broadsheet.broker.faults import Context, RpcFault
from broadsheet.broker.fragment_checks import FragmentChecks
from broadsheet.broker.fragment_sums import copy_sound_pieces, files_of, place_pieces
from broadsheet.broker.fragments import FragmentIndex, SealedFragment, record_path, sha1_sum
from broadsheet.broker.journal import LiveJournal, ReadableSpan, Site, span_of
from broadsheet.broker.journals import Served
from broadsheet.broker.publishing import FragmentPublisher, MissingCopyError
from broadsheet.broker.quarantine import JournalQuarantine, Quarantined
from broadsheet.broker.read import fragment_message, refusal, sealed_of
from broadsheet.broker.resolution import JournalResolver, may_see
from broadsheet.broker.store import JournalStoreError
from broadsheet.journals.block_sums import BLOCK_BYTES, BlockSpan, DamagedContentError, sums_path
from broadsheet.runtime.errors import ExtraMissingError, ValidationError
from broadsheet.security.auth import Capability, Claims
from broadsheet.security.errors import NotAuthorizedError
from broadsheet.wire.alphabet import validate_journal
from broadsheet.wire.fragments_pb2 import (
    ByteSpan,
    DeleteFragmentsRequest,
    DeleteFragmentsResponse,
    FragmentSumsRequest,
    FragmentSumsResponse,
    ListQuarantineRequest,
    ListQuarantineResponse,
    PurgeQuarantineRequest,
    PurgeQuarantineResponse,
    QuarantineEntry,
    VerifyJournalRequest,
    VerifyJournalResponse,
)
from broadsheet.wire.journal_pb2 import (
    Fragment,
    FragmentsRequest,
    FragmentsResponse,
    FragmentStoreHealthRequest,
    FragmentStoreHealthResponse,
    LabelSet,
    Status,
)
from broadsheet.wire.validation_journal import (
    validate_delete_fragments_request,
    validate_fragment_sums_request,
    validate_fragments_request,
    validate_store_health_request,
)

PAGE_DEFAULT = 1_000
"""Fragments of a page for requests without a page size."""
SUMS_PER_ANSWER_MAX = 131_072
"""Checksums of one answer: 1 MiB, of 2 GiB of content."""
_PROBE = b"broadsheet broker health probe\n"


class FragmentsHandler:
    """Lists fragments and probes the disk they are on."""

    def __init__(
        self,
        resolver: JournalResolver,
        disk: Disk,
        directory: Path,
        publisher: FragmentPublisher,
    ) -> None:
        self._resolver = resolver
        self._disk = disk
        self._directory = directory
        self._publisher = publisher

    async def list_fragments(
        self, request: FragmentsRequest, claims: Claims, context: Context
    ) -> FragmentsResponse:
        """Serve one page of a journal's fragments."""
        del context
        validate_fragments_request(request)
        resolution = await self._resolver.resolve(
            request.journal,
            claims,
            min_revision=0,
            proxied=request.header if request.HasField("header") else None,
        )
        status = refusal(resolution)
        if resolution.entry is None or status != Status.OK:
            return FragmentsResponse(status=status, header=resolution.header)
        served = await self._resolver.serve(resolution.entry)
        response = FragmentsResponse(header=resolution.header)
        limit = request.page_limit or PAGE_DEFAULT
        spans = _spans(served.journal, request)
        if len(spans) > limit:
            response.next_page_token = spans[limit].begin
        page = spans[:limit]
        urls = await self._urls_of(page, request)
        for span in page:
            response.fragments.add(
                spec=fragment_message(resolution.name, span), signed_url=urls.get(span.begin, "")
            )
        return response

    async def _urls_of(
        self, spans: Sequence[ReadableSpan], request: FragmentsRequest
    ) -> dict[int, str]:
        """Return the signed URLs of published fragments by their begin, if the request asks for them."""
        seconds = request.signatureTTL.ToTimedelta().total_seconds()
        if seconds <= 0:
            return {}
        sealed = [each for span in spans if (each := sealed_of(span)) is not None]
        urls = await self._publisher.urls_of(sealed, math.ceil(seconds))
        return {fragment.begin: url for fragment, url in urls.items()}

    async def health(
        self, request: FragmentStoreHealthRequest, claims: Claims, context: Context
    ) -> FragmentStoreHealthResponse:
        """Serve a probe of a store; a URL that this broker does not serve means its own disk."""
        del claims, context  # Every caller with the right to read may ask.
        validate_store_health_request(request)
        response = FragmentStoreHealthResponse(header=self._resolver.header())
        try:
            if not await self._publisher.probe(request):
                await self._disk.run(self._probe)
        except (OSError, ValidationError, ExtraMissingError) as error:
            response.status = Status.FRAGMENT_STORE_UNHEALTHY
            response.store_health_error = str(error)
        return response

    def _probe(self) -> None:
        """Write, sync, read, list and remove a file. Blocking."""
        path = self._directory / f"probe-{secrets.token_hex(8)}"
        try:
            self._disk.write_file(path, _PROBE)
            if path.read_bytes() != _PROBE or path not in self._directory.iterdir():
                raise OSError(f"{path} reads back differently from what was written")
        finally:
            path.unlink(missing_ok=True)


# The FragmentSums RPC: checksums of a fragment's blocks, for those who read it in its store.


class SumsHandler:
    """Tells the checksums of sealed fragments."""

    def __init__(self, resolver: JournalResolver, checks: FragmentChecks) -> None:
        self._resolver = resolver
        self._checks = checks

    async def sums(
        self, request: FragmentSumsRequest, claims: Claims, context: Context
    ) -> FragmentSumsResponse:
        """Serve the checksums of one fragment, or as many of them as an answer may hold."""
        del context
        validate_fragment_sums_request(request)
        resolution = await self._resolver.resolve(
            request.journal, claims, min_revision=0, proxied=None
        )
        status = refusal(resolution)
        response = FragmentSumsResponse(status=status, header=resolution.header)
        if resolution.entry is None or status != Status.OK:
            return response
        index = (await self._resolver.serve(resolution.entry)).journal.index
        fragment = _as_described(index, request.fragment)
        if fragment is None:
            return response
        response.known = True
        sums = await self._checks.sums_of(fragment)
        if sums is not None:
            response.block_bytes = BLOCK_BYTES
            response.sums = sums.encoded(request.first_block, SUMS_PER_ANSWER_MAX)
        return response


def _spans(journal: LiveJournal, request: FragmentsRequest) -> list[ReadableSpan]:
    """Return the journal's fragments from the page token on that match the requested times.

    A local fragment (mod_time zero) passes a lower bound but no upper one. An upper bound includes its second.
    """
    spans = [span_of(sealed) for sealed in journal.index.from_begin(request.next_page_token)]
    growing = journal.open_span()
    if growing is not None and growing.begin >= request.next_page_token:
        spans.append(growing)
    return [span for span in spans if _is_wanted(span, request)]


def _is_wanted(span: ReadableSpan, request: FragmentsRequest) -> bool:
    if span.mod_time and span.mod_time < request.begin_mod_time:
        return False
    return not request.end_mod_time or 0 < span.mod_time <= request.end_mod_time


# The DeleteFragments RPC: permanent removal of content that is no longer needed.
#
#     declare    the journal's log says durably that the spans are holes
#     forget     readers skip them from now on; a reader with an open file finishes with it
#     remove     from the store, then from the disk; after a crash before this step, files are served again, and may be
#                deleted again, and what is not in its store any more is skipped, because the log says why
#
# Retention removes a journal's oldest fragments; this removes any but the newest, which tells where
# the journal ends.
logger = structlog.get_logger()


class DeletionHandler:
    """Removes sealed fragments."""

    def __init__(self, resolver: JournalResolver, site: Site) -> None:
        self._resolver = resolver
        self._site = site

    async def delete(
        self, request: DeleteFragmentsRequest, claims: Claims, context: Context
    ) -> DeleteFragmentsResponse:
        """Remove those of the request's fragments that exist as described."""
        del context
        validate_delete_fragments_request(request)
        resolution = await self._resolver.resolve(
            request.journal, claims, min_revision=0, proxied=None
        )
        response = DeleteFragmentsResponse(status=resolution.status, header=resolution.header)
        if resolution.entry is None:
            return response
        served = await self._resolver.serve(resolution.entry)
        journal = served.journal
        gone = {(each.begin, each.end) for each in request.fragments if _is_absent(journal, each)}
        chosen = _chosen(journal.index, request.fragments)
        if chosen:
            await self._remove(served, chosen)
        gone |= {(each.begin, each.end) for each in chosen}
        response.deleted.extend(Fragment(begin=begin, end=end) for begin, end in sorted(gone))
        return response

    async def _remove(self, served: Served, chosen: Sequence[SealedFragment]) -> None:
        try:
            await remove_fragments(self._site, served, chosen)
        except (JournalStoreError, OSError) as error:
            # Fragments that are still there can be deleted again.
            raise RpcFault(
                grpc.StatusCode.UNAVAILABLE, f"journal {served.journal.name}: {error}"
            ) from error


async def remove_fragments(site: Site, served: Served, chosen: Sequence[SealedFragment]) -> None:
    """Remove sealed fragments, none of which is the journal's newest, for good.

    Raises:
        JournalStoreError: the disk failed; nothing was removed.
        OSError: a store failed; those fragments that are still there are served as before.
    """
    journal = served.journal
    await served.committer.declare_holes([(each.begin, each.end) for each in chosen])
    gone: list[SealedFragment] = []
    try:
        async with site.publisher.withdrawing(journal, chosen) as withdraw:
            for each in chosen:
                await withdraw(each)
                gone.append(each)
    finally:
        # A reader that has a file open finishes with it.
        await site.disk.run(site.spares.retire, files_of(gone))
        logger.info(
            "fragments.deleted",
            journal=journal.name,
            fragments=len(gone),
            bytes=sum(each.end - each.begin for each in gone),
        )


def _is_absent(journal: LiveJournal, described: Fragment) -> bool:
    """Tell whether no byte of a fragment is left, so that a request whose answer was lost may be repeated."""
    after = journal.index.at_or_after(described.begin)
    return described.end <= journal.view.open_begin and (
        after is None or after.begin >= described.end
    )


def _chosen(index: FragmentIndex, wanted: Sequence[Fragment]) -> list[SealedFragment]:
    """Return the sealed fragments that match the descriptions, ascending, without the newest."""
    chosen: dict[int, SealedFragment] = {}
    for described in wanted:
        found = _as_described(index, described)
        if found is not None and found is not index.newest:
            chosen[found.begin] = found
    return [chosen[begin] for begin in sorted(chosen)]


def _as_described(index: FragmentIndex, described: Fragment) -> SealedFragment | None:
    """Return the sealed fragment that a client describes; None if there is none of that begin, end and sum."""
    found = index.at(described.begin)
    if found is None or found.end != described.end or sha1_sum(found.sum) != described.sum:
        return None
    return found


# The VerifyJournal RPC: every sealed fragment of a journal is read and compared with its checksums.
#
# On request, damaged bytes are given up:
#
#     copy       intact parts of the fragment go into separate files
#     declare    the journal's log says durably that the damaged bytes are holes
#     replace    the pieces take the fragment's place, which is quarantined
#
# A crash in between leaves the fragment, or the pieces, and a hole that is already declared.
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
        logger.warning("fragment.discarded", journal=journal.name, begin=begin, spans=damaged)


async def _yield(length: int) -> None:
    """Let other tasks run."""
    del length
    await asyncio.sleep(0)


# The ListQuarantine and PurgeQuarantine RPCs, for data that was moved aside.
#
# To restore an entry, the broker must be stopped: `python -m broadsheet.broker --restore`.


class QuarantineHandler:
    """Lists and purges the quarantine of a broker."""

    def __init__(
        self, resolver: JournalResolver, disk: Disk, quarantine: JournalQuarantine
    ) -> None:
        self._resolver = resolver
        self._disk = disk
        self._quarantine = quarantine

    async def list(
        self, request: ListQuarantineRequest, claims: Claims, context: Context
    ) -> ListQuarantineResponse:
        """Serve the entries of the journals that the caller may see."""
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
                raise NotAuthorizedError(f"the token does not cover {entry.id}")
        await self._disk.run(self._quarantine.purge, request.id)
        return PurgeQuarantineResponse(header=self._resolver.header())


def _covers(claims: Claims, entry: Quarantined) -> bool:
    """Tell whether claims cover an entry; one without a journal needs claims without limits."""
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
