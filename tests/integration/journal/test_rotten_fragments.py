"""Stored fragments whose bytes have changed at rest: a reader gets what was written, or an error with the place."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.server import Broker
from broadsheet.journals.block_sums import BLOCK_BYTES, BlockSums, StoredSums
from broadsheet.journals.client import JournalClient
from broadsheet.journals.direct_fragments import DirectFragments, FragmentOpener
from broadsheet.journals.errors import JournalDamagedError
from broadsheet.journals.fragment_content import SHORT_BYTES_MAX, WantedSpan
from broadsheet.journals.known_sums import KnownSumsCache
from broadsheet.journals.transport import TransportPolicy
from broadsheet.runtime.clock import SystemClock
from broadsheet.wire import journal_pb2 as pb
from broadsheet.wire.fragments_pb2 import FragmentSumsRequest
from broadsheet.wire.fragments_pb2_grpc import FragmentServiceStub
from tests.support.broker import journal_spec
from tests.support.eventually import eventually
from tests.support.scripted_broker import ScriptedBroker
from tests.support.stored_fragments import (
    ENCODERS,
    JOURNAL,
    StoredJournal,
    object_path,
    serving,
    web_store,
)

CODECS = (pb.NONE, pb.ZSTANDARD, pb.SNAPPY)
LENGTH = SHORT_BYTES_MAX + 700_000
"""Of a fragment that is delivered piece by piece."""
ROTTEN = LENGTH - 200_000
"""Offset of the byte that changes."""
BLOCK = ROTTEN - ROTTEN % BLOCK_BYTES


def _content() -> bytes:
    """Return bytes that compress, but not to nothing, and not to whole blocks."""
    words = random.Random(3).choices([b"alpha\n", b"beta\n", b"gamma gamma\n"], k=LENGTH // 4)
    return b"".join(words)[:LENGTH]


CONTENT = _content()
ROT = CONTENT[:ROTTEN] + bytes([CONTENT[ROTTEN] ^ 1]) + CONTENT[ROTTEN + 1 :]


@dataclass(frozen=True, slots=True)
class _Stored:
    """A broker's journal with one published fragment."""

    broker: Broker
    client: JournalClient
    """Reads files of the store directly."""
    fragment: pb.Fragment
    path: Path
    """The fragment's object."""
    root: Path

    def rot(self) -> None:
        """Change one byte of the content, and nothing of what a file system tells of the file."""
        before = self.path.stat()
        with self.path.open("r+b") as file:
            file.truncate(0)
            file.write(ENCODERS[self.fragment.compression_codec](ROT))
        os.utime(self.path, ns=(before.st_atime_ns, before.st_mtime_ns))


@asynccontextmanager
async def _stored(
    tmp_path: Path, codec: pb.CompressionCodec.ValueType = pb.NONE
) -> AsyncIterator[_Stored]:
    spec = journal_spec(JOURNAL, length=LENGTH - 1)
    spec.fragment.compression_codec = codec
    spec.fragment.stores.append("file:///")
    root = tmp_path / "root"
    root.mkdir()
    config = BrokerConfig(data_dir=tmp_path / "broker", file_root=root)
    policy = TransportPolicy(fragments=DirectFragments(roots=(root,), allow_http=True))
    async with Broker(config) as broker, JournalClient(broker.address, policy=policy) as client:
        await client.apply([pb.ApplyRequest.Change(upsert=spec, expect_mod_revision=-1)])
        await client.append(JOURNAL, CONTENT)
        await client.append(JOURNAL, b"tail\n")
        fragment = await eventually(lambda: _first_stored(client))
        assert fragment is not None
        yield _Stored(broker, client, fragment, root / object_path(fragment), root)


async def _first_stored(client: JournalClient) -> pb.Fragment | None:
    fragment = (await client.list_fragments(JOURNAL))[0].spec
    return fragment if fragment.backing_store else None


async def _read(
    client: JournalClient,
    begin: int = 0,
    end: int = LENGTH,
    stored: list[pb.FragmentsResponse.ListedFragment] | None = None,
) -> tuple[bytes, str]:
    """Return what a read delivers, and the error that ends it."""
    content = b""
    reader = client.reader(JOURNAL, offset=begin, end_offset=end, block=False, stored=stored or ())
    try:
        async for span in reader:
            content += span.content
    except JournalDamagedError as error:
        return content, str(error)
    finally:
        await reader.aclose()
    return content, ""


@pytest.mark.parametrize("codec", CODECS)
async def test_rot_in_a_file_that_was_read_before_is_not_delivered(
    codec: pb.CompressionCodec.ValueType, tmp_path: Path
) -> None:
    """Rot keeps inode, size and times: each read is verified, block by block, whatever was found sound before, and also
    if it ends inside the fragment.
    """
    async with _stored(tmp_path, codec) as stored:
        assert await _read(stored.client) == (CONTENT, "")
        stored.rot()
        whole = await _read(stored.client)
        inside = await _read(stored.client, 1000, ROTTEN + 1000)
        before = await _read(stored.client, 1000, BLOCK)
        totals = stored.client.read_totals

    for content, error in (whole, inside):
        assert f"bytes [{BLOCK}, {BLOCK + BLOCK_BYTES}) fail their checksum" in error
        assert content in (CONTENT[: len(content)], CONTENT[1000 : 1000 + len(content)])
        assert len(content) <= BLOCK, "what is delivered is what was written"
    assert before == (CONTENT[1000:BLOCK], "")
    assert totals.broker_bytes == 0


@pytest.mark.parametrize("codec", CODECS)
async def test_rot_in_an_object_of_a_web_store_is_not_delivered(
    codec: pb.CompressionCodec.ValueType, tmp_path: Path
) -> None:
    """The same over HTTP, where an uncompressed object is read by a range from its inside."""
    async with (
        _stored(tmp_path, codec) as stored,
        web_store(serving(stored.root)) as address,
    ):
        url = f"{address}/{object_path(stored.fragment)}"
        listed = [pb.FragmentsResponse.ListedFragment(spec=stored.fragment, signed_url=url)]
        sound = await _read(stored.client, 777, ROTTEN + 777, listed)
        stored.rot()
        whole = await _read(stored.client, stored=listed)
        inside = await _read(stored.client, BLOCK - 777, ROTTEN + 777, listed)
        beside = await _read(stored.client, BLOCK + BLOCK_BYTES, LENGTH, listed)
        totals = stored.client.read_totals

    assert sound == (CONTENT[777 : ROTTEN + 777], "")
    assert CONTENT.startswith(whole[0])
    assert "fail their checksum" in whole[1]
    assert CONTENT[BLOCK - 777 :].startswith(inside[0])
    assert "fail their checksum" in inside[1]
    # Compressed content is decoded from its beginning, but only what is wanted is judged.
    assert beside == (CONTENT[BLOCK + BLOCK_BYTES :], "")
    assert totals.broker_bytes == 0


@pytest.mark.parametrize("codec", CODECS)
async def test_rot_in_a_file_without_block_sums_is_found_before_it_is_used(
    codec: pb.CompressionCodec.ValueType, tmp_path: Path
) -> None:
    """Gazette's brokers know no checksums of blocks: a file is read once to compare its SHA-1, and later reads are
    compared with that one.
    """
    journal = StoredJournal(tmp_path, codec)
    path = journal.store(CONTENT)
    policy = TransportPolicy(fragments=DirectFragments(roots=(tmp_path,)))

    async with ScriptedBroker(on_read=journal.handler()) as broker:
        async with JournalClient(broker.address, policy=policy) as client:
            sound = await _read(client, 10, 2000)
            path.write_bytes(ENCODERS[codec](ROT))
            known = await _read(client, 10, ROTTEN + 10)
        async with JournalClient(broker.address, policy=policy) as client:
            fresh = await _read(client, 10, 2000)

    assert sound == (CONTENT[10:2000], "")
    assert CONTENT[10:].startswith(known[0])
    assert "fail their checksum" in known[1]
    assert fresh[0] == b"", "nothing is used of a file that was never sound"
    assert "its SHA-1 is" in fresh[1]


@pytest.mark.parametrize("codec", CODECS)
async def test_a_short_fragment_is_verified_whole_wherever_a_read_ends(
    codec: pb.CompressionCodec.ValueType, tmp_path: Path
) -> None:
    """Up to 1 MiB, nothing is asked of a broker: the fragment is compared with its SHA-1 before any of it is used."""
    short = CONTENT[:100_000]
    journal = StoredJournal(tmp_path, codec)
    path = journal.store(short)
    rotten = short[:-1] + b"?"

    async with web_store(serving(tmp_path)) as address:
        journal.url = lambda path: f"{address}/{path}"
        policy = TransportPolicy(fragments=DirectFragments(allow_http=True))
        async with (
            ScriptedBroker(on_read=journal.handler()) as broker,
            JournalClient(broker.address, policy=policy) as client,
        ):
            sound = await _read(client, 500, 1000)
            path.write_bytes(ENCODERS[codec](rotten))
            found = await _read(client, 500, 1000)

    assert sound == (short[500:1000], "")
    assert found[0] == b""
    assert "its SHA-1 is" in found[1]


async def test_a_broker_tells_the_sums_of_its_fragments_alone(tmp_path: Path) -> None:
    """The sums are those of what was appended. One that the broker does not list is not to be read any more."""
    sums = BlockSums()
    sums.update(CONTENT)
    sums.settle()
    async with (
        _stored(tmp_path) as stored,
        grpc.aio.insecure_channel(stored.broker.address.removeprefix("http://")) as channel,
    ):
        stub = FragmentServiceStub(channel)
        whole = await stub.FragmentSums(
            FragmentSumsRequest(journal=JOURNAL, fragment=stored.fragment)
        )
        rest = await stub.FragmentSums(
            FragmentSumsRequest(journal=JOURNAL, fragment=stored.fragment, first_block=5)
        )
        other = pb.Fragment(begin=0, end=LENGTH, sum=pb.SHA1Sum(part1=1))
        unknown = await stub.FragmentSums(FragmentSumsRequest(journal=JOURNAL, fragment=other))

    assert (whole.status, whole.known, whole.block_bytes) == (pb.OK, True, BLOCK_BYTES)
    assert whole.sums == sums.encoded()
    assert rest.sums == sums.encoded()[5 * 8 :]
    assert (unknown.status, unknown.known, unknown.sums) == (pb.OK, False, b"")


async def _no_sums(fragment: pb.Fragment) -> StoredSums | None:
    """Answer as a broker does that knows no checksums."""
    del fragment
    return None


def _open_files() -> int:
    """Return how many descriptors of fragments this process has."""
    found = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    return sum(path.endswith(".raw") for path in found)


async def test_a_fragment_that_is_opened_and_not_read_is_closed(tmp_path: Path) -> None:
    """A reader that ends right after it has opened a file: thousands of those would leave no descriptor for others."""
    async with _stored(tmp_path) as stored:
        policy = DirectFragments(roots=(stored.root,))
        opener = FragmentOpener(policy, SystemClock(), KnownSumsCache(_no_sums))
        wanted = WantedSpan(stored.fragment, stored.path.as_uri(), 0, LENGTH)
        before = _open_files()
        for _ in range(20):
            (await opener.open(wanted)).close()
        after = _open_files()
        await opener.close()

    assert after <= before


async def test_the_copy_in_a_file_store_shares_nothing_with_the_brokers_own(tmp_path: Path) -> None:
    """A bad sector of the broker's file leaves the store's copy sound, from which the broker heals its own."""
    async with _stored(tmp_path) as stored:
        [own] = (tmp_path / "broker").rglob(f"*{stored.path.name}")
        with own.open("r+b") as file:
            file.seek(ROTTEN)
            file.write(ROT[ROTTEN : ROTTEN + 1])

        assert stored.path.read_bytes() == CONTENT
        async with JournalClient(stored.broker.address) as plain:
            assert await _read(plain) == (CONTENT, "")
        assert own.read_bytes() == CONTENT
