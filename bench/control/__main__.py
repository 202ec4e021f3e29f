"""The control plane's figures: `make bench BENCH=control`.

    cli        seconds of `shardctl --help`
    shards     applying and listing thousands of shards, following them with many watches, memory of the member
    shardctl   applying and listing as many from files, by the command
    stats      Stats a second of one shard, asked at its primary and through another member
    transport  appends and Stats in clear text, divided by those with mutual TLS
    traces     appends and Stats without OpenTelemetry, divided by those with tracing off and on

Names of rows may be given to run those alone: `python -m bench.control shards`. The shards of the second row are placed
on members that do not exist, so the figures show the service, and not what shards do.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil

from bench.bare_server import OPTIONS, bare_server
from bench.control import calls
from bench.journal_specs import journal_change
from bench.report import Params, emit, emit_pair
from bench.skeleton.key_sums import DIRECTORY_VARIABLE
from bench.skeleton.shards import JOURNAL, SHARD, Cluster
from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import TXN_OPERATIONS_MAX, Put
from broadsheet.cli.shards.space import format_shard_space, space_of_listing
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.registry.key_space import process_id_of
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import ProcessSpec
from broadsheet.wire.labels import label_set
from broadsheet.wire.shard_pb2 import (
    ApplyRequest,
    ConsumerSpec,
    ListResponse,
    ReplicaStatus,
    ShardSpec,
)
from broadsheet.wire.watch_pb2 import WatchShardsRequest
from broadsheet.wire.watch_pb2_grpc import WatchServiceStub

BENCH = "control"
ROOT = "/bench/control"
SHARDS = 10_000
MANY_SHARDS = 100_000
MEMBERS = 20
WATCHES = 100
CHANGES = 50
ROUNDS = 5
STATS = 3_200
STATS_IN_FLIGHT = 32
DEADLINE_SECONDS = 300.0


def main() -> None:
    """Run the rows named, or all."""
    rows: dict[str, Callable[[], None]] = {
        "cli": _cli,
        "shards": _shards,
        "shardctl": _shardctl,
        "stats": _stats,
        "transport": lambda: calls.measure_transport(BENCH),
        "traces": lambda: calls.measure_traces(BENCH),
    }
    for name in sys.argv[1:] or rows:
        rows[name]()


def _cli() -> None:
    seconds: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-P", "-m", "broadsheet.cli.main", "--help"],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        seconds.append(time.perf_counter() - began)
    emit(BENCH, "cli_help_s", statistics.median(seconds), "s", runs=ROUNDS)


@dataclass(frozen=True, slots=True)
class _LoneMember:
    """A member that takes no shards, and its etcd."""

    etcd: str
    address: str
    pid: int


@contextmanager
def _lone_member(directory: Path) -> Iterator[_LoneMember]:
    with (
        EmbeddedEtcdProcess(directory / "etcd") as etcd,
        EmbeddedBrokerProcess(directory / "broker") as broker,
    ):
        arguments = ["--etcd", etcd.endpoint, "--broker", broker.address, "--root", ROOT]
        # It takes no shard, and holds those of members that do not exist for well.
        arguments += ["--limit", "0", "--port", "0", "--no-watch-peers", "--log-level", "error"]
        member = EmbeddedMemberProcess(
            "bench.skeleton.key_sums:KeySums",
            arguments,
            log_file=directory / "member.log",
            variables={DIRECTORY_VARIABLE: str(directory)},
        )
        try:
            yield _LoneMember(etcd.endpoint, member.wait_until_ready(), member.pid)
        finally:
            member.kill()


def _shards() -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        bare_server(Path(name)) as bare,
        _lone_member(Path(name)) as member,
    ):
        asyncio.run(_measure_shards(member.etcd, member.address, bare, member.pid))


def _shardctl() -> None:
    """Apply and list by the command, from start to end; the second file has the shards of the first, too."""
    with tempfile.TemporaryDirectory() as name, _lone_member(Path(name)) as member:
        file = Path(name) / "specs.yaml"
        for shards in (SHARDS, MANY_SHARDS):
            listed = [ListResponse.Shard(spec=_spec(number)) for number in range(shards)]
            file.write_text(format_shard_space(space_of_listing(listed)), encoding="utf-8")
            for figure, words in (
                ("apply_s", ("apply", "-f", str(file), "--no-verify-journals")),
                ("list_s", ("list", "-o", "name")),
            ):
                seconds, lines = _timed_command(words, member.address)
                params: Params = {"via": "shardctl", "shards": shards, "stderr_lines": lines}
                emit(BENCH, figure, seconds, "s", **params)


def _timed_command(words: Sequence[str], address: str) -> tuple[float, int]:
    """Return the seconds of a `shardctl shards` command, and the lines that it wrote on standard error."""
    command = [sys.executable, "-P", "-m", "broadsheet.cli.main", "shards", *words]
    began = time.perf_counter()
    done = subprocess.run(  # noqa: S603 - our own command
        [*command, "--address", address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=True,
    )
    return time.perf_counter() - began, len(done.stderr.splitlines())


async def _measure_shards(etcd_endpoint: str, address: str, bare: str, pid: int) -> None:
    config = EtcdConfig(endpoints=(etcd_endpoint,), request_timeout_seconds=DEADLINE_SECONDS)
    async with (
        EtcdClient(config) as etcd,
        ShardClient(address, timeout_seconds=DEADLINE_SECONDS) as client,
    ):
        specs = [_spec(number) for number in range(SHARDS)]
        bound = await _bare_puts(etcd, specs)
        applied = await _timed_apply(client, specs)
        emit_pair(
            BENCH,
            "apply_s",
            (applied, bound),
            "s",
            limit=f"the same specs put into etcd, {TXN_OPERATIONS_MAX} a transaction, one after the other",
            shards=SHARDS,
        )
        await _add_members(etcd)
        await _until_placed(client, SHARDS)
        await _measure_lists(client, bare)
        await _measure_watches(address, client, specs)
        _emit_memory(pid, SHARDS)
        await _timed_apply(client, [_spec(number) for number in range(SHARDS, MANY_SHARDS)])
        await _until_placed(client, MANY_SHARDS)
        _emit_memory(pid, MANY_SHARDS)


def _spec(number: int) -> ShardSpec:
    spec = ShardSpec(
        id=f"bench/shard-{number:06d}",
        sources=[ShardSpec.Source(journal=f"bench/source-{number:06d}")],
        recovery_log_prefix="bench/logs",
        hint_prefix="/bench/hints",
        hint_backups=2,
        hot_standbys=1,
        labels=label_set({"app": "bench", "part": f"{number:06d}"}),
    )
    spec.max_txn_duration.FromSeconds(1)
    return spec


async def _timed_apply(client: ShardClient, specs: Sequence[ShardSpec]) -> float:
    began = time.perf_counter()
    await client.apply([ApplyRequest.Change(upsert=spec) for spec in specs])
    return time.perf_counter() - began


async def _bare_puts(etcd: EtcdClient, specs: Sequence[ShardSpec]) -> float:
    """Return the seconds that etcd alone takes, below another root."""
    keys = Keys("/bench/bare")
    puts = [Put(keys.item(ItemId(spec.id)), spec.SerializeToString()) for spec in specs]
    began = time.perf_counter()
    for begin in range(0, len(puts), TXN_OPERATIONS_MAX):
        await etcd.txn((), tuple(puts[begin : begin + TXN_OPERATIONS_MAX]))
    return time.perf_counter() - began


async def _add_members(etcd: EtcdClient) -> None:
    """Announce members that do not exist, so that shards have routes and statuses."""
    keys = Keys(ROOT)
    puts: list[Put] = []
    for number in range(MEMBERS):
        identity = MemberId(f"zone-{number % 3}", f"absent-{number:02d}")
        process = ProcessSpec(
            id=process_id_of(identity), endpoint=f"http://member-{number:02d}.bench:8080"
        )
        spec = ConsumerSpec(process_spec=process, shard_limit=4 * MANY_SHARDS // MEMBERS)
        puts.append(Put(keys.member(identity), spec.SerializeToString()))
    # All at once: replicas that nobody runs never catch up, so none would move to members that come later.
    await etcd.txn((), tuple(puts))


async def _until_placed(client: ShardClient, shards: int) -> None:
    """Wait until each shard has its two replicas."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            listed = (await client.list()).shards
            if sum(len(shard.status) for shard in listed) == 2 * shards:
                return
            await asyncio.sleep(2.0)


async def _measure_lists(client: ShardClient, bare: str) -> None:
    seconds: list[float] = []
    bounds: list[float] = []
    async with grpc.aio.insecure_channel(bare, options=OPTIONS) as channel:
        for _ in range(ROUNDS):
            began = time.perf_counter()
            response = await client.list()
            seconds.append(time.perf_counter() - began)
            encoded = response.SerializeToString()
            call: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
                "/bare/pour"
            )
            began = time.perf_counter()
            async for _ in call(f"{1 << 18} {len(encoded) // (1 << 18) + 1}".encode()):
                pass
            ListResponse.FromString(encoded)
            bounds.append(time.perf_counter() - began)
    emit_pair(
        BENCH,
        "list_s",
        (statistics.median(seconds), statistics.median(bounds)),
        "s",
        limit="a bare gRPC stream of as many bytes, and their decoding",
        shards=len(response.shards),
        response_bytes=len(encoded),
    )


async def _measure_watches(address: str, client: ShardClient, specs: Sequence[ShardSpec]) -> None:
    """Change one shard again and again; time until each watch shows it."""
    arrived: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(TaskGroup())
        ready = [asyncio.Event() for _ in range(WATCHES)]
        began = time.perf_counter()
        for each in ready:
            group.start_soon(_watch(address, each, arrived), name="watch")
        for each in ready:
            await each.wait()
        emit(
            BENCH,
            "watch_start_s",
            time.perf_counter() - began,
            "s",
            watches=WATCHES,
            shards=SHARDS,
        )
        delays: list[float] = []
        for number in range(CHANGES):
            spec = ShardSpec()
            spec.CopyFrom(specs[number])
            spec.labels.CopyFrom(label_set({"app": "changed", "part": f"{number:06d}"}))
            began = time.perf_counter()
            await client.apply([ApplyRequest.Change(upsert=spec, expect_mod_revision=-1)])
            for _ in range(WATCHES):
                shard_id, at = await arrived.get()
                assert shard_id == spec.id, f"{shard_id} instead of {spec.id}"
                delays.append(at - began)
        group.stop()
    quantiles = statistics.quantiles(delays, n=100)
    for figure, value in (
        ("watch_fanout_p50_ms", quantiles[49]),
        ("watch_fanout_p99_ms", quantiles[98]),
    ):
        emit(BENCH, figure, value * 1e3, "ms", watches=WATCHES, shards=SHARDS, changes=CHANGES)


async def _watch(
    address: str, ready: asyncio.Event, arrived: asyncio.Queue[tuple[str, float]]
) -> None:
    async with _channel(address) as channel:
        call = WatchServiceStub(channel).WatchShards(WatchShardsRequest(), timeout=DEADLINE_SECONDS)
        async for response in call:
            if ready.is_set():
                for shard in response.shards:
                    arrived.put_nowait((shard.spec.id, time.perf_counter()))
            elif not response.more:
                ready.set()


@asynccontextmanager
async def _channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    # A connection of its own for each.
    options = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(
        address.removeprefix("http://"), options=options
    ) as channel:
        yield channel


def _emit_memory(pid: int, shards: int) -> None:
    rss_bytes = psutil.Process(pid).memory_info().rss
    emit(BENCH, "member_rss_mb", rss_bytes / (1 << 20), "MiB", shards=shards, replicas=2)


def _stats() -> None:
    with tempfile.TemporaryDirectory() as name, Cluster.running(Path(name)) as cluster:
        asyncio.run(_measure_stats(cluster))


async def _measure_stats(cluster: Cluster) -> None:
    spec = ShardSpec(id=SHARD, sources=[ShardSpec.Source(journal=JOURNAL)])
    spec.max_txn_duration.FromSeconds(1)
    async with JournalClient(cluster.broker) as journals:
        await journals.apply([journal_change(JOURNAL)])
    addresses = [member.wait_until_ready() for member in cluster.members.values()]
    async with ShardClient(addresses[0]) as client:
        await client.apply([ApplyRequest.Change(upsert=spec)])
        primary = await _primary(client)
    (other,) = [address for address in addresses if address != primary]
    for path, address in (("local", primary), ("proxied", other)):
        rates, delays = zip(*[await _stat_many(address) for _ in range(ROUNDS)], strict=True)
        emit(
            BENCH,
            "stat_per_s",
            statistics.median(rates),
            "1/s",
            path=path,
            in_flight=STATS_IN_FLIGHT,
        )
        emit(
            BENCH,
            "stat_p99_ms",
            statistics.median(delays) * 1e3,
            "ms",
            path=path,
            in_flight=STATS_IN_FLIGHT,
        )


async def _primary(client: ShardClient) -> str:
    """Return the address of the shard's primary, once there is one."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for table in client.watch():
            row = table.get(SHARD)
            if row is not None and [each.code for each in row.status] == [ReplicaStatus.PRIMARY]:
                return row.route.endpoints[row.route.primary]
    raise AssertionError("a watch does not end")


async def _stat_many(address: str) -> tuple[float, float]:
    """Return Stats a second, and the 99th percentile of their seconds."""
    delays: list[float] = []
    async with ShardClient(address) as client:

        async def ask() -> None:
            for _ in range(STATS // STATS_IN_FLIGHT):
                began = time.perf_counter()
                await client.stat(SHARD)
                delays.append(time.perf_counter() - began)

        began = time.perf_counter()
        async with TaskGroup() as group:
            for _ in range(STATS_IN_FLIGHT):
                group.start_soon(ask(), name="stats")
        return STATS / (time.perf_counter() - began), statistics.quantiles(delays, n=100)[98]


if __name__ == "__main__":
    main()
