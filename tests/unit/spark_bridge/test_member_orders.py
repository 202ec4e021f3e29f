"""Orders reach whom they are for, and nobody else; who leaves is chosen so that the rest stay spread."""

from __future__ import annotations

import pytest

from broadsheet.spark_bridge.cluster.elasticity import Seat, choose_leavers
from broadsheet.spark_bridge.member.identity import (
    Host,
    Incarnation,
    decode_host,
    encode_host,
    executor_id_of,
    host_of,
)
from broadsheet.spark_bridge.member.orders import (
    Order,
    all_members_key,
    attempt_key,
    order_to,
    task_key,
)

PREFIX = b"/a.clusters/c/orders/"
THIRD_ATTEMPT = Incarnation(application_id="app-1", partition=1, attempt=2)


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        ((), None),
        ((all_members_key(PREFIX),), Order.LEAVE),
        ((task_key(PREFIX, 1),), Order.LEAVE),
        ((attempt_key(PREFIX, 1, 2),), Order.MOVE),
        ((attempt_key(PREFIX, 1, 2), task_key(PREFIX, 1)), Order.LEAVE),
        ((task_key(PREFIX, 12), task_key(PREFIX, 2)), None),
        ((attempt_key(PREFIX, 1, 1), attempt_key(PREFIX, 1, 22), attempt_key(PREFIX, 2, 2)), None),
    ],
)
def test_order_to_one_member_is_read_by_it_alone(
    keys: tuple[bytes, ...], order: Order | None
) -> None:
    """An order to an attempt must not hold for the next one, which Spark started because of it; one to a task does."""
    assert order_to(THIRD_ATTEMPT, prefix=PREFIX, keys=keys) == order


def test_choose_leavers_takes_absent_ones_first_then_from_the_fullest_executor() -> None:
    """Five members on two executors and one that has no slot: what is left is spread as before."""
    seats = [
        Seat(partition=0, executor_id="a"),
        Seat(partition=1, executor_id="b"),
        Seat(partition=2, executor_id="a"),
        Seat(partition=3, executor_id="b"),
        Seat(partition=4, executor_id="a"),
        Seat(partition=5, executor_id=None),
    ]

    assert choose_leavers(seats, count=0) == ()
    assert choose_leavers(seats, count=1) == (5,)
    assert choose_leavers(seats, count=3) == (5, 4, 3)
    assert choose_leavers(seats, count=5) == (5, 4, 3, 2, 1)


@pytest.mark.parametrize(
    ("command", "executor_id"),
    [
        (["java", "-cp", "x", "Backend", "--executor-id", "17", "--cores", "4"], "17"),
        (["java", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"], "driver"),
        (["java", "--executor-id"], "driver"),
        ([], "driver"),
    ],
)
def test_executor_id_of_a_command_line(command: list[str], executor_id: str) -> None:
    """Nothing in a task's environment names its executor on every cluster manager, but its JVM's arguments do."""
    assert executor_id_of(command) == executor_id


def test_host_survives_etcd() -> None:
    """The driver reads what the task wrote."""
    host = host_of(
        THIRD_ATTEMPT,
        executor_command=["java", "--executor-id", "3"],
        log_url="http://w/logPage/?executorId=3",
    )

    assert decode_host(encode_host(host)) == host
    assert host == Host(
        partition=1, attempt=2, executor_id="3", log_url="http://w/logPage/?executorId=3"
    )
