"""Rules of the journal service's answers, which a client checks before it uses them.

Source: gazette/core broker/protocol/rpc_extensions.go (Validate of each response).
"""

from __future__ import annotations

from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.alphabet import require, shown, within
from broadsheet.wire.journal_pb2 import (
    AppendResponse,
    ApplyResponse,
    FragmentsResponse,
    FragmentStoreHealthResponse,
    ListResponse,
    ReadResponse,
    Status,
)
from broadsheet.wire.validation_journal_spec import validate_journal_spec
from broadsheet.wire.validation_terms import (
    validate_endpoint,
    validate_fragment,
    validate_header,
    validate_place,
    validate_status,
    validate_status_and_header,
)

STATUSES = frozenset(Status.values())
"""Of the journal service."""
_OK = Status.OK
_WITH_REGISTERS = frozenset((Status.OK, Status.REGISTER_MISMATCH))


def validate_append_response(response: AppendResponse) -> None:
    """Check the answer to an append.

    Raises:
        ValidationError: it lacks what its status demands, or holds something malformed.
    """
    validate_status_and_header(response, STATUSES)
    if response.status == _OK:
        require(response.HasField("commit"), "commit", "expected one beside status OK, got none")
        validate_fragment(response.commit, "commit")
    if response.status in _WITH_REGISTERS and not response.HasField("registers"):
        status = Status.Name(response.status)
        raise ValidationError(
            "registers", f"expected registers (maybe empty) beside status {status}, got none"
        )


def validate_read_response(response: ReadResponse) -> None:
    """Check one message of a read: either content alone, or metadata.

    Raises:
        ValidationError: it mixes the two, or its offsets contradict its fragment.
    """
    validate_status(response.status, STATUSES)
    if response.content:
        validate_read_chunk(response)
        return
    if response.HasField("header"):
        validate_header(response.header, "header")
    require(
        response.write_head >= 0, "write_head", f"expected 0 or more, got {response.write_head}"
    )
    if response.HasField("fragment"):
        _validate_read_fragment(response)
        return
    require(
        response.status != Status.OK or response.offset == 0,
        "offset",
        f"expected 0 in an OK message without fragment and content, got {response.offset}",
    )
    require(
        not response.fragment_url,
        "fragment_url",
        f"expected none without a fragment, got {shown(response.fragment_url)}",
    )


def validate_read_chunk(response: ReadResponse) -> None:
    """Check a message of a read that has content. It does not access the content, because each access copies it.

    Raises:
        ValidationError: it has anything but content and an offset.
    """
    for field, present in (
        ("status", response.status != Status.OK),
        ("header", response.HasField("header")),
        ("write_head", response.write_head != 0),
        ("fragment", response.HasField("fragment")),
        ("fragment_url", response.fragment_url != ""),
    ):
        require(not present, field, "expected none in a message with content")
    require(response.offset >= 0, "offset", f"expected 0 or more, got {response.offset}")


def _validate_read_fragment(response: ReadResponse) -> None:
    fragment = response.fragment
    validate_fragment(fragment, "fragment")
    require(
        fragment.begin <= response.offset < fragment.end,
        "offset",
        f"expected it in the fragment [{fragment.begin}, {fragment.end}), got {response.offset}",
    )
    require(
        response.write_head >= fragment.end,
        "write_head",
        f"expected at least the fragment's end {fragment.end}, got {response.write_head}",
    )
    if response.fragment_url and not response.fragment_url.startswith("file:///"):
        validate_endpoint(response.fragment_url, "fragment_url")


def validate_list_response(response: ListResponse, *, first: bool) -> None:
    """Check one message of a listing.

    Args:
        response: The message.
        first: Whether it opens a snapshot and so carries status and header.

    Raises:
        ValidationError: the header is malformed, or a listed journal is.
    """
    if first:
        validate_status_and_header(response, STATUSES)
    for index, journal in enumerate(response.journals):
        with within(f"journals[{index}]"):
            with within("spec"):
                validate_journal_spec(journal.spec)
            validate_place(journal)


def validate_apply_response(response: ApplyResponse) -> None:
    """Check the answer to an apply.

    Raises:
        ValidationError: its status is unknown or its header malformed.
    """
    validate_status_and_header(response, STATUSES)


def validate_fragments_response(response: FragmentsResponse) -> None:
    """Check a page of fragments.

    Raises:
        ValidationError: the header, a fragment or the token is malformed.
    """
    validate_status_and_header(response, STATUSES)
    for index, listed in enumerate(response.fragments):
        validate_fragment(listed.spec, f"fragments[{index}].spec")
    require(
        response.next_page_token >= 0,
        "next_page_token",
        f"expected 0 or more, got {response.next_page_token}",
    )


def validate_store_health_response(response: FragmentStoreHealthResponse) -> None:
    """Check the answer to a probe of a store.

    Raises:
        ValidationError: its status is unknown or its header malformed.
    """
    validate_status_and_header(response, STATUSES)
