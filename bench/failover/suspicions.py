"""The rate at which live members lose their leases on a loaded machine: `false_suspicions`.

A few processes keep the processors busy, and members are stopped for half a second to a second now and then, one after
the other, which is shorter than what counts as death. Each member whose key goes meanwhile was given up in vain.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from bench.report import Params, emit
from broadsheet.allocator.etcd.api import KeyDeleted
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.keys import Keys
from broadsheet.runtime.task_group import TaskGroup

HOGS_PER_CPU = 2
FROZEN_SECONDS = (0.5, 1.0)
BETWEEN_SECONDS = (1.0, 4.0)
"""From one stop to the next."""
_HOG = "while True: sum(i * i for i in range(100_000))"


@contextmanager
def hogs() -> Iterator[int]:
    """Keep all processors busy, twice over; yield by how many processes."""
    count = HOGS_PER_CPU * (os.cpu_count() or 1)
    command = [sys.executable, "-c", _HOG]
    running = [subprocess.Popen(command) for _ in range(count)]  # noqa: S603 - our own program
    try:
        yield count
    finally:
        for each in running:
            each.kill()
            each.wait()


def measure(
    bench: str, members: list[psutil.Process], *, etcd: EtcdConfig, root: str, seconds: float
) -> None:
    """Load the machine, stop members now and then, and print how many were given up though they lived."""
    with hogs() as count:
        found = asyncio.run(_watch(members, etcd=etcd, root=root, seconds=seconds))
    params: Params = {"seconds": seconds, "members": len(members), "cpu_hogs": count, **found}
    emit(bench, "false_suspicions", found["leases_ended"], "leases", **params)


async def _watch(
    members: list[psutil.Process], *, etcd: EtcdConfig, root: str, seconds: float
) -> dict[str, int]:
    prefix = Keys(root).members_prefix
    ended: list[bytes] = []
    async with EtcdClient(etcd) as client, TaskGroup() as group:
        revision = (await client.get_range(prefix)).header.revision

        async def follow() -> None:
            async for batch in client.watch(prefix, start_revision=revision + 1):
                ended.extend(each.key for each in batch.events if isinstance(each, KeyDeleted))

        group.start_soon(follow(), name="members that go")
        stops = await _stop_now_and_then(members, until=time.monotonic() + seconds)
        group.stop()
    return {"leases_ended": len(ended), "stops": stops}


async def _stop_now_and_then(members: list[psutil.Process], *, until: float) -> int:
    stops = 0
    while time.monotonic() < until:
        await asyncio.sleep(random.uniform(*BETWEEN_SECONDS))
        member = random.choice(members)
        try:
            member.send_signal(signal.SIGSTOP)
            await asyncio.sleep(random.uniform(*FROZEN_SECONDS))
            member.send_signal(signal.SIGCONT)
        except psutil.NoSuchProcess:
            continue  # It lost its lease and ended, which is what is counted.
        stops += 1
    return stops
