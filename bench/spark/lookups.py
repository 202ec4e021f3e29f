"""Look-ups a second from Spark tasks into live shards, beside a bare gRPC echo from the same tasks; and what is left
of connections after ten thousand short tasks.

Two members of `broadsheet.examples.enrich` run beside Spark, as processes of their own: the session's tasks share
Python workers, which members cannot. A look-up is a unary call for one account, answered from SQLite; the echo carries
as many bytes and does nothing. Both sides make one call after the other in each of two tasks, in turns of a few
seconds.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import psutil

from bench.bare_server import bare_server
from bench.report import Params, emit
from bench.spark.machine import CORES, Machine, running
from broadsheet.cli.journals.space import read_journal_changes
from broadsheet.cli.shards.space import read_shard_changes
from broadsheet.cli.text_files import read_text
from broadsheet.consumer.client import ShardClient
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.examples.enrich.enrich_pb2 import LookUpRequest
from broadsheet.examples.enrich.enrich_pb2_grpc import ProfileServiceStub
from broadsheet.examples.enrich.look_up import look_up
from broadsheet.examples.enrich.messages import PAYMENT_JOURNALS, SHARDS
from broadsheet.examples.enrich.rows import ACCOUNTS, payments_of
from broadsheet.journals.client import JournalClient
from broadsheet.security.endpoints import parse_endpoint
from broadsheet.spark_bridge.publish import PublishTarget, publish_dataframe
from broadsheet.spark_bridge.task_resolver import TaskResolver, token_of_heads
from broadsheet.wire.shard_pb2 import ReplicaStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = "/bench/lookups"
MEMBERS = 2
PAYMENTS = 20_000
ROUNDS = 5
TURN_SECONDS = 2.0
BATCH_KEYS = 500
TASKS = 10_000
ECHO_BYTES = 60
"""About what a look-up's request takes with its metadata."""
CLOSED_SECONDS_MAX = 30.0
"""Longest wait for idle connections to close: they do after 10 s."""
READY_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.2
_SPECS = Path(__file__).resolve().parents[2] / "examples" / "enrich"

Turn = Callable[[int], tuple[int, list[float]]]
"""Makes calls for `TURN_SECONDS` in the task of that number; returns how much was found, and seconds of each call."""


def run(bench: str, tasks: int = TASKS) -> None:
    """Measure calls, then batches of keys, then short tasks."""
    with running() as machine, ExitStack() as stack:
        members = stack.enter_context(_members(machine))
        echo = stack.enter_context(bare_server(machine.directory))
        resolver = _resolver(machine, members)
        look, bare = _look_up_turn(resolver), _echo_turn(echo)
        _turn(machine.spark, look)
        mine, theirs = [], []
        for _ in range(ROUNDS):
            mine.append(_turn(machine.spark, look))
            theirs.append(_turn(machine.spark, bare))
        params: Params = {"tasks": CORES, "members": MEMBERS, "keys_a_call": 1}
        _emit_calls(bench, "lookup", mine, params)
        _emit_calls(bench, "echo", theirs, params)
        ratio = _rate(mine) / _rate(theirs)
        emit(bench, "lookups_to_echoes", ratio, "ratio", **params)
        batches = [_turn(machine.spark, _batch_turn(resolver)) for _ in range(ROUNDS)]
        emit(
            bench,
            "looked_up_keys_per_s",
            _rate(batches),
            "keys/s",
            **{**params, "keys_a_call": BATCH_KEYS // len(SHARDS)},
        )
        _short_tasks(bench, machine.spark, resolver, members, tasks=tasks)


def _short_tasks(
    bench: str,
    spark: SparkSession,
    resolver: TaskResolver,
    members: Sequence[EmbeddedMemberProcess],
    *,
    tasks: int,
) -> None:
    def one_call(numbers: Iterable[int]) -> Iterator[int]:
        for number in numbers:
            account = _account(number)
            request = LookUpRequest(accounts=[account])
            answer = resolver.stub(account, ProfileServiceStub).LookUp(request)
            yield len(answer.payments)

    def no_call(numbers: Iterable[int]) -> Iterator[int]:
        return (1 for _ in numbers)

    bare_tasks = max(1, tasks // 10)
    bare_seconds, _ = _run_tasks(spark, bare_tasks, no_call)
    seconds, answered = _run_tasks(spark, tasks, one_call)
    assert answered == tasks, f"{answered} of {tasks} calls were answered"
    at_the_end = _connections_to(members)
    closed_by = time.monotonic() + CLOSED_SECONDS_MAX
    while (left := _connections_to(members)) and time.monotonic() < closed_by:
        time.sleep(_POLL_SECONDS)
    emit(bench, "short_tasks_per_s", tasks / seconds, "tasks/s", tasks=tasks, calls_a_task=1)
    emit(bench, "bare_short_tasks_per_s", bare_tasks / bare_seconds, "tasks/s", tasks=bare_tasks)
    emit(bench, "connections_at_the_end", at_the_end, "connections", tasks=tasks)
    emit(bench, "connections_left", left, "connections", tasks=tasks)


def _run_tasks(
    spark: SparkSession, tasks: int, task: Callable[[Iterable[int]], Iterator[int]]
) -> tuple[float, int]:
    """Run tasks of one number each; return the seconds they took, and the sum of what they yielded."""
    began = time.monotonic()
    total = spark.sparkContext.range(0, tasks, 1, tasks).mapPartitions(task).sum()
    return time.monotonic() - began, int(total)


def _look_up_turn(resolver: TaskResolver) -> Turn:
    def turn(task: int) -> tuple[int, list[float]]:
        def call(number: int) -> int:
            account = _account(number)
            stub = resolver.stub(account, ProfileServiceStub)
            return len(stub.LookUp(LookUpRequest(accounts=[account])).payments)

        return _timed(task, call)

    return turn


def _batch_turn(resolver: TaskResolver) -> Turn:
    def turn(task: int) -> tuple[int, list[float]]:
        def call(number: int) -> int:
            accounts = {_account(number * BATCH_KEYS + index) for index in range(BATCH_KEYS)}
            return len(look_up(resolver, accounts))

        return _timed(task, call)

    return turn


def _echo_turn(address: str) -> Turn:
    def turn(task: int) -> tuple[int, list[float]]:
        with grpc.insecure_channel(address) as channel:
            # `Any`: bytes in, bytes out.
            echo: Any = channel.unary_unary("/bare/echo")
            payload = b"x" * ECHO_BYTES

            def call(number: int) -> int:
                del number
                echo(payload)
                return 1

            return _timed(task, call)

    return turn


def _timed(task: int, call: Callable[[int], int]) -> tuple[int, list[float]]:
    call(task)  # connects
    done, seconds, number = 0, [], task
    end = time.monotonic() + TURN_SECONDS
    while (began := time.monotonic()) < end:
        done += call(number)
        seconds.append(time.monotonic() - began)
        number += CORES
    return done, seconds


def _turn(spark: SparkSession, turn: Turn) -> tuple[int, list[float]]:
    """Run a turn in every slot; return what was done in all, and seconds of all calls."""

    def run_turn(numbers: Iterable[int]) -> Iterator[tuple[int, list[float]]]:
        for number in numbers:
            yield turn(number)

    parts = spark.sparkContext.range(0, CORES, 1, CORES).mapPartitions(run_turn).collect()
    return sum(done for done, _ in parts), [one for _, seconds in parts for one in seconds]


def _rate(turns: Sequence[tuple[int, list[float]]]) -> float:
    return statistics.median(done / TURN_SECONDS for done, _ in turns)


def _emit_calls(
    bench: str, name: str, turns: Sequence[tuple[int, list[float]]], params: Params
) -> None:
    plural = {"lookup": "lookups", "echo": "echoes"}[name]
    emit(bench, f"{plural}_per_s", _rate(turns), "calls/s", **params)
    seconds = sorted(one for _, calls in turns for one in calls)
    for percent in (50, 99):
        value = seconds[len(seconds) * percent // 100] * 1000
        emit(bench, f"{name}_p{percent}_ms", value, "ms", **params)


def _account(number: int) -> str:
    return f"account-{number % ACCOUNTS}"


@contextmanager
def _members(machine: Machine) -> Iterator[list[EmbeddedMemberProcess]]:
    """Run members that serve the example's shards."""
    arguments = ["--etcd", machine.services.etcd.endpoints[0], "--root", ROOT]
    arguments += ["--broker", machine.services.broker_address, "--port", "0"]
    started = [
        EmbeddedMemberProcess(
            "broadsheet.examples.enrich.app:create",
            [
                *arguments,
                "--drain-alone-seconds",
                "0",
                "--zone",
                f"zone-{index}",
                "--suffix",
                f"member-{index}",
            ],
            log_file=machine.directory / f"member-{index}.log",
        )
        for index in range(MEMBERS)
    ]
    try:
        addresses = [one.wait_until_ready() for one in started]
        asyncio.run(_apply(machine.services.broker_address, addresses[0]))
        yield started
    finally:
        for one in started:
            one.stop()


async def _apply(broker: str, member: str) -> None:
    async with JournalClient(broker) as journals:
        await journals.apply(read_journal_changes(*read_text(_SPECS / "journals.yaml")))
    async with ShardClient(member) as shards:
        await shards.apply(read_shard_changes(*read_text(_SPECS / "shards.yaml")))
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            listed = (await shards.list()).shards
            codes = [max((one.code for one in shard.status), default=0) for shard in listed]
            if codes == [ReplicaStatus.PRIMARY] * len(SHARDS):
                return
            await asyncio.sleep(_POLL_SECONDS)
    raise TimeoutError(f"the shards have no primaries after {READY_SECONDS_MAX:g} s")


def _resolver(machine: Machine, members: Sequence[EmbeddedMemberProcess]) -> TaskResolver:
    broker = machine.services.broker_address
    target = PublishTarget(
        broker_address=broker,
        etcd_endpoints=machine.services.etcd.endpoints,
        root=ROOT,
        journals=PAYMENT_JOURNALS,
    )
    payments = payments_of(machine.spark, PAYMENTS)
    publish_dataframe(payments, target, publication="all", key="account", order_by=["paid_at"])
    addresses = [one.wait_until_ready() for one in members]
    resolver = TaskResolver(addresses, mapping="modulo", journals=PAYMENT_JOURNALS)
    caught_up = resolver.reading(token_of_heads(broker, PAYMENT_JOURNALS))
    look_up(caught_up, map(_account, range(ACCOUNTS)))
    return resolver


def _connections_to(members: Sequence[EmbeddedMemberProcess]) -> int:
    """Count the connections of other processes to the members."""
    ports = {
        int(parse_endpoint(one.wait_until_ready()).address.rpartition(":")[2]) for one in members
    }
    own = {one.pid for one in members}
    return sum(
        1
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_ESTABLISHED
        and getattr(one.raddr, "port", None) in ports
        and one.pid not in own
    )
