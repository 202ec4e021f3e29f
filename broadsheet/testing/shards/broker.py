"""A journal broker in memory: each journal is one open fragment, under the embedded broker's own rules.

It passes the embedded broker's suite (`tests/contract/test_journal_contract.py`), through the real client. Faults of
the network are injected in front of it (`broadsheet.testing.shards.channels`); faults of the broker are injected
here: it stops, refuses every call, or loses registers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from broadsheet.broker.append_order import AppendOrder
from broadsheet.broker.preconditions import (
    JournalEnd,
    content_refusal,
    is_proven,
    may_read,
    refusal,
    registers_after,
)
from broadsheet.journals.wire import ReadChunk
from broadsheet.wire.alphabet import split_journal
from broadsheet.wire.appends_pb2 import AppendStreamRequest
from broadsheet.wire.journal_pb2 import (
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    ApplyResponse,
    CompressionCodec,
    Fragment,
    Header,
    JournalSpec,
    LabelSelector,
    LabelSet,
    ListResponse,
    ReadRequest,
    ReadResponse,
    Route,
    Status,
)
from broadsheet.wire.labels import expand_prefix, matches

TURN_SECONDS_MAX = 1.0
"""Longest wait of an append for its predecessors."""


@dataclass(slots=True)
class MemoryJournal:
    """A journal: its content, registers and waiters."""

    spec: JournalSpec
    create_revision: int
    mod_revision: int
    content: bytearray = field(default_factory=bytearray)
    registers: LabelSet = field(default_factory=LabelSet)
    deleted: bool = False
    _changed: asyncio.Future[None] | None = None

    @property
    def head(self) -> int:
        """Offset of the write head, bytes."""
        return len(self.content)

    def position(self) -> JournalEnd:
        """Return the position that an append is checked against."""
        return JournalEnd(self.head, self.registers, unconfirmed=False)

    def fragment(self, begin: int, end: int) -> Fragment:
        """Return the fragment that clients see."""
        codec = CompressionCodec.NONE
        return Fragment(journal=self.spec.name, begin=begin, end=end, compression_codec=codec)

    async def changed(self) -> None:
        """Wait until the journal is appended to or deleted."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def notify(self) -> None:
        """Wake the waiters."""
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)


@dataclass(frozen=True, slots=True)
class Appended:
    """The content of one append to a journal."""

    journal: str
    begin: int
    content: bytes


class MemoryBroker:
    """A broker that serves all journals of a run."""

    def __init__(self) -> None:
        self.journals: dict[str, MemoryJournal] = {}
        self.observers: list[Callable[[Appended], None]] = []
        """Called with each append, before anything else can see it."""
        self.refuses: Status.ValueType = Status.OK
        """Status that answers every append and read while it is not OK."""
        self.turns = AppendOrder(wait_seconds_max=TURN_SECONDS_MAX)
        self._revision = 1

    def header(self) -> Header:
        """Return the header of every answer."""
        etcd = Header.Etcd(cluster_id=1, member_id=1, revision=self._revision, raft_term=1)
        return Header(route=Route(primary=-1), etcd=etcd)

    def create(self, *specs: JournalSpec) -> None:
        """Create journals, or update existing ones."""
        self.apply([ApplyRequest.Change(upsert=spec, expect_mod_revision=-1) for spec in specs])

    # -- the service

    def list(self, selector: LabelSelector) -> ListResponse:
        """Return the journals that match."""
        wanted = expand_prefix(selector)
        return ListResponse(
            header=self.header(),
            journals=[
                ListResponse.Journal(
                    spec=journal.spec,
                    mod_revision=journal.mod_revision,
                    create_revision=journal.create_revision,
                    route=Route(primary=-1),
                )
                for name, journal in sorted(self.journals.items())
                if matches(wanted, journal.spec.labels, meta={"name": name})
            ],
        )

    def apply(self, changes: Sequence[ApplyRequest.Change]) -> ApplyResponse:
        """Apply all changes or none."""
        for change in changes:
            held = self.journals.get(change.upsert.name or change.delete)
            revision = held.mod_revision if held is not None else 0
            if change.expect_mod_revision not in (-1, revision):
                return ApplyResponse(status=Status.ETCD_TRANSACTION_FAILED, header=self.header())
        self._revision += 1
        for change in changes:
            if change.HasField("upsert"):
                self._upsert(change.upsert)
            else:
                self._delete(change.delete)
        return ApplyResponse(header=self.header())

    def append(self, request: AppendRequest, content: bytes) -> AppendResponse:
        """Append all of `content`, or return the reason why not."""
        journal = self._journal_of(request.journal)
        if isinstance(journal, MemoryJournal):
            status = refusal(request, journal.spec, journal.position())
            if status == Status.OK and content:
                status = content_refusal(request, journal.spec)
        else:
            status = journal
        if not isinstance(journal, MemoryJournal) or status != Status.OK:
            return self._refused(status, journal)
        begin = journal.head
        if content:
            journal.content += content
            journal.registers = registers_after(request, journal.registers)
            for observer in self.observers:
                observer(Appended(journal.spec.name, begin, content))
            journal.notify()
        response = AppendResponse(
            header=self.header(), commit=journal.fragment(begin, journal.head), total_chunks=1
        )
        response.registers.SetInParent()
        response.registers.CopyFrom(journal.registers)
        return response

    async def append_in_turn(self, request: AppendStreamRequest.Append) -> AppendResponse:
        """Append after the predecessors have succeeded.

        Raises:
            RpcFault: a predecessor did not succeed.
        """
        with self.turns.turn(request.name, request.after) as turn:
            await turn.wait()
            response = self.append(request.parameters, request.content)
            turn.end(succeeded=is_proven(request.parameters, response.status, response.registers))
        return response

    def open_read(self, request: ReadRequest) -> MemoryRead | ReadResponse:
        """Return a read, or the message that refuses it."""
        journal = self._journal_of(request.journal)
        if not isinstance(journal, MemoryJournal):
            return ReadResponse(status=journal, header=self.header())
        if not may_read(journal.spec):
            return ReadResponse(status=Status.NOT_ALLOWED, header=self.header())
        return MemoryRead(journal, request, self.header())

    def lose_registers(self, name: str) -> None:
        """Lose a journal's registers, which no broker should do."""
        self.journals[name].registers = LabelSet()

    def _journal_of(self, name: str) -> MemoryJournal | Status.ValueType:
        if self.refuses != Status.OK:
            return self.refuses
        bare, _ = split_journal(name)
        return self.journals.get(bare) or Status.JOURNAL_NOT_FOUND

    def _refused(
        self, status: Status.ValueType, journal: MemoryJournal | Status.ValueType
    ) -> AppendResponse:
        response = AppendResponse(status=status, header=self.header())
        if status == Status.REGISTER_MISMATCH and isinstance(journal, MemoryJournal):
            response.registers.SetInParent()
            response.registers.CopyFrom(journal.registers)
        return response

    def _upsert(self, spec: JournalSpec) -> None:
        kept = JournalSpec()
        kept.CopyFrom(spec)
        held = self.journals.get(spec.name)
        if held is None:
            self.journals[spec.name] = MemoryJournal(kept, self._revision, self._revision)
        else:
            held.spec, held.mod_revision = kept, self._revision

    def _delete(self, name: str) -> None:
        journal = self.journals.pop(name)
        journal.deleted = True
        journal.notify()


class MemoryRead:
    """A read's progress through a journal: metadata, then all bytes present, then new ones."""

    def __init__(self, journal: MemoryJournal, request: ReadRequest, header: Header) -> None:
        self._journal = journal
        self._request = request
        self._header: Header | None = header
        self._offset = journal.head if request.offset < 0 else request.offset
        self._described_to = 0
        self._over = False

    async def next(self, chunk_bytes_max: int) -> ReadResponse | ReadChunk | None:
        """Return the next message, after waiting for it if the read blocks; None at the end."""
        while not self._is_over():
            if self._offset < self._described_to:
                return self._chunk(chunk_bytes_max)
            if self._is_past_end():
                return None
            if self._offset < self._journal.head:
                return self._metadata()
            if not self._request.block:
                return self._not_yet()
            await self._journal.changed()
        return None

    def _is_over(self) -> bool:
        return self._over or self._journal.deleted

    def _is_past_end(self) -> bool:
        return 0 < self._request.end_offset <= self._offset

    def _chunk(self, bytes_max: int) -> ReadChunk:
        end = min(self._described_to, self._offset + bytes_max)
        chunk = ReadChunk(self._offset, bytes(self._journal.content[self._offset : end]))
        self._offset = end
        return chunk

    def _metadata(self) -> ReadResponse:
        head = self._journal.head
        self._over = self._request.metadata_only
        self._described_to = min(head, self._request.end_offset or head)
        response = ReadResponse(
            offset=self._offset, write_head=head, fragment=self._journal.fragment(0, head)
        )
        return self._with_header(response)

    def _not_yet(self) -> ReadResponse:
        self._over = True
        response = ReadResponse(
            status=Status.OFFSET_NOT_YET_AVAILABLE,
            offset=self._offset,
            write_head=self._journal.head,
        )
        return self._with_header(response)

    def _with_header(self, response: ReadResponse) -> ReadResponse:
        if self._header is not None:
            response.header.CopyFrom(self._header)
            self._header = None
        return response
