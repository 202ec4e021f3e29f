"""Our members and Gazette's consumers in Go take a shard over from each other, with the records that are carried.

Too slow for CI: `make nightly-gazette`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.member.service import Service
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.child_process import ChildProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON
from broadsheet.wire.journal_pb2 import ApplyRequest, JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, label_set
from tests.gazette.brokers import BUILD_TIMEOUT_SECONDS, member_program, running_brokers
from tests.support.broker import journal_spec
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    committed,
    create_journals,
    shard,
    statuses,
    upserts,
)
from tests.support.recorded_tally import LOGS, JsonFileTally, counts_of, create_logs, recorded

pytestmark = pytest.mark.timeout(BUILD_TIMEOUT_SECONDS)

SOURCE, OUTPUT, SHARD = "test/source", "test/output", "shard-a"
TAKE_OVER_SECONDS = 120.0
GO_MEMBER = "go-member"


@dataclass(slots=True)
class _Fleet:
    cluster: Cluster
    journals: JournalClient

    async def allow_appends(self, *, allowed: bool) -> None:
        """Let the broker take what is appended to the output, or refuse it."""
        flags = JournalSpec.O_RDWR if allowed else JournalSpec.O_RDONLY
        spec = journal_spec(OUTPUT, labels=label_set((CONTENT_TYPE, NDJSON)), flags=flags)
        change = ApplyRequest.Change(upsert=spec, expect_mod_revision=-1)
        await self.journals.apply([change])

    async def content_of(self, journal: str) -> bytes:
        """Return all bytes of a journal."""
        return b"".join([each.content async for each in self.journals.reader(journal, block=False)])

    async def numbers_seen(self) -> tuple[list[int], list[int]]:
        """Return what readers of ours, and of Gazette's, see committed in the output, in this order."""
        command = [str(member_program()), "read", self.cluster.broker_address, OUTPUT]
        reading = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        printed, errors = await reading.communicate()
        assert reading.returncode == 0, errors.decode()
        ours = [message["n"] for message in await committed(self.journals, OUTPUT)]
        return ours, [json.loads(line)["n"] for line in printed.splitlines()]


@pytest.fixture
def gazette_etcd(tmp_path: Path) -> Iterator[EmbeddedEtcdProcess]:
    """An etcd that programs in Go find by its port."""
    with EmbeddedEtcdProcess(data_dir=tmp_path / "etcd", listen="tcp") as etcd:
        yield etcd


@pytest.fixture(params=["our broker", "Gazette's broker"])
async def fleet(
    request: pytest.FixtureRequest,
    gazette_etcd: EmbeddedEtcdProcess,
    etcd_root: str,
    tmp_path: Path,
) -> AsyncIterator[_Fleet]:
    """Journals, and a root for members of both kinds."""
    async with (
        _broker_of(request.param, gazette_etcd.endpoint, tmp_path) as address,
        JournalClient(address) as journals,
    ):
        await create_journals(journals, SOURCE, OUTPUT)
        await create_logs(journals, SHARD)
        cluster = Cluster(
            etcd_endpoint=gazette_etcd.endpoint,
            broker_address=address,
            root=etcd_root,
            directory=tmp_path,
            output=OUTPUT,
        )
        yield _Fleet(cluster, journals)


@asynccontextmanager
async def _broker_of(kind: str, etcd_endpoint: str, directory: Path) -> AsyncIterator[str]:
    if kind == "our broker":
        async with EmbeddedBroker(directory / "broker") as broker:
            yield broker.address
    else:
        home = directory / "gazette"
        home.mkdir()
        with running_brokers(1, etcd_endpoint=etcd_endpoint, directory=home) as (broker,):
            yield broker.address


@contextmanager
def _go_member(cluster: Cluster) -> Iterator[None]:
    """Run a consumer of Gazette's framework that joins the cluster; killed at the end."""
    log, temporary = cluster.directory / "go-member.log", cluster.directory / "go-member"
    temporary.mkdir()
    command = [
        *(str(member_program()), "serve", f"--echo-to={cluster.output}"),
        *("--consumer.zone=zone-b", f"--consumer.id={GO_MEMBER}", "--consumer.host=127.0.0.1"),
        *(f"--broker.address={cluster.broker_address}", "--broker.cache.size=64"),
        *(f"--etcd.address=http://{cluster.etcd_endpoint}", f"--etcd.prefix={cluster.root}"),
    ]
    environment = os.environ | {"TMPDIR": str(temporary)}
    child = ChildProcess(
        command, directory=cluster.directory, log_file=log, environment=environment
    )
    try:
        yield
    finally:
        child.kill()
        print(log.read_text())  # Shown if the test fails.


@asynccontextmanager
async def _member(cluster: Cluster, name: str) -> AsyncIterator[Service]:
    directory = cluster.directory / name
    tally = JsonFileTally(directory, output=OUTPUT)
    async with cluster.member(name, application=tally, state_dir=str(directory)) as service:
        yield service


async def _serve(client: ShardClient, primary: str, *standbys: str) -> None:
    expected = [(primary, "PRIMARY"), *((each, "STANDBY") for each in standbys)]

    async def as_expected() -> bool:
        found = (await statuses(client)).get(SHARD)
        assert found == expected, found
        return True

    await eventually(as_expected, timeout_seconds=TAKE_OVER_SECONDS)


async def _read_through(client: ShardClient, end: int) -> None:
    async def read() -> bool:
        answer = await client.stat(SHARD, read_through={SOURCE: end}, timeout_seconds=20)
        assert answer.read_through[SOURCE] == end
        return True

    await eventually(read, timeout_seconds=TAKE_OVER_SECONDS)


async def _carried_by_the_checkpoint(fleet: _Fleet, number: int) -> bytes:
    """Return the output's intent in the newest file of the recovery log, once that has a row's echo."""

    async def carried() -> bytes:
        log = await fleet.content_of(f"{LOGS}/{SHARD}")
        intents = re.findall(b'"ack_intents":{"%s":"([^"]+)"' % OUTPUT.encode(), log)
        intent = base64.b64decode(intents[-1]) if intents else b""
        assert f'"n":{number}'.encode() in intent, intent
        return intent

    return await eventually(carried)


async def _has_arrived(fleet: _Fleet, intent: bytes) -> bool:
    return intent in await fleet.content_of(OUTPUT)


async def _is_seen(fleet: _Fleet, *numbers: int) -> bool:
    ours, gazettes = await fleet.numbers_seen()
    assert ours == gazettes == [*numbers], (ours, gazettes)
    return True


@pytest.mark.parametrize("landed", [False, True])
async def test_go_member_takes_over_a_checkpoint_that_carries_records_and_each_is_read_once(
    fleet: _Fleet, *, landed: bool
) -> None:
    """Gazette's framework knows nothing of carried records: to it they are an acknowledgement, which it appends. They
    are read once by its readers and by ours, also if they had arrived before; and one of ours takes the shard back.
    """
    cluster, producer = fleet.cluster, Producer(fleet.journals)
    with ExitStack() as go:
        async with _member(cluster, "one") as one, client_of(one) as client:
            spec = recorded(shard(SHARD, SOURCE, hot_standbys=1), cluster.root)
            await client.apply(upserts(spec))
            await _serve(client, "member-one")
            go.enter_context(_go_member(cluster))
            await _serve(client, "member-one", GO_MEMBER)
            await _read_through(client, await producer.publish(SOURCE, ["a"]))
            await fleet.allow_appends(allowed=landed)
            await producer.publish(SOURCE, ["b"])
            intent = await _carried_by_the_checkpoint(fleet, 2)
            if landed:
                await eventually(lambda: _has_arrived(fleet, intent))
            # Read here, because from now on the member in Go may append it at any time.
            assert [m["n"] for m in await committed(fleet.journals, OUTPUT)] == [1, 2][: 1 + landed]
        # At once: Gazette's framework fails a shard for good if what it recovered may not be appended.
        await fleet.allow_appends(allowed=True)

        async with _member(cluster, "two") as two, client_of(two) as client:
            await _serve(client, GO_MEMBER, "member-two")
            await _read_through(client, await producer.publish(SOURCE, ["c"]))
            await eventually(lambda: _is_seen(fleet, 1, 2, 3))
            assert (await fleet.content_of(OUTPUT)).count(b'"n":2') == 1 + landed

            go.close()
            await _serve(client, "member-two")
            end = await producer.publish(SOURCE, ["d"])
            counts = await counts_of(two.resolver, SHARD, "json", read_through={SOURCE: end})
            assert counts == dict.fromkeys("abcd", 1)
            await eventually(lambda: _is_seen(fleet, 1, 2, 3, 4))
