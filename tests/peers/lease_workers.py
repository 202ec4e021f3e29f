"""Workers of ours beside real ones of the Kinesis Client Library for Java and of vmware-go-kcl-v2: they share a stream,
take over from each other, and together process every message. `make peers` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broadsheet.leases.stores.dynamodb.kcl_java import KclJavaLayout
from broadsheet.leases.stores.dynamodb.layout import Layout
from broadsheet.leases.stores.dynamodb.vmware_go import VmwareGoLayout
from broadsheet.leases.worker.settings import StealWay
from broadsheet.runtime.task_group import TaskGroup
from tests.peers.lease_programs import (
    BUILD_SECONDS_MAX,
    KCL_2,
    KCL_3,
    kcl_command,
    vmware_command,
)
from tests.peers.shared_leases import SHARDS, WAIT_SECONDS, shared_leases
from tests.support.documents import REPOSITORY
from tests.support.kinesis_streams import HASH_END
from tests.support.moto import running_moto

pytestmark = pytest.mark.timeout(BUILD_SECONDS_MAX + 8 * WAIT_SECONDS)

SYSTEMS: dict[str, tuple[Callable[[Path], list[str]], Callable[[], Layout], StealWay]] = {
    "kcl-2": (lambda classes: kcl_command(KCL_2, classes), KclJavaLayout, StealWay.AT_ONCE),
    "kcl-3": (lambda classes: kcl_command(KCL_3, classes), KclJavaLayout, StealWay.AT_ONCE),
    "vmware-go": (lambda _: vmware_command(), VmwareGoLayout, StealWay.CLAIM),
}
"""Its program, its rows, and how our worker gets leases from it."""
_AWS = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from tests.support import dynamodb_process, kinesis_process
kinesis_process.patch()
dynamodb_process.answer_in_order()
dynamodb_process.remember()
dynamodb_process.keep_connections()
dynamodb_process.main(sys.argv[1:])
"""
"""A double of AWS: Kinesis that keeps to what AWS documents, DynamoDB that changes items atomically."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    """The URL of a double of AWS, of one test alone."""
    with running_moto("-c", _AWS) as url:
        yield url


@pytest.mark.parametrize("system", SYSTEMS)
async def test_workers_of_both_kinds_lose_no_message(
    system: str, endpoint: str, tmp_path: Path
) -> None:
    """Ours joins theirs, theirs is killed and another comes, a shard is split, ours leaves: each is processed."""
    command, layout, steal = SYSTEMS[system]
    async with shared_leases(
        endpoint, tmp_path, layout=layout(), command=command(tmp_path), steal=steal
    ) as shared:
        first = shared.start_theirs()
        await shared.owned(first.name, SHARDS, alone=True)
        await first.processes()

        ours = shared.our_worker()
        async with TaskGroup() as group:
            group.start_soon(ours.run(), name="ours")
            await shared.owned("ours", SHARDS // 2)
            await shared.we_process()
            first.child.kill()
            await shared.owned("ours", SHARDS, alone=True)
            second = shared.start_theirs()
            if (
                system != "kcl-3"
            ):  # Its leader gives leases only to workers that have a row of statistics.
                await shared.owned(second.name, 1)
            await shared.stream.split(0, HASH_END // (2 * SHARDS))
            await shared.we_process()
            ours.stop()
        await shared.owned(second.name, SHARDS + 1, alone=True)
        await shared.everything_was_seen()
        print(f"{system}: {shared.published} published, {shared.told()}")
        await second.stop()
