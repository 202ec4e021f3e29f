"""Checks the sums that shards published: every stream exactly once, with the right sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from broadsheet.examples.stream_sum.messages import SUM_JOURNALS, SUMS, StreamSum
from broadsheet.journals import Flags, JournalClient, read_committed

_SHOWN_MAX = 10
"""Differences listed of each kind; one is enough to fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of the check."""

    right: int
    """Streams with exactly one sum, the right one."""
    missing: int
    """Streams without a sum."""
    differences: tuple[str, ...]
    """Other errors, in words."""

    @property
    def exact(self) -> bool:
        """True if every stream has its sum once, and there is nothing else."""
        return not self.differences

    @property
    def only_missing(self) -> bool:
        """True if sums are missing but there is no other error."""
        return len(self.differences) == (self.missing > 0)


def compare(expected: Mapping[str, StreamSum], found: Iterable[StreamSum]) -> Comparison:
    """Compare the expected sums with those published."""
    wanted = {(one.stream, one.sum, one.chunks) for one in expected.values()}
    counts = Counter((one.stream, one.sum, one.chunks) for one in found)
    missing = expected.keys() - {stream for stream, _, _ in counts}
    differences = []
    if missing:
        differences.append(f"{len(missing)} streams without a sum: {_some(missing)}")
    if unexpected := counts.keys() - wanted:
        differences.append(f"{len(unexpected)} sums that are wrong: {_some(unexpected)}")
    if repeated := [key for key, count in counts.items() if count > 1]:
        differences.append(f"{len(repeated)} sums more than once: {_some(repeated)}")
    right = sum(counts[key] == 1 for key in wanted)
    return Comparison(right=right, missing=len(missing), differences=tuple(differences))


async def read_sums(
    journals: JournalClient, journal: str, *, block: bool
) -> AsyncIterator[StreamSum]:
    """Yield the committed sums of a journal; wait for more at its end if `block`."""
    async with aclosing(read_committed(journals, journal, SUMS, block=block)) as batches:
        async for batch in batches:
            for flags, found in zip(batch.flags, batch.messages(), strict=True):
                if flags != Flags.ACK_TXN:
                    yield found


async def all_sums(journals: JournalClient) -> list[StreamSum]:
    """Return the currently committed sums."""
    return [
        found
        for journal in SUM_JOURNALS
        async for found in read_sums(journals, journal, block=False)
    ]


def _some(items: Iterable[object]) -> str:
    shown = sorted(map(str, items))
    return ", ".join(shown[:_SHOWN_MAX]) + (", …" if len(shown) > _SHOWN_MAX else "")
