"""What SQL adds to leases: a checkpoint that is part of the transaction of its outputs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path

import pytest
import sqlalchemy as sa

from broadsheet.consumer.stores.sql_dialect import dialect_of
from broadsheet.leases import rules
from broadsheet.leases.errors import ThrottlingError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, RecordConflictError, Versioned
from broadsheet.leases.stores.sql.store import SqlRecordStore
from tests.support.lease_stores import SqlSubject, sql_subject


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlSubject]:
    """Each database in turn, its store created."""
    url = f"sqlite:///{tmp_path}/leases.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgresql_url")
    opened: AbstractAsyncContextManager[SqlSubject] = sql_subject(url)
    async with opened as subject:
        await subject.store.create_store()
        yield subject


@pytest.fixture
def outputs(subject: SqlSubject) -> sa.Table:
    """A table of the application's own."""
    table = sa.Table(
        f"{subject.store.records.table.name}_outputs", sa.MetaData(), sa.Column("line", sa.Text)
    )
    table.create(subject.engine)
    return table


async def _held(subject: SqlSubject) -> Versioned:
    manager = LeaseManager(subject.store)
    await manager.create_lease(LeaseRecord(key="a"))
    seen = await manager.get_lease("a")
    assert seen is not None
    held = await manager.take(seen, "w1")
    assert held is not None
    return held


def _process(
    subject: SqlSubject, outputs: sa.Table, held: Versioned, *, fail: bool = False
) -> Versioned:
    with subject.engine.begin() as connection:
        connection.execute(sa.insert(outputs).values(line="a line"))
        committed = subject.store.records.swap(
            connection, held, lambda record: rules.commit(record, Position("7"))
        )
        if fail:
            raise OSError("killed before the commit")
    return committed


def _lines(subject: SqlSubject, outputs: sa.Table) -> list[str]:
    with subject.engine.connect() as connection:
        return list(connection.scalars(sa.select(outputs.c.line)))


async def test_checkpoint_commits_with_its_outputs(subject: SqlSubject, outputs: sa.Table) -> None:
    """Both are there; the holder goes on with what came back."""
    held = await _held(subject)

    committed = await asyncio.to_thread(_process, subject, outputs, held)

    assert _lines(subject, outputs) == ["a line"]
    assert await subject.rival.get("a") == committed
    assert committed.record.checkpoint == Position("7")
    assert await LeaseManager(subject.store).renew(committed)


async def test_checkpoint_rolls_back_with_its_outputs(
    subject: SqlSubject, outputs: sa.Table
) -> None:
    """Neither is there, and the lease is as it was."""
    held = await _held(subject)

    with pytest.raises(OSError, match="killed"):
        await asyncio.to_thread(_process, subject, outputs, held, fail=True)

    assert _lines(subject, outputs) == []
    assert await LeaseManager(subject.store).renew(held)


async def test_outputs_of_a_lost_lease_are_refused(subject: SqlSubject, outputs: sa.Table) -> None:
    """The checkpoint is the fence of the whole transaction: a zombie's outputs go with it."""
    held = await _held(subject)
    taken = await LeaseManager(subject.rival).take(held, "w2")

    with pytest.raises(RecordConflictError) as raised:
        await asyncio.to_thread(_process, subject, outputs, held)

    assert raised.value.current == taken
    assert _lines(subject, outputs) == []


def _writing(engine: sa.Engine) -> AbstractContextManager[sa.Connection]:
    """Begin a transaction as the store begins its own: the write lock at once, or the row's at the update."""
    return dialect_of(engine, lock_wait_seconds=5, takeover_seconds=5).begin_write()


async def test_take_waits_for_a_transaction_and_then_loses(
    subject: SqlSubject, outputs: sa.Table
) -> None:
    """A taker that saw the lease before the holder's transaction ended must not undo its checkpoint."""
    held = await _held(subject)
    in_transaction, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def process() -> None:
        with _writing(subject.engine) as connection:
            subject.store.records.swap(
                connection, held, lambda record: rules.commit(record, Position("7"))
            )
            loop.call_soon_threadsafe(in_transaction.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(10)
            connection.commit()

    async def take() -> Versioned | None:
        await in_transaction.wait()
        loop.call_later(0.2, go_on.set)
        return await LeaseManager(subject.rival).take(held, "w2")

    _, taken = await asyncio.gather(asyncio.to_thread(process), take())

    assert taken is None
    found = await subject.store.get("a")
    assert found is not None
    assert (found.record.owner, found.record.checkpoint) == ("w1", Position("7"))


async def test_held_lock_is_throttling(subject: SqlSubject) -> None:
    """Nothing was written: the holder of a lease goes on and tries again."""
    held = await _held(subject)
    hasty = SqlRecordStore(
        subject.engine, table_name=subject.store.records.table.name, lock_wait_seconds=0.1
    )

    with _writing(subject.engine) as connection:
        subject.rival.records.swap(connection, held, rules.renew)
        with pytest.raises(ThrottlingError) as raised:
            await LeaseManager(hasty).renew(held)

    assert raised.value.retryable
    assert await subject.store.get("a") == held
