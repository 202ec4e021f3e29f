"""The ListFragments and FragmentStoreHealth RPCs.

Source: gazette/core broker/fragments_api.go, fragment_store_health_api.go. Content stays in the broker's own directory,
so no fragment has a URL, and what is probed is that directory.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from consumer.journal.broker.disk import Disk
from consumer.journal.broker.faults import Context
from consumer.journal.broker.journal import LiveJournal, Span, span_of
from consumer.journal.broker.preconditions import may_read
from consumer.journal.broker.read import fragment_message
from consumer.journal.broker.resolution import Resolver
from consumer.protocol.auth import Claims
from consumer.protocol.journal_pb2 import (
    FragmentsRequest,
    FragmentsResponse,
    FragmentStoreHealthRequest,
    FragmentStoreHealthResponse,
    JournalSpec,
    Status,
)
from consumer.protocol.validation_journal import (
    validate_fragments_request,
    validate_store_health_request,
)

PAGE_DEFAULT = 1_000
"""Fragments of a page whose size was not asked for."""
_PROBE = b"broadsheet broker health probe\n"


class FragmentsHandler:
    """Lists fragments and probes the disk they are on."""

    def __init__(self, resolver: Resolver, disk: Disk, directory: Path) -> None:
        self._resolver = resolver
        self._disk = disk
        self._directory = directory

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
        entry = resolution.entry
        if entry is None:
            return FragmentsResponse(status=resolution.status, header=resolution.header)
        if entry.spec.suspend.level == JournalSpec.Suspend.FULL:
            return FragmentsResponse(status=Status.SUSPENDED, header=resolution.header)
        if not may_read(entry.spec):
            return FragmentsResponse(status=Status.NOT_ALLOWED, header=resolution.header)
        served = await self._resolver.serve(entry)
        response = FragmentsResponse(header=resolution.header)
        limit = request.page_limit or PAGE_DEFAULT
        for span in _spans(served.journal, request):
            if len(response.fragments) == limit:
                response.next_page_token = span.begin
                break
            response.fragments.add(spec=fragment_message(resolution.name, span))
        return response

    async def health(
        self, request: FragmentStoreHealthRequest, claims: Claims, context: Context
    ) -> FragmentStoreHealthResponse:
        """Serve a probe: any store stands for the broker's own disk."""
        del claims, context  # Any reader may ask.
        validate_store_health_request(request)
        response = FragmentStoreHealthResponse(header=self._resolver.header())
        try:
            await self._disk.run(self._probe)
        except OSError as error:
            response.status = Status.FRAGMENT_STORE_UNHEALTHY
            response.store_health_error = str(error)
        return response

    def _probe(self) -> None:
        """Write, sync, read, list and remove a file. Blocking."""
        path = self._directory / f"probe-{secrets.token_hex(8)}"
        try:
            self._disk.write_file(path, _PROBE)
            if path.read_bytes() != _PROBE or path not in self._directory.iterdir():
                raise OSError(f"{path} does not read as it was written")
        finally:
            path.unlink(missing_ok=True)


def _spans(journal: LiveJournal, request: FragmentsRequest) -> list[Span]:
    """Return the journal's fragments from the page token on that fit the wanted times.

    A local fragment (mod_time zero) passes a lower bound, but no upper one, which includes its second.
    """
    spans = [span_of(sealed) for sealed in journal.index.from_begin(request.next_page_token)]
    growing = journal.open_span()
    if growing is not None and growing.begin >= request.next_page_token:
        spans.append(growing)
    return [span for span in spans if _is_wanted(span, request)]


def _is_wanted(span: Span, request: FragmentsRequest) -> bool:
    if span.mod_time and span.mod_time < request.begin_mod_time:
        return False
    return not request.end_mod_time or 0 < span.mod_time <= request.end_mod_time
