"""Blobs of one container, written and deleted on conditions, and their native leases."""

from __future__ import annotations

import string
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, unquote

from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.storage.blob import BlobProperties
from azure.storage.blob.aio import BlobLeaseClient, ContainerClient

from broadsheet.leases.errors import (
    DependencyError,
    InvalidStateError,
    LeasingError,
    ThrottlingError,
)
from broadsheet.leases.record import Version

PAGE_BLOBS: Final = 5_000
"""Most blobs in a page of Azure's listing."""

# Translation of Azure's errors into leasing errors; nothing else reads them.
T = TypeVar("T")
BLOB_NOT_FOUND = "BlobNotFound"
LEASE_ID_MISSING = "LeaseIdMissing"
_CONTAINER_NOT_FOUND = "ContainerNotFound"
_BEING_DELETED = "ContainerBeingDeleted"
_CONDITION_STATUSES = (HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED)
_BUSY_STATUSES = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class BlobRefusedError(Exception):
    """Azure refused a request because its condition does not hold. Never raised outside this package."""

    def __init__(self, code: str) -> None:
        """Keep Azure's code.

        Args:
            code: Azure's, e.g. `ConditionNotMet`, `LeaseIdMissing`.
        """
        super().__init__(code)
        self.code = code


async def answer_of(request: Awaitable[T], *, writes: bool = False) -> T:
    """Await Azure's answer, and translate its errors.

    Args:
        request: To Azure; its client may have sent it more than once.
        writes: It may have been applied if no answer comes.

    Raises:
        BlobRefusedError: a condition does not hold, or there is no such blob.
        DependencyError: no answer came.
        ThrottlingError: Azure has too much to do, or still deletes a container of that name.
        InvalidStateError: there is no container, or Azure refuses the request and always will.
    """
    try:
        return await request
    except HttpResponseError as error:
        raise _error_for(error, writes=writes) from error
    except (ServiceRequestError, ServiceResponseError) as error:
        # An unsent request may be the client's second attempt, after an answer was lost.
        raise DependencyError(_text(error), outcome_unknown=writes) from error
    except AzureError as error:
        raise DependencyError(_text(error), outcome_unknown=writes) from error


def _error_for(error: HttpResponseError, *, writes: bool) -> LeasingError | BlobRefusedError:
    code = _code_of(error)
    status = error.status_code or 0
    if code == _CONTAINER_NOT_FOUND:
        return InvalidStateError("no lease store: the container is not there; create it")
    if code == _BEING_DELETED or status in _BUSY_STATUSES:
        return ThrottlingError(_text(error))
    if code == BLOB_NOT_FOUND or status in _CONDITION_STATUSES:
        return BlobRefusedError(code)
    if isinstance(error, ClientAuthenticationError) or (
        HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    ):
        return InvalidStateError(f"Azure refuses the request ({code or status}): {_text(error)}")
    return DependencyError(_text(error), outcome_unknown=writes)


def _code_of(error: HttpResponseError) -> str:
    """Return Azure's code for an error; its clients hold it as text or as an enumeration member."""
    code: object = getattr(error, "error_code", None) or ""
    return str(getattr(code, "value", code))


def _text(error: AzureError) -> str:
    return str(error.message or error).partition("\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A blob as it was at some moment."""

    name: str
    etag: str
    """The ETag, without quotes; native leases do not change it."""
    metadata: Mapping[str, str]
    """The blob's metadata; a value of None or an empty one is empty."""
    body: bytes | None
    """The content; None: not read, as in listings."""
    is_leased: bool
    """True while any client holds the native lease."""
    modified_at: datetime
    """Time of the last write, in whole seconds of Azure's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobContent:
    """Content and metadata of a write, which replaces the whole blob."""

    body: bytes = b""
    metadata: Mapping[str, str]


class BlobContainer:
    """A container, with the operations and errors that the stores use."""

    def __init__(self, client: ContainerClient, *, page_blobs: int = PAGE_BLOBS) -> None:
        """Use a client.

        Args:
            client: Of the container, which need not exist; stays the caller's.
            page_blobs: Blobs that are listed at a time.
        """
        self._client = client
        self._page_blobs = page_blobs

    async def exists(self) -> bool:
        """Return whether the container is there."""
        return await answer_of(self._client.exists())

    async def create(self) -> bool:
        """Create the container; return False if it exists."""
        try:
            await answer_of(self._client.create_container(), writes=True)
        except BlobRefusedError:
            return False
        return True

    async def delete(self) -> None:
        """Remove the container with all that is in it. No error if it is not there."""
        if await self.exists():
            await answer_of(self._client.delete_container(), writes=True)

    async def read(self, name: str) -> Blob | None:
        """Return a blob with its body; None if it is not there."""
        blob = self._client.get_blob_client(name)
        try:
            download = await answer_of(blob.download_blob())
            body = await answer_of(download.readall())
        except BlobRefusedError:
            return None
        return _blob(name, download.properties, body)

    async def show(self, name: str) -> Blob | None:
        """Return a blob without its body; None if it is not there."""
        try:
            properties = await answer_of(self._client.get_blob_client(name).get_blob_properties())
        except BlobRefusedError:
            return None
        return _blob(name, properties, None)

    async def listing(self, prefix: str) -> AsyncIterator[Blob]:
        """Yield blobs without their bodies, in no order that we rely on."""
        found = self._client.list_blobs(
            name_starts_with=prefix, include=["metadata"], results_per_page=self._page_blobs
        )
        pages = found.by_page()
        while True:
            page = await answer_of(anext(pages, None))
            if page is None:
                return
            async for properties in page:
                yield _blob(str(properties.name), properties, None)

    async def put(
        self, name: str, content: BlobContent, *, only_if: str | None, lease_id: str | None = None
    ) -> str:
        """Write a blob.

        This does not use Set Blob Metadata, where e.g. Azurite ignores the condition that a blob must not exist.

        Args:
            name: Of the blob.
            content: What it is from now on.
            only_if: The etag that it must have; None: it must not be there.
            lease_id: Of its native lease, if somebody has it.

        Returns:
            Its etag.

        Raises:
            BlobRefusedError: it has another etag, or another lease.
        """
        blob = self._client.get_blob_client(name)
        if only_if is None:
            request = blob.upload_blob(
                content.body, metadata=dict(content.metadata), overwrite=False
            )
        else:
            request = blob.upload_blob(
                content.body,
                metadata=dict(content.metadata),
                overwrite=True,
                **_unchanged(only_if),
                **_leased(lease_id),
            )
        return _plain(str((await answer_of(request, writes=True))["etag"]))

    async def remove(
        self, name: str, *, only_if: str | None = None, lease_id: str | None = None
    ) -> bool:
        """Remove a blob. False if it was not there.

        Args:
            name: Of the blob.
            only_if: The etag that it must have; None: any.
            lease_id: Of its native lease, if somebody has it.

        Raises:
            BlobRefusedError: it has another etag, or another lease.
        """
        blob = self._client.get_blob_client(name)
        conditions = {} if only_if is None else _unchanged(only_if)
        try:
            await answer_of(blob.delete_blob(**conditions, **_leased(lease_id)), writes=True)
        except BlobRefusedError as error:
            if error.code == BLOB_NOT_FOUND:
                return False
            raise
        return True

    async def acquire(self, name: str, lease_id: str, *, seconds: int, only_if: str) -> None:
        """Acquire the native lease of an unleased blob.

        Raises:
            BlobRefusedError: it is leased, or the blob has another etag.
        """
        lease = self._lease(name, lease_id)
        await answer_of(lease.acquire(seconds, **_unchanged(only_if)), writes=True)

    async def change(self, name: str, lease_id: str, new_id: str, *, only_if: str) -> None:
        """Take over the native lease of a blob from its holder, by changing its id; it lasts as long as a renewed one.

        Raises:
            BlobRefusedError: it has another id, or ended; or the blob has another etag.
        """
        lease = self._lease(name, lease_id)
        await answer_of(lease.change(new_id, **_unchanged(only_if)), writes=True)

    async def renew(self, name: str, lease_id: str) -> None:
        """Renew a native lease.

        Raises:
            BlobRefusedError: it is another's.
        """
        await answer_of(self._lease(name, lease_id).renew(), writes=True)

    async def release(self, name: str, lease_id: str) -> None:
        """Release a native lease.

        Raises:
            BlobRefusedError: it is another's.
        """
        await answer_of(self._lease(name, lease_id).release(), writes=True)

    async def end_lease(self, name: str) -> None:
        """Break a native lease, of any holder.

        Raises:
            BlobRefusedError: it is not leased.
        """
        blob = self._client.get_blob_client(name)
        await answer_of(BlobLeaseClient(blob).break_lease(0), writes=True)

    def _lease(self, name: str, lease_id: str) -> BlobLeaseClient:
        return BlobLeaseClient(self._client.get_blob_client(name), lease_id=lease_id)


def _blob(name: str, properties: BlobProperties, body: bytes | None) -> Blob:
    metadata: Mapping[str, str | None] = properties.metadata or {}
    return Blob(
        name=name,
        etag=_plain(str(properties.etag)),
        metadata={field.lower(): value or "" for field, value in metadata.items()},
        body=body,
        is_leased=properties.lease.state == "leased",
        modified_at=properties.last_modified,
    )


def _unchanged(etag: str) -> dict[str, Any]:  # Any: arguments of different types.
    return {"etag": f'"{etag}"', "match_condition": MatchConditions.IfNotModified}


def _leased(lease_id: str | None) -> dict[str, Any]:  # Any: as above.
    return {} if lease_id is None else {"lease": lease_id}


def _plain(etag: str) -> str:
    """Return an etag as listings show it: without quotes."""
    return etag.strip('"')


_SEPARATOR: Final = " "
"""A character that no ETag and no lease id contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedVersion:
    """A parsed version of a record in blobs: the ETags that were read, and the fence.

    The fence is part of it because Azure compares ETags only: so the version tells whether a writer's fence is that of
    the record that it read.
    """

    etag: str
    """ETag of the record's blob; empty: there is none, and the record is in its checkpoint's blob."""
    fence: int
    token: str = ""
    """The id of the native lease on the blob, where there is one."""
    checkpoint_etag: str = ""
    """ETag of its checkpoint's own blob, where there is one."""

    @classmethod
    def parsed(cls, version: Version) -> Self:
        """Parse a version."""
        etag, fence, token, checkpoint_etag = version.split(_SEPARATOR)
        return cls(etag=etag, fence=int(fence), token=token, checkpoint_etag=checkpoint_etag)

    def text(self) -> Version:
        """Return the version."""
        parts = (self.etag, str(self.fence), self.token, self.checkpoint_etag)
        return Version(_SEPARATOR.join(parts))


NAME_CHARACTERS_MAX: Final = 1_024
"""Longest name of a blob."""
_PLAIN: Final = frozenset(f"{string.ascii_letters}{string.digits}-_~:@+=,!$*()'&; ")
_PLAIN_LOWER: Final = _PLAIN - frozenset(string.ascii_uppercase)
_HEADER: Final = frozenset(map(chr, range(0x21, 0x7F))) - {"%"}


def encoded(key: str, *, lower: bool = False) -> str:
    """Encode a key as a segment of a blob's name, injectively. Such names are parts of URLs and HTTP headers.

    Letters of other scripts stay; ASCII characters with a meaning in paths are percent-encoded: `a/b` is `a%2Fb`. Ids
    of Event Hubs' partitions are digits, so they stay as they are.

    Args:
        key: Any text.
        lower: Encode upper-case letters too, for names that others write in lower case.
    """
    plain = _PLAIN_LOWER if lower else _PLAIN
    return "".join(
        char if char in plain or _is_letter_beyond_ascii(char, lower=lower) else _quoted(char)
        for char in key
    )


def decoded(segment: str) -> str:
    """Decode the key of a segment."""
    return unquote(segment)


def header_value(text: str) -> str:
    """Return a text as a header value; invalid characters are percent-encoded."""
    return "".join(char if char in _HEADER else _quoted(char) for char in text)


def _is_letter_beyond_ascii(char: str, *, lower: bool) -> bool:
    return not char.isascii() and char.isprintable() and (not lower or char == char.lower())


def _quoted(char: str) -> str:
    """Percent-encode a character, including those that `quote` leaves as they are."""
    quoted = quote(char, safe="")
    return quoted if quoted != char else f"%{ord(char):02X}"


class ObservedContainer:
    """Base of stores that are one container and do not know which workers live; observers watch counters.

    It is the part of `broadsheet.leases.store.RecordStore` that concerns the store as a whole.
    """

    def __init__(self, container: BlobContainer) -> None:
        """Be the container."""
        self._container = container

    @property
    def tells_who_lives(self) -> bool:
        """False, because a blob does not show whether its owner lives."""
        return False

    async def exists(self) -> bool:
        """Return whether the container is there."""
        return await self._container.exists()

    async def create_store(self) -> bool:
        """Create the container; return False if it exists."""
        return await self._container.create()

    async def delete_store(self) -> None:
        """Delete the container; for about half a minute it cannot be created again."""
        await self._container.delete()

    async def join(self, worker: str) -> None:
        """Do nothing, because a worker is alive while its counters move."""
