"""What each operation does to a record, and what it leaves alone."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from broadsheet.leases import rules
from broadsheet.leases.errors import (
    InvalidPositionError,
    InvalidStateError,
    LeaseNotAcquiredError,
    ShardClaimedError,
)
from broadsheet.leases.position import Position
from broadsheet.leases.record import HashRange, LeaseRecord
from broadsheet.runtime.errors import ValidationError
from broadsheet.testing.leases.suite import full_record

BEFORE = replace(
    full_record(owner="w1"), claim="w3", checkpoint=Position("10"), pending=Position("20")
)


def _changes(before: LeaseRecord, after: LeaseRecord) -> dict[str, object]:
    return {
        field.name: getattr(after, field.name)
        for field in fields(LeaseRecord)
        if getattr(after, field.name) != getattr(before, field.name)
    }


def test_take_begins_an_epoch_and_keeps_what_is_pending() -> None:
    """The successor must learn which records may have had their side effects."""
    assert _changes(BEFORE, rules.take(BEFORE, "w2")) == {
        "owner": "w2",
        "epoch": 4,
        "counter": 18,
        "claim": None,
        "owner_switches": 3,
    }


def test_take_of_own_lease_begins_an_epoch_too() -> None:
    """What the old acquisition still writes must not pass for the new one's; but nobody switched."""
    assert _changes(BEFORE, rules.take(BEFORE, "w1")) == {"epoch": 4, "counter": 18, "claim": None}


def test_take_at_the_end_of_a_hand_off_counts_one_switch() -> None:
    """The next owner was named before, and processes only now."""
    handed = rules.begin_hand_off(BEFORE, "w2")

    assert _changes(BEFORE, handed) == {"owner": "w2", "handoff_from": "w1"}
    assert handed.holder == "w1"
    taken = rules.take(handed, "w2")
    assert (taken.holder, taken.owner_switches) == ("w2", BEFORE.owner_switches + 1)


@pytest.mark.parametrize(
    "record",
    [
        LeaseRecord(key="a"),
        LeaseRecord(key="a", owner="w2"),
        LeaseRecord(key="a", owner="w3", handoff_from="w1"),
    ],
    ids=["nobody's", "its own", "under way"],
)
def test_hand_off_of_what_cannot_be_is_refused(record: LeaseRecord) -> None:
    """Two workers would wait for one another."""
    with pytest.raises(InvalidStateError, match="cannot be handed off to w2"):
        rules.begin_hand_off(record, "w2")


def test_commit_ends_what_was_pending() -> None:
    """By whatever way it comes, also at the same place."""
    assert _changes(BEFORE, rules.commit(BEFORE, Position("10"))) == {
        "counter": 18,
        "pending": None,
        "pending_state": None,
        "owner_switches": 0,
    }
    assert rules.commit(BEFORE, Position("SHARD_END")).is_finished


@pytest.mark.parametrize("seq", ["9", "LATEST", "TRIM_HORIZON", "AT_TIMESTAMP"])
def test_commit_never_goes_back(seq: str) -> None:
    """The store's own record says so too, not only the memory of one process."""
    with pytest.raises(InvalidPositionError, match=r"expected 10 or later, got"):
        rules.commit(BEFORE, Position(seq))


def test_prepare_replaces_what_was_pending() -> None:
    """There is one place for it, whichever is larger; the committed checkpoint stays."""
    assert _changes(BEFORE, rules.prepare(BEFORE, Position("15"))) == {
        "counter": 18,
        "pending": Position("15"),
        "pending_state": None,
    }


def test_evict_ends_the_holder_only() -> None:
    """Checkpoint and epoch stay. In a hand-off the next owner gets the lease, in an epoch of its own."""
    assert _changes(BEFORE, rules.evict(BEFORE)) == {"owner": None, "counter": 18}
    handed = rules.begin_hand_off(BEFORE, "w2")
    assert rules.evict(handed) == rules.take(handed, "w2")


class TestClaim:
    """Asking a holder to let go."""

    def test_never_checkpointed_shard_can_be_claimed(self) -> None:
        """In vmware-go-kcl it cannot; repeated by the same worker it changes nothing."""
        held = LeaseRecord(key="a", owner="w1", epoch=1)

        claimed = rules.claim(held, "w2")

        assert _changes(held, claimed) == {"claim": "w2"}
        assert rules.claim(claimed, "w2") is claimed

    def test_claimed_shard_is_not_claimed_again(self) -> None:
        """The first who asks gets it."""
        with pytest.raises(ShardClaimedError, match="claimed by w3"):
            rules.claim(BEFORE, "w2")

    @pytest.mark.parametrize(
        "record",
        [
            LeaseRecord(key="a"),
            LeaseRecord(key="a", owner="w2"),
            LeaseRecord(key="a", owner="w1", checkpoint=Position("SHARD_END")),
        ],
        ids=["free", "own", "finished"],
    )
    def test_claim_without_a_holder_to_ask_is_refused(self, record: LeaseRecord) -> None:
        """What is free is taken; of what is finished nothing is left."""
        with pytest.raises(LeaseNotAcquiredError, match="cannot be claimed"):
            rules.claim(record, "w2")


def test_note_children_only_adds() -> None:
    """A worker that knows less must not undo what another learned."""
    noted = rules.note_children(BEFORE, children=frozenset({"c"}))

    assert _changes(BEFORE, noted) == {"children": BEFORE.children | {"c"}}
    with pytest.raises(InvalidStateError, match="never changes"):
        rules.note_children(BEFORE, hash_range=HashRange(first="1", last="2"))


def test_update_guards_who_owns_what() -> None:
    """Whatever the holder's change says of it; and it is always a sign of life."""
    changed = rules.update(
        BEFORE,
        lambda record: replace(record, key="x", owner=None, epoch=0, counter=0, owner_switches=9),
    )

    assert _changes(BEFORE, changed) == {"counter": 18, "owner_switches": 9}


def test_parents_block_until_they_are_finished() -> None:
    """`BlockOnParentShardTaskTest`; a merge waits for both. One that never began blocks too; not in vmware-go-kcl."""
    child = LeaseRecord(key="c", parents=frozenset({"done", "gone", "new", "busy"}))
    records = {
        "done": LeaseRecord(key="done", checkpoint=Position("SHARD_END")),
        "new": LeaseRecord(key="new"),
        "busy": LeaseRecord(key="busy", checkpoint=Position("9"), pending=Position("SHARD_END")),
    }

    assert rules.blocking_parents(child, records) == ("busy", "new")
    assert rules.blocking_parents(LeaseRecord(key="c"), records) == ()


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("lease.key", {"key": ""}),
        ("lease.key", {"key": "k" * 256}),
        ("lease.owner", {"key": "a", "owner": ""}),
        ("lease.claim", {"key": "a", "claim": "\x00"}),
        ("lease.handoff_from", {"key": "a", "handoff_from": "w1"}),
        ("lease.pending_state", {"key": "a", "pending_state": b"s"}),
    ],
)
def test_impossible_record_is_refused(field: str, values: dict[str, str]) -> None:
    """The error names the field; an owner of no letters is an old client's way to say "none"."""
    with pytest.raises(ValidationError, match=f"^{field}: expected"):
        LeaseRecord(**values)  # type: ignore[arg-type]  # values of various fields
