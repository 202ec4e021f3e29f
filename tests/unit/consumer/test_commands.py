"""Commands: their effect happens once, their answer is durable, and both survive repetition and death."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from broadsheet.consumer import Shard
from broadsheet.consumer.commands import (
    Answers,
    CommandIdReusedError,
    CommandRefusedError,
    Commands,
    JsonAnswers,
    KeptAnswer,
    RocksDbAnswers,
    SqlAnswers,
    SqliteAnswers,
)
from broadsheet.consumer.commands.appender import CommandAppender
from broadsheet.consumer.stores import JsonFileStore, RocksDbStore, SqliteStore, SqlStore
from broadsheet.journals import (
    NDJSON,
    Envelope,
    JournalSpec,
    JsonType,
    MappedJournal,
    MessageType,
    Publisher,
)
from broadsheet.journals.message.division import UNDIVIDED
from broadsheet.runtime.errors import ServiceError, ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing import Step, TestCluster
from broadsheet.wire.labels import label_set
from tests.support.eventually import eventually

JOURNAL = "bank/commands"
KILL_POINTS = (Step.CONSUMED, Step.FINALIZED, Step.COMMIT_SENT, Step.COMMITTED)


class Deposit(msgspec.Struct):
    """A request: an account and what is added."""

    account: str
    amount: int


class Balance(msgspec.Struct):
    """A response."""

    amount: int


class Ledger(msgspec.Struct):
    """The state of a `JsonFileStore`."""

    balances: dict[str, int] = {}
    answers: dict[str, KeptAnswer] = {}


@dataclass(frozen=True)
class Kind:
    """A store, and how a bank keeps balances and answers in it."""

    new_store: Callable[[Shard], Any]
    answers: Answers[Any]
    add: Callable[[Any, str, int], int]


def _json() -> Kind:
    def add(store: JsonFileStore[Ledger], account: str, amount: int) -> int:
        store.state.balances[account] = store.state.balances.get(account, 0) + amount
        return store.state.balances[account]

    return Kind(
        lambda shard: JsonFileStore(shard, initial=Ledger()),
        JsonAnswers(lambda state: state.answers),
        add,
    )


_ADD = (
    "INSERT INTO balances VALUES (?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount "
    "RETURNING amount"
)


def _sqlite() -> Kind:
    schema = "CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, amount INTEGER)"

    def add(store: SqliteStore, account: str, amount: int) -> int:
        return int(store.connection.execute(_ADD, (account, amount)).fetchone()[0])

    return Kind(lambda shard: SqliteStore(shard, schema=schema), SqliteAnswers(), add)


def _sql() -> Kind:
    metadata = sa.MetaData()
    balances = sa.Table(
        "balances",
        metadata,
        sa.Column("account", sa.String(50), primary_key=True),
        sa.Column("amount", sa.Integer),
    )
    answers = SqlAnswers(metadata)

    def new_store(shard: Shard) -> SqlStore:
        database = f"sqlite:///{os.environ['BROADSHEET_STATE_DIR']}/bank.db"
        engine = sa.create_engine(database, poolclass=sa.NullPool)
        metadata.create_all(engine)
        return SqlStore(shard, engine)

    def add(store: SqlStore, account: str, amount: int) -> int:
        before = store.connection.scalar(
            sa.select(balances.c.amount).where(balances.c.account == account)
        )
        if before is None:
            store.connection.execute(balances.insert(), {"account": account, "amount": amount})
            return amount
        store.connection.execute(
            balances.update().where(balances.c.account == account), {"amount": before + amount}
        )
        return int(before) + amount

    return Kind(new_store, answers, add)


def _rocksdb() -> Kind:
    def add(store: RocksDbStore, account: str, amount: int) -> int:
        total = int(store.get(account.encode()) or 0) + amount
        store.put(account.encode(), str(total).encode())
        return total

    return Kind(RocksDbStore, RocksDbAnswers(), add)


KINDS = {"json": _json, "sqlite": _sqlite, "sql": _sql, "rocksdb": _rocksdb}


class Bank:
    """Executes deposits; beside them it reads an ordinary journal of the same deposits."""

    def __init__(self, kind: str = "sqlite", *, keep_seconds: float = 3600.0) -> None:
        self.kind = KINDS[kind]()
        self.commands = Commands(
            JOURNAL, Deposit, Balance, answers=self.kind.answers, keep_seconds=keep_seconds
        )

    def new_store(self, shard: Shard) -> Any:
        """Return a store of the kind."""
        return self.kind.new_store(shard)

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Commands have an encoding of their own."""
        return self.commands.message_type(journal_spec) or JsonType()

    def consume_message(
        self, shard: Shard, store: Any, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Apply a command."""
        if self.commands.is_command(envelope):
            self.commands.consume(
                shard, store, envelope, lambda deposit: self._deposit(store, deposit)
            )

    def finalize_txn(self, shard: Shard, store: Any, publisher: Publisher) -> None:
        """Do nothing."""

    def _deposit(self, store: Any, deposit: Deposit) -> Balance:
        if deposit.amount < 0:
            raise CommandRefusedError(f"amount: expected at least 0, got {deposit.amount}")
        return Balance(self.kind.add(store, deposit.account, deposit.amount))


def _cluster(kind: str = "sqlite", **settings: Any) -> tuple[TestCluster, Commands[Any, Any]]:
    cluster = TestCluster(
        lambda: Bank(kind, **settings), shards={"bank": [JOURNAL]}, state=lambda _: None
    )
    return cluster, Bank(kind, **settings).commands


@pytest.mark.parametrize("kind", KINDS)
def test_command_repeated_with_its_id_is_applied_once(kind: str) -> None:
    """A caller whose answer was lost asks again: the answer is the first one's, and the effect is not repeated."""
    cluster, commands = _cluster(kind)
    with cluster:
        assert cluster.command(commands, Deposit("ada", 5), command_id="1") == Balance(5)
        assert cluster.command(commands, Deposit("ada", 5), command_id="2") == Balance(10)
        assert cluster.command(commands, Deposit("ada", 5), command_id="1") == Balance(5)
        assert cluster.command(commands, Deposit("ada", 1), command_id="3") == Balance(11)


@pytest.mark.parametrize(
    ("kind", "step"),
    [("sqlite", step) for step in KILL_POINTS]
    + [(kind, Step.COMMITTED) for kind in KINDS if kind != "sqlite"],
)
def test_command_survives_its_primary_at_every_step(kind: str, step: Step) -> None:
    """The primary dies while it executes: the caller's repetition gets one effect, whatever was durable by then."""
    cluster, commands = _cluster(kind)
    with cluster:
        cluster.command(commands, Deposit("ada", 1))
        cluster.kill_primary(after=step)
        assert cluster.command(commands, Deposit("ada", 5), command_id="x") == Balance(6)
        assert cluster.command(commands, Deposit("ada", 5), command_id="x") == Balance(6)
        assert cluster.command(commands, Deposit("ada", 1)) == Balance(7)


def test_refused_command_stays_refused_and_changes_nothing() -> None:
    """A refusal is an answer: it is told to the caller, and repeated, and the shard goes on."""
    cluster, commands = _cluster()
    with cluster:
        for _ in range(2):
            with pytest.raises(CommandRefusedError, match="expected at least 0, got -1"):
                cluster.command(commands, Deposit("ada", -1), command_id="bad")
        assert cluster.command(commands, Deposit("ada", 2)) == Balance(2)


def test_id_of_another_request_is_refused() -> None:
    """An id that stands for two requests would give one of them the other's answer."""
    cluster, commands = _cluster()
    with cluster:
        cluster.command(commands, Deposit("ada", 1), command_id="x")
        with pytest.raises(CommandIdReusedError, match="'x'"):
            cluster.command(commands, Deposit("ada", 2), command_id="x")
        assert cluster.command(commands, Deposit("ada", 1)) == Balance(2)


@pytest.mark.parametrize(
    ("request_", "command_id", "field"),
    [
        (Deposit("ada", "much"), "", "request"),  # type: ignore[arg-type]  # A caller's mistake.
        (Deposit("ada", 1), "x" * 201, "command_id"),
        (Deposit("ada", 1), "a\nb", "command_id"),
    ],
)
def test_wrong_request_or_id_is_refused_before_it_is_published(
    request_: Deposit, command_id: str, field: str
) -> None:
    """What the shard could not apply must not come into its journal."""
    cluster, commands = _cluster()
    with cluster:
        with pytest.raises(ValidationError, match=field):
            cluster.command(commands, request_, command_id=command_id)
        cluster.command(commands, Deposit("ada", 1), command_id="only")
        assert [each["id"] for each in cluster.published(JOURNAL)] == ["only"]


def test_messages_that_are_no_command_of_this_shard_do_not_stop_it() -> None:
    """Others may write to the journal: what is not a request is refused, what is for another shard is passed over."""
    cluster, commands = _cluster()
    foreign = {"id": "1", "shard": "other", "request": {"account": "ada", "amount": 7}}
    unreadable = {"id": "2", "shard": "bank", "request": {"account": 1}}
    with cluster:
        wrong_ids = [foreign | {"id": each, "shard": "bank"} for each in ("x" * 201, "a\0b")]
        cluster.publish(JOURNAL, foreign, unreadable, {"shard": "bank"}, *wrong_ids)
        cluster.read_through()
        kept = cluster.query(lambda store: [SqliteAnswers().get(store, each) for each in "12"])
        assert kept[0] is None
        assert kept[1] is not None
        assert b"Expected `str`" in kept[1].content
        assert cluster.command(commands, Deposit("ada", 1)) == Balance(1)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_forgotten_by_age_the_oldest_first(kind: str) -> None:
    """Kept answers would grow for ever; those that callers may still ask for stay."""
    cluster, commands = _cluster(kind)
    bank = Bank(kind)
    answers = bank.kind.answers if kind != "sql" else None
    del commands
    with cluster:

        def fill(store: Any) -> list[bool]:
            kept = answers or KINDS["sql"]().answers
            for number in range(5):
                kept.keep(store, f"id-{number}", KeptAnswer(1000 + number, b"{}"))
            assert kept.forget(store, 1003, 2) == 2
            left = [kept.get(store, f"id-{number}") is not None for number in range(5)]
            assert kept.forget(store, 1003, 2) == 1
            assert kept.forget(store, 1003, 2) == 0
            assert kept.get(store, "id-3") == KeptAnswer(1003, b"{}")
            return left

        assert cluster.query(fill) == [False, False, True, True, True]


def test_old_answers_are_forgotten_while_commands_come() -> None:
    """The age is that of the messages, so a shard without commands keeps what it has, at no cost."""
    cluster, commands = _cluster("json", keep_seconds=0.001)
    with cluster:
        for number in range(3):
            cluster.command(commands, Deposit("ada", 1), command_id=str(number))
        cluster.read_through()
        kept = cluster.query(lambda store: sorted(store.state.answers))
    assert "2" in kept
    assert "0" not in kept


def test_shard_without_a_command_journal_is_named() -> None:
    """A spec that lacks the journal is the operator's mistake, and the error says where it is."""
    cluster = TestCluster(Bank, shards={"bank": ["bank/other"]}, state=lambda _: None)
    with cluster, pytest.raises(ValidationError, match="expected one command journal"):
        cluster.command(Bank().commands, Deposit("ada", 1))


def test_command_journal_of_another_content_type_is_refused() -> None:
    """Its bytes would be taken for commands."""
    spec = JournalSpec(name=JOURNAL, labels=label_set(("content-type", "text/csv")))
    with pytest.raises(ValidationError, match="content-type=application/x-ndjson, not text/csv"):
        Bank().commands.message_type(spec)


class _Journals:
    """Keeps appends, each of which takes until it is let go; the n-th ends at n."""

    def __init__(self) -> None:
        self.appends: list[bytes] = []
        self.go = asyncio.Event()
        self.refuses = False

    async def append(self, journal: str, content: Any, *, check_registers: Any) -> Any:
        """Append, or refuse."""
        assert check_registers is UNDIVIDED
        self.appends.append(b"".join(content))
        end = len(self.appends)
        await self.go.wait()
        if self.refuses:
            raise ServiceError("refused")
        return _Appended(_Commit(end))


@dataclass
class _Commit:
    end: int


@dataclass
class _Appended:
    commit: _Commit


async def test_commands_that_come_during_an_append_share_the_next_one() -> None:
    """A thousand callers must not cost a thousand appends, and a caller that goes away takes no other's with it."""
    journals = _Journals()
    appender = CommandAppender(journals, MappedJournal(JOURNAL, NDJSON), JsonType())  # type: ignore[arg-type]  # An append is all that it uses.
    async with TaskGroup() as group:
        calls = [group.start_soon(appender.append({"n": 0}), name="first")]
        await eventually(lambda: len(journals.appends) == 1)
        calls += [group.start_soon(appender.append({"n": n}), name=f"{n}") for n in range(1, 100)]
        # The one that appends, and one of those that wait for its append and the next.
        calls[0].cancel()
        await eventually(lambda: len(journals.appends) == 2)
        calls[1].cancel()
        await eventually(lambda: len(journals.appends) == 3)
        journals.go.set()
    assert [call.cancelled() for call in calls] == [True, True] + [False] * 98
    # What its caller left is sent again, because others wait for it: the same bytes.
    assert journals.appends[1] == journals.appends[2]
    assert [call.result() for call in calls[2:]] == [{JOURNAL: 3}] * 98


async def test_append_that_fails_is_told_to_all_who_wait_for_it() -> None:
    """None of them may wait for an append that is not repeated, and the next command is appended as ever."""
    journals = _Journals()
    journals.refuses = True
    journals.go.set()
    appender = CommandAppender(journals, MappedJournal(JOURNAL, NDJSON), JsonType())  # type: ignore[arg-type]  # An append is all that it uses.
    failed = await asyncio.gather(
        *(appender.append({"n": n}) for n in range(3)), return_exceptions=True
    )
    assert [type(each) for each in failed] == [ServiceError] * 3
    journals.refuses = False
    assert await appender.append({"n": 3}) == {JOURNAL: len(journals.appends)}
