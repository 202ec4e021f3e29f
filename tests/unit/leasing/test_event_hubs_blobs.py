"""How the two blobs of a partition, written by us and by others, make one record.

Origins are in Azure/azure-sdk-for-js sdk/eventhub/eventhubs-checkpointstore-blob, `blob-checkpointstore.spec.ts`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from broadsheet.leases.errors import InvalidStateError, UnreadableLeaseError
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.store import reading_row
from broadsheet.leases.stores.azure.container import Blob, BlobContent
from broadsheet.leases.stores.azure.event_hubs_blobs import (
    HubNames,
    checkpoint_content,
    commit_of,
    merged,
    ownership_content,
)
from broadsheet.runtime.errors import ValidationError

HELD = LeaseRecord(
    key="0",
    owner="w1",
    epoch=3,
    counter=7,
    checkpoint=Position("17", offset="4096"),
    attrs={"later": "1"},
)


def _blob(
    metadata: dict[str, str], *, body: bytes = b"", etag: str = "e1", written: int = 1
) -> Blob:
    return Blob(
        name="ns/hub/group/kind/0",
        etag=etag,
        metadata=metadata,
        body=body,
        is_leased=False,
        modified_at=datetime.fromtimestamp(written, tz=UTC),
    )


def _stored(content: BlobContent | None, etag: str) -> Blob:
    assert content is not None
    return _blob(dict(content.metadata), body=content.body, etag=etag)


def _taken_by_another(content: BlobContent, owner: str, *, written: int = 1) -> Blob:
    """Set Blob Metadata: the body stays."""
    return _blob({"ownerid": owner}, body=content.body, etag="e2", written=written)


def test_record_of_ours_is_read_as_written() -> None:
    """With the checkpoint repeated in its own blob, or not yet."""
    ownership = _stored(ownership_content(HELD, over=""), "e1")

    alone = merged("0", ownership, None)
    both = merged("0", ownership, _stored(checkpoint_content(HELD), "c1"))

    assert alone is not None
    assert both is not None
    assert alone.record == both.record == HELD
    assert alone.version != both.version


def test_others_can_read_what_we_write() -> None:
    """The metadata of Azure's own stores, with zero as good a number as any (`zero is a perfectly valid value`)."""
    zero = replace(HELD, checkpoint=Position("0", offset="0"))

    ownership, checkpoint = ownership_content(zero, over=""), checkpoint_content(zero)

    assert ownership.metadata["ownerid"] == "w1"
    assert checkpoint is not None
    assert checkpoint.metadata == {"offset": "0", "sequencenumber": "0", "commit": "7"}
    assert ownership_content(replace(zero, owner=None), over="").metadata["ownerid"] == ""


@pytest.mark.parametrize(
    "position",
    [None, Position("TRIM_HORIZON"), Position("SHARD_END"), Position("1"), Position("1", 2, "3")],
)
def test_position_that_others_cannot_read_is_not_repeated(position: Position | None) -> None:
    """They would fail on it, or begin elsewhere."""
    assert checkpoint_content(replace(HELD, checkpoint=position)) is None


def test_take_over_by_another_program_is_a_new_epoch() -> None:
    """So our holder is fenced, and the checkpoint stays; each of its renewals moves the counter."""
    content = ownership_content(HELD, over="")

    early = merged("0", _taken_by_another(content, "p1", written=1_000), None)
    late = merged("0", _taken_by_another(content, "p1", written=1_010), None)

    assert early is not None
    assert late is not None
    assert (early.record.owner, early.record.epoch) == ("p1", HELD.epoch + 1)
    assert early.record.checkpoint == HELD.checkpoint
    assert early.record.attrs == HELD.attrs
    assert early.record.owner_switches == 1
    assert HELD.counter < early.record.counter < late.record.counter


def test_release_by_another_program_uses_its_epoch_up() -> None:
    """`Claiming ownership with an empty owner id`: nobody owns it; whoever takes it next is in an epoch of its own."""
    found = merged("0", _taken_by_another(ownership_content(HELD, over=""), ""), None)

    assert found is not None
    assert (found.record.owner, found.fence) == (None, 0)
    assert found.record.epoch == HELD.epoch + 1


def test_record_made_by_another_program_has_no_body() -> None:
    """It is one of the first epoch; a checkpoint alone is a record that nobody ever owned."""
    checkpoint = _blob({"offset": "4096", "sequencenumber": "17"}, etag="c1")

    owned = merged("0", _blob({"ownerid": "p1"}), checkpoint)
    alone = merged("0", None, checkpoint)

    assert owned is not None
    assert alone is not None
    assert (owned.record.owner, owned.record.epoch) == ("p1", 1)
    assert alone.record == LeaseRecord(key="0", checkpoint=Position("17", offset="4096"))
    assert merged("0", None, None) is None


def test_checkpoint_of_another_program_counts() -> None:
    """Also one that goes back: somebody wanted that. What was pending is done with."""
    prepared = replace(HELD, pending=Position("20"), pending_state=b"s")
    ownership = _stored(ownership_content(prepared, over="c0"), "e1")
    theirs = _blob({"offset": "1", "sequencenumber": "2"}, etag="c1")

    found = merged("0", ownership, theirs)

    assert found is not None
    assert found.record == replace(HELD, checkpoint=Position("2", offset="1"))


def test_checkpoint_that_ours_took_the_place_of_does_not_count() -> None:
    """A process that died between its two writes has committed: the record knows which blob it wrote over."""
    ownership = _stored(ownership_content(HELD, over="c1"), "e1")
    theirs = _blob({"offset": "1", "sequencenumber": "2"}, etag="c1")

    found = merged("0", ownership, theirs)

    assert found is not None
    assert found.record == HELD


def test_repeated_checkpoint_of_a_late_process_does_not_count() -> None:
    """It repeats what the record has outrun."""
    ownership = _stored(ownership_content(HELD, over="c0"), "e1")
    late = replace(HELD, checkpoint=Position("3", offset="3"), counter=5)

    found = merged("0", ownership, _stored(checkpoint_content(late), "c1"))

    assert found is not None
    assert found.record == HELD


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({}, "sequencenumber"),
        ({"offset": "1"}, "sequencenumber"),
        ({"sequencenumber": "1"}, "offset"),
        ({"offset": "1", "sequencenumber": "not a number"}, "sequencenumber"),
        ({"offset": "1", "sequencenumber": "1.5"}, "sequencenumber"),
        ({"offset": "1", "sequencenumber": "-1"}, "sequencenumber"),
        ({"offset": "1", "sequencenumber": ""}, "sequencenumber"),
    ],
)
def test_incorrectly_formatted_checkpoint_blob(metadata: dict[str, str], field: str) -> None:
    """`checkpoint: incorrectly formatted blobs`, `parseIntOrThrow`: the error names the blob and the field."""
    with pytest.raises(InvalidStateError, match=f"ns/hub/group/kind/0: .*{field}"):
        merged("0", None, _blob(metadata))


def test_incorrectly_formatted_ownership_blob() -> None:
    """`ownership: incorrectly formatted blobs`: the same; of a body that is none, too."""
    with pytest.raises(InvalidStateError, match="ns/hub/group/kind/0: expected ownerid"):
        merged("0", _blob({"owner": "p1"}), None)
    with pytest.raises(InvalidStateError, match="cannot be read"):
        merged("0", _blob({"ownerid": "p1"}, body=b"{"), None)


def test_names_of_blobs() -> None:
    """`blob prefix is always lowercased`: where Azure's stores look, with any two partitions apart."""
    scoped = HubNames("ns.servicebus.windows.net/clicks/$default")
    whole = HubNames(None)
    name = "ns.servicebus.windows.net/clicks/$default/ownership/0"
    key = "ns.servicebus.windows.net/clicks/$default/0"

    assert scoped.name("ownership", "0") == whole.name("ownership", key) == name
    assert scoped.key_of("ownership", name) == "0"
    assert whole.key_of("ownership", name) == key
    assert whole.key_of("checkpoint", name) is None
    assert whole.key_of("ownership", "something/else") is None
    upper = scoped.name("checkpoint", "A")
    assert upper == upper.lower() != scoped.name("checkpoint", "a")
    assert scoped.key_of("checkpoint", upper) == "A"
    with pytest.raises(ValidationError, match="namespace/hub/group/partition"):
        whole.name("ownership", "0")
    with pytest.raises(ValidationError, match="scope"):
        HubNames("hub")


@pytest.mark.parametrize("commit", ["9" * 5_000, "-1", "1.5", "", "x"])
def test_commit_that_is_no_counter_is_anothers(commit: str) -> None:
    """Whoever may write to the container may write that. It must not end the worker that comes upon it."""
    assert commit_of(_blob({"commit": commit})) is None
    assert commit_of(_blob({"commit": "17"})) == 17


@pytest.mark.parametrize(
    "metadata",
    [{"ownerid": "o" * 256}, {"ownerid": "a\0b"}, {"ownerid": "w", "record": "\u00e9"}],
)
def test_row_that_others_wrote_by_other_rules_is_one_unreadable_row(
    metadata: dict[str, str],
) -> None:
    """Azure's processors take owners of any length. A row that we cannot hold is left out, as one that is damaged is,
    instead of ending every worker that lists the leases.
    """
    with (
        pytest.raises(UnreadableLeaseError, match=r"lease 0: its (row|record) cannot be read"),
        reading_row("0"),
    ):
        merged("0", _blob(metadata), None)
