"""The embedded broker: the program that appends to journals, and what each disk must hold.

A broker starts on it; no journal is behind what was acknowledged or told as its head; every byte that it serves is the
one that was appended there, for each offset has bytes of its own; and appends go on where it ends. If each append is
synced, every byte up to the head is served; else the head passes every offset that was shown.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from broadsheet.broker import data_root
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.journals.client import JournalClient
from broadsheet.wire.journal_pb2 import ApplyRequest
from tests.support.broker import journal_spec

APPENDS_MAX: Final = 16
FRAGMENT_BYTES: Final = 1 << 18
JOURNALS: Final = ("power/one", "power/two")
LINE_BYTES: Final = 16
_SIZES: Final = (1, 1, 3, 10, 200, 4_000, 12_000)
"""Of appends, in lines: most travel in the log's records; the longest are longer than a record may be."""
_SAID: Final = re.compile(r"(restored|begins|appended) (\S+) (\d+)")


def lines_of(begin: int, count: int) -> bytes:
    """Return the content of a journal from an offset on: lines that name their offsets."""
    return b"".join(b"%015d\n" % (begin + LINE_BYTES * each) for each in range(count))


def main(arguments: Sequence[str]) -> None:
    """Start a broker, and append: DIRECTORY DURABILITY SEED APPENDS."""
    directory, durability, seed, appends = arguments
    try:
        asyncio.run(_live(Path(directory), durability, Random(seed), int(appends)))
    except OSError as error:  # A sync of its start was made to fail.
        if error.errno != errno.EIO:
            raise


async def _live(directory: Path, durability: str, random: Random, appends: int) -> None:
    async with (
        EmbeddedBroker(directory / "broker", durability=durability) as broker,
        JournalClient(broker.address) as client,
    ):
        heads: dict[str, int] = {}
        for name in JOURNALS:
            if not (await _names(client)) & {name}:
                spec = journal_spec(name, length=FRAGMENT_BYTES)
                await client.apply([ApplyRequest.Change(upsert=spec)])
            heads[name] = await client.write_head(name)
            print("restored", name, heads[name], flush=True)
        for _ in range(appends):
            name, lines = random.choice(JOURNALS), random.choice(_SIZES)
            head = heads[name]
            print("begins", name, head + LINE_BYTES * lines, flush=True)
            try:
                # Once: an append of which it is not known whether it landed is the next life's to find.
                answer = await client.append(name, lines_of(head, lines), offset=head, retry=False)
            except (
                Exception
            ) as error:  # A sync was made to fail: whatever a client then gets ends this life.
                print("failed", type(error).__name__, flush=True)
                os._exit(0)
            heads[name] = answer.commit.end
            print("appended", name, heads[name], flush=True)


async def _names(client: JournalClient) -> set[str]:
    return {each.spec.name for each in (await client.list()).journals}


@dataclass(frozen=True, slots=True)
class PowerCutBroker:
    """A broker of one durability."""

    durability: str = "always"
    module: str = __name__

    @property
    def name(self) -> str:
        """Name, for people and for choosing."""
        return f"broker-{self.durability}"

    def arguments(self, root: Path, random: Random) -> Sequence[str]:
        """Return the arguments of one life."""
        return [
            str(root),
            self.durability,
            str(random.random()),
            str(random.randrange(APPENDS_MAX)),
        ]

    def check(self, image: Path, said: Sequence[str]) -> str:
        """Start a broker, and compare."""
        least, most = dict.fromkeys(JOURNALS, -1), dict.fromkeys(JOURNALS, 0)
        for line in said:
            if match := _SAID.fullmatch(line):
                bound = most if match[1] == "begins" else least
                bound[match[2]] = max(bound[match[2]], int(match[3]))
        if self.durability == "always":
            return asyncio.run(self._compare(image, least, most))
        with _another_boot(image):
            return asyncio.run(self._compare(image, least, None))

    async def _compare(
        self, image: Path, least: dict[str, int], most: dict[str, int] | None
    ) -> str:
        async with (
            EmbeddedBroker(image / "broker", durability=self.durability) as broker,
            JournalClient(broker.address) as client,
        ):
            names = await _names(client)
            for name in JOURNALS:
                if name not in names:
                    if least[name] >= 0:
                        return f"{name} is gone"
                    continue
                head = await client.write_head(name)
                if head < least[name]:
                    return f"{name} ends at {head}, and {least[name]} was promised"
                if most is not None and head > max(least[name], most[name]):
                    return f"{name} ends at {head}, and only {most[name]} was begun"
                if problem := await _wrong_bytes(client, name, head, is_whole=most is not None):
                    return problem
                await client.append(name, lines_of(head, 1), offset=head)
        return ""


async def _wrong_bytes(client: JournalClient, name: str, head: int, *, is_whole: bool) -> str:
    """Compare what a journal serves with what its offsets say."""
    served = 0
    async with client.reader(name, block=False) as reader:
        async for span in reader:
            first = span.offset // LINE_BYTES * LINE_BYTES
            expected = lines_of(first, -(-(span.end - first) // LINE_BYTES))
            if span.content != expected[span.offset - first : span.end - first]:
                return f"{name} serves wrong bytes in [{span.offset}, {span.end})"
            served += len(span.content)
    return f"{name} serves {served} bytes of {head}" if is_whole and served != head else ""


@contextmanager
def _another_boot(image: Path) -> Iterator[None]:
    """Have this process tell that the machine was started again, which is how a broker knows of a power cut."""
    before, data_root.BOOT_ID_FILE = data_root.BOOT_ID_FILE, image / "another-boot"
    try:
        data_root.BOOT_ID_FILE.write_text("another boot")
        yield
    finally:
        data_root.BOOT_ID_FILE = before
