"""`shardctl serve` with its options about failures, and what `shardctl shards list` then says: real processes."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from broadsheet.cli.main import main
from broadsheet.consumer.client import ShardClient
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.journals.client import JournalClient
from broadsheet.wire.labels import DEAD_LETTER_JOURNAL, label_set
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.eventually import eventually
from tests.support.members import (
    Producer,
    committed,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.tally import json_counts_in
from tests.support.unruly import APPLICATION, DIRECTORY_VARIABLE, PROCEED

pytestmark = [pytest.mark.e2e, pytest.mark.etcd, pytest.mark.timeout(900)]

SOURCE = "serve/source"
DEAD_LETTERS = "serve/dead-letters"
SHARD = "serve-shard"
START_SECONDS = 90.0
FOUND_DEAD = "broadsheet_member_peers_found_dead_total"


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where members are started, and asked."""

    etcd: str
    broker: str
    root: str
    directory: Path

    @contextmanager
    def serve(self, name: str, *options: str) -> Iterator[EmbeddedMemberProcess]:
        """Run `shardctl serve` with options, until the block ends."""
        arguments = ["--etcd", self.etcd, "--broker", self.broker, "--root", self.root]
        arguments += ["--suffix", f"member-{name}", "--port", "0", "--log-level", "warning"]
        log_file = self.directory / f"{name}.log"
        member = EmbeddedMemberProcess(APPLICATION, [*arguments, *options], log_file=log_file)
        try:
            yield member
        finally:
            member.kill()

    async def shows(self, address: str, *texts: str) -> str:
        """Wait until `shardctl shards list` shows each of the texts; return what it printed."""
        shown = ""

        def listed() -> str:
            arguments = ["shards", "list", "--replicas", "--address", address]
            return CliRunner().invoke(main, arguments).output

        async def all_there() -> bool:
            nonlocal shown
            shown = await asyncio.to_thread(listed)
            words = " ".join(shown.split())
            missing = [text for text in texts if text not in words]
            assert not missing, f"{missing} not in {shown}"
            return True

        await eventually(all_there, interval_seconds=0.1)
        return shown

    async def run(self, address: str, *arguments: str) -> Result:
        """Run `shardctl shards …`."""
        where = ("--address", address, "--broker", self.broker)
        return await asyncio.to_thread(
            lambda: CliRunner().invoke(main, ["shards", *arguments, *where])
        )

    async def explains(self, address: str) -> str:
        """Return what `shardctl explain` prints of the shard."""
        arguments = ["explain", SHARD, "--address", address]
        explained = await asyncio.to_thread(lambda: CliRunner().invoke(main, arguments))
        assert explained.exit_code == 0, explained.output
        return explained.stdout


@pytest.fixture
async def terminal(
    etcd_server: EmbeddedEtcdProcess,
    broker: EmbeddedBroker,
    journals: JournalClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Terminal:
    """Journals, and a directory that members find in their environment."""
    await create_journals(journals, SOURCE, DEAD_LETTERS)
    directory = tmp_path / "states"
    directory.mkdir()
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(directory))
    return Terminal(etcd_server.endpoint, broker.address, f"/serve/{uuid4().hex}", directory)


@asynccontextmanager
async def client_of(member: EmbeddedMemberProcess) -> AsyncIterator[tuple[ShardClient, str]]:
    """A client of a member once it serves, and its address."""
    address = await eventually(member.address_or_none, timeout_seconds=START_SECONDS)
    assert address is not None, "eventually returns what is true"
    async with ShardClient(address) as client:
        yield client, address


def _spec(*, dead_letters: bool = False) -> ShardSpec:
    spec = shard(SHARD, SOURCE)
    if dead_letters:
        spec.labels.CopyFrom(label_set({DEAD_LETTER_JOURNAL: DEAD_LETTERS}))
    return spec


async def test_stall_seconds_shows_a_hanging_shard_and_its_line_of_code(
    terminal: Terminal, journals: JournalClient
) -> None:
    """A callback hangs: within the patience given, the list says STALLED and where; once it goes on, PRIMARY."""
    with terminal.serve("stalls", "--stall-seconds", "0.6") as member:
        async with client_of(member) as (client, address):
            await client.apply(upserts(_spec()))
            await wait_for_primaries(client, SHARD)
            end = await Producer(journals).publish(SOURCE, ["a", "hang"])

            await terminal.shows(address, "FAILED", "STALLED", "in a transaction", "unruly.py")
            explained = await terminal.explains(address)
            assert explained.startswith(f"STALLED: {SHARD} on local#member-stalls, its primary\n")
            assert re.search(r"in your code +\S+unruly\.py:\d+ in consume_message\n", explained)
            (terminal.directory / PROCEED).touch()

            await client.stat(SHARD, read_through={SOURCE: end}, timeout_seconds=20)
            await terminal.shows(address, "PRIMARY")
    assert json_counts_in(terminal.directory, SHARD) == {"a": 1, "hang": 1}


async def test_attempts_quarantine_and_poison_follow_the_options(
    terminal: Terminal, journals: JournalClient
) -> None:
    """Two failures and no more: the list says QUARANTINED and why. With a dead-letter journal and one poison attempt,
    the message is recorded there, and the shard goes on.
    """
    options = ["--attempts-max", "2", "--restart-delay-seconds", "0.05"]
    options += ["--quarantine-seconds", "0", "--poison-attempts", "1"]
    with terminal.serve("fails", *options) as member:
        async with client_of(member) as (client, address):
            await client.apply(upserts(_spec()))
            end = await Producer(journals).publish(SOURCE, ["a", "bad", "b"])
            await terminal.shows(
                address,
                "cannot digest this",
                f"of {SOURCE}; QUARANTINED; not retried before the spec changes",
                "attempt 2 failed (application) at offset ",
            )
            explained = await terminal.explains(address)
            assert explained.startswith(
                f"QUARANTINED: {SHARD} on local#member-fails, its primary\n"
            )
            assert re.search(r"cause +.*ValueError: cannot digest this\n", explained)
            assert re.search(r"in your code +\S+unruly\.py:\d+ in consume_message\n", explained)
            assert re.search(r"next +it is not tried again before its spec changes", explained)
            assert "slot" in explained.lower().partition("\n\n")[2], "the placement follows"

            await client.apply(upserts(_spec(dead_letters=True), expect=-1))

            await wait_for_primaries(client, SHARD)
            await eventually(lambda: json_counts_in(terminal.directory, SHARD) == {"a": 1, "b": 1})
            answer = await client.stat(SHARD, read_through={SOURCE: end}, timeout_seconds=20)
            assert answer.read_through[SOURCE] == end
            (letter,) = await committed(journals, DEAD_LETTERS)
            assert "cannot digest this" in letter["cause"]

            await _replay(terminal, address, journals, client)


async def _replay(
    terminal: Terminal, address: str, journals: JournalClient, client: ShardClient
) -> None:
    """The application is mended; the message that was left out is counted, once, however often it is replayed."""
    listed = await terminal.run(address, "dead-letters", SHARD, "-o", "json")
    (letter,) = json.loads(listed.stdout)["letters"]
    assert (letter["journal"], letter["shard"]) == (SOURCE, SHARD)
    table = await terminal.run(address, "dead-letters", SHARD)
    assert "cannot digest this" in table.stdout
    (terminal.directory / PROCEED).touch()

    dry = await terminal.run(address, "replay", SHARD)
    assert dry.stdout == f"{letter['letter']} would be replayed\n"
    assert json_counts_in(terminal.directory, SHARD) == {"a": 1, "b": 1}
    chosen = ("--letter", str(letter["letter"]))
    for _ in range(2):
        done = await terminal.run(address, "replay", SHARD, *chosen, "--yes")
        assert done.stdout == f"{letter['letter']} replayed\n", done.output
    missing = await terminal.run(address, "replay", SHARD, "--letter", "999999", "--yes")
    assert missing.exit_code == 3
    end = await Producer(journals).publish(SOURCE, ["c"])
    await client.stat(SHARD, read_through={SOURCE: end}, timeout_seconds=300)
    assert json_counts_in(terminal.directory, SHARD) == {"a": 1, "b": 1, "bad": 1, "c": 1}

    await client.apply(upserts(shard("serve-other", SOURCE)))
    shared = await terminal.run(address, "replay", SHARD, "--yes")
    assert shared.exit_code == 2
    assert f"shard serve-other reads {SOURCE}, too" in shared.stderr
    none = await terminal.run(address, "dead-letters", "serve-other")
    assert "has no label broadsheet.dev/dead-letter-journal" in none.stderr


async def test_shard_is_held_back_after_as_many_deaths_as_allowed(terminal: Terminal) -> None:
    """One death is allowed: the member that is left finds the process gone, and shows the shard as held back."""
    options = ["--young-deaths-max", "1", "--hold-seconds", "300"]
    with terminal.serve("first", *options) as first, terminal.serve("other", *options) as other:
        members = {"member-first": first, "member-other": other}
        async with client_of(first) as (client, _), client_of(other):
            await client.apply(upserts(_spec()))
            victim = (await wait_for_primaries(client, SHARD))[SHARD]
        (survivor,) = members.keys() - {victim}
        members[victim].kill()

        async with client_of(members[survivor]) as (_, address):
            await terminal.shows(address, "FAILED", "is held back", victim)
            assert (await terminal.explains(address)).startswith(f"HELD BACK: {SHARD} on ")


async def test_peers_are_watched_unless_told_otherwise(terminal: Terminal) -> None:
    """A member that does not watch has no count of peers found dead, and so none that it ends the lease of.

    Beside its own metrics are those of the default registry, where an application counts what it likes.
    """
    for options, watches in (((), True), (("--no-watch-peers",), False)):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        name = "watcher" if watches else "blind"
        with terminal.serve(name, "--metrics-port", str(port), *options) as member:
            async with client_of(member):
                metrics = await asyncio.to_thread(_metrics, port)
                with pytest.raises(OSError, match="refused"):
                    # They listen where gRPC does, and not on every address of the machine.
                    await asyncio.to_thread(_metrics, port, "127.0.0.2")
        assert (FOUND_DEAD in metrics) is watches
        assert "process_resident_memory_bytes" in metrics


def _metrics(port: int, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        body: bytes = answer.read()
        return body.decode()
