"""The List and Apply RPCs: declared journals.

Source: gazette/core broker/list_apply_api.go (snapshots, what triggers a new one, authorization per change).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence

import grpc

from broadsheet.broker.catalogue import ANY_REVISION, Catalogue, CatalogueEntry
from broadsheet.broker.faults import Context, RpcFault
from broadsheet.broker.journals import Journals
from broadsheet.broker.read import seconds_left
from broadsheet.broker.resolution import Identity, JournalResolver, is_restricted, may_see
from broadsheet.runtime.installed_version import installed_version
from broadsheet.security.auth import Claims
from broadsheet.security.errors import NotAuthorizedError
from broadsheet.wire.broker_metadata import VERSION, WALL_TIME
from broadsheet.wire.journal_pb2 import (
    ApplyRequest,
    ApplyResponse,
    JournalSpec,
    LabelSelector,
    ListRequest,
    ListResponse,
    Status,
)
from broadsheet.wire.labels import NAME, LabelMatcher, expand_prefix
from broadsheet.wire.validation_journal import validate_apply_request, validate_list_request

PAGE_JOURNALS = 25
"""Journals of one message."""
CHANGES_MAX = 128
"""Most changes of one transaction, as with etcd."""


class ListHandler:
    """Serves listings, once or as a watch."""

    def __init__(
        self,
        resolver: JournalResolver,
        identity: Identity,
        catalogue: Catalogue,
        journals: Journals,
    ) -> None:
        self._resolver = resolver
        self._identity = identity
        self._catalogue = catalogue
        self._journals = journals

    async def list(self, request: ListRequest, claims: Claims, context: Context) -> None:
        """Serve one listing; a watch ends cleanly when the broker stops or the token expires."""
        validate_list_request(request)
        await context.send_initial_metadata(
            ((VERSION, installed_version()), (WALL_TIME, str(time.time_ns())))
        )
        timeout = asyncio.timeout(seconds_left(claims))
        try:
            async with timeout:
                await self._list(request, claims, context)
        except TimeoutError:
            if not timeout.expired():
                raise

    async def _list(self, request: ListRequest, claims: Claims, context: Context) -> None:
        if not request.watch:
            await self._send(self._matched(request, claims), context)
            return
        sent: tuple[int, int] | None = None
        resume = request.watch_resume.etcd.revision if request.HasField("watch_resume") else 0
        while not self._journals.stopping:
            matched = self._matched(request, claims)
            # A deletion changes the number, and any other change the newest revision.
            state = (len(matched), max((entry.mod_revision for entry in matched), default=0))
            # A resumed watch gets one snapshot after the revision it has seen, changed or not.
            if self._catalogue.revision > resume and state != sent:
                sent = state
                await self._send(matched, context)
                # An empty message ends a snapshot of a watch.
                await context.write(ListResponse())
            else:
                await self._catalogue.changed.wait()

    def _matched(self, request: ListRequest, claims: Claims) -> Sequence[CatalogueEntry]:
        selector = expand_prefix(request.selector)
        selections = [LabelMatcher(selector), LabelMatcher(expand_prefix(claims.selector))]
        return list(
            self._catalogue.matching(
                lambda entry: all(
                    each.picks(entry.spec.labels, meta={NAME: entry.spec.name})
                    for each in selections
                ),
                names=_names_in(selector),
            )
        )

    async def _send(self, matched: Sequence[CatalogueEntry], context: Context) -> None:
        """Send one snapshot; only its first message has status and header, and only it may be empty."""
        route = self._identity.route()
        header = self._resolver.header()
        for start in range(0, max(len(matched), 1), PAGE_JOURNALS):
            response = ListResponse(
                journals=[
                    ListResponse.Journal(
                        spec=entry.spec,
                        mod_revision=entry.mod_revision,
                        create_revision=entry.create_revision,
                        route=route,
                    )
                    for entry in matched[start : start + PAGE_JOURNALS]
                ]
            )
            if start == 0:
                response.header.CopyFrom(header)
            await context.write(response)


class ApplyHandler:
    """Serves transactions over the journals' specs."""

    def __init__(
        self, resolver: JournalResolver, catalogue: Catalogue, *, journals_max: int
    ) -> None:
        self._resolver = resolver
        self._catalogue = catalogue
        self._journals_max = journals_max

    async def apply(self, request: ApplyRequest, claims: Claims, context: Context) -> ApplyResponse:
        """Apply all changes or none."""
        del context
        # The number is checked first, because each change takes a check.
        _check_number(request)
        validate_apply_request(request)
        self._check(request, claims)
        held = await self._catalogue.apply(self._pinned(request.changes, claims))
        status = Status.OK if held else Status.ETCD_TRANSACTION_FAILED
        return ApplyResponse(status=status, header=self._resolver.header())

    def _pinned(
        self, changes: Sequence[ApplyRequest.Change], claims: Claims
    ) -> Sequence[ApplyRequest.Change]:
        """Return the changes, bound to the specs by which a restricted caller was judged."""
        if not is_restricted(claims.selector):
            return changes
        pinned: list[ApplyRequest.Change] = []
        for change in changes:
            bound = ApplyRequest.Change()
            bound.CopyFrom(change)
            if bound.expect_mod_revision == ANY_REVISION:
                stored = self._catalogue.entries.get(change.upsert.name or change.delete)
                bound.expect_mod_revision = 0 if stored is None else stored.mod_revision
            pinned.append(bound)
        return pinned

    def _check(self, request: ApplyRequest, claims: Claims) -> None:
        names = [
            change.upsert.name if change.HasField("upsert") else change.delete
            for change in request.changes
        ]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise RpcFault(
                grpc.StatusCode.UNKNOWN, f"changes: journal {twice} appears in two of them"
            )
        for change, name in zip(request.changes, names, strict=True):
            _check_allowed(claims.selector, change, self._catalogue.entries.get(name))
        new = sum(
            change.HasField("upsert") and change.upsert.name not in self._catalogue.entries
            for change in request.changes
        )
        if new and len(self._catalogue.entries) + new > self._journals_max:
            raise RpcFault(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"this broker serves {self._journals_max} journals at most",
            )


def _names_in(selector: LabelSelector) -> Collection[str] | None:
    """Return the names of which a journal must have one; None if the selector does not list them."""
    asked = [label for label in selector.include.labels if label.name == NAME]
    # An empty value, or a prefix, matches more names than one.
    if not asked or any(label.prefix or not label.value for label in asked):
        return None
    return {label.value for label in asked}


def _check_number(request: ApplyRequest) -> None:
    if len(request.changes) > CHANGES_MAX:
        raise RpcFault(
            grpc.StatusCode.UNKNOWN,
            f"changes: expected {CHANGES_MAX} at most, got {len(request.changes)}; apply in batches",
        )


def _check_allowed(
    selector: LabelSelector, change: ApplyRequest.Change, stored: CatalogueEntry | None
) -> None:
    """Refuse a change that the claims do not cover: the journal as it is, and as it would be."""
    # The present labels count too: otherwise a caller could take over a journal of others by giving it labels that
    # its own token covers, or delete one that its token excludes.
    specs = [] if stored is None else [stored.spec]
    if change.HasField("upsert"):
        specs.append(change.upsert)
    elif stored is None:
        specs.append(JournalSpec(name=change.delete))
    for spec in specs:
        if not may_see(selector, spec.labels, spec.name):
            raise NotAuthorizedError(f"the token does not cover journal {spec.name}")
