"""Fragments in stores: what is published, what readers are told of it, and who may be sent where."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.disk import Disk
from broadsheet.broker.fragment_stores import FileStore
from broadsheet.broker.fragments import FETCHED_SUFFIX, STORED_SUFFIX
from broadsheet.broker.server import Broker
from broadsheet.broker.stored_lineage import decode_stored_lineage
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.guard import Present, RememberedOffset, present_epoch, standing
from broadsheet.runtime.errors import ServiceError, ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.identity_pb2 import JournalIdentity
from broadsheet.wire.journal_pb2 import (
    ApplyRequest,
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
    from broadsheet.wire.journal_pb2_grpc import JournalAsyncStub

JOURNAL = "a/journal"
STORE = "file:///store/"
LINEAGE = ".lineage"
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
    """Return the files below the file root; not those that say what a journal is."""
    found = (path for path in (tmp_path / "root").rglob("*") if path.is_file())
    return sorted(path for path in found if path.name != LINEAGE)


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
            assert objects(tmp_path)[0].stat().st_nlink == 1, "a bad sector would ruin both copies"
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
    async with running(config_of(tmp_path)) as stub:
        await apply_specs(stub, stored_spec())
        await append(stub, JOURNAL, CONTENT[0])
        (tmp_path / "root" / "store").symlink_to(outside)
        for content in CONTENT[1:]:
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


@pytest.mark.parametrize(
    "codec",
    [
        CompressionCodec.NONE,
        CompressionCodec.GZIP,
        CompressionCodec.ZSTANDARD,
        CompressionCodec.SNAPPY,
    ],
)
async def test_broker_starts_from_its_store_on_an_empty_disk(tmp_path: Path, codec: int) -> None:
    """A lost disk costs the open fragment alone; nothing is appended until an operator has accepted that."""
    async with running(config_of(tmp_path)) as stub:
        await apply_specs(stub, stored_spec(codec=codec))
        for content in CONTENT:
            await append(stub, JOURNAL, content)
        await published(stub, 2)
    (tmp_path / "b").rename(tmp_path / "lost")
    kept = b"".join(CONTENT[:2])

    async with running(config_of(tmp_path)) as stub:
        await apply_specs(stub, stored_spec(codec=codec))

        assert (await read(stub, JOURNAL)).content == kept
        assert (await read(stub, JOURNAL, offset=FRAGMENT_BYTES)).content == kept[FRAGMENT_BYTES:]
        assert [each.backing_store for each in await published(stub, 2)] == [STORE, STORE]
        refused = await append(stub, JOURNAL, b"new")
        assert refused.status == Status.INDEX_HAS_GREATER_OFFSET
        accepted = await append(stub, JOURNAL, b"new", offset=len(kept))
        assert (accepted.status, accepted.commit.begin) == (Status.OK, len(kept))

    async with running(config_of(tmp_path)) as stub:
        assert (await read(stub, JOURNAL)).content == kept + b"new"
        assert (await append(stub, JOURNAL, b"!")).commit.begin == len(kept) + 3


async def test_fragments_beyond_the_local_bound_are_read_from_the_store(tmp_path: Path) -> None:
    """A small disk keeps the newest; what was removed is served and survives restarts all the same."""
    config = config_of(tmp_path, local_fragment_bytes_max=FRAGMENT_BYTES, spare_bytes_max=0)

    def local() -> list[Path]:
        return list((tmp_path / "b").rglob("*.raw"))

    async with running(config) as stub:
        await apply_specs(stub, stored_spec(codec=CompressionCodec.GZIP))
        for content in CONTENT:
            await append(stub, JOURNAL, content)
        await published(stub, 2)
        await eventually(lambda: len(local()) == 1)

        assert (await read(stub, JOURNAL)).content == b"".join(CONTENT)

    async with running(config) as stub:
        assert (await read(stub, JOURNAL)).content == b"".join(CONTENT)
        assert (await append(stub, JOURNAL, b"!")).commit.begin == len(b"".join(CONTENT))


def test_pipe_in_a_store_is_refused_at_once(tmp_path: Path) -> None:
    """Opening a pipe waits for its writer, and somebody who may write to the store could make one that has none."""
    (tmp_path / "store").mkdir()
    os.mkfifo(tmp_path / "store" / "object")

    with pytest.raises(OSError, match="object"):
        next(FileStore(tmp_path, "/store/").pieces("object"))


class _HeldDisk(Disk):
    """Syncs no fetched file while it is held."""

    def __init__(self) -> None:
        super().__init__(writes_durably=False)
        self.reached, self.released = threading.Event(), threading.Event()

    def sync_data(self, fd: int) -> None:
        """Wait, if the file is one that content was fetched into."""
        if Path(f"/proc/self/fd/{fd}").readlink().suffix == FETCHED_SUFFIX:
            self.reached.set()
            assert self.released.wait(60)
        super().sync_data(fd)


async def test_fetch_that_outlives_the_broker_leaves_no_file(tmp_path: Path) -> None:
    """Another broker may have the directory by then. What a kill leaves of a fetch, the next start removes."""
    config = config_of(tmp_path, local_fragment_bytes_max=FRAGMENT_BYTES, spare_bytes_max=0)
    config = replace(config, stop_grace_seconds=0.1)

    def files(pattern: str) -> list[Path]:
        return sorted((tmp_path / "b" / "journals").rglob(pattern))

    async def read_all() -> None:
        with suppress(grpc.aio.AioRpcError):
            await read(stub, JOURNAL)

    disk = _HeldDisk()
    async with (
        TaskGroup() as group,
        Broker(config, disk=disk) as broker,
        broker_stub(broker.address) as stub,
    ):
        await apply_specs(stub, stored_spec())
        for content in CONTENT:
            await append(stub, JOURNAL, content)
        await published(stub, 2)
        (left,) = await eventually(lambda: _one_of(files("*.raw")))
        group.start_soon(read_all(), name="read")
        await eventually(disk.reached.is_set)
        await broker.stop()
        disk.released.set()
        await eventually(lambda: not files(f".*{FETCHED_SUFFIX}"))
    # The first fragment was not brought back; a start seals what was open.
    assert left in files("*.raw")
    assert not [path for path in files("*.raw") if path.name.startswith("0" * 16)]

    killed = left.with_name(f".{left.name}.1{FETCHED_SUFFIX}")
    killed.write_bytes(b"half")
    async with running(config) as stub:
        assert (await read(stub, JOURNAL)).content == b"".join(CONTENT)
    assert not killed.exists()


def _one_of(found: list[Path]) -> list[Path]:
    return found if len(found) == 1 else []


async def test_upload_whose_record_is_missing_is_recorded_without_another(tmp_path: Path) -> None:
    """A kill between upload and record must neither lose the copy nor make a second one."""
    async with running(config_of(tmp_path)) as stub:
        await apply_specs(stub, stored_spec(codec=CompressionCodec.GZIP))
        for content in CONTENT:
            await append(stub, JOURNAL, content)
        await published(stub, 2)
    before = [path.stat().st_ino for path in objects(tmp_path)]
    for path in (tmp_path / "b").rglob(f"*{STORED_SUFFIX}"):
        path.unlink()
    # An upload that was cut short.
    partial = objects(tmp_path)[0].with_name(f".partial-{objects(tmp_path)[0].name}")
    partial.write_bytes(b"torn")

    async with running(config_of(tmp_path)) as stub:
        await published(stub, 3)

    after = [path.stat().st_ino for path in objects(tmp_path) if path != partial]
    assert after[:2] == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content[: len(content) // 2],
        lambda content: gzip.compress(gzip.decompress(content) + b"!"),
        lambda content: gzip.compress(b"x" * len(CONTENT[0])),
    ],
    ids=["flipped", "short", "long", "other"],
)
async def test_damaged_copy_is_data_loss_and_never_content(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    """What a store returns is believed only if it matches the SHA-1 in its name."""
    async with running(config_of(tmp_path)) as stub:
        await apply_specs(stub, stored_spec(codec=CompressionCodec.GZIP))
        for content in CONTENT:
            await append(stub, JOURNAL, content)
        await published(stub, 2)
    (tmp_path / "b").rename(tmp_path / "lost")
    first = objects(tmp_path)[0]
    first.write_bytes(damage(first.read_bytes()))

    async with running(config_of(tmp_path)) as stub:
        await apply_specs(stub, stored_spec(codec=CompressionCodec.GZIP))

        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await read(stub, JOURNAL)
        assert raised.value.code() == grpc.StatusCode.DATA_LOSS
        assert first.name in (raised.value.details() or "")
        second = await read(stub, JOURNAL, offset=len(CONTENT[0]))
        assert second.content == CONTENT[1]


async def test_damaged_local_file_is_replaced_by_its_copy(tmp_path: Path) -> None:
    """A flipped bit on the disk costs nothing as long as the store has the fragment."""
    async with running(config_of(tmp_path)) as stub:
        await apply_specs(stub, stored_spec(codec=CompressionCodec.GZIP))
        for content in CONTENT:
            await append(stub, JOURNAL, content)
        await published(stub, 2)
        first = min((tmp_path / "b").rglob("*.raw"))
        with first.open("r+b") as file:
            file.seek(7)
            file.write(b"!")

        assert (await read(stub, JOURNAL)).content == b"".join(CONTENT)
        assert first.read_bytes() == CONTENT[0]


async def test_store_that_cannot_be_reached_holds_up_no_append(tmp_path: Path) -> None:
    """Publishing goes on by itself when the store is back, and says until then what is missing."""
    async with running(config_of(tmp_path)) as stub:
        await apply_specs(stub, stored_spec())
        await append(stub, JOURNAL, CONTENT[0])
        (tmp_path / "root" / "store").write_bytes(b"in the way")
        for content in CONTENT[1:]:
            assert (await append(stub, JOURNAL, content)).status == Status.OK
        (tmp_path / "root" / "store").unlink()

        await published(stub, 2)

        response = await stub.FragmentStoreHealth(FragmentStoreHealthRequest(fragment_store=STORE))
        assert response.store_health_error == ""


async def test_deleted_fragments_leave_the_store_and_unknown_files_stay(tmp_path: Path) -> None:
    """Nothing that was removed on purpose may come back from the store; nothing else is touched there."""
    async with Broker(config_of(tmp_path)) as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, stored_spec())
        for content in CONTENT:
            await append(stub, JOURNAL, content)
        first, _ = await published(stub, 2)
        unknown = objects(tmp_path)[0].with_name("notes.txt")
        unknown.write_bytes(b"not a fragment")
        client = JournalClient(broker.address)
        async with client:
            await client.delete_fragments(JOURNAL, [first])

        # The deletion is recorded in a log that begins with a new fragment.
        await published(stub, 2)
        names = [path.name for path in objects(tmp_path)]
        assert (len(names), names[-1]) == (3, unknown.name)
        assert not names[0].startswith(f"{first.begin:016x}-")
    (tmp_path / "b").rename(tmp_path / "lost")

    async with running(config_of(tmp_path)) as stub:
        await apply_specs(stub, stored_spec())
        assert (await read(stub, JOURNAL)).content == b"".join(CONTENT[1:])


async def test_fragments_whose_removal_failed_wait_for_their_store_again(tmp_path: Path) -> None:
    """One is in the store, which cannot be reached; the other has yet to be published, and must not be forgotten."""
    store = tmp_path / "root" / "store"
    async with Broker(config_of(tmp_path)) as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, stored_spec())
        for content in CONTENT[:2]:
            await append(stub, JOURNAL, content)
        (first,) = await published(stub, 1)
        store.rename(tmp_path / "root" / "aside")
        store.write_bytes(b"in the way")
        for content in (CONTENT[2], CONTENT[0]):
            await append(stub, JOURNAL, content)
        second = (await listed(stub)).fragments[1].spec
        assert not second.backing_store

        async with JournalClient(broker.address) as client:
            with pytest.raises(ServiceError, match="store below the file root"):
                await client.delete_fragments(JOURNAL, [first, second])
        store.unlink()
        (tmp_path / "root" / "aside").rename(store)

        # The deletion that failed closed the newest one, too.
        stored = await published(stub, len(CONTENT) + 1)
        assert [each.begin for each in stored[:2]] == [first.begin, second.begin]


async def test_fragments_of_a_journal_with_a_longer_name_are_not_taken(tmp_path: Path) -> None:
    """Its folder is below this journal's, as a postfix would be: one journal must not show another's content."""
    inner = f"{JOURNAL}/inner"
    async with running(config_of(tmp_path)) as stub:
        await apply_specs(stub, stored_spec(inner))
        for content in CONTENT:
            await append(stub, inner, content)
        await eventually(lambda: len(objects(tmp_path)) == 2)

        await apply_specs(stub, stored_spec())

        assert (await append(stub, JOURNAL, b"first")).commit.begin == 0


async def test_postfix_of_the_spec_becomes_part_of_the_path(tmp_path: Path) -> None:
    """Tables over a store's folders find their partitions by such paths."""
    spec = stored_spec()
    action = '{{ .Spool.FirstAppendTime.Format "2006-01-02" }}'
    spec.fragment.path_postfix_template = f"date={action}/"
    async with running(config_of(tmp_path)) as stub:
        await apply_specs(stub, spec)
        for content in CONTENT[:2]:
            await append(stub, JOURNAL, content)
        (fragment,) = await published(stub, 1)

        day = datetime.fromtimestamp(fragment.mod_time, UTC).strftime("%Y-%m-%d")
        assert fragment.path_postfix == f"date={day}"
        assert objects(tmp_path)[0].parent == tmp_path / "root" / "store" / JOURNAL / f"date={day}"


def content_of(path: Path) -> bytes:
    """Return the content of a compressed object, which must match its name."""
    content = gzip.decompress(path.read_bytes())
    assert hashlib.sha1(content, usedforsecurity=False).hexdigest() in path.name
    return content


async def test_kill_while_fragments_are_published_loses_none_and_leaves_none_torn(
    tmp_path: Path,
) -> None:
    """An object with a final name is whole at any time, and what a kill interrupted is published after it."""
    (tmp_path / "root").mkdir()
    spec = stored_spec(codec=CompressionCodec.GZIP)
    random = Random(7)
    contents = [random.randbytes(300_000) for _ in range(6)]
    broker = EmbeddedBrokerProcess(
        tmp_path / "b", arguments=["--file-root", str(tmp_path / "root"), "--spare-bytes", "0"]
    )
    with broker:
        async with broker_stub(broker.address) as stub:
            await apply_specs(stub, spec)
            for content in contents:
                await append(stub, JOURNAL, content)
            await eventually(lambda: objects(tmp_path), interval_seconds=0.001)
        broker.kill()
        for path in objects(tmp_path):
            assert path.name.startswith(".partial-") or content_of(path) in contents
        broker.start()
        async with broker_stub(broker.address) as stub:
            fragments = await published(stub, len(contents))
            assert [each.begin for each in fragments] == [300_000 * n for n in range(6)]
            assert (await read(stub, JOURNAL)).content == b"".join(contents)
    found = [path for path in objects(tmp_path) if not path.name.startswith(".")]
    assert [content_of(path) for path in found] == contents


async def test_journal_that_is_created_again_begins_with_what_was_published(tmp_path: Path) -> None:
    """Gazette's rule: deletion leaves the store alone, and no offset ever means two contents."""
    async with running(config_of(tmp_path)) as stub:
        await apply_specs(stub, stored_spec())
        for content in CONTENT:
            await append(stub, JOURNAL, content)
        await published(stub, 2)
        deletion = ApplyRequest.Change(expect_mod_revision=-1, delete=JOURNAL)
        await stub.Apply(ApplyRequest(changes=[deletion]))

        await apply_specs(stub, stored_spec())

        assert (await read(stub, JOURNAL)).content == b"".join(CONTENT[:2])
        refused = await append(stub, JOURNAL, b"new")
        assert refused.status == Status.INDEX_HAS_GREATER_OFFSET


async def identity_of(address: str) -> JournalIdentity:
    """Return what readers are told of the journal's content."""
    async with JournalClient(address) as journals:
        identity = (await journals.present(JOURNAL)).identity
    assert identity is not None
    return identity


async def test_broker_on_an_empty_disk_goes_on_with_the_lineage_of_its_store(
    tmp_path: Path,
) -> None:
    """A lost disk is a loss of what no store had, and of nothing else: who read no further reads on."""
    config = config_of(tmp_path)
    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, stored_spec())
        for content in CONTENT:
            await append(stub, JOURNAL, content)
        await published(stub, 2)
        before = await identity_of(broker.address)
    shutil.rmtree(config.data_dir)

    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, stored_spec())
        after = await identity_of(broker.address)

    end_stored = 2 * (FRAGMENT_BYTES + 1)
    assert after.incarnation == before.incarnation
    assert list(after.epochs[:-1]) == list(before.epochs)
    remembered = present_epoch(before)
    assert remembered is not None
    present = Present(end_stored, after)
    assert standing(end_stored, remembered, present) is RememberedOffset.SAME
    assert standing(end_stored + 1, remembered, present) is not RememberedOffset.SAME


async def test_opening_is_in_the_store_before_anything_is_appended(tmp_path: Path) -> None:
    """Who reads nothing but the end after a restart remembers that restart's epoch: the store must know of it."""
    config = config_of(tmp_path)
    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, stored_spec())
        for content in CONTENT:
            await append(stub, JOURNAL, content)
        await published(stub, 2)
    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        restarted = await identity_of(broker.address)
        file = tmp_path / "root" / "store" / JOURNAL / LINEAGE
        await eventually(
            lambda: decode_stored_lineage(file.read_bytes()).lineage.message() == restarted
        )


async def test_fragments_of_others_are_not_taken_for_the_journals_own(tmp_path: Path) -> None:
    """A broker that knows no lineages published to the store in between: what was read before may not be there."""
    config = config_of(tmp_path)
    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, stored_spec())
        for content in CONTENT:
            await append(stub, JOURNAL, content)
        await published(stub, 2)
        before = await identity_of(broker.address)
    shutil.rmtree(config.data_dir)
    # As Gazette's broker would: it goes on at the end of what the store has.
    begin, content = 2 * (FRAGMENT_BYTES + 1), b"of another broker"
    digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    name = f"{begin:016x}-{begin + len(content):016x}-{digest}.raw"
    (tmp_path / "root" / "store" / JOURNAL / name).write_bytes(content)

    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, stored_spec())
        assert (await identity_of(broker.address)).incarnation != before.incarnation


async def test_lineage_that_cannot_be_stored_holds_fragments_back(tmp_path: Path) -> None:
    """A store that has content of an epoch and not the epoch would vouch for the wrong content later."""
    config = config_of(tmp_path)
    folder = tmp_path / "root" / "store" / JOURNAL
    # A directory in the object's place: the write fails.
    (folder / LINEAGE).mkdir(parents=True)
    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, stored_spec())
        for content in CONTENT:
            await append(stub, JOURNAL, content)
        health = FragmentStoreHealthRequest(fragment_store=STORE)

        async def is_told() -> bool:
            answer = await stub.FragmentStoreHealth(health)
            return "are not published" in answer.store_health_error

        await eventually(is_told)
        assert [path for path in objects(tmp_path) if JOURNAL in str(path)] == []
        (folder / LINEAGE).rmdir()
        await published(stub, 2)
