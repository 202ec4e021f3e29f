"""Rules of the journal service's requests.

Each function raises `ValidationError` for the first rule broken, with the path of its field in snake case
(`changes[0].upsert.fragment.length`).

Source: gazette/core broker/protocol/rpc_extensions.go.
"""

from __future__ import annotations

import posixpath
from functools import lru_cache

from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.alphabet import require, shown, validate_journal, within
from broadsheet.wire.fragments_pb2 import DeleteFragmentsRequest, FragmentSumsRequest
from broadsheet.wire.journal_pb2 import (
    AppendRequest,
    ApplyRequest,
    Fragment,
    FragmentsRequest,
    FragmentStoreHealthRequest,
    ListRequest,
    ReadRequest,
)
from broadsheet.wire.labels import PREFIX
from broadsheet.wire.validation_journal_spec import validate_journal_spec, validate_store
from broadsheet.wire.validation_terms import (
    validate_change,
    validate_header,
    validate_label_set,
    validate_selector,
)

_SUSPENDS = frozenset(AppendRequest.Suspend.values())
_ENCODED_BYTES_KEPT_MAX = 4 << 10
FRAGMENTS_PAGE_MAX = 10_000
"""Most fragments of one page."""


def validate_list_request(request: ListRequest) -> None:
    """Check a request to list journals. The resume header is not looked at.

    Raises:
        ValidationError: its selector is malformed.
    """
    validate_selector(request.selector, "selector")
    for part in ("include", "exclude"):
        labels = getattr(request.selector, part).labels
        for index, label in enumerate(labels):
            require(
                label.name != PREFIX or label.value.endswith("/"),
                f"selector.{part}.labels[{index}].value",
                f"expected a prefix of names that ends in /, got {label.value!r}",
            )


def validate_read_request(request: ReadRequest) -> None:
    """Check a request to read.

    Raises:
        ValidationError: its header, journal or offsets are malformed.
    """
    if request.HasField("header"):
        validate_header(request.header, "header")
    validate_journal(request.journal)
    require(
        request.offset >= -1,
        "offset",
        f"expected an offset, or -1 for the write head, got {request.offset}",
    )
    require(
        request.end_offset == 0 or request.end_offset >= max(request.offset, 0),
        "end_offset",
        f"expected 0 (no end) or at least the offset {request.offset}, got {request.end_offset}",
    )


def validate_append_request(request: AppendRequest, *, first: bool) -> None:
    """Check one message of an append.

    Args:
        request: The message.
        first: Whether it opens the stream and so carries every parameter; later ones carry only content.

    Raises:
        ValidationError: a parameter is malformed, or is in the wrong message.
    """
    if first:
        # Writers repeat what they demand, and each append is checked by its queue, its client and its broker.
        if request.ByteSize() <= _ENCODED_BYTES_KEPT_MAX:
            _validate_encoded_append(request.SerializeToString(deterministic=True))
        else:
            _validate_append_parameters(request)
        return
    for field, _ in request.ListFields():
        require(
            field.name == "content",
            field.name,
            "expected only content after the first message of an append",
        )


@lru_cache(maxsize=1_024)
def _validate_encoded_append(encoded: bytes) -> None:
    _validate_append_parameters(AppendRequest.FromString(encoded))


def _validate_append_parameters(request: AppendRequest) -> None:
    if request.HasField("header"):
        validate_header(request.header, "header")
    validate_journal(request.journal)
    if request.offset < 0:
        raise ValidationError(
            "offset", f"expected 0 (any) or the write head demanded, got {request.offset}"
        )
    if request.content:
        raise ValidationError(
            "content", f"expected none in the first message, got {len(request.content)} bytes"
        )
    if request.HasField("check_registers"):
        validate_selector(request.check_registers, "check_registers")
    if request.HasField("union_registers"):
        validate_label_set(request.union_registers, "union_registers")
    if request.HasField("subtract_registers"):
        validate_label_set(request.subtract_registers, "subtract_registers")
    if request.suspend not in _SUSPENDS:
        expected = ", ".join(AppendRequest.Suspend.keys())
        raise ValidationError("suspend", f"expected one of {expected}, got {request.suspend}")


def validate_apply_request(request: ApplyRequest) -> None:
    """Check each change of an apply.

    Raises:
        ValidationError: a change is neither or both of an upsert and a delete, or is malformed.
    """
    for index, change in enumerate(request.changes):
        with within(f"changes[{index}]"):
            _validate_change(change)


def _validate_change(change: ApplyRequest.Change) -> None:
    def delete() -> None:
        validate_journal(change.delete, "delete")
        require(";" not in change.delete, "delete", "expected a name without ';meta'")

    validate_change(change, upsert=lambda: validate_journal_spec(change.upsert), delete=delete)


def validate_fragments_request(request: FragmentsRequest) -> None:
    """Check a request for a page of fragments.

    Raises:
        ValidationError: its journal, times, token, limit or signature life is malformed.
    """
    if request.HasField("header"):
        validate_header(request.header, "header")
    validate_journal(request.journal)
    require(
        request.end_mod_time == 0 or request.end_mod_time >= request.begin_mod_time,
        "end_mod_time",
        f"expected 0 (no end) or at least {request.begin_mod_time}, got {request.end_mod_time}",
    )
    require(
        request.next_page_token >= 0,
        "next_page_token",
        f"expected 0 or a token of an earlier page, got {request.next_page_token}",
    )
    require(
        0 <= request.page_limit <= FRAGMENTS_PAGE_MAX,
        "page_limit",
        f"expected 0 to {FRAGMENTS_PAGE_MAX} fragments, got {request.page_limit}",
    )
    life = request.signatureTTL.ToNanoseconds()
    require(
        not request.HasField("signatureTTL") or life > 0,
        "signature_ttl",
        f"expected none or more than 0 ns, got {life}",
    )


def validate_store_health_request(request: FragmentStoreHealthRequest) -> None:
    """Check a request to probe a fragment store.

    Raises:
        ValidationError: the store's URL or the prefix of the delete probe is malformed.
    """
    validate_store(request.fragment_store, "fragment_store")
    prefix = request.check_delete_prefix
    if not prefix:
        return
    require(
        request.check_delete,
        "check_delete_prefix",
        f"expected none without check_delete, got {shown(prefix)}",
    )
    clean = posixpath.normpath(prefix)
    require(
        prefix == f"{clean}/" and not prefix.startswith(("/", "../")) and clean != "..",
        "check_delete_prefix",
        f"expected a clean relative path ending in '/', got {shown(prefix)}",
    )


FRAGMENTS_DELETED_MAX = 1_000
"""Fragments of one request."""


def validate_fragment_sums_request(request: FragmentSumsRequest) -> None:
    """Check a request for the checksums of a fragment.

    Raises:
        ValidationError: its journal is malformed, the fragment is empty, or the first block is not one of it.
    """
    validate_journal(request.journal)
    fragment = request.fragment
    _require_content(fragment, "fragment")
    require(
        0 <= request.first_block < fragment.end - fragment.begin,
        "first_block",
        f"expected a block of the fragment, got {request.first_block}",
    )


def validate_delete_fragments_request(request: DeleteFragmentsRequest) -> None:
    """Check a request to remove fragments of a journal.

    Raises:
        ValidationError: its journal is malformed, a fragment is empty, or there are too many.
    """
    validate_journal(request.journal)
    require(
        len(request.fragments) <= FRAGMENTS_DELETED_MAX,
        "fragments",
        f"expected at most {FRAGMENTS_DELETED_MAX}, got {len(request.fragments)}; send several requests",
    )
    for index, fragment in enumerate(request.fragments):
        _require_content(fragment, f"fragments[{index}]")


def _require_content(fragment: Fragment, field_path: str) -> None:
    require(
        0 <= fragment.begin < fragment.end,
        field_path,
        f"expected 0 <= begin < end, got {fragment.begin} and {fragment.end}",
    )
