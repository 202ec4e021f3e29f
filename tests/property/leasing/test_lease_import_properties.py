"""What holds of imports, whatever records there are."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st

from broadsheet.leases.migration.export_file import export_lines, read_export
from broadsheet.leases.migration.layouts import LAYOUTS
from broadsheet.leases.migration.plan import Action, MigrationStep, plan_import
from broadsheet.leases.record import LeaseRecord, Version, Versioned
from tests.support.lease_strategies import positions, records

layouts = st.sampled_from(sorted(LAYOUTS))
some_records = st.builds(
    lambda record, owner, checkpoint, pending: replace(
        record,
        key="shard",
        owner=owner,
        handoff_from=None,
        checkpoint=checkpoint,
        pending=pending,
        pending_state=None if pending is None else record.pending_state,
    ),
    records,
    st.none() | st.sampled_from(["w1", "w2"]),
    st.none() | positions,
    st.none() | positions,
)


def _planned(wanted: LeaseRecord, there: LeaseRecord | None, layout: str, **how: bool) -> Action:
    found = (
        {} if there is None else {"shard": Versioned(record=there, version=Version("1"), fence=0)}
    )
    (action,) = plan_import([wanted], found, LAYOUTS[layout], **how)
    return action


@given(some_records, st.none() | some_records, layouts, st.booleans(), st.booleans())
def test_import_that_was_done_has_nothing_to_do(
    wanted: LeaseRecord, there: LeaseRecord | None, layout: str, owners: bool, force: bool
) -> None:
    """Whatever was there, with owners or without, by force or not."""
    action = _planned(wanted, there, layout, owners=owners, force=force)
    if action.after is None:
        return

    again = _planned(wanted, action.after, layout, owners=owners, force=force)

    assert again.step is MigrationStep.SAME, again.changed


@given(some_records, some_records, layouts)
def test_import_never_takes_back_what_was_reached(
    wanted: LeaseRecord, there: LeaseRecord, layout: str
) -> None:
    """Neither checkpoint, epoch nor counter; no pending position beyond the checkpoint is dropped."""
    after = _planned(wanted, there, layout).after
    if after is None:
        return

    assert after.epoch >= max(there.epoch, wanted.epoch)
    assert after.counter > there.counter
    for reached in (wanted.checkpoint, there.checkpoint):
        assert reached is None or (after.checkpoint is not None and not after.checkpoint < reached)
    for announced in (wanted.pending, there.pending):
        if announced is not None and (after.checkpoint is None or after.checkpoint < announced):
            assert after.pending == announced
    assert wanted.parents | there.parents == after.parents


@given(some_records, layouts)
def test_import_onto_nothing_keeps_everything_but_the_acquisition(
    wanted: LeaseRecord, layout: str
) -> None:
    """In every layout."""
    after = _planned(wanted, None, layout).after

    assert after == replace(wanted, owner=None, claim=None, write_id="")


@given(st.lists(records, unique_by=lambda record: record.key, max_size=4))
def test_exported_file_is_read_as_it_was_written(some: list[LeaseRecord]) -> None:
    """Of any records, with any letters in them: lines end where ours end."""
    assert read_export("".join(export_lines(some, origin="x")), "x") == tuple(some)
