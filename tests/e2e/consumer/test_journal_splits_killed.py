"""Divisions of a journal under traffic while processes are killed and stopped: members, and the broker.

A few rounds run always; `make nightly-elastic` has each place, killed and stopped.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.consumer.client import ElasticClient, ShardClient
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import AppendOutcomeUnknownError
from broadsheet.journals.message.publisher import PendingAppend
from broadsheet.runtime.errors import BroadsheetError, EndpointError, ValidationError
from broadsheet.wire.journal_pb2 import AppendResponse
from tests.support.dividing import (
    MIDDLE,
    OUTPUT,
    PARTS,
    READER,
    RELAY,
    SOURCE,
    check_passed,
    create_middle,
    traffic,
)
from tests.support.dividing_process import ARMED, PLACES, TAKEN, DividingProcess
from tests.support.eventually import eventually
from tests.support.member_process import LOST_STATUS
from tests.support.members import Cluster, Producer, create_journals, shard, upserts
from tests.support.recorded_tally import create_logs, recorded

pytestmark = [pytest.mark.e2e, pytest.mark.etcd, pytest.mark.timeout(600)]

T = TypeVar("T")
MEMBERS = ("a", "b", "c")
LEASE_SECONDS = 10.0
PATIENCE_SECONDS = 120.0
_IN_CI = ("SIGSTOP publisher-before-it-begins first",)
_ASKED = os.environ.get("JOURNAL_KILL_PLACES", ",".join(_IN_CI)).split(",")
_PHASES = ["preparing", "leaving", "draining", "sealed"]
_ROUNDS = range(int(os.environ.get("JOURNAL_KILL_ROUNDS", "1")))
_DEATHS = [
    f"{how} {name} {when}"
    for name, place in PLACES.items()
    for how in ("SIGKILL", "SIGSTOP")
    for when in place.whens
]


@dataclass
class Members:
    """The members of a round."""

    cluster: Cluster
    processes: dict[str, DividingProcess]

    def taken(self) -> DividingProcess | None:
        """Return the process that took the signal."""
        path = self.cluster.directory / TAKEN
        pid = path.read_text() if path.exists() else ""
        return next((each for each in self.processes.values() if str(each.pid) == pid), None)

    async def ask(self, question: Callable[[str], Awaitable[T]]) -> T:
        """Ask a member that answers, by its address; return the answer."""

        async def answered() -> list[T]:
            taken = self.taken()
            for each in self.processes.values():
                address = None if each is taken or each.exit_code else each.address_or_none()
                if address is not None:
                    with suppress(BroadsheetError, TimeoutError):
                        async with asyncio.timeout(5.0):
                            return [await question(address)]
            return []

        (found,) = await eventually(answered, timeout_seconds=PATIENCE_SECONDS)
        return found


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBrokerProcess]:
    """A broker in a process of its own."""
    with EmbeddedBrokerProcess(tmp_path / "broker" / "data") as process:
        yield process


@pytest.fixture
async def journals(broker: EmbeddedBrokerProcess) -> AsyncIterator[JournalClient]:
    """A client of the broker; the journals exist."""
    async with JournalClient(broker.address) as client:
        await create_journals(client, SOURCE, OUTPUT)
        await create_middle(client)
        await create_logs(client, RELAY, READER)
        yield client


@pytest.fixture
def cluster(
    etcd_server: EmbeddedEtcdProcess, broker: EmbeddedBrokerProcess, tmp_path: Path
) -> Cluster:
    """A cluster without members yet."""
    directory = tmp_path / "members"
    directory.mkdir()
    return Cluster(
        etcd_endpoint=etcd_server.endpoint,
        broker_address=broker.address,
        root=f"/e2e/{uuid4().hex}",
        directory=directory,
        output=OUTPUT,
        settings={"lease_ttl_seconds": LEASE_SECONDS},
    )


@asynccontextmanager
async def serving(cluster: Cluster, place: str, how: signal.Signals) -> AsyncIterator[Members]:
    """Members that serve a relay and a reader."""
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(DividingProcess(cluster, name, place, how))
            for name in MEMBERS
        }
        members = Members(cluster, processes)
        for each in processes.values():
            await eventually(each.address_or_none, timeout_seconds=PATIENCE_SECONDS)
        await members.ask(partial(_apply, cluster))
        await eventually(lambda: _both_serve(members), timeout_seconds=PATIENCE_SECONDS)
        yield members


@pytest.mark.parametrize("round_", _ROUNDS)
@pytest.mark.parametrize("death", [each for each in _DEATHS if each in _ASKED or "all" in _ASKED])
async def test_division_is_done_when_a_process_is_killed_or_stopped_at_a_place(
    cluster: Cluster, journals: JournalClient, death: str, round_: int
) -> None:
    """The process that divides, publishes or reads at the place is killed, or stopped until the journal is sealed: each
    message comes out once, those of a key in order, and nothing of the division is left.
    """
    del round_
    how, place, when = death.split(" ")
    async with serving(cluster, place, signal.Signals[how]) as members:
        async with traffic(_RepeatingProducer(journals)) as sent:
            if when != "first":
                await _has_grown(sent, 200)
            if when == "divided":
                await members.ask(_split)
            await _armed(members)
            if when == "dividing":
                await members.ask(_split)
            sleeper = await _ends_or_sleeps(members, how)
            if when == "first":
                await members.ask(_split)
            await eventually(lambda: _is_divided(members), timeout_seconds=PATIENCE_SECONDS)
            await _has_grown(sent, 200)
            if sleeper is not None:
                sleeper.thaw()
                await _has_grown(sent, 200)
        await _check(cluster, members, journals, sent)
        if sleeper is not None and sleeper.exit_code is not None:
            assert sleeper.exit_code == LOST_STATUS, sleeper.log()


@pytest.mark.parametrize("round_", _ROUNDS)
@pytest.mark.parametrize("phase", _PHASES if "all" in _ASKED else ["leaving"])
async def test_division_is_done_when_the_broker_is_killed_and_restarted_in_a_phase(
    cluster: Cluster,
    journals: JournalClient,
    broker: EmbeddedBrokerProcess,
    phase: str,
    round_: int,
) -> None:
    """Appends and registers are durable: what was not answered is asked again."""
    del round_
    async with serving(cluster, _BEHIND_PHASES[phase], signal.SIGSTOP) as members:
        async with traffic(_RepeatingProducer(journals)) as sent:
            await _has_grown(sent, 200)
            await _armed(members)
            await members.ask(_split)
            sleeper = await _ends_or_sleeps(members, "SIGSTOP")
            assert sleeper is not None
            await asyncio.to_thread(broker.kill)
            sleeper.thaw()
            await asyncio.to_thread(broker.start)
            await eventually(lambda: _is_divided(members), timeout_seconds=PATIENCE_SECONDS)
            await _has_grown(sent, 200)
        await _check(cluster, members, journals, sent)


class _RepeatingProducer(Producer):
    """Repeats an append whose answer was lost: readers count a copy once."""

    async def append(self, pending: PendingAppend) -> AppendResponse:
        """Append until it is known to be there."""
        while True:
            with suppress(AppendOutcomeUnknownError, EndpointError):
                return await super().append(pending)


_BEHIND_PHASES = {
    # Where who divides stands still in a phase, before the broker is killed: it goes on without it.
    "preparing": "divider-behind-the-parts",
    "leaving": "divider-behind-the-register",
    "draining": "divider-behind-the-leaving",
    "sealed": "divider-before-the-end",
}


async def _apply(cluster: Cluster, address: str) -> None:
    async with ShardClient(address) as client:
        specs = [
            recorded(shard(RELAY, SOURCE), cluster.root),
            recorded(shard(READER, MIDDLE), cluster.root),
        ]
        await client.apply(upserts(*specs, expect=-1))


async def _both_serve(members: Members) -> bool:
    async def primaries(address: str) -> int:
        async with ShardClient(address) as client:
            listed = (await client.list()).shards
        return sum(each.route.primary >= 0 for each in listed)

    return await members.ask(primaries) == 2


async def _split(address: str) -> None:
    async with ElasticClient(address) as elastic:
        if not await elastic.journal_splits():
            # Refused if it is over already, of a request whose answer was lost.
            with suppress(ValidationError):
                await elastic.split_journal(MIDDLE)


async def _is_divided(members: Members) -> bool:
    async def left(address: str) -> list[str]:
        async with ElasticClient(address) as elastic:
            return [f"{each.phase}: {each.reason}" for each in await elastic.journal_splits()]

    found = await members.ask(left)
    assert not found, found
    return True


async def _armed(members: Members) -> None:
    await asyncio.to_thread((members.cluster.directory / ARMED).touch)


async def _has_grown(sent: Counter[str], by: int) -> None:
    begin = sent.total()
    await eventually(lambda: sent.total() > begin + by, timeout_seconds=PATIENCE_SECONDS)


async def _ends_or_sleeps(members: Members, how: str) -> DividingProcess | None:
    """Wait until a process has taken the signal; return it, if it sleeps."""
    taken = await eventually(members.taken, timeout_seconds=PATIENCE_SECONDS)
    assert taken is not None, "eventually returns what is true"
    if how == "SIGKILL":
        await eventually(lambda: taken.exit_code is not None)
        return None
    await eventually(lambda: taken.is_frozen)
    return taken


async def _check(
    cluster: Cluster, members: Members, journals: JournalClient, sent: Counter[str]
) -> None:
    """Check what came out, and that nothing of the division is left."""
    by_journal = await check_passed(journals, sent)
    assert by_journal.keys() >= set(PARTS)
    async with EtcdClient(EtcdConfig(endpoints=(cluster.etcd_endpoint,))) as etcd:
        prefix = f"/broadsheet.v1{cluster.root}/journal-splits".encode()
        assert not (await etcd.get_range(prefix, prefix + b"~")).kvs

    async def sources(address: str) -> set[str]:
        async with ShardClient(address) as client:
            (found,) = [each for each in (await client.list()).shards if each.spec.id == READER]
        return {each.journal for each in found.spec.sources}

    assert await members.ask(sources) == set(PARTS)
