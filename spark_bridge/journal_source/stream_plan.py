"""Plans the micro-batches of one streaming query, on a separate thread in Spark's planning process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from broadsheet.consumer.client.loop_thread import LoopThread
from broadsheet.journals.errors import JournalNotFoundError
from broadsheet.journals.guard import (
    HEAD_PATIENCE_SECONDS,
    Present,
    RememberedOffset,
    epoch_text,
    standing,
)
from broadsheet.spark_bridge.brokers import open_client
from broadsheet.spark_bridge.errors import QuerySourceGoneError, QuerySourceReplacedError
from broadsheet.spark_bridge.journal_source.byte_runs import BytePartition
from broadsheet.spark_bridge.journal_source.commit_scan import UNLIMITED
from broadsheet.spark_bridge.journal_source.divided_order import DividedOrder
from broadsheet.spark_bridge.journal_source.journal_state import JournalState
from broadsheet.spark_bridge.journal_source.journals import (
    content_types_of,
    named_journals,
    presents,
    selected_specs,
    states_at,
)
from broadsheet.spark_bridge.journal_source.offsets import (
    BatchSpan,
    Epochs,
    States,
    StreamOffset,
    SymbolicStart,
    parse_offset,
    span_of,
)
from broadsheet.spark_bridge.journal_source.options import ReadOptions, parse_place
from broadsheet.spark_bridge.journal_source.partition_reader import JournalPartition
from broadsheet.spark_bridge.journal_source.planner import MicroBatchLimits, Planner
from broadsheet.wire.identity_pb2 import JournalEpoch

_log = structlog.get_logger()

POLL_SECONDS: Final = 0.05
"""Time between two look-ups of the write heads, because an idle query asks some hundred times a second."""
POLL_SECONDS_PER_JOURNAL: Final = 0.002
DISCOVERY_SECONDS: Final = 5.0
"""Time between two listings of the journals."""
_SELECT_PARTS: Final = (
    "the journal was divided, and its later messages are in parts, which the selector does not select: select these, "
    "too, e.g. by the prefix of the journal's name"
)


class StreamPlan:
    """Answers what Spark asks on the driver. Used by one thread."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._limits = MicroBatchLimits(
            options.rows_max or UNLIMITED, options.bytes_max or UNLIMITED
        )
        self._loop = LoopThread(name="journal-stream-plan")
        self._client = open_client(options.access)
        self._planner = Planner(self._client, options)
        self._content_types: dict[str, str] = {}
        """Of the selected journals."""
        self._planned_types: dict[str, str] = {}
        """Of all journals that batches were planned of, which may not be selected any more."""
        self._last_heads: dict[str, int] = {}
        """Latest write head of each journal that was ever looked at."""
        self._divided = DividedOrder()
        self._left: set[str] = set()
        """Journals that are not selected any more, and of whose fate was told."""
        self._heads: dict[str, int] = {}
        self._presents: dict[str, Present] = {}
        """The brokers' latest answers about the journals."""
        self._given: dict[str, Any] | None = None
        """The end that was planned last."""
        self._behind_since: dict[str, float] = {}
        """Time since which a journal's write head is below what was read, monotonic seconds."""
        self._listed_at = self._looked_at = float("-inf")
        self._idle = False
        """Whether the last look-up found nothing new."""
        self._stop_at: Mapping[str, int] | None = None

    def latest_offset(self, start: dict[str, Any], *, limited: bool) -> dict[str, Any]:
        """Return the end of the micro-batch that begins at `start`; `start` itself if there is nothing new.

        Args:
            start: An offset.
            limited: Whether the limits of the options hold.
        """
        return self._loop.call(self._latest_offset(start, limited=limited))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[JournalPartition]:
        """Return the partitions of the micro-batch between two offsets."""
        return self._loop.call(self._partitions(start, end))

    def stop_at_heads(self) -> None:
        """Read no further than the current ends of the journals."""
        self._stop_at = self._loop.call(self._look())

    def reported(self) -> dict[str, Any]:
        """Return the ends of the journals at the last look-up."""
        states = {name: JournalState(head) for name, head in self._heads.items()}
        return StreamOffset(states).to_json()

    def close(self) -> None:
        """Close the connections and end the thread."""
        try:
            self._loop.call(self._client.close())
        finally:
            self._loop.close()

    async def _latest_offset(self, start: dict[str, Any], *, limited: bool) -> dict[str, Any]:
        offset = parse_offset(start)
        heads = self._stop_at
        if heads is None:
            if self._idle:
                # Looked up again, because Spark asks at once and must not get an older answer.
                await asyncio.sleep(self._looked_at + self._poll_seconds() - time.monotonic())
            heads = await self._look()
        heads = dict(heads)
        if isinstance(offset, SymbolicStart):
            began: States | None = await self._began(offset)
            states = began or {}
        else:
            await self._check_left(offset)
            replaced = self._replaced(offset, heads, self._presents)
            restarted = {name: offset.journals[name].restarted() for name in replaced}
            began, states = restarted or None, {**offset.journals, **restarted}
        limits = self._limits if limited else MicroBatchLimits()
        for part in self._divided.held_back(states):
            heads.pop(part, None)
        end = await self._plan_end(states, heads, limits)
        self._idle = not isinstance(offset, SymbolicStart) and end == states
        # The very same start: an offset that differs only in form would begin an empty batch.
        if self._idle:
            return start
        known = {} if isinstance(offset, SymbolicStart) else offset.epochs
        self._given = StreamOffset(end, began, {**known, **self._epochs(heads)}).to_json()
        return self._given

    async def _plan_end(
        self, states: States, heads: dict[str, int], limits: MicroBatchLimits
    ) -> States:
        """Return the end of a batch; without what was deleted while it was planned, if the options allow that.

        Raises:
            QuerySourceGoneError: a journal was deleted, and the options do not allow to go on.
        """
        while True:
            try:
                return await self._planner.plan_end(states, heads, limits)
            except JournalNotFoundError as error:
                head = heads.pop(error.journal)
                if self._options.fail_on_data_loss:
                    raise QuerySourceGoneError(error.journal, head) from error
                _log.warning("source.gone", journal=error.journal, last_write_head=head)

    async def _check_left(self, offset: StreamOffset) -> None:
        """Look for journals that are gone with content that was seen and not read.

        Raises:
            QuerySourceGoneError: there is one, and the options do not allow to go on.
        """
        for name in offset.journals.keys() - self._presents.keys() - self._left:
            read, head = offset.journals[name].offset, self._last_heads.get(name, 0)
            # Not selected any more, by the caller's or an operator's will; nothing of it is read.
            if not await named_journals(self._client, [name]):
                if head > read and self._options.fail_on_data_loss:
                    raise QuerySourceGoneError(name, head)
                _log.warning("source.gone", journal=name, read_through=read, last_write_head=head)
            self._left.add(name)
        self._left -= self._presents.keys()

    def _replaced(
        self, offset: StreamOffset, heads: dict[str, int], present_of: Mapping[str, Present]
    ) -> list[str]:
        """Return the journals that do not hold what was read; those that only lag leave `heads`.

        Args:
            offset: What was read.
            heads: Write heads that a batch may be planned up to.
            present_of: The brokers' answers about the journals.

        Raises:
            QuerySourceReplacedError: there is one, and the options do not allow to go on.
        """
        replaced: list[str] = []
        for name, state in offset.journals.items():
            present = present_of.get(name)
            # The journal is not selected any more, so nothing of it is read.
            if present is None:
                continue
            epoch = offset.epochs.get(name)
            found = standing(state.offset, epoch, present)
            if found is RememberedOffset.BEHIND and self._is_patient(name):
                heads.pop(name, None)
            elif found is RememberedOffset.SAME:
                self._behind_since.pop(name, None)
            elif self._options.fail_on_data_loss:
                raise QuerySourceReplacedError(
                    name,
                    offset=state.offset,
                    write_head=present.write_head,
                    read_epoch=epoch_text(epoch),
                    present_epoch=epoch_text(present.epoch),
                )
            else:
                _log.warning("source.replaced", journal=name, write_head=present.write_head)
                replaced.append(name)
        return replaced

    def _is_patient(self, name: str) -> bool:
        """Return whether a write head that is below what was read may still recover."""
        now = time.monotonic()
        return now - self._behind_since.setdefault(name, now) < HEAD_PATIENCE_SECONDS

    def _epochs(self, names: Iterable[str]) -> dict[str, JournalEpoch]:
        """Return the epochs of journals that hold what was read of them, or are read from their beginning."""
        found = {name: self._presents[name].epoch for name in names if name in self._presents}
        return {name: epoch for name, epoch in found.items() if epoch is not None}

    async def _began(self, start: SymbolicStart) -> States:
        place = parse_place("start", start.text)
        return await states_at(
            self._client, place, content_types=self._content_types, options=self._options
        )

    async def _partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> list[JournalPartition]:
        span = span_of(start, end)
        if end != self._given:
            # Spark repeats a batch that was planned before the query restarted.
            span = await self._still_there(span, end)
        # After a restart, Spark asks for partitions before anything was listed.
        if not self._planned_types.keys() >= set(span.names):
            await self._list()
        partitions = await self._planner.partitions(span)
        offset = parse_offset(end)
        epochs = offset.epochs if isinstance(offset, StreamOffset) else {}
        return [
            JournalPartition(_of_epoch(each, epochs), self._planned_types[each.journal])
            for each in partitions
        ]

    async def _still_there(self, span: BatchSpan, end: dict[str, Any]) -> BatchSpan:
        """Return a span without the journals that do not hold what was planned of them.

        Raises:
            QuerySourceReplacedError, QuerySourceGoneError: there is one, and the options do not allow to go on.
        """
        offset = parse_offset(end)
        if isinstance(offset, SymbolicStart):
            return span
        await self._look()
        present_of = {**self._presents, **await self._unselected(span.names)}
        planned = {name: offset.journals[name] for name in span.names}
        lost = self._replaced(
            StreamOffset(planned, epochs=offset.epochs), dict(self._heads), present_of
        )
        for name in planned.keys() - present_of.keys():
            if self._options.fail_on_data_loss:
                raise QuerySourceGoneError(name, planned[name].offset)
            _log.warning("source.gone", journal=name, planned_through=planned[name].offset)
            lost.append(name)
        kept = {name: state for name, state in span.end.items() if name not in lost}
        return BatchSpan(span.start, kept)

    async def _unselected(self, planned: Iterable[str]) -> dict[str, Present]:
        """Return the brokers' answers about planned journals that exist, but are not selected any more.

        A planned batch is delivered as it was planned, because Spark's checkpoint counts it as read.
        """
        found = await named_journals(self._client, set(planned) - self._presents.keys())
        self._remember(found)
        return await presents(self._client, found)

    async def _look(self) -> dict[str, int]:
        """Return the current write heads."""
        if time.monotonic() - self._listed_at >= DISCOVERY_SECONDS:
            await self._list()
        self._presents = await presents(self._client, sorted(self._content_types))
        self._heads = {name: each.write_head for name, each in self._presents.items()}
        self._last_heads.update(self._heads)
        self._looked_at = time.monotonic()
        return dict(self._heads)

    async def _list(self) -> None:
        specs = await selected_specs(self._client, self._options)
        self._content_types = content_types_of(specs)
        for journal in self._divided.learn(specs):
            _log.warning("source.parts_not_selected", journal=journal, do=_SELECT_PARTS)
        self._remember(self._content_types)
        self._listed_at = time.monotonic()

    def _remember(self, content_types: Mapping[str, str]) -> None:
        self._planned_types.update(content_types)
        self._planner.select(self._planned_types)

    def _poll_seconds(self) -> float:
        return POLL_SECONDS + POLL_SECONDS_PER_JOURNAL * len(self._content_types)


def _of_epoch(partition: BytePartition, epochs: Epochs) -> BytePartition:
    """Return the partition with the epoch of its journal in which it was planned."""
    epoch = epochs.get(partition.journal)
    return partition if epoch is None else replace(partition, epoch=epoch.SerializeToString())
