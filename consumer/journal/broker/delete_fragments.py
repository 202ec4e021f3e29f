"""The DeleteFragments RPC: content that nobody will read again goes, for ever.

    declare    the journal's log says durably that the spans are holes
    forget     readers skip them from now on; who holds a file open finishes with it
    remove     a crash before this leaves files that are served again, and may be deleted again

Retention removes a journal's oldest fragments; this removes any but the newest, which tells where the journal ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import structlog

from consumer.journal.broker.faults import Context, RpcFault
from consumer.journal.broker.fragment_sums import files_of
from consumer.journal.broker.fragments import FragmentIndex, SealedFragment
from consumer.journal.broker.journal import LiveJournal, Site
from consumer.journal.broker.journals import Served
from consumer.journal.broker.resolution import Resolver
from consumer.journal.broker.store import StoreError
from consumer.journal.broker.sums import sha1_sum
from consumer.protocol.auth import Claims
from consumer.protocol.fragments_pb2 import DeleteFragmentsRequest, DeleteFragmentsResponse
from consumer.protocol.journal_pb2 import Fragment
from consumer.protocol.validation_fragments import validate_delete_fragments_request

logger = structlog.get_logger()


class DeletionHandler:
    """Removes sealed fragments."""

    def __init__(self, resolver: Resolver, site: Site) -> None:
        self._resolver = resolver
        self._site = site

    async def delete(
        self, request: DeleteFragmentsRequest, claims: Claims, context: Context
    ) -> DeleteFragmentsResponse:
        """Remove those of the request's fragments that are there as described."""
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
            await served.committer.declare_holes([(each.begin, each.end) for each in chosen])
        except StoreError as error:
            raise RpcFault(
                grpc.StatusCode.UNAVAILABLE, f"journal {served.journal.name}: {error}"
            ) from error
        for each in chosen:
            served.journal.index.remove(each)
        await self._site.disk.run(self._site.spares.retire, files_of(chosen))
        logger.info(
            "fragments.deleted",
            journal=served.journal.name,
            fragments=len(chosen),
            bytes=sum(each.end - each.begin for each in chosen),
        )


def _is_absent(journal: LiveJournal, described: Fragment) -> bool:
    """Tell whether no byte of a fragment is there: so a request whose answer was lost may be repeated."""
    after = journal.index.at_or_after(described.begin)
    return described.end <= journal.view.open_begin and (
        after is None or after.begin >= described.end
    )


def _chosen(index: FragmentIndex, wanted: Sequence[Fragment]) -> list[SealedFragment]:
    """Return the sealed fragments that are as described, ascending, without the newest."""
    chosen: dict[int, SealedFragment] = {}
    for described in wanted:
        found = index.at(described.begin)
        if (
            found is not None
            and found is not index.newest
            and found.end == described.end
            and sha1_sum(found.sum) == described.sum
        ):
            chosen[found.begin] = found
    return [chosen[begin] for begin in sorted(chosen)]
