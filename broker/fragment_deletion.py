"""The DeleteFragments RPC: permanent removal of content that is no longer needed.

- *declare*: the log of the journal says durably that the spans are holes.
- *forget*: readers skip them from now on; a reader with an open file finishes with it.
- *remove*: from the store, then from the disk. After a crash before this step, files are served again and may be
  deleted again. What is not in its store any more is skipped, because the log says why.

Retention removes the oldest fragments of a journal; this removes any but the newest, which tells where it ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import structlog

from broadsheet.broker.faults import Context, RpcFault
from broadsheet.broker.fragment_sums import files_of
from broadsheet.broker.fragments import FragmentIndex, SealedFragment, as_described
from broadsheet.broker.journal import LiveJournal, Site
from broadsheet.broker.journals import Served
from broadsheet.broker.resolution import JournalResolver
from broadsheet.broker.store import JournalStoreError
from broadsheet.security.auth import Claims
from broadsheet.wire.fragments_pb2 import DeleteFragmentsRequest, DeleteFragmentsResponse
from broadsheet.wire.journal_pb2 import Fragment
from broadsheet.wire.validation_journal import validate_delete_fragments_request

_log = structlog.get_logger()


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
        _log.info(
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
        found = as_described(index, described)
        if found is not None and found is not index.newest:
            chosen[found.begin] = found
    return [chosen[begin] for begin in sorted(chosen)]
