"""Requests for the checksums of a fragment's blocks, to the broker that published the fragment.

Brokers of this project answer them. A broker that does not know the method, such as Gazette's, is not asked for a
while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from broadsheet.journals.block_sums import BLOCK_BYTES, SUM_BYTES, StoredSums, sums_bytes
from broadsheet.journals.fragment_content import DirectReadError
from broadsheet.journals.transport import JournalTransport
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.auth import TOKEN_LIFE_SECONDS, Capability
from broadsheet.wire.alphabet import require
from broadsheet.wire.fragments_pb2 import FragmentSumsRequest, FragmentSumsResponse
from broadsheet.wire.fragments_pb2_grpc import FragmentServiceStub
from broadsheet.wire.journal_pb2 import Fragment, Status
from broadsheet.wire.validation_journal_response import STATUSES
from broadsheet.wire.validation_terms import validate_status

if TYPE_CHECKING:
    from broadsheet.wire.fragments_pb2_grpc import FragmentServiceAsyncStub

ANSWER_SECONDS: Final = 20.0
"""Longest wait for an answer."""
PLAIN_SECONDS: Final = 60.0
"""Duration for which a broker is not asked that does not know the method."""


class SumsRequests:
    """Asks brokers for checksums. Belongs to one event loop."""

    def __init__(self, transport: JournalTransport) -> None:
        self._transport = transport
        self._plain_until: dict[str, float] = {}
        """Monotonic seconds, by the address of a broker that does not know the method, as Gazette's do not."""

    async def ask(self, fragment: Fragment) -> StoredSums | None:
        """Return the checksums of a fragment; None if its broker has none.

        Raises:
            DirectReadError: the broker does not answer, or does not have the fragment any more.
        """
        transport = self._transport
        peer = transport.peer_for(fragment.journal, primary=False)
        now = transport.clock.monotonic_seconds()
        if now < self._plain_until.get(peer.endpoint, now):
            return None
        stub = FragmentServiceStub(transport.channels.channel(peer.endpoint))
        try:
            return await self._whole(stub, fragment)
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

    async def _whole(self, stub: FragmentServiceAsyncStub, fragment: Fragment) -> StoredSums | None:
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
