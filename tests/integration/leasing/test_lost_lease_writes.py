"""Writes whose answers, or that themselves, are lost on the way: made once, and the lease is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broadsheet.leases import rules
from broadsheet.leases.errors import DependencyError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned
from tests.support.lease_stores import sql_subject
from tests.support.lost_answers import LostAnswers


@pytest.fixture
async def faulty(tmp_path: Path) -> AsyncIterator[LostAnswers]:
    """A store behind a bad connection."""
    async with sql_subject(f"sqlite:///{tmp_path}/leases.db") as subject:
        await subject.store.create_store()
        yield LostAnswers(subject.store)


async def _held(faulty: LostAnswers) -> Versioned:
    manager = LeaseManager(faulty.store)
    assert await manager.create_lease(LeaseRecord(key="a"))
    seen = await manager.get_lease("a")
    assert seen is not None
    held = await manager.take(seen, "w1")
    assert held is not None
    return held


@pytest.mark.parametrize("losses", [["answer"], ["request"], ["request", "answer"]], ids=str)
async def test_renew_survives_losses(faulty: LostAnswers, losses: list[str]) -> None:
    """A holder that took its own write for another's would drop a lease that it has; the counter moves once."""
    held = await _held(faulty)
    faulty.losses = list(losses)

    renewed = await LeaseManager(faulty).renew(held)

    assert renewed is not None
    assert renewed.record.counter == held.record.counter + 1
    assert await faulty.get("a") == renewed


@pytest.mark.parametrize("losses", [["answer"], ["request"], ["request", "answer"]], ids=str)
async def test_commit_survives_losses(faulty: LostAnswers, losses: list[str]) -> None:
    """The Kinesis Client Library recovers only renewals so, and drops its lease after such an update."""
    held = await _held(faulty)
    faulty.losses = list(losses)

    committed = await LeaseManager(faulty).update(held, lambda r: rules.commit(r, Position("7")))

    assert committed is not None
    assert committed.record.counter == held.record.counter + 1
    assert await faulty.get("a") == committed


@pytest.mark.parametrize("losses", [["answer"], ["request"]], ids=str)
async def test_take_survives_losses(faulty: LostAnswers, losses: list[str]) -> None:
    """Else the taker would wait for itself to expire."""
    held = await _held(faulty)
    faulty.losses = list(losses)

    taken = await LeaseManager(faulty).take(held, "w2")

    assert taken is not None
    assert (taken.record.owner, taken.record.epoch) == ("w2", held.record.epoch + 1)


async def test_create_survives_a_lost_answer(faulty: LostAnswers) -> None:
    """It says that it created the lease, and that it did not of one that was there."""
    manager = LeaseManager(faulty)
    faulty.losses = ["answer", "none"]

    assert await manager.create_lease(LeaseRecord(key="a"))
    assert not await manager.create_lease(LeaseRecord(key="a"))


async def test_create_whose_request_is_lost_raises(faulty: LostAnswers) -> None:
    """It may arrive yet, so "there was one" would be no answer."""
    faulty.losses = ["request"]

    with pytest.raises(DependencyError, match="may have been applied"):
        await LeaseManager(faulty).create_lease(LeaseRecord(key="a"))


async def test_lost_lease_is_not_written_after_a_lost_request(faulty: LostAnswers) -> None:
    """What the store says when asked again decides: here another took the lease meanwhile."""
    held = await _held(faulty)
    taken = await LeaseManager(faulty.store).take(held, "w2")
    faulty.losses = ["request"]

    assert await LeaseManager(faulty).renew(held) is None
    assert await faulty.get("a") == taken
    assert faulty.writes == 1


async def test_endless_losses_end_with_an_error(faulty: LostAnswers) -> None:
    """Every loop has a bound; the lease is not taken for lost."""
    held = await _held(faulty)
    faulty.losses = ["request"] * 100

    with pytest.raises(DependencyError, match="4 times") as raised:
        await LeaseManager(faulty).renew(held)

    assert raised.value.retryable
    assert await faulty.get("a") == held
