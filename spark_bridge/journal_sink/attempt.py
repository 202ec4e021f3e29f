"""Performs one attempt of a task: appends its rows to journals, uncommitted, as a new producer.

Readers of committed messages see nothing of it until the driver acknowledges this very attempt. An attempt that fails,
or that loses to a speculative copy, leaves bytes that are never acknowledged.

A journal may be divided by key meanwhile. An attempt that has begun there ends there, for readers read it first; one
that has not is refused, and its rows for that journal go to the parts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from broadsheet.journals.message.division import UNDIVIDED, DividedJournals, is_divided
from broadsheet.journals.message.partitioning import MappedJournal, stable_order
from broadsheet.journals.message.plain_columns import taken
from broadsheet.journals.message.row_errors import RowValueError
from broadsheet.journals.message.uuid import UUID_CHARACTERS, new_producer_id
from broadsheet.runtime.interpreter import keep_freed_buffers
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.journal_sink.commit_record import CommitAttempt
from broadsheet.spark_bridge.journal_sink.row_content import RowContent, content_of_rows
from broadsheet.spark_bridge.journal_sink.stamps import Stamper

if TYPE_CHECKING:
    from broadsheet.journals.client import JournalClient
    from broadsheet.journals.message.column_texts import Indices
    from broadsheet.spark_bridge.content.encoder import Encoder
    from broadsheet.spark_bridge.journal_sink.row_mapping import RowMapping
    from broadsheet.spark_bridge.journal_source.options import Access

_FIRST_APPEND_BYTES, _APPEND_BYTES_MAX = 8 << 10, 5 << 20
"""Size of a chunk, which is encoded at once and appended, all journals together: bytes of rows in memory and of UUIDs.
It grows, so that brokers get their first appends soon.
"""
_APPEND_GROWTH = 4
_WHOLE_BYTES_MAX = 8 << 20
"""Largest append in one message: brokers take 16 MiB, and a write does not wait for other appends of its client."""

Contents: TypeAlias = dict[str, list[bytes | memoryview]]
"""Content of one append to each journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """A plan of turning rows into journals' messages; made on the driver, the same for all tasks."""

    access: Access
    """Of the brokers."""
    journals: tuple[str, ...]
    mapping: RowMapping
    encoder: Encoder
    divided: DividedJournals = field(default_factory=DividedJournals)
    """Those of the journals that were divided before."""
    takes_content: bool = False
    """Whether the attempt tells the content of its rows, by which repeated micro-batches are compared."""


def write_attempt(batches: Iterator[pa.RecordBatch], plan: WritePlan) -> CommitAttempt:
    """Append every row, uncommitted, and return their acknowledgements.

    Raises:
        PublishError: a row cannot be encoded or mapped.
        ServiceError: a broker refused, or the outcome of an append is unknown; another attempt starts over.
    """
    with asyncio.Runner() as runner:
        return runner.run(_write(_Chunks(batches, plan), plan))


async def _write(chunks: _Chunks, plan: WritePlan) -> CommitAttempt:
    # Imported here, because gRPC may only be used after the fork that made this process.
    from broadsheet.journals.transport import BULK_CHUNK_BYTES
    from broadsheet.runtime.task_group import TaskGroup
    from broadsheet.spark_bridge.brokers import open_client

    keep_freed_buffers()
    async with open_client(
        plan.access, chunk_bytes=BULK_CHUNK_BYTES, whole_bytes_max=_WHOLE_BYTES_MAX
    ) as journals:
        chunk = await asyncio.to_thread(chunks.next)
        begun: set[str] = set()
        messages = 0
        while chunk.rows:
            # The next chunk is encoded while this one is appended.
            async with TaskGroup() as tasks:
                appending = tasks.start_soon(
                    _append(journals, chunk.contents, begun), name="append"
                )
                following = await asyncio.to_thread(chunks.next)
                refused = await appending
            while refused:
                await _learn(journals, chunks.divided, refused)
                moved = await asyncio.to_thread(chunks.move, chunk, refused)
                # In this order, because a producer's messages are stamped in their order.
                await asyncio.to_thread(chunks.move, following, refused)
                refused = await _append(journals, moved, begun)
            messages += sum(chunk.messages.values())
            chunk = following
    return chunks.attempt(begun, messages)


async def _append(journals: JournalClient, contents: Contents, begun: set[str]) -> list[str]:
    """Append to each journal; return those that were divided before the attempt began there, and took nothing.

    Those that took something are `begun`, and take the attempt to its end.
    """
    from broadsheet.runtime.task_group import TaskGroup

    async with TaskGroup() as tasks:
        appends = {
            journal: tasks.start_soon(
                _takes(journals, journal, content, begins=journal not in begun),
                name=f"append {journal}",
            )
            for journal, content in contents.items()
        }
        took = {journal: await append for journal, append in appends.items()}
    begun.update(journal for journal, taken_there in took.items() if taken_there)
    return [journal for journal, taken_there in took.items() if not taken_there]


async def _takes(
    journals: JournalClient, journal: str, content: list[bytes | memoryview], *, begins: bool
) -> bool:
    """Append to a journal; return False if it was divided before the attempt began there.

    Shards read its parts behind its seal, and would read what is appended later out of order.
    """
    from broadsheet.journals.errors import RegisterMismatchError

    try:
        await journals.append(journal, content, check_registers=UNDIVIDED if begins else None)
    except RegisterMismatchError as error:
        if not is_divided(error.registers):
            raise
        return False
    return True


async def _learn(journals: JournalClient, divided: DividedJournals, refused: Iterable[str]) -> None:
    """Learn the parts of journals that refused what was for them; not of those in which the attempt has begun.

    Raises:
        PublishError: no part takes what was refused.
    """
    for journal in refused:
        # One that refuses rows of which it is known to be divided has no part for them.
        is_new = journal not in divided.parts
        if is_new:
            await journals.learn_divided(journal)
        if not is_new or journal not in journals.divided.parts:
            raise PublishError(
                f"journal {journal} was divided by key (`shardctl journals split`), and some rows have no part: apply "
                "the parts again that were deleted, with the labels that they had"
            )
        divided.adopt(journal, journals.divided)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows that are encoded and appended at once."""

    rows: list[pa.RecordBatch]
    contents: Contents = field(default_factory=dict)
    messages: dict[str, int] = field(default_factory=dict)
    """In the content of each journal."""


class _Chunks:
    """Encodes batches into chunks. Methods run on any thread, one at a time."""

    def __init__(self, batches: Iterator[pa.RecordBatch], plan: WritePlan) -> None:
        self._batches = batches
        self._plan = plan
        self._stamper = Stamper(new_producer_id())
        self._aim_bytes = _FIRST_APPEND_BYTES
        self._rows = 0
        """Rows encoded so far."""
        self._content = RowContent()
        self.divided = DividedJournals()
        """Journals whose rows go to their parts: not those that are divided while the attempt appends there."""
        for journal in plan.divided.parts:
            self.divided.adopt(journal, plan.divided)

    def next(self) -> _Chunk:
        """Return the next chunk; without rows at the end."""
        batches: list[pa.RecordBatch] = []
        size = 0
        for batch in self._batches:
            if batch.num_rows:
                batches.append(batch)
                size += batch.nbytes + batch.num_rows * UUID_CHARACTERS
            if size >= self._aim_bytes:
                break
        chunk = _Chunk(_joined(batches))
        for rows in chunk.rows:
            if self._plan.takes_content:
                self._content += content_of_rows(rows)
            self._encode(rows, chunk)
            self._rows += rows.num_rows
        self._aim_bytes = min(self._aim_bytes * _APPEND_GROWTH, _APPEND_BYTES_MAX)
        return chunk

    def move(self, chunk: _Chunk, refused: Collection[str]) -> Contents:
        """Encode the rows of a chunk that were for refused journals for their parts; return these parts' contents."""
        for journal in chunk.contents.keys() & set(refused):
            del chunk.contents[journal]
            del chunk.messages[journal]
        # Rows whose part was deleted are still for the journal, which refuses them again.
        targets = self.divided.below(refused).union(refused)
        for rows in chunk.rows:
            self._encode(rows, chunk, only=targets)
        return {journal: chunk.contents[journal] for journal in chunk.contents.keys() & targets}

    def attempt(self, journals: Collection[str], messages: int) -> CommitAttempt:
        """Return the acknowledgement of all messages, given where they are."""
        return CommitAttempt(
            messages=messages,
            acknowledgement=self._plan.encoder.acknowledgement(
                self._stamper.stamp_acknowledgement()
            ),
            journals=tuple(sorted(journals)),
            content=self._content,
            producer=self._stamper.producer,
            ended_at=time.time(),
        )

    def _encode(
        self, batch: pa.RecordBatch, chunk: _Chunk, only: Collection[str] | None = None
    ) -> None:
        """Add a batch's messages to a chunk; those for some journals, if these are given."""
        journals, indices = self._places(batch)
        if only is not None:
            wanted = [index for index, journal in enumerate(journals) if journal in only]
            kept = np.flatnonzero(np.isin(indices, wanted))
            batch, indices = taken(batch, pa.array(kept)), indices[kept]
            if not len(kept):
                return
        # Stable, so that the rows of each journal keep their order.
        order = stable_order(indices) if len(journals) > 1 else None
        targets, stretches = _stretches_of(indices if order is None else indices[order])
        try:
            encoded = self._plan.encoder.encode(batch, stretches, self._stamper, order)
        except RowValueError as error:
            row = self._rows + error.row
            raise PublishError(
                f"column {error.column}: {error.reason} (row {row} of a partition, counted from 0)"
            ) from error
        for target, content, messages in zip(
            targets, encoded.contents, encoded.messages, strict=True
        ):
            journal = journals[target]
            chunk.contents.setdefault(journal, []).append(content)
            chunk.messages[journal] = chunk.messages.get(journal, 0) + messages

    def _places(self, batch: pa.RecordBatch) -> tuple[Sequence[str], Indices]:
        """Return journals, and the index of each row's among them: parts in place of those that are divided."""
        journals = self._plan.journals
        indices = self._plan.mapping.indices(batch, journals)
        divided = [index for index, each in enumerate(journals) if each in self.divided.parts]
        if not divided:
            return journals, indices
        rows = np.flatnonzero(np.isin(indices, divided))
        keys = self._plan.mapping.keys(batch, rows)
        choices = [MappedJournal(each, self._plan.encoder.content_type) for each in journals]
        parts, places = self.divided.divide_choices(choices, indices[rows], keys)
        indices = indices.copy()
        indices[rows] = places + len(journals)
        return (*journals, *(each.journal for each in parts)), indices


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the rows in as few batches as possible, because much work costs the same for each batch."""
    if len(batches) < 2:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _stretches_of(indices: Indices) -> tuple[list[int], list[tuple[int, int]]]:
    """Return each value of a non-empty ascending array, and its range of indices."""
    begins = [0, *(np.flatnonzero(np.diff(indices)) + 1).tolist()]
    ends = [*begins[1:], len(indices)]
    return indices[begins].tolist(), list(zip(begins, ends, strict=True))
