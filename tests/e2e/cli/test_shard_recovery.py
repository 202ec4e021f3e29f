"""Recovery logs from a terminal: members are killed, the log is pruned, recovered and rewound; real members."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broadsheet.cli.main import main
from broadsheet.consumer.client import ShardClient
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.journals.client import JournalClient
from tests.support.documents import REPOSITORY
from tests.support.eventually import eventually
from tests.support.members import Producer, create_journals, shard, upserts, wait_for_primaries
from tests.support.pruned_logs import create_small_log, fragments_of
from tests.support.recorded_app import APPLICATION
from tests.support.recorded_tally import LOGS, recorded

pytestmark = [pytest.mark.e2e, pytest.mark.etcd, pytest.mark.timeout(900)]

SOURCE = "recovery/source"
SHARD = "recovery-shard"
LOG = f"{LOGS}/{SHARD}"
KEYS = [f"key-{number % 5}" for number in range(50)]


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where members are started, and commands are typed."""

    etcd: str
    broker: str
    root: str
    directory: Path

    @contextmanager
    def serve(self, name: str) -> Iterator[str]:
        """Run `shardctl serve` and give its address; kill -9 it at the end. The next one need not await its lease."""
        arguments = ["--etcd", self.etcd, "--broker", self.broker, "--root", self.root]
        arguments += ["--suffix", f"member-{name}", "--replaces", "member-"]
        arguments += ["--port", "0", "--log-level", "warning", "--hints-seconds", "1"]
        arguments += ["--state-dir", str(self.directory / name)]
        member = EmbeddedMemberProcess(
            APPLICATION, arguments, log_file=self.directory / f"{name}.log"
        )
        try:
            yield member.wait_until_ready()
        finally:
            member.kill()

    async def type(self, address: str, *arguments: str) -> Result:
        """Run `shardctl shards ...` against a member, without a terminal's width or colours."""
        # On a thread: the broker is on this loop, and the command brings its own.
        return await asyncio.to_thread(
            CliRunner().invoke,
            main,
            ["shards", *arguments],
            env={"CONSUMER_ADDRESS": address, "BROKER_ADDRESS": self.broker},
        )

    async def done(self, address: str, *arguments: str) -> str:
        """Run a command that must succeed; return its result."""
        completed = await self.type(address, *arguments)
        assert completed.exit_code == 0, completed.stderr
        return completed.stdout


@pytest.fixture
def terminal(
    etcd_server: EmbeddedEtcdProcess,
    broker: EmbeddedBroker,
    etcd_root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Terminal:
    """A terminal in the test's directory."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    return Terminal(etcd_server.endpoint, broker.address, etcd_root, tmp_path)


async def test_log_is_pruned_recovered_and_rewound_between_kills(
    terminal: Terminal, journals: JournalClient
) -> None:
    """Two members count, each killed at its work. The third's terminal: a dry run, a prune that waits, one that does
    not; the files of what is left of the log; a rewind by force. Each count is right at every step, and a fourth
    member has them all from what is left.
    """
    await create_journals(journals, SOURCE)
    await create_small_log(journals, LOG)
    producer, counts = Producer(journals), Counter[str]()

    async def work(address: str, rounds: int) -> None:
        async with ShardClient(address) as client:
            for _ in range(rounds):
                end = await producer.publish(SOURCE, KEYS)
                counts.update(KEYS)
                await client.stat(SHARD, read_through={SOURCE: end}, timeout_seconds=20)

    hints = b""
    for name in ("1", "2"):
        with terminal.serve(name) as address:
            async with ShardClient(address) as client:
                if name == "1":
                    spec = recorded(shard(SHARD, SOURCE), terminal.root, hint_backups=1)
                    await client.apply(upserts(spec))
            await served_by(address, name)
            await work(address, 5)
            hints = await hinted(address, hints)

    with terminal.serve("3") as address:
        await served_by(address, "3")
        await work(address, 1)  # Before it has nothing to record, and no hints of its own.
        await hinted(address, hints)
        before = await fragments_of(journals, LOG)
        plan = json.loads(
            await terminal.done(address, "prune", "--dry-run", "--delay", "0s", "-o", "json")
        )
        (log,) = plan["logs"]
        assert int(log["removed"]["fragments"]) > 0, log
        assert "the first quarantined may go" in await terminal.done(address, "prune")
        assert len(await fragments_of(journals, LOG)) >= len(before)

        shown = await terminal.done(address, "prune", "--delay", "0s")
        assert f"{log['removed']['fragments']} (" in shown
        assert len(await fragments_of(journals, LOG)) < len(before)
        first = terminal.directory / "first"
        assert await recovered(terminal, address, first) == counts
        refused = await terminal.type(address, "recover", SHARD, "--dir", str(first))
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "expected an empty directory" in refused.stderr

        await terminal.done(address, "rewind", SHARD, "--backup", "0", "--force")
        await served_by(address, "3")
        await work(address, 1)
    with terminal.serve("4") as address:
        await served_by(address, "4")
        await work(address, 1)
        assert await recovered(terminal, address, terminal.directory / "second") == counts


async def served_by(address: str, name: str) -> None:
    """Wait until this member is the primary: its predecessor, which was killed, is listed until its lease ends."""

    async def serves() -> bool:
        async with ShardClient(address) as client:
            return (await wait_for_primaries(client, SHARD)) == {SHARD: f"member-{name}"}

    await eventually(serves, timeout_seconds=30, interval_seconds=0.2)


async def recovered(terminal: Terminal, address: str, directory: Path) -> Counter[str]:
    """Recover the shard's files, and count what is in its database."""
    shown = await terminal.done(address, "recover", SHARD, "--dir", str(directory))
    assert "SQLite database" in shown
    return counts_below(directory)


def counts_below(directory: Path) -> Counter[str]:
    """Return what the only database below a directory has counted."""
    (database,) = directory.rglob("state.db")
    connection = sqlite3.connect(database)
    try:
        return Counter(dict(connection.execute("SELECT key, count FROM counts")))
    finally:
        connection.close()


async def hinted(address: str, before: bytes) -> bytes:
    """Wait until the present primary has written hints, other ones than it recovered from; return them."""

    async def written() -> bytes:
        async with ShardClient(address) as client:
            hints = await client.get_hints(SHARD)
        found = hints.primary_hints.SerializeToString()
        return found if found != before else b""

    return await eventually(written, timeout_seconds=30, interval_seconds=0.2)
