"""What was wrong with the first lease manager for Go, in a table of the Kinesis Client Library: it is not so here.

That a table is there only once it can be used, and that failures of a scan are no empty list, is shown in
`test_dynamodb_faults`; that rows hold more than key, owner and counter, in `test_kcl_java_rows`.

Origin: vmware/vmware-go-kcl before its first release, `src/leases`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from broadsheet.leases import rules
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned
from tests.support.dynamodb_stores import DynamoSubject, dynamodb_subject

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

pytestmark = pytest.mark.moto


@pytest.fixture
async def subject(dynamodb_client: DynamoDBClient) -> AsyncIterator[DynamoSubject]:
    """A table that is there."""
    async with dynamodb_subject(dynamodb_client, "kcl-java") as subject:
        await subject.store.create_store()
        yield subject


async def _seen(manager: LeaseManager) -> Versioned:
    seen = await manager.get_lease("a")
    assert seen is not None
    return seen


async def test_answers_are_not_the_wrong_way_round(subject: DynamoSubject) -> None:
    """Creating, renewing and the question whether there is any lease answered with the opposite."""
    manager = LeaseManager(subject.store)
    assert await manager.is_empty()
    assert await manager.create_lease(LeaseRecord(key="a")) is True
    assert await manager.create_lease(LeaseRecord(key="a")) is False
    assert not await manager.is_empty()
    held = await manager.take(await _seen(manager), "w1")
    assert held is not None
    assert await manager.renew(held) is not None
    assert await manager.renew(held) is None


async def test_writes_say_what_they_should(subject: DynamoSubject) -> None:
    """Renewing wrote nothing, taking wrote the owner that was there, evicting failed once the holder had renewed."""
    manager = LeaseManager(subject.store)
    await manager.create_lease(LeaseRecord(key="a"))
    held = await manager.take(await _seen(manager), "w1")
    assert held is not None
    assert subject.row("a")["leaseOwner"] == {"S": "w1"}
    await manager.renew(held)
    assert subject.row("a")["leaseCounter"] == {"N": "2"}
    taken = await manager.take(await _seen(manager), "w2")
    assert taken is not None
    assert subject.row("a")["leaseOwner"] == {"S": "w2"}
    await manager.renew(taken)

    assert await manager.evict(taken) is not None

    assert "leaseOwner" not in subject.row("a")
    assert subject.row("a")["leaseCounter"] == {"N": "5"}


async def test_lost_races_are_answers(subject: DynamoSubject) -> None:
    """Conditions that did not hold came out as errors of DynamoDB."""
    manager, rival = LeaseManager(subject.store), LeaseManager(subject.rival)
    await manager.create_lease(LeaseRecord(key="a"))
    free = await _seen(manager)
    held = await manager.take(free, "w1")
    assert held is not None
    assert await rival.take(await _seen(rival), "w2") is not None

    assert await manager.take(free, "w1") is None
    assert await manager.renew(held) is None
    assert await manager.update(held, lambda r: rules.commit(r, Position("1"))) is None
    assert await manager.evict(held) is None
    assert await manager.delete("b") is False
