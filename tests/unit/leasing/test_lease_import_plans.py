"""What an import does with each record, by what is there already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from broadsheet.leases.migration.layouts import LAYOUTS
from broadsheet.leases.migration.plan import Action, MigrationStep, plan_import
from broadsheet.leases.position import LATEST, SHARD_END, TRIM_HORIZON, Position
from broadsheet.leases.record import HashRange, LeaseRecord, Version, Versioned

WANTED = LeaseRecord(
    key="shard-1",
    epoch=7,
    counter=90,
    owner="old-1",
    checkpoint=Position("200", 3),
    pending=Position("250"),
    pending_state=b"batch 9",
    owner_switches=2,
    parents=frozenset({"shard-0"}),
    attrs={"zone": '"eu"', "LeaseTimeout": '"2026-01-01T00:00:00Z"'},
)


def _there(record: LeaseRecord, *, fence: int = 0) -> Versioned:
    return Versioned(record=record, version=Version("1"), fence=fence)


def _planned(
    wanted: LeaseRecord,
    *there: Versioned,
    layout: str = "native",
    owners: bool = False,
    force: bool = False,
) -> Action:
    by_key = {found.record.key: found for found in there}
    (action,) = plan_import([wanted], by_key, LAYOUTS[layout], owners=owners, force=force)
    return action


def test_record_that_is_not_there_is_created_free_with_all_that_outlives_an_acquisition() -> None:
    """Checkpoint, pending position and its note, place, epoch, foreign attributes; neither owner nor its deadline."""
    action = _planned(WANTED)

    assert action.step is MigrationStep.CREATE
    assert action.after == replace(WANTED, owner=None, attrs={"zone": '"eu"'})


def test_record_that_is_there_moves_forward_and_keeps_what_only_it_knows() -> None:
    """The further checkpoint, the greater epoch, both places; and a counter beyond both, so that all see a write."""
    there = LeaseRecord(
        key="shard-1",
        epoch=3,
        counter=120,
        checkpoint=Position(TRIM_HORIZON),
        children=frozenset({"shard-2"}),
        attrs={"rack": "4"},
    )

    action = _planned(WANTED, _there(there))

    assert action.step is MigrationStep.UPDATE
    assert action.after == replace(
        WANTED,
        owner=None,
        counter=121,
        children=frozenset({"shard-2"}),
        attrs={"rack": "4", "zone": '"eu"'},
    )
    assert action.changed == (
        *("epoch", "checkpoint", "pending", "pending_state", "parents", "attrs"),
    )


def test_what_was_imported_is_the_same_the_second_time() -> None:
    """Also with a greater epoch, another counter, and attributes in another notation by then."""
    first = _planned(replace(WANTED, attrs={"rate": "1.50"})).after
    assert first is not None
    later = replace(first, counter=500, epoch=9, attrs={"rate": "1.5"})

    assert (
        _planned(replace(WANTED, attrs={"rate": "1.50"}), _there(later)).step is MigrationStep.SAME
    )


@pytest.mark.parametrize("further", [Position("200", 4), Position("1000"), Position(SHARD_END)])
def test_checkpoint_does_not_go_back(further: Position) -> None:
    """New workers went on since, or the whole is the wrong way round: a conflict; by force alone it is done."""
    there = _there(replace(WANTED, owner=None, checkpoint=further))

    refused = _planned(WANTED, there)
    forced = _planned(WANTED, there, force=True)

    assert refused.step is MigrationStep.CONFLICT
    assert "its checkpoint is further" in refused.conflicts[0]
    assert refused.after is None
    assert forced.after is not None
    assert forced.after.checkpoint == WANTED.checkpoint


def test_place_to_start_is_no_less_a_checkpoint() -> None:
    """Where new workers made leases at LATEST, TRIM_HORIZON would be going back: a person decides."""
    there = _there(LeaseRecord(key="shard-1", checkpoint=Position(LATEST)))

    assert _planned(LeaseRecord(key="shard-1", checkpoint=Position(TRIM_HORIZON)), there).conflicts


def test_record_without_checkpoint_takes_none_away() -> None:
    """It made room only."""
    there = _there(LeaseRecord(key="shard-1", checkpoint=Position("5")))

    assert _planned(LeaseRecord(key="shard-1"), there).step is MigrationStep.SAME


@pytest.mark.parametrize(
    ("pending", "step"),
    [
        (Position("250"), MigrationStep.CONFLICT),
        (Position("150"), MigrationStep.UPDATE),
        (None, MigrationStep.UPDATE),
    ],
    ids=["announced beyond", "behind by now", "nothing"],
)
def test_announced_position_is_not_lost(pending: Position | None, step: MigrationStep) -> None:
    """Two different ones beyond the checkpoint mean side effects of two lives: neither may be dropped unseen."""
    there = LeaseRecord(
        key="shard-1", checkpoint=Position("100"), pending=pending, pending_state=None
    )

    assert _planned(WANTED, _there(there)).step is step


def test_announced_position_there_outlives_a_checkpoint_before_it() -> None:
    """An import that announces nothing does not say that nothing was announced."""
    there = LeaseRecord(key="shard-1", checkpoint=Position("100"), pending=Position("300"))
    wanted = replace(WANTED, pending=None, pending_state=None)

    action = _planned(wanted, _there(there))

    assert action.after is not None
    assert (action.after.checkpoint, action.after.pending) == (wanted.checkpoint, Position("300"))


def test_held_lease_is_left_to_its_holder_even_by_force() -> None:
    """What is written below a live worker costs it the lease, and perhaps its work."""
    held = _there(LeaseRecord(key="shard-1", owner="new-1"), fence=4)

    for force in (False, True):
        action = _planned(WANTED, held, force=force)
        assert action.step is MigrationStep.CONFLICT
        assert action.conflicts == ("it is held by new-1: stop its workers, or evict it",)


def test_held_lease_that_says_the_same_is_no_conflict() -> None:
    """The second run, while the new workers have just begun."""
    first = _planned(WANTED).after
    assert first is not None

    held = _there(replace(first, owner="new-1", epoch=8), fence=9)

    assert _planned(WANTED, held).step is MigrationStep.SAME


def test_record_of_a_dead_owner_is_written_free() -> None:
    """Else the write would look like an acquisition of its own."""
    action = _planned(WANTED, _there(LeaseRecord(key="shard-1", owner="dead", epoch=2)))

    assert action.after is not None
    assert (action.after.owner, action.after.epoch) == (None, 7)


def test_owners_are_moved_if_asked_for_in_an_epoch_of_their_own() -> None:
    """Both ways: onto nothing, and onto a free lease, where it is an acquisition; the second time nothing is done."""
    created = _planned(WANTED, owners=True).after
    updated = _planned(
        WANTED, _there(LeaseRecord(key="shard-1", owner="dead", epoch=7)), owners=True
    ).after

    assert created is not None
    assert updated is not None
    assert (created.owner, created.epoch) == ("old-1", 7)
    assert (updated.owner, updated.epoch) == ("old-1", 8)
    assert _planned(WANTED, _there(updated, fence=3), owners=True).step is MigrationStep.SAME


def test_shard_of_another_stream_is_not_merged_into() -> None:
    """The same key with other hash keys: most likely another stream's table."""
    wanted = replace(WANTED, hash_range=HashRange(first="0", last="9"))
    there = LeaseRecord(key="shard-1", hash_range=HashRange(first="0", last="4"))

    assert "hash range" in _planned(wanted, _there(there)).conflicts[0]


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        *(("native", "owner"), ("eph", "checkpoint"), ("eventhubs", "key")),
        *(("kcl-java", "leaseKey"), ("vmware-go", "ShardID")),
    ],
)
def test_attribute_with_a_name_of_the_layout_itself_is_refused(layout: str, name: str) -> None:
    """Written, it would take the place of the layout's own."""
    action = _planned(replace(WANTED, attrs={name: '"x"'}), layout=layout)

    assert action.step is MigrationStep.CONFLICT
    assert name in action.conflicts[0]


@pytest.mark.parametrize(
    ("layout", "unseen"),
    [
        ("native", []),
        ("kcl-java", ["the offset"]),
        ("vmware-go", ["200.3@4096", "pending position 250", "other parents than a", "children"]),
        ("eph", ["200.3@4096", "pending position 250", "its parents"]),
        ("eventhubs", ["200.3@4096", "pending position 250", "its parents"]),
    ],
)
def test_what_other_programs_do_not_see_is_said(layout: str, unseen: Sequence[str]) -> None:
    """It is kept all the same, but who goes back to them must know."""
    wanted = replace(
        WANTED,
        checkpoint=Position("200", 3, "4096"),
        parents=frozenset("ab"),
        children=frozenset("c"),
    )

    action = _planned(wanted, layout=layout)

    assert len(action.unseen) == len(unseen)
    assert all(part in said for part, said in zip(unseen, action.unseen, strict=True))


def test_lease_without_a_place_to_start_is_noted_for_the_kinesis_client_library() -> None:
    """Its workers do not begin such a shard."""
    (unseen,) = _planned(LeaseRecord(key="a"), layout="kcl-java").unseen

    assert "a place to start" in unseen
