"""What calls carry beside their messages comes out as it went in, and bad input is named."""

from __future__ import annotations

import pytest

from broadsheet.runtime.errors import BoundExceededError, ValidationError
from broadsheet.wire.journal_pb2 import Header, Route
from broadsheet.wire.shard_metadata import (
    HEADER,
    READ_THROUGH,
    STATUS,
    merge_tokens,
    refusal_in,
    refusal_metadata,
    request_metadata,
    shard_in,
    token_in,
)
from broadsheet.wire.shard_pb2 import Status


def test_request_metadata_come_back_as_shard_and_token() -> None:
    """Names may hold any letter, so that both go as bytes."""
    metadata = request_metadata("zähler-1", {"a/journal": 12})

    assert shard_in(metadata) == "zähler-1"
    assert token_in(metadata) == {"a/journal": 12}
    assert all(key.endswith("-bin") for key, _ in metadata)


def test_request_metadata_without_token_name_the_shard_only() -> None:
    """Most calls carry no token: nothing is sent for it."""
    assert token_in(request_metadata("shard", {})) == {}
    assert len(request_metadata("shard", {})) == 1
    assert shard_in(None) == ""


def test_request_metadata_long_token_is_refused_with_its_size() -> None:
    """Servers drop calls whose metadata are too long, with a text that explains nothing."""
    token = {f"journals/part-{n:05d}": n for n in range(400)}

    with pytest.raises(BoundExceededError, match=r"token of 400 journals takes \d+ bytes"):
        request_metadata("shard", token)


@pytest.mark.parametrize("value", [b"nonsense", b"[1]", b'{"a": "b"}', b'{"a": -1}'])
def test_token_in_malformed_is_refused(value: bytes) -> None:
    """An offset that cannot be read must not pass for none."""
    with pytest.raises(ValidationError):
        token_in([(READ_THROUGH, value)])


def test_merge_tokens_keeps_the_greatest_offset() -> None:
    """Whoever has read through the merged token has read through both."""
    assert merge_tokens({"a": 1, "b": 5}, {"a": 3, "c": 0}, {}) == {"a": 3, "b": 5, "c": 0}


def test_refusal_comes_back_with_status_and_route() -> None:
    """The route saves the caller a question."""
    header = Header(route=Route(primary=0, endpoints=["http://host:1"]))

    refusal = refusal_in(refusal_metadata(Status.NOT_SHARD_PRIMARY, header))

    assert refusal == (Status.NOT_SHARD_PRIMARY, header)


def test_refusal_of_an_unknown_status_is_none_and_a_broken_header_is_left_out() -> None:
    """Metadata of another version must not end a task."""
    assert refusal_in([(STATUS, "NO_SUCH_STATUS")]) is None
    assert refusal_in(()) is None
    assert refusal_in([(STATUS, "NO_SHARD_PRIMARY"), (HEADER, b"\xff\xff")]) == (
        Status.NO_SHARD_PRIMARY,
        None,
    )
