"""The waits of an operator: `make bench BENCH=operate`.

rolling_upgrade_pause_max_s          longest time between two messages of one shard while members are replaced
rolling_upgrade_failed_queries       of a client that asks for each shard all the time
backup_s, restore_s (shards)         `shardctl backup create` and `restore` of so many shards with their hints
restore_s (state_mb)                 a shard's state, played from its recovery log to a store that is open

The upgrade is from a wheel of an earlier state of the repository, if git has it, else from this one to itself
(`from_release`). Arguments name parts: upgrade, backup, state; a number is the size of the state, MB.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.journal_specs import journal_change
from bench.recovery.driven import Rows, fill, member_journals
from bench.report import Params, emit, keep_logs_apart
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.recoverylog.player import Player
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.testing.stores.subject import FixedShard
from broadsheet.wire.recorded_op_pb2 import FnodeSegments, FSMHints, Segment
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec
from tests.upgrade.fleet import MEMBERS, Fleet, pauses
from tests.upgrade.releases import NoHistoryError, Release, previous_release, this_release

BENCH: Final = "operate"
SHARDS: Final = 10_000
SOURCES: Final = 100
STATE_MB: Final = 2_000
DEADLINE_SECONDS: Final = 300.0
VALUE_BYTES: Final = 1_000
ROWS_PER_TXN: Final = 5_000
_ROOT: Final = "/bench/operate"


def main(arguments: Sequence[str]) -> None:
    """Measure the parts named, or all."""
    keep_logs_apart()
    state_mb = next((int(each) for each in arguments if each.isdigit()), STATE_MB)
    parts = {
        "upgrade": lambda: asyncio.run(_upgrade()),
        "backup": lambda: asyncio.run(_backup()),
        "state": lambda: asyncio.run(_state(state_mb)),
    }
    for name in [each for each in arguments if not each.isdigit()] or parts:
        parts[name]()


async def _upgrade() -> None:
    this = this_release()
    try:
        previous = previous_release()
    except NoHistoryError as error:
        print(f"{error}: from this release to itself", file=sys.stderr)
        previous = this
    with tempfile.TemporaryDirectory() as name, Fleet(Path(name)) as fleet:
        await _start(fleet, previous)
        begun = time.time()
        await fleet.roll_members(this, places=range(MEMBERS, 2 * MEMBERS), old=range(MEMBERS))
        ended = time.time()
        await fleet.stop_client()
        longest = pauses(await fleet.check_exactly_once(), begun, ended)
    (report,) = fleet.reports
    params: Params = {"members": MEMBERS, "shards": len(longest), "from_release": previous.name}
    emit(BENCH, "rolling_upgrade_pause_max_s", max(longest.values()), "s", **params)
    failed = len(report.failed)
    emit(BENCH, "rolling_upgrade_failed_queries", failed, "queries", asked=report.queries, **params)


async def _start(fleet: Fleet, release: Release) -> None:
    await fleet.start_broker(release)
    for place in range(MEMBERS):
        await fleet.start_member(release, place)
    await fleet.apply()
    await fleet.settle()
    await fleet.start_client(release)


async def _backup() -> None:
    """Save and restore shards that are disabled: what is measured is the cluster, and not what shards do."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        file = directory / "cluster.jsonl"
        for each in ("first", "second"):
            (directory / each).mkdir()
        with ExitStack() as stack:
            where = await _lone_member(stack, directory / "first")
            async with ShardClient(where[0], timeout_seconds=DEADLINE_SECONDS) as client:
                await client.apply([_change(number) for number in range(SHARDS)], batch_size=32)
            seconds = _timed(["backup", "create", str(file)], where)
        size = round(file.stat().st_size / 1e6, 1)
        emit(BENCH, "backup_s", seconds, "s", shards=SHARDS, file_mb=size)
        with ExitStack() as stack:
            where = await _lone_member(stack, directory / "second")
            seconds = _timed(["backup", "restore", str(file), "--yes"], where)
            async with ShardClient(where[0], timeout_seconds=DEADLINE_SECONDS) as client:
                restored = len((await client.list()).shards)
        assert restored == SHARDS, restored
        emit(BENCH, "restore_s", seconds, "s", shards=SHARDS, journals=SOURCES)


async def _lone_member(stack: ExitStack, directory: Path) -> tuple[str, str]:
    """Start an empty cluster with the sources; return the addresses of its member and its broker."""
    etcd = stack.enter_context(EmbeddedEtcdProcess(data_dir=directory / "etcd", listen="tcp"))
    broker = stack.enter_context(EmbeddedBrokerProcess(directory / "broker"))
    if directory.name == "first":
        async with member_journals(broker.address) as journals:
            await journals.apply([journal_change(f"bench/{n:03}") for n in range(SOURCES)])
    arguments = ["--root", _ROOT, "--etcd", etcd.endpoint, "--broker", broker.address]
    member = EmbeddedMemberProcess(
        "broadsheet.examples.counter.app:Counter",
        [*arguments, "--port", "0", "--admin-port", "0"],
        log_file=directory / "member.log",
        variables={"BROADSHEET_STATE_DIR": str(directory)},
    )
    stack.callback(member.kill)
    return await asyncio.to_thread(member.wait_until_ready), broker.address


def _change(number: int) -> ApplyRequest.Change:
    shard_id = f"shard-{number:05}"
    spec = ShardSpec(
        id=shard_id,
        sources=[ShardSpec.Source(journal=f"bench/{number % SOURCES:03}")],
        recovery_log_prefix="logs",
        hint_prefix=f"/hints{_ROOT}",
        hint_backups=2,
        disable=True,
    )
    spec.max_txn_duration.FromSeconds(1)
    log = f"logs/{shard_id}"
    nodes = [
        FnodeSegments(fnode=n, segments=[Segment(author=7, first_seq_no=n, last_seq_no=n)])
        for n in range(1, 6)
    ]
    return ApplyRequest.Change(upsert=spec, primary_hints=FSMHints(log=log, live_nodes=nodes))


def _timed(words: Sequence[str], where: tuple[str, str]) -> float:
    command = [sys.executable, "-P", "-m", "broadsheet.cli.main", *words]
    began = time.perf_counter()
    subprocess.run(  # noqa: S603 - our own command
        [*command, "--address", where[0], "--broker", where[1]],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - began


class _InOrder(Rows):
    """Rows that come in the order of their keys: the log then is not many times as long as the state."""

    def key(self, row: int) -> int:
        """Return the key of the n-th row."""
        return row


async def _state(state_mb: int) -> None:
    """Record a SQLite store of this size, and play it on an empty directory until the store is open."""
    keys = state_mb * 1_000_000 // VALUE_BYTES
    rows = _InOrder(keys=keys, per_txn=ROWS_PER_TXN, value_bytes=VALUE_BYTES)
    log = "bench/logs/state"
    with (
        tempfile.TemporaryDirectory() as name,
        EmbeddedBrokerProcess(Path(name) / "broker", durability="off") as broker,
    ):
        async with member_journals(broker.address) as journals:
            hints = await fill(
                journals, "sqlite", log, Path(name) / "store", rows=rows, txns=keys // ROWS_PER_TXN
            )
            began = time.perf_counter()
            directory = Path(name) / "restored"
            player = Player(journals, hints, directory)
            player.stop_at_head()
            await player.run()
            local_state = LocalState(directory)
            store = SqliteStore(FixedShard(local_state=None), local_state)
            await asyncio.to_thread(store.restore_checkpoint, FixedShard(local_state=None))
            seconds = time.perf_counter() - began
            log_mb = round(player.progress.played_bytes / 1e6)
            store.destroy()
    emit(BENCH, "restore_s", seconds, "s", state_mb=state_mb, store="sqlite", log_mb=log_mb)


if __name__ == "__main__":
    main(sys.argv[1:])
