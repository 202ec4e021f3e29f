"""docs/migrate/: what each guide shows is done to what the other system left behind, and workers go on from there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from broadsheet.leases.addresses import parse_store_address
from broadsheet.leases.facades.event_hubs import RecordCheckpointStore
from broadsheet.leases.opening import open_store
from broadsheet.leases.record_processor.application import RecordProcessorApplication
from broadsheet.leases.worker.worker import LeaseWorker
from broadsheet.runtime.task_group import TaskGroup
from tests.support.documents import REPOSITORY, Block, blocks_of, missing_line
from tests.support.eventually import eventually
from tests.support.foreign_leases import (
    FIRST,
    kcl_row,
    make_eph_container,
    make_table,
    vmware_row,
)
from tests.support.moto import REGION, aws_settings
from tests.support.shardctl_runs import shardctl, shardctl_lines

if TYPE_CHECKING:
    from broadsheet.embedded.etcd import EmbeddedEtcdProcess

pytestmark = [pytest.mark.e2e, pytest.mark.etcd, pytest.mark.moto, pytest.mark.azurite]

Shown = dict[str, Any]  # Any: what a document defines.
HUB = ("my-namespace.servicebus.windows.net", "clicks", "$Default")


@pytest.fixture(autouse=True)
def _surroundings(
    etcd_server: EmbeddedEtcdProcess,
    kinesis_endpoint: str,
    azurite: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a reader has: a directory, and servers that the environment leads to."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "ETCD_ADDRESS": etcd_server.endpoint,
        "AWS_ENDPOINT_URL": kinesis_endpoint,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AZURE_STORAGE_CONNECTION_STRING": azurite,
    }.items():
        monkeypatch.setenv(name, value)


def _guide(name: str) -> tuple[Shown, Iterator[Block]]:
    """Return what the Python of a guide defines, and its shell blocks."""
    blocks = blocks_of(REPOSITORY / "docs" / "migrate" / name)
    shown: Shown = {}
    for block in blocks:
        if block.language == "python":
            exec(compile(block.code, name, "exec"), shown)  # noqa: S102 - a document of ours.
    return shown, (block for block in blocks if block.language == "sh")


def _run(block: Block) -> str:
    """Run the commands of a block, and return all that they printed."""
    printed = []
    for line in shardctl_lines(block.code):
        ran = shardctl(line)
        assert ran.status == 0, f"{line}\n{ran.stdout}{ran.stderr}"
        printed.append(ran.stdout + ran.stderr)
    missing = missing_line(block.shown, printed[-1])
    assert missing is None, f"not shown: {missing}\n{printed[-1]}"
    return "".join(printed)


def _stream(endpoint: str, name: str) -> list[str]:
    """Make a stream of three records, and return their numbers."""
    client = boto3.client("kinesis", **aws_settings(endpoint))
    client.create_stream(StreamName=name, ShardCount=1)
    numbers = [
        client.put_record(StreamName=name, Data=text.encode(), PartitionKey="k")["SequenceNumber"]
        for text in ("one", "two", "three")
    ]
    client.close()
    return numbers


def _table(endpoint: str, *arguments: Any) -> None:
    client = boto3.client("dynamodb", **aws_settings(endpoint))
    make_table(client, *arguments)
    client.close()


def _work(
    address: str, new_worker: Callable[..., LeaseWorker], is_done: Callable[[], bool]
) -> None:
    """Run a worker until something is seen."""

    async def run() -> None:
        async with open_store(parse_store_address(address)) as store, TaskGroup() as group:
            worker = new_worker("host-1", store)
            group.start_soon(worker.run(), name="worker of a guide")
            await eventually(is_done)
            worker.stop()

    asyncio.run(run())


def _until_printed(
    capsys: pytest.CaptureFixture[str], text: str
) -> tuple[list[str], Callable[[], bool]]:
    """Return lines that are printed from now on, and a question that reads them."""
    lines: list[str] = []

    def is_printed() -> bool:
        lines.extend(capsys.readouterr().out.splitlines())
        return text in lines

    return lines, is_printed


def test_guide_from_the_kinesis_client_library(
    kinesis_endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its processor goes on after the table's checkpoint, and the table after its: there and back."""
    numbers = _stream(kinesis_endpoint, "orders")
    _table(kinesis_endpoint, "orders", "leaseKey", kcl_row(FIRST, numbers[0]))
    shown, shell = _guide("from-kcl.md")
    assert isinstance(shown["application"], RecordProcessorApplication)

    _run(next(shell))
    assert "1 the same" in _run(next(shell))
    lines, is_done = _until_printed(capsys, "order three")
    _work("etcd:/orders", shown["new_worker"], is_done)
    assert lines == [f"{FIRST} goes on after {numbers[0]}", "order two", "order three"]

    assert "update" in _run(next(shell))
    table = "'dynamodb:orders?layout=kcl-java'"
    back = shardctl(f"shardctl leases list {table} -o json").leases[FIRST]
    assert back["checkpoint"]["seq"] == numbers[2]
    assert next(shell, None) is None


def test_guide_from_vmware_go_kcl(
    kinesis_endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a file into SQL, on from there, and back into the table."""
    numbers = _stream(kinesis_endpoint, "clicks")
    _table(kinesis_endpoint, "clicks", "ShardID", vmware_row(FIRST, numbers[1]))
    shown, shell = _guide("from-vmware-go-kcl.md")

    _run(next(shell))
    assert not Path("clicks.db").exists()
    assert "created 1" in _run(next(shell))
    lines, is_done = _until_printed(capsys, "click three")
    _work("sql:sqlite:///clicks.db", shown["new_worker"], is_done)
    assert lines == [f"{FIRST} goes on after {numbers[1]}", "click three"]

    assert "updated 1" in _run(next(shell))
    table = "'dynamodb:clicks?layout=vmware-go'"
    back = shardctl(f"shardctl leases list {table} -o json").leases[FIRST]
    assert back["checkpoint"]["seq"] == numbers[2]
    assert next(shell, None) is None


def test_guide_from_event_processor_host(azurite: str) -> None:
    """Azure's own client finds the hosts' checkpoints in etcd, and so do processors of other languages in blobs."""
    make_eph_container(azurite, "clicks", p0=(17, "4096"))
    shown, shell = _guide("from-event-processor-host.md")

    printed = [_run(block) for block in shell]
    assert ["created 1" in text for text in printed] == [False, True, True, False]

    async def check() -> None:
        async with open_store(parse_store_address("etcd:/clicks")) as store:
            connection = f"Endpoint=sb://{HUB[0]}/;SharedAccessKeyName=n;SharedAccessKey=k"
            await shown["new_client"](connection, store).close()
            (checkpoint,) = await RecordCheckpointStore(store).list_checkpoints(*HUB)
        assert (checkpoint["sequence_number"], checkpoint["offset"]) == (17, "4096")
        async with open_store(parse_store_address("azblob:clicks?layout=eph")) as store:
            held, position = await shown["begin"](store, "0", "host-2")
        assert (held.record.owner, position.offset) == ("host-2", "4096")

    asyncio.run(check())
