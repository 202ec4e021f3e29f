"""Fragments in object stores: real servers of S3 and of Azure Blob Storage, reached as AWS and Azure are."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gzip
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import boto3
import grpc
import pytest
from azure.storage.blob import ContainerClient
from google.protobuf.duration_pb2 import Duration

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.fragment_stores import FragmentStores
from broadsheet.broker.server import Broker
from broadsheet.journals.client import JournalClient
from broadsheet.journals.direct_fragments import DirectFragments
from broadsheet.journals.transport import TransportPolicy
from broadsheet.runtime.errors import ExtraMissingError, ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import (
    CompressionCodec,
    FragmentsRequest,
    FragmentStoreHealthRequest,
    JournalSpec,
    Status,
)
from tests.support.broker import append, apply_specs, broker_stub, journal_spec, read
from tests.support.eventually import eventually
from tests.support.moto import REGION, aws_settings

JOURNAL = "a/jö%2=+urnal"
BUCKET = "broadsheet-fragments"
STORE = f"s3://{BUCKET}/below/"
FRAGMENT_BYTES = 1024
STOP_SECONDS_MAX = 120.0
CONTENT = [letter * (FRAGMENT_BYTES + 1) for letter in (b"a", b"b", b"c")]


@pytest.fixture
def s3(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:  # `Any`: a client of boto3.
    """Return a client of an empty bucket."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    client: Any = boto3.client("s3", **aws_settings(moto_endpoint))
    client.create_bucket(Bucket=BUCKET)
    for each in client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client.delete_object(Bucket=BUCKET, Key=each["Key"])
    return client


def config_of(directory: Path, endpoint: str) -> BrokerConfig:
    """Return the settings of a broker that may publish below the bucket."""
    permitted = f"s3://{BUCKET}/?endpoint={endpoint}&region={REGION}"
    return BrokerConfig(data_dir=directory, cloud_stores=(permitted,))


def spec_of(codec: int, store: str = STORE, journal: str = JOURNAL) -> JournalSpec:
    """Return the spec of a journal that is published to the bucket."""
    spec = journal_spec(journal, length=FRAGMENT_BYTES)
    spec.fragment.compression_codec = CompressionCodec.ValueType(codec)
    spec.fragment.stores.append(store)
    return spec


def fetched(url: str) -> bytes:
    """Return what anybody gets from a URL."""
    with urllib.request.urlopen(url) as response:  # noqa: S310 - of a server of this test
        content: bytes = response.read()
    return content


class _Cloud(NamedTuple):
    """An object store that exists."""

    permitted: str
    """URL for the broker's operator."""
    store: str
    """URL for specs."""
    journal: str = JOURNAL


@pytest.fixture(params=["s3", pytest.param("azure", marks=pytest.mark.azurite)])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> _Cloud:
    """Return an empty bucket of S3, or container of Azure Blob Storage."""
    if request.param == "s3":
        request.getfixturevalue("s3")
        endpoint = request.getfixturevalue("moto_endpoint")
        return _Cloud(f"s3://{BUCKET}/?endpoint={endpoint}&region={REGION}", STORE)
    with ContainerClient.from_connection_string(
        request.getfixturevalue("azurite"), f"{BUCKET}-{uuid4().hex}"
    ) as container:
        container.create_container()
        account: Any = container.credential
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", account.account_name)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", account.account_key)
        bucket, endpoint = f"azure://{container.container_name}/", container.primary_endpoint
        endpoint = endpoint.removesuffix(f"/{container.container_name}")
    return _Cloud(f"{bucket}?endpoint={endpoint}", f"{bucket}below/", "a/journal")


@pytest.mark.parametrize(
    ("codec", "decode"),
    [
        (CompressionCodec.NONE, bytes),
        (CompressionCodec.GZIP, gzip.decompress),
        (CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION, gzip.decompress),
    ],
)
async def test_fragments_in_a_cloud_are_signed_for_readers_and_outlive_the_disk(
    tmp_path: Path, cloud: _Cloud, codec: int, decode: Callable[[bytes], bytes]
) -> None:
    """The whole way: published, told to readers, and served by a broker whose disk is empty."""
    config = BrokerConfig(data_dir=tmp_path / "b", cloud_stores=(cloud.permitted,))
    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, spec_of(codec, cloud.store, cloud.journal))
        for content in CONTENT:
            await append(stub, cloud.journal, content)

        async def urls() -> list[str]:
            response = await stub.ListFragments(
                FragmentsRequest(journal=cloud.journal, signatureTTL=Duration(seconds=60))
            )
            found = [each.signed_url for each in response.fragments if each.signed_url]
            return found if len(found) == 2 else []

        contents = [await asyncio.to_thread(fetched, url) for url in await eventually(urls)]
        assert [decode(each) for each in contents] == CONTENT[:2]
        got = await read(stub, cloud.journal, do_not_proxy=True)
        assert got.chunks == []
        url = got.metadata[0].fragment_url
        assert decode(await asyncio.to_thread(fetched, url)) == CONTENT[0]
        policy = TransportPolicy(fragments=DirectFragments(allow_http=True))
        async with JournalClient(broker.address, policy=policy) as client:
            spans = [span.content async for span in client.reader(cloud.journal, block=False)]
            assert b"".join(spans) == b"".join(CONTENT)
            assert client.read_totals.direct_bytes == len(CONTENT[0]) + len(CONTENT[1])
            part = client.reader(cloud.journal, offset=1000, end_offset=1100, block=False)
            assert b"".join([each.content async for each in part]) == b"".join(CONTENT)[1000:1100]
            assert client.read_totals.direct_bytes == len(CONTENT[0]) + len(CONTENT[1]) + 100
        health = FragmentStoreHealthRequest(fragment_store=cloud.store, check_delete=True)
        assert (await stub.FragmentStoreHealth(health)).store_health_error == ""

    config = BrokerConfig(data_dir=tmp_path / "empty", cloud_stores=(cloud.permitted,))
    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, spec_of(codec, cloud.store, cloud.journal))
        assert (await read(stub, cloud.journal)).content == b"".join(CONTENT[:2])
        assert (await append(stub, cloud.journal, b"!")).status == Status.INDEX_HAS_GREATER_OFFSET


@pytest.mark.parametrize("cloud", [pytest.param("azure", marks=pytest.mark.azurite)], indirect=True)
async def test_journal_whose_name_azure_cannot_sign_is_read_through_the_broker(
    tmp_path: Path, cloud: _Cloud
) -> None:
    """A URL that Azure refuses would cost each reader a call."""
    config = BrokerConfig(data_dir=tmp_path / "b", cloud_stores=(cloud.permitted,))
    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, spec_of(CompressionCodec.NONE, cloud.store))
        for content in CONTENT:
            await append(stub, JOURNAL, content)

        async def are_published() -> bool:
            response = await stub.ListFragments(
                FragmentsRequest(journal=JOURNAL, signatureTTL=Duration(seconds=60))
            )
            assert not any(each.signed_url for each in response.fragments)
            return sum(bool(each.spec.backing_store) for each in response.fragments) == 2

        await eventually(are_published)
        policy = TransportPolicy(fragments=DirectFragments(allow_http=True))
        async with JournalClient(broker.address, policy=policy) as client:
            spans = [span.content async for span in client.reader(JOURNAL, block=False)]
            assert b"".join(spans) == b"".join(CONTENT)
            assert client.read_totals.direct_bytes == 0


async def test_specs_reach_only_the_stores_that_the_operator_permits(moto_endpoint: str) -> None:
    """Specs come from clients, who must not use the broker's credentials anywhere else."""
    stores = FragmentStores(None, (f"s3://{BUCKET}/below/?endpoint={moto_endpoint}",))

    assert stores.at(f"s3://{BUCKET}/below/") is not None
    assert stores.at(f"s3://{BUCKET}/below/deeper/") is not None
    assert stores.at(f"s3://{BUCKET}/") is None
    assert stores.at("s3://other/below/") is None
    assert stores.at(f"gs://{BUCKET}/below/") is None
    assert stores.at(f"s3://{BUCKET}/below/?endpoint=http://elsewhere") is None
    assert stores.at("file:///below/") is None
    for inside in ("../", "%2e%2e/", "a/../../"):
        with pytest.raises(ValidationError, match="names between slashes"):
            stores.at(f"s3://{BUCKET}/below/{inside}")


@pytest.mark.parametrize("held_up", ["listing", "upload"])
async def test_store_that_never_answers_holds_up_no_stop(
    tmp_path: Path, held_up: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop is bounded, whatever a network does."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    taken, ended = asyncio.Event(), asyncio.Event()
    nothing = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        # The client may keep the connection for what follows.
        while held_up == "upload" and head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(nothing) + nothing)
            head = await reader.readuntil(b"\r\n\r\n")
        taken.set()
        await ended.wait()
        writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        group.start_soon(take(reader, writer), name="answer")

    async with TaskGroup() as group, await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        permitted = config_of(tmp_path / "b", f"http://{host}:{port}")
        config = dataclasses.replace(permitted, stop_grace_seconds=1.0)
        async with Broker(config) as broker, broker_stub(broker.address) as stub:
            await apply_specs(stub, spec_of(CompressionCodec.NONE))

            async def append_all() -> None:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    for each in CONTENT:
                        await append(stub, JOURNAL, each)

            appends = group.start_soon(append_all(), name="appends")
            await taken.wait()
            # The store would take five minutes to fail, and then be tried again.
            await asyncio.wait_for(broker.stop(), timeout=STOP_SECONDS_MAX)
            await appends
        ended.set()


async def test_cloud_without_its_library_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The extra is optional, and a start must not seem to work without it."""
    monkeypatch.setitem(sys.modules, "obstore", None)

    with pytest.raises(ExtraMissingError, match=r"\(the extra `stores`\): pip install "):
        FragmentStores(None, (STORE,))


async def test_bucket_that_is_missing_is_told_and_holds_up_no_start(
    tmp_path: Path, moto_endpoint: str, s3: Any
) -> None:
    """A misspelt bucket is an operator's mistake: the health of the store names it."""
    del s3
    config = BrokerConfig(
        data_dir=tmp_path / "b",
        cloud_stores=(f"s3://nowhere/?endpoint={moto_endpoint}&region={REGION}",),
    )
    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        request = FragmentStoreHealthRequest(fragment_store="s3://nowhere/")
        response = await stub.FragmentStoreHealth(request)

        assert response.status == Status.FRAGMENT_STORE_UNHEALTHY
        assert "nowhere" in response.store_health_error
        assert "Debug source" not in response.store_health_error
