"""Processes of a cluster, each of a release of its own: etcd, a broker, members, and a client that loads them."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

import msgspec

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.consumer.client import ShardClient
from broadsheet.embedded.child_process import ChildProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON
from broadsheet.wire.journal_pb2 import ApplyRequest, JournalSpec
from broadsheet.wire.key_range import KeyRange, range_labels
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, FAMILY, label_set
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support.broker import journal_spec
from tests.support.eventually import eventually
from tests.support.members import committed, shard, upserts
from tests.support.recorded_tally import LOGS, recorded
from tests.upgrade.releases import Release

ROOT: Final = "/rolled"
OUTPUT: Final = "rolled/out"
LEASE_SECONDS: Final = 10
MEMBERS: Final = 3
START_SECONDS: Final = 60.0
SHARDS: Final = {
    f"{kind}-{n}": f"rolled/in/{kind}-{n}" for kind in ("json", "sqlite") for n in (0, 1)
}
"""Journal by shard."""
_PROGRAMS: Final = Path(__file__).parent / "programs"


class ClientReport(msgspec.Struct):
    """See `rolled_client.Report`."""

    published: dict[str, list[str]]
    queries: int
    repeated: int
    failed: list[str]
    slowest: float


@dataclass(frozen=True, slots=True)
class Echo:
    """One message of the output."""

    shard: str
    key: str
    number: int
    at: float


@dataclass(slots=True)
class Fleet:
    """The processes. A context manager; what still runs is killed in the end."""

    directory: Path
    file_root: Path | None = None
    """Where the broker publishes fragments, each minute; None: nowhere."""
    reports: list[ClientReport] = field(default_factory=list)
    clients: int = 0
    """Clients that were started; each names its messages by its number."""
    broker: str = ""
    """Address."""
    _ports: dict[str, int] = field(default_factory=dict)
    _running: dict[str, ChildProcess] = field(default_factory=dict)
    _etcd: EmbeddedEtcdProcess | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        self.start_etcd()
        self.broker = f"http://127.0.0.1:{self._port('broker')}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name, process in self._running.items():
            process.kill()
            if error is not None:
                print(f"--- {name}\n{self.log(name)[-4000:]}", file=sys.stderr)
        self._stack.close()

    @property
    def members(self) -> str:
        """Addresses of all places of members, with commas."""
        return self.addresses(range(2 * MEMBERS))

    def addresses(self, places: range) -> str:
        """Return the addresses of members at these places, with commas."""
        return ",".join(f"http://127.0.0.1:{self._port(f'member-{place}')}" for place in places)

    # -- starting and stopping

    def start_etcd(self) -> None:
        """Start an empty etcd, in place of one that runs."""
        if self._etcd is not None:
            self._etcd.stop()
        directory = self.directory / f"etcd-{uuid4().hex[:8]}"
        self._etcd = EmbeddedEtcdProcess(data_dir=directory, listen="tcp")
        self._stack.enter_context(self._etcd)

    async def start_broker(self, release: Release) -> None:
        """Start the broker on its directory, and wait until it listens.

        Raises:
            RuntimeError: it ended; the message is what it printed.
        """
        command = [str(release.python), "-m", release.broker_module]
        command += ["--data-dir", str(self.directory / "broker")]
        command += ["--listen", self.broker.removeprefix("http://")]
        if self.file_root is not None:
            command += ["--file-root", str(self.file_root)]
        self._start("broker", release, command)
        await self._until("broker", lambda log: "listening http" in log)

    async def start_member(self, release: Release, place: int) -> None:
        """Start a member at one of its places, and wait until it is ready."""
        name, port = f"member-{place}", self._port(f"member-{place}")
        assert self._etcd is not None
        command = [str(release.shardctl), "serve", "rolled_app:Rolled", "--root", ROOT]
        command += ["--etcd", self._etcd.endpoint, "--broker", self.broker]
        command += ["--suffix", name, "--zone", f"zone-{place % MEMBERS}", "--port", str(port)]
        command += ["--lease-ttl", str(LEASE_SECONDS), "--settle", "0"]
        command += ["--state-dir", str(self.directory / "state" / name)]
        self._start(name, release, command)
        await self._until(name, lambda _: self._is_member(port))

    async def start_client(self, release: Release) -> None:
        """Start the load, and wait until there is some."""
        name = f"client-{self.clients}"
        self.clients += 1
        program = str(_PROGRAMS / "rolled_client.py")
        command = [str(release.python), program, name, self.broker, self.members]
        self._start("client", release, [*command, json.dumps(SHARDS)])
        await self._until("client", lambda log: "loaded" in log)

    async def stop(self, name: str) -> None:
        """Ask a process to end, and wait for it."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        await eventually(
            lambda: process.exit_code is not None, message=f"{name}: {self.log(name)[-2000:]}"
        )
        assert process.exit_code == 0, f"{name} ended with {process.exit_code}: {self.log(name)}"

    def kill(self, name: str) -> None:
        """End a process at once."""
        self._running.pop(name).kill()

    async def stop_member(self, place: int) -> None:
        """Ask a member to leave, and wait until it has."""
        await self.stop(f"member-{place}")

    async def stop_client(self) -> None:
        """End the load, and keep its report."""
        await self.stop("client")
        last = self.log("client").strip().splitlines()[-1]
        self.reports.append(msgspec.json.decode(last, type=ClientReport))

    async def roll_members(self, release: Release, *, places: range, old: range) -> None:
        """Replace one member after the other, each once its successor serves."""
        for place, leaving in zip(places, old, strict=True):
            await self.start_member(release, place)
            await self.stop_member(leaving)
            await self.settle()

    def log(self, name: str) -> str:
        """What a process printed, in all of its lives."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, release: Release, command: Sequence[str]) -> None:
        (self.directory / f"{name}.log").unlink(missing_ok=True)
        self._running[name] = ChildProcess(
            command,
            directory=self.directory,
            log_file=self.directory / f"{name}.log",
            environment=_plain(release) | {"ROLLED_STATE": str(self.directory / "state")},
        )

    async def _until(self, name: str, holds: Any) -> None:  # Any: a function of the log.
        def settled() -> bool:
            if self._running[name].exit_code is not None:
                raise RuntimeError(f"{name} ended: {self.log(name)[-4000:]}")
            return bool(holds(self.log(name)))

        await eventually(settled, timeout_seconds=START_SECONDS, interval_seconds=0.05)

    def _is_member(self, port: int) -> bool:
        with socket.socket() as caller:
            return caller.connect_ex(("127.0.0.1", port)) == 0

    def _port(self, name: str) -> int:
        if name not in self._ports:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self._ports[name] = int(free.getsockname()[1])
        return self._ports[name]

    # -- what is served

    async def apply(self) -> None:
        """Create the journals and the shards: half of them with JSON files, half with SQLite."""
        async with JournalClient(self.broker) as journals:
            await journals.apply(
                [ApplyRequest.Change(upsert=self._journal(name)) for name in journal_names()]
            )
        specs = [
            recorded(shard(name, journal, hot_standbys=1), ROOT) for name, journal in SHARDS.items()
        ]
        async with ShardClient(self.members) as shards:
            await shards.apply(upserts(*specs))

    def _journal(self, name: str) -> JournalSpec:
        content = CONTENT_TYPE_RECOVERY_LOG if name.startswith(LOGS) else NDJSON
        spec = journal_spec(name, labels=label_set((CONTENT_TYPE, content)))
        if self.file_root is not None:
            spec.fragment.stores.append("file:///")
            spec.fragment.flush_interval.FromSeconds(60)
        return spec

    async def settle(self) -> None:
        """Wait until each shard has a primary and a ready standby."""

        async def settled() -> bool:
            async with ShardClient(self.members) as shards:
                listed = [each for each in (await shards.list()).shards if each.spec.id in SHARDS]
            found = {each.spec.id: sorted(status.code for status in each.status) for each in listed}
            expected = sorted((ReplicaStatus.PRIMARY, ReplicaStatus.STANDBY))
            errors = [str(error) for each in listed for s in each.status for error in s.errors]
            assert len(found) == len(SHARDS)
            assert all(codes == expected for codes in found.values()), (found, errors)
            return True

        await eventually(settled, interval_seconds=0.1)

    async def leader(self) -> int:
        """Return the place of the member that leads; -1 if none does."""
        assert self._etcd is not None
        async with EtcdClient(EtcdConfig(endpoints=(self._etcd.endpoint,))) as etcd:
            found = (await etcd.get_range(AuxiliaryKeys(ROOT).leader)).kvs
        if not found:
            return -1
        name: str = msgspec.json.decode(found[0].value)["member"]
        return int(name.rpartition("member-")[2])

    async def is_led_from(self, places: range) -> None:
        """Wait until a member at one of these places leads."""

        async def led() -> bool:
            place = await self.leader()
            assert place in places, place
            return True

        await eventually(led, timeout_seconds=START_SECONDS, interval_seconds=0.1)

    async def apply_key_ranges(self, places: range) -> None:
        """Create two shards that each own half of the keys: members of before levels would handle the keys of all.

        Args:
            places: Of the members that are asked to: those of before levels do not know what they store.
        """
        specs = shard("range-0"), shard("range-1")
        for each, begin, end in zip(specs, (0, 2048), (2048, 4096), strict=True):
            labels = {**dict(range_labels(KeyRange(begin, end))), FAMILY: "ranges"}
            each.labels.CopyFrom(label_set(*sorted(labels.items())))
            each.disable = True
        async with ShardClient(self.addresses(places)) as shards:
            await shards.apply(upserts(*specs))

    async def replicas_at(self, place: int) -> int:
        """Return how many replicas a member has."""
        async with ShardClient(self.members) as shards:
            listed = (await shards.list()).shards
        suffix = f"member-{place}"
        return sum(member.suffix == suffix for each in listed for member in each.route.members)

    async def failures(self) -> list[str]:
        """What failed replicas say, by shard."""
        async with ShardClient(self.members) as shards:
            listed = (await shards.list()).shards
        return [f"{each.spec.id}: {e}" for each in listed for s in each.status for e in s.errors]

    async def echoes(self) -> list[Echo]:
        """The output, as readers see it: once everything that clients published is in it."""
        expected = sum(len(keys) for report in self.reports for keys in report.published.values())

        async def complete() -> list[Echo]:
            async with JournalClient(self.broker) as journals:
                found = await committed(journals, OUTPUT)
            assert len(found) >= expected, (len(found), expected)
            fields = ("shard", "key", "number", "at")
            return [Echo(*(each[name] for name in fields)) for each in found]

        return await eventually(complete, interval_seconds=0.5)

    def published(self) -> dict[str, list[str]]:
        """Return the keys that clients published, by shard, in this order."""
        return {
            name: [key for report in self.reports for key in report.published[name]]
            for name in SHARDS
        }

    async def sources(self) -> dict[str, list[str]]:
        """Return the keys that the sources hold, by shard, in this order."""
        async with JournalClient(self.broker) as journals:
            return {
                name: [each["key"] for each in await committed(journals, journal)]
                for name, journal in SHARDS.items()
            }

    async def check_exactly_once(self) -> list[Echo]:
        """Check that each published message was counted once and its count published once; return the output."""
        echoes = await self.echoes()
        found: dict[str, list[Echo]] = defaultdict(list)
        for echo in echoes:
            found[echo.shard].append(echo)
        for name, published in self.published().items():
            assert Counter(each.key for each in found[name]) == Counter(published)
            # The state, too: a count that was lost or made twice would show in all that follow.
            assert [each.number for each in found[name]] == list(range(1, len(published) + 1))
        return echoes


def journal_names() -> list[str]:
    """Return the names of the inputs, the output and the recovery logs."""
    logs = [f"{LOGS}/{name}" for name in SHARDS]
    return [OUTPUT, *SHARDS.values(), *logs]


def pauses(echoes: Sequence[Echo], begun: float, ended: float) -> dict[str, float]:
    """Return the longest time between two messages of each shard, seconds, among those between two wall times."""
    longest: dict[str, float] = {}
    before: dict[str, float] = {}
    for echo in echoes:
        if begun <= echo.at <= ended:
            gap = echo.at - before.get(echo.shard, echo.at)
            longest[echo.shard] = max(longest.get(echo.shard, 0.0), gap)
            before[echo.shard] = echo.at
    return longest


def _plain(release: Release) -> dict[str, str]:
    """Return an environment in which nothing leads to another release, or to other clusters."""
    ours = ("BROADSHEET_", "CONSUMER_", "BROKER_", "ETCD_", "AUTH_", "PYTHON", "VIRTUAL_ENV")
    found = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    search_path = [str(_PROGRAMS), *filter(None, [release.search_path])]
    return found | {"PYTHONPATH": os.pathsep.join(search_path)}
