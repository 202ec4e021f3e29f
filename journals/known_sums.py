"""Checksums of the blocks of stored fragments: asked of the broker that published them, and remembered.

They are remembered by what a fragment is, its SHA-1 and its length, and not by where it is. So what a disk or a store
returns is verified each time it is read, also of a file that was verified before.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import grpc

from broadsheet.journals.block_sums import BLOCK_BYTES, SUM_BYTES, StoredSums, sums_bytes
from broadsheet.journals.fragment_content import DirectReadError, KnownSums, sum_of
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.auth import TOKEN_LIFE_SECONDS, Capability
from broadsheet.wire.alphabet import require
from broadsheet.wire.fragments_pb2 import FragmentSumsRequest, FragmentSumsResponse
from broadsheet.wire.fragments_pb2_grpc import FragmentServiceStub
from broadsheet.wire.journal_pb2 import Fragment, Status
from broadsheet.wire.validation_journal_response import STATUSES
from broadsheet.wire.validation_terms import validate_status

if TYPE_CHECKING:
    from broadsheet.journals.transport import JournalTransport
    from broadsheet.wire.fragments_pb2_grpc import FragmentServiceAsyncStub

REMEMBERED_BYTES_MAX: Final = 8 << 20
"""Checksums that are remembered, which is those of 16 GiB of content."""
ANSWER_SECONDS: Final = 20.0
"""Longest wait for an answer."""
PLAIN_SECONDS: Final = 60.0
"""Duration for which a broker is not asked that does not know the method."""


class KnownSumsCache:
    """Checksums by fragment. Belongs to one event loop; `get` and `keep` are also called in threads."""

    def __init__(self, transport: JournalTransport) -> None:
        self._transport = transport
        self._by_fragment: OrderedDict[tuple[int, bytes], KnownSums] = OrderedDict()
        """Those first that were used least recently."""
        self._bytes = 0
        self._plain_until: dict[str, float] = {}
        """Monotonic seconds, by the address of a broker that does not know the method, as Gazette's do not."""

    def get(self, fragment: Fragment) -> KnownSums | None:
        """Return what is remembered of a fragment."""
        return self._by_fragment.get(_key(fragment))

    def keep(self, fragment: Fragment, known: KnownSums) -> None:
        """Remember the checksums of a fragment."""
        # Several threads may be here. Each operation on the dictionary is atomic, and the count of
        # bytes is a bound that need not be exact.
        if self._by_fragment.pop(_key(fragment), None) is None:
            self._bytes += sums_bytes(known.sums.length)
        self._by_fragment[_key(fragment)] = known
        while self._bytes > REMEMBERED_BYTES_MAX and len(self._by_fragment) > 1:
            _, gone = self._by_fragment.popitem(last=False)
            self._bytes -= sums_bytes(gone.sums.length)

    async def find(self, fragment: Fragment) -> KnownSums | None:
        """Return the checksums of a fragment, asked of its broker unless they are remembered; None if it has none.

        Raises:
            DirectReadError: the broker does not answer, or does not have the fragment any more.
        """
        known = self.get(fragment)
        if known is not None:
            return known
        transport = self._transport
        peer = transport.peer_for(fragment.journal, primary=False)
        now = transport.clock.monotonic_seconds()
        if now < self._plain_until.get(peer.endpoint, now):
            return None
        stub = FragmentServiceStub(transport.channels.channel(peer.endpoint))
        try:
            sums = await self._asked(stub, fragment)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                self._plain_until[peer.endpoint] = now + PLAIN_SECONDS
                return None
            transport.note_failure(fragment.journal, error)
            detail = f"its broker does not tell its checksums ({error.code().name})"
            raise DirectReadError(fragment, "failed", detail) from error
        except ValidationError as error:
            detail = f"its broker tells malformed checksums: {error}"
            raise DirectReadError(fragment, "failed", detail) from error
        if sums is None:
            return None
        known = KnownSums(sums, agree=False)
        self.keep(fragment, known)
        return known

    async def _asked(self, stub: FragmentServiceAsyncStub, fragment: Fragment) -> StoredSums | None:
        length, found = fragment.end - fragment.begin, b""
        while len(found) < sums_bytes(length):
            request = FragmentSumsRequest(
                journal=fragment.journal, fragment=fragment, first_block=len(found) // SUM_BYTES
            )
            metadata = self._transport.journal_metadata(
                Capability.READ, fragment.journal, life_seconds=TOKEN_LIFE_SECONDS
            )
            response: FragmentSumsResponse = await stub.FragmentSums(
                request, metadata=metadata, timeout=ANSWER_SECONDS
            )
            part = sums_in(response, fragment, first_block=request.first_block)
            if part is None:
                return None
            found += part
        return StoredSums(length, found)


def sums_in(
    response: FragmentSumsResponse, fragment: Fragment, *, first_block: int
) -> bytes | None:
    """Return the checksums in an answer, 8 bytes each, for blocks from `first_block` on; None if the broker has none.

    Raises:
        ValidationError: the answer is malformed, or not one to this request.
        DirectReadError: the broker does not serve the fragment.
    """
    validate_status(response.status, STATUSES)
    if response.status != Status.OK:
        detail = f"its broker answered {Status.Name(response.status)}"
        raise DirectReadError(fragment, "failed", detail)
    if not response.known:
        raise DirectReadError(fragment, "missing", "its broker has removed it")
    if not response.sums or response.block_bytes != BLOCK_BYTES:
        return None
    left = sums_bytes(fragment.end - fragment.begin) - first_block * SUM_BYTES
    require(
        len(response.sums) % SUM_BYTES == 0 and len(response.sums) <= left,
        "sums",
        f"expected a multiple of {SUM_BYTES} and at most {left} bytes, got {len(response.sums)}",
    )
    return response.sums


def _key(fragment: Fragment) -> tuple[int, bytes]:
    return fragment.end - fragment.begin, sum_of(fragment)
