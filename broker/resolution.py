"""Resolution of a request to the journal that serves it, or to the status that refuses it.

Source: gazette/core broker/resolver.go (order of checks).
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from broadsheet.broker.catalogue import Catalogue, CatalogueEntry
from broadsheet.broker.faults import Context, RpcFault
from broadsheet.broker.journals import Journals, Served
from broadsheet.security.auth import Capability, Claims, Metadata, TokenVerifier
from broadsheet.security.certificates import peer_identity
from broadsheet.wire.alphabet import split_journal
from broadsheet.wire.journal_pb2 import Header, LabelSelector, LabelSet, ProcessSpec, Route, Status
from broadsheet.wire.labels import expand_prefix, matches

_OK = Status.OK
_HEADERS_MAX = 16

NO_PRIMARY = -1


@dataclass(frozen=True, slots=True)
class Identity:
    """This broker's process id and endpoint, for headers. Its route is the same for every journal.

    Source: gazette/core broker/protocol/header_extensions.go, route_extensions.go (checks of peers).
    """

    cluster_id: int
    member_id: int
    term: int
    zone: str
    suffix: str
    endpoint: str

    @property
    def process_id(self) -> ProcessSpec.ID:
        """The id of this process."""
        return ProcessSpec.ID(zone=self.zone, suffix=self.suffix)

    def route(self) -> Route:
        """Return the route of a journal: this broker alone. Routes always have endpoints."""
        return Route(members=[self.process_id], primary=0, endpoints=[self.endpoint])

    def header(self, revision: int, *, routed: bool) -> Header:
        """Return a header for a revision.

        Args:
            revision: Of the catalogue.
            routed: Whether the answer is about a journal that exists here.
        """
        return Header(
            process_id=self.process_id,
            # A zero-valued route is invalid: without members the primary must be -1.
            route=self.route() if routed else Route(primary=NO_PRIMARY),
            etcd=Header.Etcd(
                cluster_id=self.cluster_id,
                member_id=self.member_id,
                revision=revision,
                raft_term=self.term,
            ),
        )


@dataclass(frozen=True, slots=True)
class JournalResolution:
    """Result of resolving a request."""

    status: Status.ValueType
    header: Header
    name: str
    """The journal without its meta suffix."""
    entry: CatalogueEntry | None
    """None unless the status is OK."""


class JournalResolver:
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
        """The newest headers, because many answers share one."""

    async def authorize(
        self, context: Context, require: Capability, *, metadata: Metadata | None = None
    ) -> Claims:
        """Return the claims of the caller.

        Args:
            context: Of the call.
            require: Capabilities of which none may be missing.
            metadata: Those that show the claims; None: the call's.

        Raises:
            UnauthenticatedError, NotAuthorizedError: it has not shown them.
        """
        return await self._verifier.verify_call(
            context.invocation_metadata() if metadata is None else metadata,
            require,
            identity=lambda: peer_identity(context.auth_context()),
        )

    def header(self, *, routed: bool = False) -> Header:
        """Return a header for the current revision, to be copied into an answer."""
        key = self._catalogue.revision, routed
        header = self._headers.get(key)
        if header is None:
            if len(self._headers) >= _HEADERS_MAX:
                self._headers.clear()
            header = self._headers[key] = self._identity.header(key[0], routed=routed)
        return header

    async def resolve(
        self, journal: str, claims: Claims, *, min_revision: int, proxied: Header | None
    ) -> JournalResolution:
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
            return JournalResolution(Status.JOURNAL_NOT_FOUND, self.header(), name, None)
        return JournalResolution(_OK, self.header(routed=True), name, entry)

    async def serve(self, entry: CatalogueEntry) -> Served:
        """Return the live journal of an entry, opened.

        Raises:
            RpcFault: its files cannot be opened.
        """
        served = self._journals.get(entry)
        served.journal.use()
        if not served.journal.is_loaded:
            await self._journals.make_room()
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
    if not is_restricted(selector):
        return True
    return matches(expand_prefix(selector), labels, meta={"name": name})


def is_restricted(selector: LabelSelector) -> bool:
    """Tell whether claims cover only some journals."""
    return bool(selector.include.labels or selector.exclude.labels)
