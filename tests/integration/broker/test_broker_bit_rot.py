"""Bits that flip on the disk: they are an error with journal, fragment and offsets, and never content."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from structlog.testing import capture_logs

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.disk import Disk
from broadsheet.broker.quarantine import JournalQuarantine
from broadsheet.broker.server import Broker
from broadsheet.journals.block_sums import BLOCK_BYTES, sums_path
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import JournalDamagedError
from tests.support.broker import append, apply_specs, broker_stub, journal_spec, read
from tests.support.eventually import eventually
from tests.support.shardctl_runs import shardctl

JOURNAL = "a/journal"
CONTENT = b"".join(b"%07d\n" % number for number in range(12_000))
"""Of a sealed fragment: six blocks."""


async def _sealed(directory: Path) -> Path:
    """Make a root with a sealed fragment, and one byte behind it; return the fragment."""
    async with (
        Broker(BrokerConfig(data_dir=directory)) as broker,
        broker_stub(broker.address) as stub,
    ):
        await apply_specs(stub, journal_spec(JOURNAL, length=1024))
        await append(stub, JOURNAL, CONTENT)
        await append(stub, JOURNAL, b"!")
    return _only(directory, "*.raw")


def _only(directory: Path, pattern: str) -> Path:
    """Return the one file below a directory that fits a pattern."""
    (path,) = directory.rglob(pattern)
    return path


def _flip(path: Path, position: int) -> None:
    """Flip a bit in place, as a disk does: no time of the file changes that anybody could go by."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << (position % 8)
    with path.open("r+b") as file:
        file.write(content)


async def test_flip_in_a_sealed_fragment_is_an_error_at_its_offset(tmp_path: Path) -> None:
    """Whatever block is hit, what is before it is served, the rest is an error, and other readers go on behind it."""
    fragment = await _sealed(tmp_path)
    async with (
        Broker(BrokerConfig(data_dir=tmp_path)) as broker,
        JournalClient(broker.address) as client,
    ):
        for position in range(1000, len(CONTENT), BLOCK_BYTES):
            begin = position // BLOCK_BYTES * BLOCK_BYTES
            end = min(begin + BLOCK_BYTES, len(CONTENT))
            _flip(fragment, position)
            got = bytearray()
            with pytest.raises(JournalDamagedError) as caught:
                async for span in client.reader(JOURNAL, offset=500):
                    got += span.content
            behind = [
                span.content async for span in client.reader(JOURNAL, offset=end, block=False)
            ]
            _flip(fragment, position)

            assert bytes(got) == CONTENT[500:begin]
            assert b"".join(behind) == CONTENT[end:] + b"!"
            assert f"journal {JOURNAL}: bytes [{begin}, {end})" in str(caught.value)
            assert f"fragment [0, {len(CONTENT)})" in str(caught.value)


@pytest.mark.parametrize("sums", ["present", "missing"])
async def test_short_sealed_fragment_is_damage_and_no_fault_of_the_broker(
    tmp_path: Path, sums: str
) -> None:
    """A file that was cut while the broker runs: what is left is served, then an error with fragment and remedy. Reads
    log nothing, because readers ask again and again.
    """
    fragment = await _sealed(tmp_path)
    if sums == "missing":
        sums_path(fragment).unlink()
    kept = BLOCK_BYTES + 5
    async with (
        Broker(BrokerConfig(data_dir=tmp_path)) as broker,
        JournalClient(broker.address) as client,
    ):
        await client.list_fragments(JOURNAL)  # which opens the journal
        with fragment.open("r+b") as file:
            file.truncate(kept)
        with capture_logs() as logs:
            for offset in (0, kept + 1):
                got = bytearray()
                with pytest.raises(JournalDamagedError) as caught:
                    async for span in client.reader(JOURNAL, offset=offset):
                        got += span.content
                text = str(caught.value)
                assert f"fragment [0, {len(CONTENT)})" in text
                assert f"shardctl journals verify {JOURNAL} --discard-damaged" in text
                assert CONTENT.startswith(got)
        line = f"shardctl journals verify {JOURNAL} --discard-damaged --broker {broker.address}"
        discarded = await asyncio.to_thread(shardctl, line)
        left = [(each.offset, each.content) async for each in client.reader(JOURNAL, block=False)]

    assert [log for log in logs if log["event"] == "rpc.failed"] == []
    assert discarded.status == 0
    if sums == "present":
        assert left == [(0, CONTENT[:BLOCK_BYTES]), (len(CONTENT), b"!")]
    else:
        # Without sums nothing tells which bytes are sound.
        assert left == [(len(CONTENT), b"!")]


@pytest.mark.parametrize("sums", ["missing", "damaged", "of others"])
async def test_fragment_without_good_sums_is_judged_by_its_name(tmp_path: Path, sums: str) -> None:
    """Fragments of earlier versions have no sums, and sums may rot, too: the SHA-1 decides, once for all readers."""
    fragment = await _sealed(tmp_path)
    if sums == "missing":
        sums_path(fragment).unlink()
    elif sums == "damaged":
        _flip(sums_path(fragment), 30)
    else:
        whole = sums_path(fragment).read_bytes()
        sums_path(fragment).write_bytes(whole[:-8] + bytes(8))
    async with (
        Broker(BrokerConfig(data_dir=tmp_path)) as broker,
        broker_stub(broker.address) as stub,
    ):
        got = await asyncio.gather(*(read(stub, JOURNAL) for _ in range(3)))
        assert {each.content for each in got} == {CONTENT + b"!"}
        made = sums_path(fragment).stat().st_size
        sums_path(fragment).unlink()
        _flip(fragment, len(CONTENT) - 1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(stub, JOURNAL)
    assert made > len(CONTENT) // BLOCK_BYTES * 8
    # Without sums nothing tells which bytes are bad.
    assert f"bytes [0, {len(CONTENT)})" in str(caught.value.details())


async def test_flip_in_the_open_fragment_is_an_error(tmp_path: Path) -> None:
    """What is not sealed yet is verified, too, by the sums of what was appended; small reads at the tail as well."""
    async with (
        Broker(BrokerConfig(data_dir=tmp_path)) as broker,
        broker_stub(broker.address) as stub,
        JournalClient(broker.address) as client,
    ):
        await apply_specs(stub, journal_spec(JOURNAL))
        for begin in range(0, len(CONTENT), 9_999):
            await append(stub, JOURNAL, CONTENT[begin : begin + 9_999])
        assert (await read(stub, JOURNAL)).content == CONTENT
        path = _only(tmp_path, "*.open")
        for position in (0, BLOCK_BYTES, len(CONTENT) - 1):
            _flip(path, position)
            with pytest.raises(JournalDamagedError):
                async for _ in client.reader(JOURNAL, offset=position):
                    pass
            _flip(path, position)
        assert (await read(stub, JOURNAL)).content == CONTENT


async def test_verify_finds_and_discards_what_is_damaged(tmp_path: Path) -> None:
    """An operator finds the bad block, gives it up, and readers jump over it; nothing else of the fragment is lost."""
    fragment = await _sealed(tmp_path)
    bad = BLOCK_BYTES, 2 * BLOCK_BYTES
    _flip(fragment, BLOCK_BYTES + 5)
    async with Broker(BrokerConfig(data_dir=tmp_path)) as broker:
        line = f"shardctl journals verify {JOURNAL} --broker {broker.address}"
        found = await asyncio.to_thread(shardctl, line)
        discarded = await asyncio.to_thread(shardctl, f"{line} --discard-damaged")
        again = await asyncio.to_thread(shardctl, line)
        async with JournalClient(broker.address) as client:
            got = {each.offset: each.content async for each in client.reader(JOURNAL, block=False)}
    async with (
        Broker(BrokerConfig(data_dir=tmp_path)) as broker,
        broker_stub(broker.address) as stub,
    ):
        later = await append(stub, JOURNAL, b"?")
        content = (await read(stub, JOURNAL)).content

    assert (found.status, discarded.status, again.status) == (1, 0, 0)
    assert f"bytes [{bad[0]}, {bad[1]}) are damaged" in found.stderr
    assert sorted(got) == [0, bad[1], len(CONTENT)]
    assert content == CONTENT[: bad[0]] + CONTENT[bad[1] :] + b"!?"
    assert later.commit.begin == len(CONTENT) + 1
    (kept,) = JournalQuarantine(Disk(), tmp_path).entries()
    assert (kept.reason.journal, kept.bytes) == (JOURNAL, len(CONTENT))


async def test_background_pass_finds_damage_that_nobody_reads(tmp_path: Path) -> None:
    """Rot in old fragments is counted while a backup still has them, also in journals that nobody opened."""
    fragment = await _sealed(tmp_path)
    _flip(fragment, 3)
    config = BrokerConfig(
        data_dir=tmp_path, scrub_delay_seconds=0.0, scrub_bytes_per_second=1 << 40
    )
    async with Broker(config) as broker:

        def value(name: str) -> float:
            return broker.registry.get_sample_value(f"broadsheet_broker_{name}") or 0.0

        await eventually(lambda: value("scrub_completed_timestamp_seconds"))
        assert value("damaged_fragments") == 1
        assert value("scrubbed_bytes_total") == len(CONTENT)
