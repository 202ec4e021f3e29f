"""Does what an import's plan says, one record after the other; each is compared with what the plan saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from consumer.leasing.compare_and_swap import swap, verdict_of_taker
from consumer.leasing.facades.kcl import LeaseManager
from consumer.leasing.migration.plan import Action, Step
from consumer.leasing.record import LeaseRecord, Versioned
from consumer.leasing.store import RecordStore

CHANGED_MEANWHILE = "another program wrote it meanwhile: import it again"


async def records_of(store: RecordStore) -> tuple[Versioned, ...]:
    """Return all records of a store, in the order of their keys; those that cannot be read are logged."""
    return tuple([found async for found in store.scan()])


async def carry_out(store: RecordStore, actions: Sequence[Action]) -> tuple[Action, ...]:
    """Create and update records; the store must be there.

    Returns:
        The actions as they were done: one that came too late is a conflict now.

    Raises:
        LeasingError: the store failed; a note says how much was done before, and all of it may be done again.
    """
    done: list[Action] = []
    for action in actions:
        try:
            done.append(await _carried_out(store, action))
        except Exception as error:
            error.add_note(f"the first {len(done)} of {len(actions)} leases are done: import again")
            raise
    return tuple(done)


async def _carried_out(store: RecordStore, action: Action) -> Action:
    if action.after is None:
        return action
    if action.step is Step.CREATE:
        is_done = await LeaseManager(store).create_lease(action.after)
    else:
        is_done = await _replaced(store, action, action.after)
    if is_done:
        return action
    return replace(action, step=Step.CONFLICT, after=None, conflicts=(CHANGED_MEANWHILE,))


async def _replaced(store: RecordStore, action: Action, after: LeaseRecord) -> bool:
    assert action.before is not None, "a record that is updated was there"
    return await swap(store, action.before, lambda _: after, verdict_of_taker) is not None
