"""Messages a second through one shard, Stats a second, and seconds from a kill to the next primary.

Members are processes of their own, with a real etcd and a durable broker beside them.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import msgspec
import sqlalchemy as sa
from google.protobuf.duration_pb2 import Duration

from bench.bare_server import bare_server
from bench.journal_specs import journal_change
from bench.report import Params, emit, emit_pair
from bench.skeleton.key_sums import DIRECTORY_VARIABLE, Record, add_sums, fold
from broadsheet.consumer.client import ShardClient
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import MessageClock, new_producer_id
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.shard_pb2 import ApplyRequest, ReplicaStatus, ShardSpec

APPLICATION = "bench.skeleton.key_sums:KeySums"
JOURNAL = "bench/messages"
SHARD = "bench/shard"
MESSAGES = 400_000
KEYS = 1_000
TXN_MESSAGES = 10_000
STATS = 3_200
STATS_IN_FLIGHT = 32
KILLS = 5
LEASE_TTL_SECONDS = 20
POLL_SECONDS = 0.01
DEADLINE_SECONDS = 120.0


def run(bench: str) -> None:
    """Measure and print `messages_per_s`, `stat_per_s`, and `failover_s` by a successor, by expiry, by peers."""
    with tempfile.TemporaryDirectory() as name, Cluster.running(Path(name)) as cluster:
        payloads = asyncio.run(_publish(cluster.broker))
        ours = asyncio.run(_consume(cluster))
        _emit_messages(bench, ours, payloads)
        with bare_server(Path(name)) as bare:
            _emit_stats(bench, cluster, bare)
        _emit_failover(bench, cluster)


@dataclass(slots=True)
class Cluster:
    """Etcd, a broker, and two members, each a process."""

    directory: Path
    etcd: str
    broker: str
    members: dict[int, EmbeddedMemberProcess] = field(default_factory=dict)
    lives: int = 0
    watch_peers: bool = False
    """Whether members that are started notice the death of others; off while other ways of failing over are timed."""

    @staticmethod
    @contextmanager
    def running(directory: Path) -> Iterator[Cluster]:
        """Start everything; end it with the block."""
        os.environ[DIRECTORY_VARIABLE] = str(directory)
        with (
            EmbeddedEtcdProcess(directory / "etcd") as etcd,
            EmbeddedBrokerProcess(directory / "broker") as broker,
        ):
            cluster = Cluster(directory, etcd.endpoint, broker.address)
            try:
                for index in range(2):
                    cluster.start(index)
                for member in cluster.members.values():
                    member.wait_until_ready()
                yield cluster
            finally:
                for member in cluster.members.values():
                    member.kill()

    def start(self, index: int) -> None:
        """Start a member; its earlier life's lease is revoked by it."""
        prefix = f"member-{index}-"
        arguments = ["--etcd", self.etcd, "--broker", self.broker, "--root", "/bench/app"]
        arguments += ["--suffix", f"{prefix}{self.lives}", "--replaces", prefix, "--port", "0"]
        arguments += ["--lease-ttl", str(LEASE_TTL_SECONDS), "--log-level", "warning"]
        # Members die in a row here; no shard is to blame, and none may be held back.
        arguments += ["--young-deaths-max", "0"]
        arguments += ["--watch-peers" if self.watch_peers else "--no-watch-peers"]
        self.lives += 1
        log_file = self.directory / f"member-{index}.log"
        self.members[index] = EmbeddedMemberProcess(APPLICATION, arguments, log_file=log_file)

    def restart_watching_peers(self) -> None:
        """Start every member again, so that it notices the death of others."""
        self.watch_peers = True
        for index, member in self.members.items():
            member.stop()
            self.start(index)
            self.members[index].wait_until_ready()

    def index_of(self, suffix: str) -> int:
        """Return which member a suffix belongs to."""
        return int(suffix.split("-")[1])


async def _publish(broker: str) -> list[bytes]:
    """Write the messages in acknowledged transactions; return their payloads."""
    publisher = Publisher(MessageClock(), new_producer_id())
    target = MappedJournal(JOURNAL, NDJSON)
    json_type = JsonType()
    payloads: list[bytes] = []
    async with JournalClient(broker) as journals:
        await journals.apply([journal_change(JOURNAL)])
        for begin in range(0, MESSAGES, TXN_MESSAGES):
            for number in range(begin, begin + TXN_MESSAGES):
                message = {"k": f"key-{number * 7919 % KEYS}", "v": number}
                publisher.publish_uncommitted(target, message, json_type)
            content = [frame for append in publisher.take_appends() for frame in append.content]
            payloads.extend(frame.rstrip(b"\n") for frame in content)
            content += [intent.content for intent in publisher.build_ack_intents()]
            await journals.append(JOURNAL, content)
    return payloads


async def _consume(cluster: Cluster) -> float:
    """Apply the shard; return messages a second from PRIMARY to the last one read."""
    spec = ShardSpec(id=SHARD, max_txn_duration=Duration(seconds=1))
    spec.sources.add(journal=JOURNAL)
    address = cluster.members[0].wait_until_ready()
    async with ShardClient(address, timeout_seconds=DEADLINE_SECONDS) as shards:
        async with JournalClient(cluster.broker) as journals:
            head = await journals.write_head(JOURNAL)
        began = time.perf_counter()
        await shards.apply([ApplyRequest.Change(upsert=spec)])
        await _wait_for_primary(shards, besides="")
        await shards.stat(SHARD, read_through={JOURNAL: head})
        elapsed = time.perf_counter() - began
    _check_sums(cluster.directory)
    return MESSAGES / elapsed


def _check_sums(directory: Path) -> None:
    connection = sqlite3.connect(directory / "sums.db")
    n, total = connection.execute("SELECT SUM(n), SUM(total) FROM sums").fetchone()
    connection.close()
    assert (n, total) == (MESSAGES, MESSAGES * (MESSAGES - 1) // 2), "not exactly once"


def _emit_messages(bench: str, ours: float, payloads: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        bound = _bare_consume(Path(name), payloads)
    emit_pair(
        bench,
        "messages_per_s",
        (ours, bound),
        "1/s",
        limit="the same decoding and SQL in a loop over payloads in memory: no journal, no UUIDs, no checkpoint",
        store="sqlite",
        messages=MESSAGES,
        message_bytes=round(sum(map(len, payloads)) / len(payloads)),
        keys=KEYS,
    )


def _bare_consume(directory: Path, payloads: list[bytes]) -> float:
    engine = sa.create_engine(f"sqlite:///{directory / 'bare.db'}")
    decode = msgspec.json.Decoder(Record).decode
    with engine.begin() as connection:
        connection.execute(
            sa.text("CREATE TABLE sums (k TEXT PRIMARY KEY, n INTEGER, total INTEGER)")
        )
    began = time.perf_counter()
    for begin in range(0, len(payloads), TXN_MESSAGES):
        with engine.begin() as connection:
            add_sums(connection, fold(decode, payloads[begin : begin + TXN_MESSAGES]))
    elapsed = time.perf_counter() - began
    engine.dispose()
    return len(payloads) / elapsed


def _emit_stats(bench: str, cluster: Cluster, bare: str) -> None:
    rates = [(asyncio.run(_stat_rate(cluster)), asyncio.run(_echo_rate(bare))) for _ in range(3)]
    medians = [statistics.median(side) for side in zip(*rates, strict=True)]
    emit_pair(
        bench,
        "stat_per_s",
        medians,
        "1/s",
        limit="bare grpc.aio echo of 80 bytes",
        in_flight=STATS_IN_FLIGHT,
    )


async def _stat_rate(cluster: Cluster) -> float:
    async with ShardClient(cluster.members[0].wait_until_ready()) as shards:
        listed = (await shards.list()).shards[0]
        endpoint = listed.route.endpoints[listed.route.primary]
    async with ShardClient(endpoint) as shards:

        async def stat_many() -> None:
            for _ in range(STATS // STATS_IN_FLIGHT):
                await shards.stat(SHARD)

        began = time.perf_counter()
        async with TaskGroup() as group:
            for worker in range(STATS_IN_FLIGHT):
                group.start_soon(stat_many(), name=f"worker-{worker}")
        return STATS / (time.perf_counter() - began)


async def _echo_rate(address: str) -> float:
    async with grpc.aio.insecure_channel(address) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/bare/echo")

        async def echo_many() -> None:
            for _ in range(STATS // STATS_IN_FLIGHT):
                await call(bytes(80))

        began = time.perf_counter()
        async with TaskGroup() as group:
            for worker in range(STATS_IN_FLIGHT):
                group.start_soon(echo_many(), name=f"worker-{worker}")
        return STATS / (time.perf_counter() - began)


def _emit_failover(bench: str, cluster: Cluster) -> None:
    seconds = [asyncio.run(_fail_over(cluster, restart=True)) for _ in range(KILLS)]
    expired = asyncio.run(_fail_over(cluster, restart=False))
    median = statistics.median(seconds)
    alone = _failover_params(cluster)
    emit(bench, "failover_s", median, "s", kills=KILLS, **alone)
    emit(bench, "failover_s_max", max(seconds), "s", kills=KILLS, **alone)
    peer = "nobody revokes the lease, it expires"
    emit(bench, "failover_s_peer", expired, "s", peer=peer, kills=1, **alone)
    emit(bench, "failover_s_ratio", median / expired, "ratio", peer=peer, **alone)

    cluster.restart_watching_peers()
    watched = [asyncio.run(_fail_over(cluster, restart=False)) for _ in range(KILLS)]
    params = _failover_params(cluster)
    emit(bench, "failover_s_watched", statistics.median(watched), "s", kills=KILLS, **params)
    emit(bench, "failover_s_watched_max", max(watched), "s", kills=KILLS, **params)


def _failover_params(cluster: Cluster) -> Params:
    """Return what was on and what was off."""
    return {
        "lease_ttl_s": LEASE_TTL_SECONDS,
        "watch_peers": cluster.watch_peers,
        "young_deaths_hold_back": False,
    }


async def _fail_over(cluster: Cluster, *, restart: bool) -> float:
    """Kill the primary's process, start it again at once (as Spark does) or not, and wait for a new primary."""
    async with ShardClient(_any_address(cluster)) as shards:
        victim = await _wait_for_primary(shards, besides="")
    index = cluster.index_of(victim)
    async with ShardClient(cluster.members[1 - index].wait_until_ready()) as shards:
        began = time.perf_counter()
        cluster.members[index].kill()
        if restart:
            cluster.start(index)
        await _wait_for_primary(shards, besides=victim)
        elapsed = time.perf_counter() - began
    if not restart:
        cluster.start(index)
    cluster.members[index].wait_until_ready()
    return elapsed


def _any_address(cluster: Cluster) -> str:
    return cluster.members[0].wait_until_ready()


async def _wait_for_primary(shards: ShardClient, *, besides: str) -> str:
    """Return the suffix of the shard's PRIMARY, once it is another than `besides`."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        for listed in (await shards.list()).shards:
            for member, status in zip(listed.route.members, listed.status, strict=True):
                if status.code == ReplicaStatus.PRIMARY and member.suffix != besides:
                    return member.suffix
        await asyncio.sleep(POLL_SECONDS)
    raise TimeoutError("no new primary")
