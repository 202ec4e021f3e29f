"""Performs one attempt of a task: appends its rows to journals, uncommitted, as a new producer.

Readers of committed messages see nothing of it until the driver acknowledges this very attempt. An attempt that fails,
or that loses to a speculative copy, leaves bytes that are never acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from broadsheet.journals.message.partitioning import stable_order
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

Chunk: TypeAlias = dict[str, list[bytes | memoryview]]
"""Content of one append to each journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """A plan of turning rows into journals' messages; made on the driver, the same for all tasks."""

    access: Access
    """Of the brokers."""
    journals: tuple[str, ...]
    mapping: RowMapping
    encoder: Encoder
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
        while chunk:
            # The next chunk is encoded while this one is appended.
            async with TaskGroup() as tasks:
                appending = tasks.start_soon(_append(journals, chunk, begun), name="append")
                chunk = await asyncio.to_thread(chunks.next)
                await appending
    return chunks.attempt()


async def _append(journals: JournalClient, chunk: Chunk, begun: set[str]) -> None:
    """Append a chunk; the journals that took an earlier one are `begun`, and take the attempt to its end."""
    from broadsheet.runtime.task_group import TaskGroup

    async with TaskGroup() as tasks:
        for journal, content in chunk.items():
            appending = _append_to(journals, journal, content, begins=journal not in begun)
            tasks.start_soon(appending, name=f"append {journal}")
    begun.update(chunk)


async def _append_to(
    journals: JournalClient, journal: str, content: list[bytes | memoryview], *, begins: bool
) -> None:
    """Append to a journal that must not have been divided before the attempt began there.

    Raises:
        PublishError: it was: shards read its parts behind its seal, and would read these rows out of order.
    """
    from broadsheet.journals.errors import RegisterMismatchError
    from broadsheet.journals.message.division import UNDIVIDED, is_divided

    try:
        await journals.append(journal, content, check_registers=UNDIVIDED if begins else None)
    except RegisterMismatchError as error:
        if not is_divided(error.registers):
            raise
        raise PublishError(
            f"journal {journal} was divided by key (`shardctl journals split`), and takes no new rows; Spark's sink "
            "does not divide rows among its parts. Publish them by a shard or a MessageWriter, or into another topic"
        ) from error


class _Chunks:
    """Encodes batches into chunks. Methods run on any thread, one at a time."""

    def __init__(self, batches: Iterator[pa.RecordBatch], plan: WritePlan) -> None:
        self._batches = batches
        self._plan = plan
        self._stamper = Stamper(new_producer_id())
        self._aim_bytes = _FIRST_APPEND_BYTES
        self._messages = 0
        self._rows = 0
        """Rows encoded so far."""
        self._content = RowContent()
        self._journals: set[str] = set()

    def next(self) -> Chunk:
        """Return the next chunk; empty at the end."""
        chunk: Chunk = {}
        batches: list[pa.RecordBatch] = []
        size = 0
        for batch in self._batches:
            if batch.num_rows:
                batches.append(batch)
                size += batch.nbytes + batch.num_rows * UUID_CHARACTERS
            if size >= self._aim_bytes:
                break
        for rows in _joined(batches):
            self._encode(rows, chunk)
        self._aim_bytes = min(self._aim_bytes * _APPEND_GROWTH, _APPEND_BYTES_MAX)
        self._journals.update(chunk)
        return chunk

    def attempt(self) -> CommitAttempt:
        """Return the acknowledgement of everything encoded."""
        return CommitAttempt(
            messages=self._messages,
            acknowledgement=self._plan.encoder.acknowledgement(
                self._stamper.stamp_acknowledgement()
            ),
            journals=tuple(sorted(self._journals)),
            content=self._content,
            producer=self._stamper.producer,
        )

    def _encode(self, batch: pa.RecordBatch, chunk: Chunk) -> None:
        """Add a batch's messages to a chunk."""
        if self._plan.takes_content:
            self._content += content_of_rows(batch)
        journals = self._plan.journals
        indices = self._plan.mapping.indices(batch, journals)
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
        self._rows += batch.num_rows
        self._messages += sum(encoded.messages)
        for target, content in zip(targets, encoded.contents, strict=True):
            chunk.setdefault(journals[target], []).append(content)


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
