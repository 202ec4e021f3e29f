"""Fragments in stores: what is published, what readers are told of it, and who may be sent where."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest
from google.protobuf.duration_pb2 import Duration

from broadsheet.allocator.errors import ValidationError
from broadsheet.consumer.broker.config import BrokerConfig
from broadsheet.consumer.broker.fragments import STORED_SUFFIX
from broadsheet.consumer.broker.server import Broker
from broadsheet.consumer.protocol.journal_pb2 import (
    CompressionCodec,
    Fragment,
    FragmentsRequest,
    FragmentsResponse,
    FragmentStoreHealthRequest,
    JournalSpec,
    Status,
)
from tests.support.broker import append, apply_specs, broker_stub, journal_spec, read
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from broadsheet.consumer.protocol.journal_pb2_grpc import JournalAsyncStub

JOURNAL = "a/journal"
STORE = "file:///store/"
FRAGMENT_BYTES = 1024
CONTENT = [letter * (FRAGMENT_BYTES + 1) for letter in (b"a", b"b", b"c")]


def stored_spec(
    name: str = JOURNAL, codec: int = CompressionCodec.NONE, store: str = STORE
) -> JournalSpec:
    """Return the spec of a journal whose fragments are published."""
    spec = journal_spec(name, length=FRAGMENT_BYTES)
    spec.fragment.compression_codec = CompressionCodec.ValueType(codec)
    spec.fragment.stores.append(store)
    return spec


def config_of(tmp_path: Path, **fields: Any) -> BrokerConfig:
    """Return the settings of a broker with a file root. `Any`: the fields differ in type."""
    (tmp_path / "root").mkdir(exist_ok=True)
    return BrokerConfig(data_dir=tmp_path / "b", file_root=tmp_path / "root", **fields)


@asynccontextmanager
async def running(config: BrokerConfig) -> AsyncIterator[JournalAsyncStub]:
    """Yield a stub of a broker that runs during the block."""
    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        yield stub


async def listed(stub: JournalAsyncStub, **fields: Any) -> FragmentsResponse:
    """Return the journal's fragments. `Any`: the fields differ in type."""
    return await stub.ListFragments(FragmentsRequest(journal=JOURNAL, **fields))


async def published(stub: JournalAsyncStub, count: int) -> list[Fragment]:
    """Return the journal's published fragments, once there are this many."""

    async def found() -> list[Fragment]:
        specs = [each.spec for each in (await listed(stub)).fragments if each.spec.backing_store]
        return specs if len(specs) == count else []

    return await eventually(found)


def objects(tmp_path: Path) -> list[Path]:
    """Return the files below the file root."""
    return sorted(path for path in (tmp_path / "root").rglob("*") if path.is_file())


def path_of(url: str) -> Path:
    """Return the path that a file URL names."""
    assert url.startswith("file:///")
    return Path(unquote(urlsplit(url).path))


@pytest.mark.parametrize("codec", [CompressionCodec.NONE, CompressionCodec.GZIP])
async def test_sealed_fragments_are_published_with_gazettes_layout_and_names(
    tmp_path: Path, codec: int
) -> None:
    """Gazette's own tools and readers find fragments by their paths, and verify their content by their names."""
    async with running(config_of(tmp_path)) as stub:
        await apply_specs(stub, stored_spec(codec=codec))
        for content in CONTENT:
            await append(stub, JOURNAL, content)
        fragments = await published(stub, 2)

        extension = ".gz" if codec == CompressionCodec.GZIP else ".raw"
        names = [
            f"{each.begin:016x}-{each.end:016x}-{hashlib.sha1(content, usedforsecurity=False).hexdigest()}{extension}"
            for each, content in zip(fragments, CONTENT[:2], strict=True)
        ]
        assert objects(tmp_path) == [tmp_path / "root" / "store" / JOURNAL / name for name in names]
        stored = [path.read_bytes() for path in objects(tmp_path)]
        if codec == CompressionCodec.GZIP:
            stored = [gzip.decompress(each) for each in stored]
        else:
            assert objects(tmp_path)[0].stat().st_nlink == 2, "a copy would take the disk's time"
        assert stored == CONTENT[:2]
        assert {each.backing_store for each in fragments} == {STORE}
        assert {each.compression_codec for each in fragments} == {codec}
        assert all(each.mod_time for each in fragments)


async def test_reader_that_follows_urls_is_told_where_to_get_a_published_fragment(
    tmp_path: Path,
) -> None:
    """History must cost the broker nothing but the answer; without the option, it is streamed as before."""
    async with running(config_of(tmp_path)) as stub:
        await apply_specs(stub, stored_spec())
        for content in CONTENT:
            await append(stub, JOURNAL, content)
        await published(stub, 2)

        got = await read(stub, JOURNAL, offset=3, do_not_proxy=True)
        assert (len(got.metadata), got.chunks) == (1, [])
        assert got.metadata[0].status == Status.OK
        assert got.metadata[0].offset == 3
        assert path_of(got.metadata[0].fragment_url).read_bytes() == CONTENT[0]

        proxied = await read(stub, JOURNAL, offset=3)
        assert proxied.content == b"".join(CONTENT)[3:]
        urls = [each.fragment_url != "" for each in proxied.metadata if each.status == Status.OK]
        assert urls == [True, True, False]

        tail = await read(stub, JOURNAL, offset=2 * len(CONTENT[0]), do_not_proxy=True)
        assert tail.content == CONTENT[2], "what is not published is streamed"


async def test_lists_have_urls_if_asked(tmp_path: Path) -> None:
    """A plan over a journal's history needs one call; without a lifetime, no URL is made."""
    async with running(config_of(tmp_path)) as stub:
        await apply_specs(stub, stored_spec())
        for content in CONTENT:
            await append(stub, JOURNAL, content)
        await published(stub, 2)

        response = await listed(stub, signatureTTL=Duration(seconds=60))

        found = [each.signed_url for each in response.fragments]
        assert [path_of(url).read_bytes() for url in found[:2]] == CONTENT[:2]
        assert found[2] == ""
        assert {each.signed_url for each in (await listed(stub)).fragments} == {""}


async def test_without_a_file_root_every_store_means_the_data_directory(tmp_path: Path) -> None:
    """Installations from before stores must not begin to publish."""
    async with running(BrokerConfig(data_dir=tmp_path / "b")) as stub:
        await apply_specs(stub, stored_spec())
        for content in CONTENT:
            await append(stub, JOURNAL, content)

        fragments = (await listed(stub, signatureTTL=Duration(seconds=60))).fragments

        assert {each.spec.backing_store + each.signed_url for each in fragments} == {""}
        assert not list((tmp_path / "b").rglob(f"*{STORED_SUFFIX}"))


@pytest.mark.parametrize("root", ["b/root", "b", "."])
async def test_file_root_that_overlaps_the_data_is_refused(tmp_path: Path, root: str) -> None:
    """Specs name paths below the root, so those who may apply specs could overwrite the broker's files."""
    (tmp_path / "b" / "root").mkdir(parents=True)

    with pytest.raises(ValidationError, match="apart from the data"):
        BrokerConfig(data_dir=tmp_path / "b", file_root=tmp_path / root)


async def test_symbolic_link_below_the_file_root_is_not_followed(tmp_path: Path) -> None:
    """Whoever may write to the store must not have the broker write elsewhere; appends go on."""
    outside = tmp_path / "outside"
    outside.mkdir()
    config = config_of(tmp_path)
    (tmp_path / "root" / "store").symlink_to(outside)
    async with running(config) as stub:
        await apply_specs(stub, stored_spec())
        for content in CONTENT:
            await append(stub, JOURNAL, content)

        async def unhealthy() -> str:
            request = FragmentStoreHealthRequest(fragment_store=STORE)
            return (await stub.FragmentStoreHealth(request)).store_health_error

        assert "symbolic links are not followed" in await eventually(unhealthy)
        assert list(outside.iterdir()) == []
        assert (await read(stub, JOURNAL)).content == b"".join(CONTENT)


async def test_journal_name_of_dots_is_not_published(tmp_path: Path) -> None:
    """Names may begin with `../`, as with Gazette's brokers: they must not lead out of the store."""
    name = "../journal"
    async with running(config_of(tmp_path)) as stub:
        await apply_specs(stub, stored_spec(name))
        for content in CONTENT:
            await append(stub, name, content)

        async def unhealthy() -> str:
            request = FragmentStoreHealthRequest(fragment_store=STORE)
            return (await stub.FragmentStoreHealth(request)).store_health_error

        assert "expected names between slashes" in await eventually(unhealthy)
        assert [each.name for each in objects(tmp_path)] == ["health-check"]
        assert (await read(stub, name)).content == b"".join(CONTENT)
