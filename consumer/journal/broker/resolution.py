"""From a request to the journal that serves it, or the status that refuses it.

Source: gazette/core broker/resolver.go (order of checks).
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from consumer.journal.broker.catalogue import Catalogue, Entry
from consumer.journal.broker.faults import RpcFault
from consumer.journal.broker.headers import Identity
from consumer.journal.broker.journals import Journals, Served
from consumer.protocol.alphabet import split_journal
from consumer.protocol.auth import Capability, Claims, Metadata, TokenVerifier
from consumer.protocol.journal_pb2 import Header, LabelSelector, LabelSet, Status
from consumer.protocol.labels import expand_prefix, matches

_HEADERS_MAX = 16


@dataclass(frozen=True, slots=True)
class Resolution:
    """Where a request goes."""

    status: Status.ValueType
    header: Header
    name: str
    """The journal without its meta suffix."""
    entry: Entry | None
    """None unless the status is OK."""


class Resolver:
    """Authorizes requests and finds their journals."""

    def __init__(
        self,
        identity: Identity,
        catalogue: Catalogue,
        journals: Journals,
        verifier: TokenVerifier,
    ) -> None:
        self._identity = identity
        self._catalogue = catalogue
        self._journals = journals
        self._verifier = verifier
        self._headers: dict[tuple[int, bool], Header] = {}
        """The newest ones; many answers bear the same."""

    def authorize(self, metadata: Metadata | None, require: Capability) -> Claims:
        """Return the claims of the caller of a request with such metadata.

        Raises:
            UnauthenticatedError, NotAuthorizedError: it has not shown them.
        """
        return self._verifier.verify(metadata, require)

    def header(self, *, routed: bool = False) -> Header:
        """Return a header as of now, to be copied into an answer."""
        key = self._catalogue.revision, routed
        header = self._headers.get(key)
        if header is None:
            if len(self._headers) >= _HEADERS_MAX:
                self._headers.clear()
            header = self._headers[key] = self._identity.header(key[0], routed=routed)
        return header

    async def resolve(
        self, journal: str, claims: Claims, *, min_revision: int, proxied: Header | None
    ) -> Resolution:
        """Find a journal that the caller may see, once the wanted revision is reached.

        Args:
            journal: Name, with or without meta.
            claims: Of the caller.
            min_revision: Revision to wait for.
            proxied: The request's header, set by a proxying broker.

        Raises:
            RpcFault: the request was meant for another broker, or this one stops.
        """
        if proxied is not None:
            self._check_proxied(proxied)
            min_revision = max(min_revision, proxied.etcd.revision)
        while self._catalogue.revision < min_revision:
            if self._journals.stopping:
                raise RpcFault(grpc.StatusCode.UNAVAILABLE, "the broker is stopping")
            await self._catalogue.changed.wait()
        name, _ = split_journal(journal)
        entry = self._catalogue.entries.get(name)
        if entry is None or not may_see(claims.selector, entry.spec.labels, name):
            return Resolution(Status.JOURNAL_NOT_FOUND, self.header(), name, None)
        return Resolution(Status.OK, self.header(routed=True), name, entry)

    async def serve(self, entry: Entry) -> Served:
        """Return the live journal of an entry, opened.

        Raises:
            RpcFault: its files cannot be opened.
        """
        served = self._journals.get(entry)
        if not await served.journal.ready():
            raise RpcFault(
                grpc.StatusCode.UNAVAILABLE,
                f"journal {served.journal.name} {served.journal.store_error or 'is being deleted'}",
            )
        return served

    def _check_proxied(self, header: Header) -> None:
        mine = self._identity
        if header.etcd.cluster_id != mine.cluster_id:
            raise RpcFault(
                grpc.StatusCode.UNKNOWN,
                f"header.etcd.cluster_id: expected {mine.cluster_id}, got {header.etcd.cluster_id}",
            )
        asked = header.process_id
        if asked.suffix and asked != mine.process_id:
            raise RpcFault(
                grpc.StatusCode.UNKNOWN,
                f"header.process_id: expected {mine.zone}#{mine.suffix}, got {asked.zone}#{asked.suffix}",
            )


def may_see(selector: LabelSelector, labels: LabelSet, name: str) -> bool:
    """Tell whether claims cover a journal."""
    if not selector.include.labels and not selector.exclude.labels:
        return True
    return matches(expand_prefix(selector), labels, meta={"name": name})
