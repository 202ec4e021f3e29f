"""What a store makes of checkpoints and announced ones, over every backend.

Origins are in awslabs/amazon-kinesis-client, `checkpoint.CheckpointerTest`, rewritten; its
checkpointers all pass it. A number is more than 64 bits long, and has a place within an aggregate.
"""

from __future__ import annotations

import pytest

from broadsheet.leases import rules
from broadsheet.leases.errors import InvalidPositionError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned

FIRST = Position("49587497311274533994574834252742144236107130636007899138", 3)
SECOND = Position("49587497311274533994574834252742144236107130636007899139")
STATES = pytest.mark.parametrize("state", [None, b"\x00applied 17"], ids=["bare", "state"])


@pytest.fixture
async def held(manager: LeaseManager) -> Versioned:
    """A lease of w1, never checkpointed."""
    await manager.create_lease(LeaseRecord(key="a", checkpoint=Position("TRIM_HORIZON")))
    seen = await manager.get_lease("a")
    assert seen is not None
    held = await manager.take(seen, "w1")
    assert held is not None
    return held


async def _committed(manager: LeaseManager, held: Versioned, position: Position) -> Versioned:
    written = await manager.update(held, lambda record: rules.commit(record, position))
    assert written is not None
    return written


async def _prepared(
    manager: LeaseManager, held: Versioned, position: Position, state: bytes | None
) -> Versioned:
    written = await manager.update(held, lambda record: rules.prepare(record, position, state))
    assert written is not None
    return written


async def _stored(
    manager: LeaseManager,
) -> tuple[Position | None, Position | None, bytes | None]:
    """Read the committed place, the announced one and its state, as another process does."""
    found = await manager.get_lease("a")
    assert found is not None
    return found.record.checkpoint, found.record.pending, found.record.pending_state


async def test_initial_set_checkpoint(
    manager: LeaseManager, rival: LeaseManager, held: Versioned
) -> None:
    """`testInitialSetCheckpoint`, `testSetAndGetCheckpoint`: what is written is what anybody reads."""
    await _committed(manager, held, FIRST)

    assert await _stored(rival) == (FIRST, None, None)


async def test_advancing_set_checkpoint(
    manager: LeaseManager, rival: LeaseManager, held: Versioned
) -> None:
    """`testAdvancingSetCheckpoint`: several in a row; each stays until the next."""
    for number in range(3):
        place = Position(str(10**55 + number), number)
        held = await _committed(manager, held, place)
        assert await _stored(rival) == (place, None, None)


@STATES
async def test_initial_prepare_checkpoint(
    manager: LeaseManager, rival: LeaseManager, held: Versioned, state: bytes | None
) -> None:
    """`testInitialPrepareCheckpoint`, `…WithApplicationState`: announced; what is committed stays."""
    await _prepared(manager, held, FIRST, state)

    assert await _stored(rival) == (Position("TRIM_HORIZON"), FIRST, state)


@STATES
async def test_advancing_prepare_checkpoint(
    manager: LeaseManager, rival: LeaseManager, held: Versioned, state: bytes | None
) -> None:
    """`testAdvancingPrepareCheckpoint`, `…WithApplicationState`: there is one place; the last one one is in it."""
    for number in range(3):
        place = Position(str(10**55 + number))
        note = None if state is None else state + str(number).encode()
        held = await _prepared(manager, held, place, note)
        assert await _stored(rival) == (Position("TRIM_HORIZON"), place, note)


@STATES
async def test_prepare_and_set_checkpoint(
    manager: LeaseManager, rival: LeaseManager, held: Versioned, state: bytes | None
) -> None:
    """`testPrepareAndSetCheckpoint`, `…WithApplicationState`: the commit ends what was announced, state and all."""
    held = await _committed(manager, held, FIRST)
    held = await _prepared(manager, held, SECOND, state)
    assert await _stored(rival) == (FIRST, SECOND, state)

    await _committed(manager, held, SECOND)

    assert await _stored(rival) == (SECOND, None, None)


async def test_store_takes_an_announcement_behind_the_checkpoint_and_no_such_commit(
    manager: LeaseManager, rival: LeaseManager, held: Versioned
) -> None:
    """Bounds of announcements are for whoever knows what was delivered; theirs checks neither here, ours the commit."""
    held = await _committed(manager, held, SECOND)

    held = await _prepared(manager, held, FIRST, b"late")

    assert await _stored(rival) == (SECOND, FIRST, b"late")
    with pytest.raises(InvalidPositionError):
        await _committed(manager, held, FIRST)
    assert await _stored(rival) == (SECOND, FIRST, b"late")


async def test_record_is_created_with_what_is_announced(
    manager: LeaseManager, rival: LeaseManager
) -> None:
    """`createLeaseIfNotExists` writes a state as a number there, so that nobody can read it; here it is what it was."""
    await manager.create_lease(
        LeaseRecord(key="a", checkpoint=FIRST, pending=SECOND, pending_state=b"\x00applied 17")
    )

    assert await _stored(rival) == (FIRST, SECOND, b"\x00applied 17")
