"""Appends whose answers are lost, and copies that arrive when others have long landed: what stands behind what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest

from broadsheet.journals.append_fence import WriterEpochRegister
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.errors import RegisterMismatchError
from broadsheet.testing.allocator.kernel.network import Link
from broadsheet.testing.allocator.kernel.virtual_loop import VirtualClock, run_virtual, running_loop
from broadsheet.testing.shards.broker import MemoryBroker
from broadsheet.testing.shards.channels import SimulatedChannels
from broadsheet.wire.journal_pb2 import AppendRequest, JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, label_set, values_of

# Many runs a test: on a busy machine they take their time.
pytestmark = pytest.mark.timeout(900)

JOURNAL = "some/journal"
APPENDS = 12
LATE_SECONDS = 30.0


def _broker() -> MemoryBroker:
    broker = MemoryBroker()
    broker.create(JournalSpec(name=JOURNAL, labels=label_set((CONTENT_TYPE, NDJSON))))
    return broker


def _client(broker: MemoryBroker, link: Link) -> JournalClient:
    channels = SimulatedChannels(broker, link)
    return JournalClient(
        channels.default_endpoint, channels=channels, clock=VirtualClock(running_loop())
    )


def _numbers_after(seed: int, *, fenced: bool) -> Sequence[int]:
    """Append numbers one by one over a bad connection; return what stands in the journal when all have arrived."""

    async def append() -> bytes:
        random = Random(seed)
        broker = _broker()
        register = WriterEpochRegister.of("writer", random.randbytes)
        link = Link(random, loss=0.3, late=0.3)
        async with (
            _client(broker, link) as client,
            AppendService(client, copies=register if fenced else None) as service,
        ):
            for number in range(APPENDS):
                await asyncio.wrap_future(service.append(JOURNAL, f"{number}\n".encode()))
            await asyncio.sleep(LATE_SECONDS)
        return bytes(broker.journals[JOURNAL].content)

    return [int(line) for line in run_virtual(append()).splitlines()]


def _is_in_order(numbers: Sequence[int]) -> bool:
    return all(before <= after for before, after in pairwise(numbers))


def test_no_copy_lands_behind_what_was_appended_after_it() -> None:
    """A third of all messages is lost, another comes late: each number stands there at least once, and none of its
    copies behind the next number.
    """
    for seed in range(40):
        numbers = _numbers_after(seed, fenced=True)

        assert set(numbers) == set(range(APPENDS)), f"seed {seed}: {numbers}"
        assert _is_in_order(numbers), f"seed {seed}: {numbers}"


def test_copies_do_land_behind_others_where_nothing_keeps_them_out() -> None:
    """What the test above is about does happen: without a register most courses end out of order."""
    courses = [_numbers_after(seed, fenced=False) for seed in range(40)]

    assert sum(not _is_in_order(numbers) for numbers in courses) > 10


def test_appends_that_are_answered_set_no_registers() -> None:
    """A journal whose brokers answer holds nothing that would be replicated with every append."""

    async def append() -> int:
        broker = _broker()
        register = WriterEpochRegister.of("writer", Random(1).randbytes)
        async with (
            _client(broker, Link(Random(1))) as client,
            AppendService(client, copies=register) as service,
        ):
            for _ in range(3):
                await asyncio.wrap_future(service.append(JOURNAL, b"1\n"))
        return len(broker.journals[JOURNAL].registers.labels)

    assert run_virtual(append()) == 0


def test_writer_goes_on_where_an_earlier_one_of_its_name_changed_the_register() -> None:
    """A primary whose predecessor was in doubt finds a register that it did not set: it learns it, and appends."""

    async def append() -> tuple[bytes, list[str]]:
        broker = _broker()
        register = WriterEpochRegister.of("writer", Random(1).randbytes)
        left = label_set((register.name, "of-another"), ("author", "somebody"))
        broker.append(AppendRequest(journal=JOURNAL, union_registers=left), b"0\n")
        async with (
            _client(broker, Link(Random(1))) as client,
            AppendService(client, copies=register) as service,
        ):
            await asyncio.wrap_future(service.append(JOURNAL, b"1\n"))
        journal = broker.journals[JOURNAL]
        return bytes(journal.content), values_of(journal.registers, register.name)

    assert run_virtual(append()) == (b"0\n1\n", ["of-another"])


def test_writer_in_doubt_gives_up_when_another_of_its_name_changes_the_register() -> None:
    """Then nobody can tell whether the append has landed: the attempt ends, and the next one publishes again."""

    async def append() -> bytes:
        broker = _broker()
        register = WriterEpochRegister.of("writer", Random(1).randbytes)
        link = Link(Random(1))
        async with (
            _client(broker, link) as client,
            AppendService(client, copies=register) as service,
        ):
            link.loss = 1.0
            appended = service.append(JOURNAL, b"1\n")
            await asyncio.sleep(1.0)
            other = label_set((register.name, "of-another"))
            broker.append(AppendRequest(journal=JOURNAL, union_registers=other), b"2\n")
            link.loss = 0.0
            with pytest.raises(RegisterMismatchError):
                await asyncio.wrap_future(appended)
        return bytes(broker.journals[JOURNAL].content)

    assert run_virtual(append()) == b"2\n"
