"""The cluster of a test: what it publishes, shows and waits for, and the faults that it injects."""

from __future__ import annotations

import msgspec
import pytest

from broadsheet.runtime.errors import ValidationError
from broadsheet.testing import ShardFailedError, Step, TestCluster
from tests.support.broken_applications import Alerts

ORDERS = [{"customer": "ada"}, {"customer": "bob"}, {"customer": "ada"}]


class Order(msgspec.Struct):
    """An order as a Struct, of which the application knows nothing."""

    customer: str


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
