"""The ListFragments, FragmentStoreHealth, FragmentSums and quarantine RPCs.

Source: gazette/core broker/fragments_api.go, fragment_store_health_api.go. Only published fragments have URLs. A store
that this broker does not serve means its own directory, and that is what is probed then.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from pathlib import Path

from broadsheet.broker.disk import Disk
from broadsheet.broker.faults import Context
from broadsheet.broker.fragment_checks import FragmentChecks
from broadsheet.broker.fragments import as_described
from broadsheet.broker.journal import LiveJournal, ReadableSpan, span_of
from broadsheet.broker.publishing import FragmentPublisher
from broadsheet.broker.quarantine import JournalQuarantine, Quarantined
from broadsheet.broker.read import fragment_message, refusal, sealed_of
from broadsheet.broker.resolution import JournalResolver, may_see
from broadsheet.journals.block_sums import BLOCK_BYTES
from broadsheet.runtime.errors import ExtraMissingError, ValidationError
from broadsheet.security.auth import Claims
from broadsheet.security.errors import NotAuthorizedError
from broadsheet.wire.fragments_pb2 import (
    FragmentSumsRequest,
    FragmentSumsResponse,
    ListQuarantineRequest,
    ListQuarantineResponse,
    PurgeQuarantineRequest,
    PurgeQuarantineResponse,
    QuarantineEntry,
)
from broadsheet.wire.journal_pb2 import (
    FragmentsRequest,
    FragmentsResponse,
    FragmentStoreHealthRequest,
    FragmentStoreHealthResponse,
    LabelSet,
    Status,
)
from broadsheet.wire.validation_journal import (
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
        self, resolver: JournalResolver, disk: Disk, directory: Path, publisher: FragmentPublisher
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


class SumsHandler:
    """Tells the checksums of a sealed fragment's blocks, for those who read it in its store."""

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
        fragment = as_described(index, request.fragment)
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


class QuarantineHandler:
    """Lists and purges the quarantine of a broker: data that was moved aside.

    To restore an entry, the broker must be stopped: `python -m broadsheet.broker --restore`.
    """

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
