"""The cluster of a test: what it publishes, shows and waits for, and the faults that it injects."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest
import structlog

import broadsheet.consumer.application as application_module
from broadsheet.consumer import Shard
from broadsheet.consumer.application import DividedByKey
from broadsheet.journals import (
    Envelope,
    JournalSpec,
    JsonStructType,
    MessageType,
    Meta,
    Publisher,
)
from broadsheet.runtime.errors import ValidationError
from broadsheet.testing import (
    ClusterFailedError,
    ShardFailedError,
    Step,
    StuckError,
    TestCluster,
)
from broadsheet.testing.kit.cluster_thread import ClusterThread
from broadsheet.testing.kit.lockstep import Gate
from broadsheet.testing.kit.watched_application import WatchedApplication
from tests.support.broken_applications import Alerts, CountStore
from tests.support.eventually import DEADLINE_SECONDS

ORDERS = [{"customer": "ada"}, {"customer": "bob"}, {"customer": "ada"}]


class Order(msgspec.Struct):
    """An order as a Struct, of which the application knows nothing."""

    customer: str


class StrictOrder(msgspec.Struct):
    """An order that the application decodes as such."""

    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    customer: str = ""
    cents: int = 0


def test_published_messages_are_read_counted_and_answered() -> None:
    """The first test of every user: publish, read through, and look at state and output."""
    with TestCluster(Alerts) as cluster:
        cluster.publish("orders", *ORDERS)
        cluster.read_through()

        assert cluster.state() == {"ada": 2, "bob": 1}
        assert cluster.state("ada") == 2
        assert cluster.state("eve") is None
        assert cluster.published("alerts") == [{"customer": "ada", "orders": 2}]
        assert cluster.published("nothing") == []
        assert cluster.query(lambda store: len(store.state)) == 2
    assert ORDERS[0] == {"customer": "ada"}, "the test's own messages are left as they are"


async def test_a_cluster_works_within_a_running_event_loop() -> None:
    """Tests that are coroutines call the same plain methods."""
    with TestCluster(Alerts) as cluster:
        cluster.publish("orders", Order("ada"))
        cluster.read_through()

        assert cluster.state() == {"ada": 1}


@pytest.mark.parametrize("standbys", [0, 1])
@pytest.mark.parametrize("step", Step)
def test_a_primary_killed_after_any_step_loses_and_repeats_nothing(
    step: Step, standbys: int
) -> None:
    """Each switch kills where it says, and a cold as well as a warm successor goes on from the last commit."""
    with TestCluster(Alerts, standbys=standbys) as cluster:
        cluster.kill_primary(after=step)
        cluster.publish("orders", *ORDERS)
        cluster.read_through()
        cluster.publish("orders", *ORDERS)
        cluster.read_through()

        assert cluster.state() == {"ada": 4, "bob": 2}
        alerts = [(each["customer"], each["orders"]) for each in cluster.published("alerts")]
        assert alerts == [("ada", 2), ("bob", 2), ("ada", 4)] or alerts == [
            ("ada", 2),
            ("ada", 4),
            ("bob", 2),
        ]
        assert [taken.step for taken in cluster.steps].count(Step.RESTORED) == 2


def test_faults_between_transactions_are_got_over() -> None:
    """A kill while nothing is under way, a failed commit, a lost answer and a hand-over change no result."""
    with TestCluster(Alerts) as cluster:
        for fault in (
            cluster.kill_primary,
            cluster.fail_commit,
            cluster.lose_answer,
            cluster.hand_over,
        ):
            cluster.publish("orders", {"customer": "ada"})
            cluster.read_through()
            fault()
            cluster.publish("orders", {"customer": "ada"})
            cluster.read_through()

        assert cluster.state() == {"ada": 8}
        assert [each["orders"] for each in cluster.published("alerts")] == [2, 4, 6, 8]


def test_an_error_of_the_application_is_raised_with_its_cause() -> None:
    """A test of a broken application shows the application's own error, not a time-out."""
    with TestCluster(Alerts) as cluster:
        cluster.publish("orders", {"customr": "ada"})

        with pytest.raises(ShardFailedError, match="KeyError: 'customer'") as failed:
            cluster.read_through()
    assert failed.value.shard == "orders"


@pytest.mark.parametrize("gate", [None, Gate()], ids=["real", "virtual"])
def test_a_task_of_the_cluster_that_fails_ends_the_call_that_waits(gate: Gate | None) -> None:
    """The call's thread would wait for ever for an answer of a loop that has ended."""
    thread = ClusterThread(gate)
    closed: list[str] = []

    async def fail() -> None:
        raise KeyError("of a process")

    async def wait() -> None:
        thread.group.start_soon(fail(), name="fail")
        await asyncio.Event().wait()

    async def stop() -> None:
        closed.append("stopped")

    with pytest.raises(ClusterFailedError, match="KeyError: 'of a process'") as failed:
        thread.call(wait)
    with pytest.raises(ClusterFailedError, match="KeyError: 'of a process'"):
        thread.call(wait)
    thread.call(stop, closes=True)
    thread.close()
    assert isinstance(failed.value.__cause__, KeyError)
    assert closed == ["stopped"]


def test_a_failure_between_calls_is_raised_when_the_cluster_is_closed() -> None:
    """A test that asks for nothing more must not pass."""
    thread = ClusterThread(None)
    has_failed = threading.Event()

    async def fail() -> None:
        has_failed.set()
        raise KeyError("of a process")

    async def start() -> None:
        thread.group.start_soon(fail(), name="fail")

    thread.call(start)
    assert has_failed.wait(DEADLINE_SECONDS)
    with pytest.raises(ClusterFailedError, match="KeyError: 'of a process'"):
        thread.close()


def test_a_log_processor_that_raises_ends_the_test_with_its_error() -> None:
    """The program's own logging may be broken: its test shows that, and does not wait."""

    def refuse(_: object, __: str, event: structlog.typing.EventDict) -> str:
        if event["event"] == "shard.failed":
            raise LookupError("no such handler")
        raise structlog.DropEvent

    structlog.configure(processors=[refuse])
    with TestCluster(Alerts) as cluster:
        cluster.publish("orders", {"customr": "ada"})

        with pytest.raises(ClusterFailedError, match="LookupError: no such handler"):
            cluster.read_through()


def test_a_fault_that_does_not_happen_fails_the_test() -> None:
    """A test whose kill never came would pass without having tried anything."""

    def never_kills() -> None:
        with TestCluster(Alerts) as cluster:
            cluster.kill_primary(after=Step.APPENDED)
            cluster.publish("orders", {"customer": "ada"})
            cluster.read_through()

    with pytest.raises(AssertionError, match="kill after messages were appended"):
        never_kills()


def test_wrong_arguments_are_named() -> None:
    """Errors say which argument, and what was expected."""
    with pytest.raises(ValidationError, match="application: expected the application's class"):
        TestCluster(Alerts())  # type: ignore[arg-type] # on purpose
    with TestCluster(Alerts) as cluster:
        with pytest.raises(ValidationError, match="shard: expected one of none"):
            cluster.kill_primary()
        with pytest.raises(ValidationError, match="journal: expected 4 to 512 bytes"):
            cluster.publish("a", {"customer": "ada"})
        cluster.publish("orders/a", {"customer": "ada"})
        cluster.publish("orders/b", {"customer": "bob"})
        cluster.read_through()
        with pytest.raises(
            ValidationError, match="shard: expected one of orders/a, orders/b; got ''"
        ):
            cluster.query(len)
        assert cluster.state() == {"ada": 1, "bob": 1}
        assert cluster.state(shard="orders/a") == {"ada": 1}


def test_an_application_that_cannot_be_made_is_told_at_the_first_use(tmp_path: Path) -> None:
    """An error of the user's own constructor arrives as it is, and leaves no thread and no variable behind."""

    def broken() -> Alerts:
        raise RuntimeError("no database")

    threads = threading.active_count()
    with TestCluster(broken, shards={"shard": ["orders"]}, journals=[]) as cluster:
        with pytest.raises(RuntimeError, match="no database"):
            cluster.read_through()
        assert threading.active_count() == threads
        assert "BROADSHEET_STATE_DIR" not in os.environ
    with pytest.raises(ValidationError, match=r"shards: cannot read .*missing\.yaml"):
        TestCluster(Alerts, shards=tmp_path / "missing.yaml")


def test_what_never_ends_is_told_with_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback that waits for ever ends the test with the shard, its offsets, and the line it stands at."""
    released = threading.Event()

    class Waits(Alerts):
        def consume_message(self, *arguments: object) -> None:
            released.wait()

    monkeypatch.setattr("broadsheet.testing.kit.lockstep.CALL_SECONDS", 0.2)
    with TestCluster(Waits) as cluster:
        cluster.publish("orders", *ORDERS)
        try:
            with pytest.raises(
                StuckError,
                match=r"'orders' has read 'orders' through 0 of \d+ bytes(.*\n)*.*released.wait",
            ):
                cluster.read_through(seconds_max=3.0)
        finally:
            released.set()


def _is_checked(protocol: type) -> bool:
    """Tell whether `isinstance` takes a protocol, as the runtime asks for optional parts."""
    try:
        isinstance(None, protocol)
    except TypeError:
        return False
    return True


def test_a_watched_application_has_each_optional_part_of_its_own() -> None:
    """The runtime asks the wrapper for optional parts: one that is not passed on would never be called in a test."""
    optional = [
        part
        for part in vars(application_module).values()
        if isinstance(part, type)
        and Protocol in part.__mro__
        and _is_checked(part)
        and part.__module__ == application_module.__name__
        and "of an application" in (part.__doc__ or "").partition("\n")[0]
    ]
    assert len(optional) >= 5
    source = inspect.getsource(WatchedApplication)
    assert [part.__name__ for part in optional if part.__name__ not in source] == []


def test_a_watched_application_is_divided_by_key_if_the_users_is() -> None:
    """Shards with a range of keys are refused for an application that does not pass over the keys of others."""

    class Divided(Alerts):
        def why_indivisible(self) -> str:
            return "it keeps an order of all keys"

    watcher: Any = None
    divided = WatchedApplication(Divided(), watcher)
    assert isinstance(divided, DividedByKey)
    assert divided.why_indivisible() == "it keeps an order of all keys"
    assert not isinstance(WatchedApplication(Alerts(), watcher), DividedByKey)


def test_messages_of_every_content_type_are_published_and_read() -> None:
    """Mappings become what the application's type takes, and a mapping that does not fit is refused."""

    class Strict(Alerts):
        def message_type(self, journal_spec: JournalSpec) -> MessageType:
            return JsonStructType(StrictOrder)

        def consume_message(
            self, shard: Shard, store: CountStore, envelope: Envelope, publisher: Publisher
        ) -> None:
            store.state[envelope.message.customer] = envelope.message.cents

    with TestCluster(Strict) as cluster:
        cluster.publish("orders", {"customer": "ada", "cents": 5}, StrictOrder(customer="bob"))
        with pytest.raises(ValidationError, match=r"messages\[1\]: .*cents"):
            cluster.publish("orders", {"customer": "eve"}, {"cents": "many"})
        cluster.read_through()

        assert cluster.state() == {"ada": 5, "bob": 0}
        assert cluster.published("orders")[0] == {"customer": "ada", "cents": 5}
        typed = cluster.published("orders", message_type=JsonStructType(StrictOrder))
        assert [each.customer for each in typed] == ["ada", "bob"]
