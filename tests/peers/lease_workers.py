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
from tests.peers.lease_programs import BUILD_SECONDS_MAX, kcl_command, vmware_command
from tests.peers.shared_leases import SHARDS, WAIT_SECONDS, SharedLeases, shared_leases
from tests.support.documents import REPOSITORY
from tests.support.eventually import eventually
from tests.support.kinesis_streams import HASH_END
from tests.support.moto import running_moto

pytestmark = pytest.mark.timeout(BUILD_SECONDS_MAX + 8 * WAIT_SECONDS)

SYSTEMS: dict[str, tuple[Callable[[], list[str]], Callable[[], Layout], StealWay]] = {
    "kcl-2.6.0": (lambda: kcl_command("2.6.0"), KclJavaLayout, StealWay.AT_ONCE),
    "kcl-3.5.1": (lambda: kcl_command("3.5.1"), KclJavaLayout, StealWay.AT_ONCE),
    "vmware": (vmware_command, VmwareGoLayout, StealWay.CLAIM),
}


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
    """One joins the other, one is killed, a shard is split, one leaves: each message is processed, and by one of them
    alone where nobody was killed and nothing was taken by force.
    """
    command, layout, steal = SYSTEMS[system]
    async with shared_leases(
        endpoint, tmp_path, layout=layout(), command=command(), steal=steal
    ) as shared:
        first = shared.start_theirs()
        await shared.owned(first.name, SHARDS, alone=True)
        await eventually(lambda: len(first.numbers) > SHARDS, timeout_seconds=WAIT_SECONDS)

        ours = shared.our_worker()
        async with TaskGroup() as group:
            group.start_soon(ours.run(), name="ours")
            await shared.owned("ours", SHARDS // 2)
            await eventually(lambda: len(shared.numbers) > SHARDS, timeout_seconds=WAIT_SECONDS)
            first.child.kill()
            await shared.owned("ours", SHARDS, alone=True)
            second = shared.start_theirs()
            await _joined(system, shared, second.name)
            await shared.stream.split(0, HASH_END // (2 * SHARDS))
            await shared.owned("ours", 1)
            ours.stop()
        left = set(shared.numbers)
        await shared.owned(second.name, SHARDS + 1, alone=True)
        await shared.everything_was_seen()
        print(
            f"{system}: {shared.published} published, ours {len(shared.numbers)}, twice {len(left & set(second.numbers))}"
        )
        await second.stop()


async def _joined(system: str, shared: SharedLeases, name: str) -> None:
    """Wait until their second worker has a share, if it takes one from workers without a row of statistics."""
    if system != "kcl-3.5.1":
        await shared.owned(name, 1)
