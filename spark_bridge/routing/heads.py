"""Looks up the ends of journals, without an event loop, in drivers and tasks alike."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import grpc

from broadsheet.journals.errors import JournalUnavailableError
from broadsheet.journals.request_errors import error_of_rpc, error_of_status
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.errors import EndpointError, ServiceError
from broadsheet.security.tls import TlsConfig
from broadsheet.spark_bridge.routing.channels import PythonWorkerCache, this_worker
from broadsheet.wire.journal_pb2 import ReadRequest, ReadResponse, Status
from broadsheet.wire.journal_pb2_grpc import JournalStub
from broadsheet.wire.labels import label_set, selector

if TYPE_CHECKING:
    from broadsheet.security.auth import ClientAuth

PATIENCE_SECONDS = 30.0
"""Longest wait for a broker that does not answer, or for a journal that is not served."""
CREDENTIAL_SECONDS = 60.0
_PAUSE_SECONDS_MAX = 0.5
_HEAD = -1
_ANSWERS = (Status.OK, Status.OFFSET_NOT_YET_AVAILABLE)


def token_of_heads(
    broker_address: str,
    journals: Iterable[str],
    *,
    auth: ClientAuth | None = None,
    tls: TlsConfig | None = None,
) -> dict[str, int]:
    """Return the current ends of journals; a reader that has read through them has seen everything written before.

    Args:
        broker_address: Address of any broker.
        journals: Their names.
        auth: Signs the requests.
        tls: Files for an `https://` address.

    Returns:
        Offsets, bytes by journal.

    Raises:
        JournalError: a journal does not exist, may not be read, or is not served.
        EndpointError: the broker did not answer.
    """
    broker = _Broker(this_worker(), broker_address, auth, tls)
    return {journal: _head(broker, journal) for journal in journals}


@dataclass(frozen=True, slots=True)
class _Broker:
    worker: PythonWorkerCache
    address: str
    auth: ClientAuth | None
    tls: TlsConfig | None


def _head(broker: _Broker, journal: str) -> int:
    deadline = time.monotonic() + PATIENCE_SECONDS
    backoff = Backoff(max_seconds=_PAUSE_SECONDS_MAX, random=broker.worker.random)
    while True:
        try:
            return _ask(broker, journal, seconds=deadline - time.monotonic())
        except (EndpointError, JournalUnavailableError):
            pause = backoff.next_seconds()
            if time.monotonic() + pause >= deadline:
                raise
            time.sleep(pause)


def _ask(broker: _Broker, journal: str, *, seconds: float) -> int:
    metadata = () if broker.auth is None else _credentials(broker.auth, journal)
    request = ReadRequest(journal=journal, offset=_HEAD, metadata_only=True)
    with broker.worker.channels.borrowed(broker.address, broker.tls) as channel:
        call = JournalStub(channel).Read(request, timeout=seconds, metadata=metadata)
        try:
            response: ReadResponse | None = next(iter(call), None)
        except grpc.RpcError as error:
            raise _translated(broker.address, error) from error
        finally:
            call.cancel()
    if response is None:
        raise EndpointError(broker.address, "the broker ended the read without an answer")
    if response.status not in _ANSWERS:
        raise error_of_status(journal, response.status)
    return response.write_head


def _credentials(auth: ClientAuth, journal: str) -> tuple[tuple[str, str], ...]:
    # Imported here, because it takes a third of a short task's imports and most clusters have no keys.
    from broadsheet.security.auth import Capability, expiring

    named = selector(label_set(("name", journal)))
    return auth.metadata(expiring(Capability.READ, named, life_seconds=CREDENTIAL_SECONDS))


def _translated(broker: str, error: grpc.RpcError) -> ServiceError:
    # Both kinds of calls raise errors with a code and details, and only these are used.
    return error_of_rpc(broker, cast("grpc.aio.AioRpcError", error))
