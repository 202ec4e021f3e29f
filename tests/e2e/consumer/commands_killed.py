"""Commands from outside while `kill -9` ends primaries: each is executed once, and every caller gets its answer.

`COMMAND_KILLS=60` kills a member so many times; without it, twice.
"""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from broadsheet.consumer import EndpointError, ShardClient
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.child_process import ChildProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.examples.fraud.buy import buy, purchases
from broadsheet.examples.fraud.fraud_pb2 import ScoreRequest, ScoreResponse
from broadsheet.examples.fraud.replay import replay
from broadsheet.examples.fraud.rules import Score
from broadsheet.spark_bridge import TaskResolver
from tests.support.documents import REPOSITORY
from tests.support.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.etcd, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("COMMAND_KILLS", "2"))
PURCHASES_A_KILL = 60
MEMBERS = ("member-a", "member-b", "member-c")
SHARDS = [f"fraud/scores-00{number}" for number in range(4)]
CALLERS = 8


class _Members:
    """Processes of `shardctl serve`, one of which can be killed and started again."""

    def __init__(self, etcd: str, broker: str, directory: Path) -> None:
        self._directory = directory
        self._where = (
            *("--etcd", etcd, "--broker", broker, "--root", f"/fraud/{uuid4().hex}"),
            *("--port", "0", "--state-dir", str(directory), "--lease-ttl", "60"),
        )
        self._children: dict[str, ChildProcess] = {}

    def start(self, name: str) -> None:
        """Start a member, also the next life of a killed one."""
        serve = ("serve", "broadsheet.examples.fraud.app:create", "--suffix", name)
        self._children[name] = ChildProcess(
            [
                *(sys.executable, "-P", "-m", "broadsheet.cli.main", *serve),
                *("--replaces", name, *self._where),
            ],
            directory=REPOSITORY,
            log_file=self._directory / f"{name}.log",
        )

    def kill(self, name: str) -> None:
        """Kill -9."""
        self._children[name].kill()

    def close(self) -> None:
        """Kill all."""
        for name in self._children:
            self.kill(name)

    async def addresses(self) -> list[str]:
        """Return where members serve, as their logs tell."""
        found = []
        for name in self._children:
            log = self._directory / f"{name}.log"
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            found += [
                line.removeprefix("serving ") for line in lines if line.startswith("serving ")
            ]
        return found


async def _primary_of(members: _Members, shard: str) -> str:
    """Return the suffix of the member that is a shard's primary, asking any; empty if none says so."""
    for address in reversed(await members.addresses()):
        with suppress(EndpointError):
            async with ShardClient(address) as client:
                for each in (await client.list()).shards:
                    if each.spec.id == shard and each.route.primary >= 0:
                        return str(each.route.members[each.route.primary].suffix)
                return ""
    return ""


async def _wait_for_primary(members: _Members, shard: str) -> str:
    found = await eventually(lambda: _primary_of(members, shard), timeout_seconds=60)
    assert found is not None
    return found


async def _apply(address: str, broker: str) -> None:
    for kind, consent in (("journals", ()), ("shards", ("--yes",))):
        specs = REPOSITORY / f"examples/fraud/{kind}.yaml"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "broadsheet.cli.main", kind, "apply", "--specs"),
            *(str(specs), "--address", address, "--broker", broker, *consent),
        )
        assert await process.wait() == 0


async def _ready_members(members: _Members) -> list[str] | None:
    found = await members.addresses()
    return found if len(found) >= len(MEMBERS) else None


async def _buy_under_kills(
    members: _Members, resolver: TaskResolver, callers: ThreadPoolExecutor
) -> dict[str, ScoreResponse]:
    loop = asyncio.get_running_loop()
    calls: dict[str, asyncio.Future[ScoreResponse]] = {}

    def call(requests: list[ScoreRequest]) -> None:
        for request in requests:
            calls[request.purchase_id] = loop.run_in_executor(
                callers, partial(buy, resolver, request)
            )

    everything = list(
        purchases(PURCHASES_A_KILL * (KILLS + 1), cards=40, seed=7, begin_ms=1_700_000_000_000)
    )
    call(everything[:PURCHASES_A_KILL])
    for kill in range(KILLS):
        shard = SHARDS[kill % len(SHARDS)]
        victim = await _wait_for_primary(members, shard)
        await eventually(partial(_more_than, calls, kill * PURCHASES_A_KILL), message="answers")
        members.kill(victim)
        call(everything[(kill + 1) * PURCHASES_A_KILL :][:PURCHASES_A_KILL])
        members.start(victim)
    return {purchase_id: await answer for purchase_id, answer in calls.items()}


def _more_than(calls: dict[str, asyncio.Future[ScoreResponse]], answers: int) -> bool:
    return sum(call.done() for call in calls.values()) > answers


async def test_commands_are_executed_once_though_primaries_are_killed(
    etcd_server: EmbeddedEtcdProcess, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Callers repeat calls by their ids at the next primary: counters and answers are those of one replay."""
    members = _Members(etcd_server.endpoint, broker.address, tmp_path)
    with ExitStack() as stack:
        stack.callback(members.close)
        for name in MEMBERS:
            members.start(name)
        addresses = await eventually(lambda: _ready_members(members), timeout_seconds=60)
        assert addresses is not None
        await _apply(addresses[0], broker.address)
        callers = stack.enter_context(ThreadPoolExecutor(CALLERS))
        for shard in SHARDS:
            await _wait_for_primary(members, shard)
        resolver = TaskResolver(addresses, mapping="modulo", deadline_seconds=120.0)
        told = await _buy_under_kills(members, resolver, callers)
        profiles, answers = await replay(broker.address)
    assert len(told) == PURCHASES_A_KILL * (KILLS + 1)
    assert answers == {
        purchase_id: Score(answer.score, answer.purchases, answer.cents_total)
        for purchase_id, answer in told.items()
    }
    assert sum(profile.purchases for profile in profiles.values()) == len(told)
