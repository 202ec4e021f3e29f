"""The divisions of journals, as the leader's member carries them out: step by step, from what is there.

    record in etcd ─► parts ─► sources of readers ─► register, label ─► publishers leave ─► nothing is open ─► seal
        ─► all readers have committed that they have read it ─► out of their sources ─► no record

Each round begins with the first step. What is done stays as it is, so it does not matter who did it, nor whether two
members think that they lead.

The journal's register is what decides: from then on no publisher begins there, and those that did are told in the
records of rollbacks, which each writes before its first message. A publisher has left once its primary says that all
is acknowledged, and was the primary still when it said so. After that, whatever is committed in the journal is there to
read; so the seal is made at a write head at which nothing is open.

A journal goes out of all sources at once, because shards that divide keys have the same ones. A shard that reads a
sealed journal again, or for the first time, since it recovered from before the seal, was applied so, or got a part that
was divided already, gets a new record (`find_sealed`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, Final, Protocol

import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import (
    TXN_OPERATIONS_MAX,
    Compare,
    Delete,
    Put,
    prefix_range_end,
)
from broadsheet.consumer.application import Application, MessageProducer
from broadsheet.consumer.elastic.family import is_fork
from broadsheet.consumer.elastic.flip import HeldKey
from broadsheet.consumer.elastic.journal_split import (
    JournalSplitPhase,
    JournalSplitRecord,
    decode_journal_split,
    encode_journal_split,
    journal_split_key,
    journal_splits_prefix,
    part_spec,
    publishers_among,
    read_before,
    reads,
    sealed_record,
    sources_of,
    with_labels,
    with_parts,
    without_sealed,
)
from broadsheet.consumer.errors import SplitDelayedError
from broadsheet.consumer.registry.key_space import shard_of
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.consumer.rpc.journal_messages import (
    LIVELY_SECONDS,
    OPEN_SECONDS,
    JournalMessages,
    JournalReading,
)
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import (
    AppendOutcomeUnknownError,
    JournalNotFoundError,
    RegisterMismatchError,
    WrongAppendOffsetError,
)
from broadsheet.journals.message.division import (
    DIVIDED,
    UNDIVIDED,
    JournalPart,
    is_divided,
    sealed_at,
)
from broadsheet.journals.message.open_transactions import OpenTransaction
from broadsheet.journals.message.uuid import clock_at, new_producer_id
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.errors import BroadsheetError, ServiceError
from broadsheet.wire.errors import ApplyConflictError
from broadsheet.wire.journal_pb2 import ApplyRequest, JournalSpec
from broadsheet.wire.key_range import KeyRange
from broadsheet.wire.labels import (
    SEALED_AT,
    SPLIT_EPOCH,
    SPLIT_EPOCH_DIVIDED,
    label_set,
    selector,
    value_of,
)
from broadsheet.wire.shard_pb2 import ShardSpec

ROUND_SECONDS: Final = 0.5
"""Between two looks at what is to be done."""
LEAVE_SECONDS: Final = 25.0
"""Deadline of a request to leave a journal: its shard commits before it answers."""
ASK_SECONDS: Final = 5.0
"""Deadline of a question to a shard's primary."""
FIND_SECONDS: Final = 10.0
"""Between two looks at all shards for sealed journals among their sources."""
_SEALED: Final = selector(include=label_set((SEALED_AT, "")))
CATCH_UP_SECONDS: Final = 5.0
"""Longest wait for the mirror of the cluster."""

_log = structlog.get_logger()


class PrimaryCaller(Protocol):
    """Reaches the primaries of shards that publish into a divided journal, or read it, wherever they are."""

    async def leave(self, shard_id: str, journal: str, *, timeout_seconds: float) -> HeldKey:
        """Have a shard's primary leave a divided journal; return its assignment, by which that holds.

        Raises:
            SplitDelayedError: it does not now, or has no primary.
            EndpointError: its member cannot be reached.
        """
        ...

    async def committed_through(self, shard_id: str, source: str, *, timeout_seconds: float) -> int:
        """Return through where the committed checkpoint of a shard's primary has read a source, bytes.

        Raises:
            SplitDelayedError: it does not serve now, or has no primary.
            EndpointError: its member cannot be reached.
        """
        ...


class JournalSplitter:
    """Carries divisions of journals out while its member leads. `run` until cancelled."""

    def __init__(
        self,
        membership: LocalMember,
        journals: JournalClient,
        # The store's type is known to the application only.
        application: Application[Any],
        primaries: PrimaryCaller,
        *,
        leads: Callable[[], bool],
        clock: Clock,
    ) -> None:
        """Bind to a member; nothing is read yet.

        Args:
            membership: Of this process.
            journals: Changes, reads and appends to journals.
            application: Knows the messages of journals that its shards read.
            primaries: Has shards leave a journal, and tells how far they have read it.
            leads: Whether this member leads.
            clock: Time.
        """
        self._etcd = membership.etcd
        self._key_space = membership.key_space
        self._root = membership.key_space.keys.root
        self._keys = membership.key_space.keys
        self._journals = journals
        self._messages = JournalMessages(journals, application, clock=clock)
        self._primaries = primaries
        self._reads_journals = not isinstance(application, MessageProducer)
        """Others may have no broker at all."""
        self._leads = leads
        self._clock = clock
        self._left: dict[str, set[str]] = {}
        """Shards that have left a journal, by its name."""
        self._readings: dict[str, JournalReading] = {}
        self._found_at = -FIND_SECONDS
        """When it was looked for sealed journals that shards read, monotonic seconds."""

    async def run(self) -> None:
        """Carry divisions out until cancelled."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            if not self._leads():
                self._left, self._readings = {}, {}
                continue
            try:
                await self.round()
            except EtcdError as error:
                _log.warning("journal_split.waits", cause=str(error))
            except Exception:
                # A member that died of it would pass it on to the next leader, until none is left.
                _log.exception("journal_split.failed")

    async def round(self) -> None:
        """Go on with each division that is not over.

        Raises:
            EtcdError: etcd does not answer.
        """
        await self.find_sealed()
        prefix = journal_splits_prefix(self._root)
        found = await self._etcd.get_range(prefix, prefix_range_end(prefix))
        for kv in found.kvs:
            journal = kv.key[len(prefix) :].decode(errors="replace")
            try:
                record = decode_journal_split(kv.value)
            except DocumentError as error:
                _log.warning("journal_split.unreadable", journal=journal, cause=str(error))
                continue
            try:
                await self.advance(journal, record)
            except BroadsheetError as error:
                if str(error) != record.reason:
                    _log.info("journal_split.delayed", journal=journal, cause=str(error))
                await self._note(journal, record.phase, str(error))

    async def advance(self, journal: str, record: JournalSplitRecord) -> None:
        """Go on with a division as far as possible.

        Raises:
            BroadsheetError: what it waits for.
        """
        parts = [JournalPart(each.journal, KeyRange(each.begin, each.end)) for each in record.parts]
        names = [each.journal for each in parts]
        try:
            spec = (await self._journals.get(journal)).spec
        except JournalNotFoundError:
            if record.phase is not JournalSplitPhase.SEALED or self._is_read(journal):
                raise
            await self._end(journal)  # An operator deleted it, and changed the shards.
            return
        if sealed_at(spec) is None:
            await self.make_parts(spec, parts)
            await self.give_parts(journal, names)
            if not is_divided(spec.labels):
                # Before publishers leave, because a day's messages take their time.
                self._require_lively(await self._read_on(spec), journal)
            await self.close(spec)
            await self._note(journal, JournalSplitPhase.LEAVING)
            await self.have_publishers_leave(journal)
            await self._note(journal, JournalSplitPhase.DRAINING)
            await self.seal(journal)
            self._left.pop(journal, None)
            _log.info("journal_split.sealed", journal=journal)
        if record.phase is not JournalSplitPhase.SEALED:
            await self._note(journal, JournalSplitPhase.SEALED)
        # Again, because a change of sources that was under way did not have the parts.
        await self.give_parts(journal, names)
        await self.end_sources(journal, names)
        await self._end(journal)

    async def _end(self, journal: str) -> None:
        await self._etcd.txn((), (Delete(journal_split_key(self._root, journal)),))
        self._readings.pop(journal, None)
        _log.info("journal_split.done", journal=journal)

    def _is_read(self, journal: str) -> bool:
        return any(reads(shard_of(each).spec, journal) for each in self._key_space.items.values())

    async def find_sealed(self) -> None:
        """Have a record of each sealed journal that a shard reads, so that it gets the parts, and leaves the journal.

        One may read it again long after the division, or for the first time: it is new, or got a part that had been
        divided already.

        Raises:
            EtcdError: etcd does not answer.
        """
        now = self._clock.monotonic_seconds()
        if now < self._found_at + FIND_SECONDS:
            return
        self._found_at = now
        if not self._reads_journals or not self._key_space.items:
            return
        try:
            listed = await self._journals.list(_SEALED)
            journals = [each.spec.name for each in listed.journals if self._is_read(each.spec.name)]
            if journals:
                await self._journals.learn_divided()
        except ServiceError as error:
            _log.info("journal_split.not_seen", cause=str(error))
            return
        for journal in journals:
            record = sealed_record(self._journals.divided.parts.get(journal, ()))
            key = journal_split_key(self._root, journal)
            await self._etcd.txn((Compare.absent(key),), (Put(key, encode_journal_split(record)),))

    async def end_sources(self, journal: str, parts: Sequence[str]) -> None:
        """Take a sealed journal out of the sources of all shards, once their checkpoints have read it to the seal.

        Args:
            journal: That was divided.
            parts: Names of its parts.

        Raises:
            SplitDelayedError: one has not, or the journal goes on behind its seal; the error says which.
            EndpointError: a member cannot be reached.
        """
        if not await self._key_space.catch_up(timeout_seconds=CATCH_UP_SECONDS):
            raise SplitDelayedError("this member's view of the cluster is behind etcd's")
        sealed = sealed_at((await self._journals.get(journal)).spec)
        assert sealed is not None, "it is sealed"
        changes: list[tuple[Compare, Put]] = []
        for item_id, item in self._key_space.items.items():
            held = shard_of(item).spec
            if not reads(held, journal):
                continue
            if with_parts(held, journal, parts) is not None:
                # A fork that was made from its parent's sources of before, for example.
                raise SplitDelayedError(f"shard {held.id} does not read the parts of {journal} yet")
            if first := read_before(held, journal):
                raise SplitDelayedError(
                    f"shard {held.id} has {first} among its sources, which {journal} is a part of: that leaves first"
                )
            await self.require_read(held, journal, sealed)
            key = self._keys.item(ItemId(item_id))
            changed = without_sealed(held, journal, sealed)
            put = Put(key, changed.SerializeToString(deterministic=True))
            changes.append((Compare.mod_revision(key, item.kv.mod_revision), put))
        if changes:
            await self._require_ended(journal, sealed)
        await self._change_shards(journal, changes)

    async def require_read(self, reader: ShardSpec, journal: str, sealed: int) -> None:
        """Return if a shard's committed checkpoint has read a journal to its seal.

        Raises:
            SplitDelayedError: it has not.
            EndpointError: its member cannot be reached.
        """
        if is_fork(reader):
            return  # It goes on from its parent's checkpoint.
        for source in sources_of(reader, journal):
            if source.min_offset:
                raise SplitDelayedError(
                    f"shard {reader.id} reads {source.journal} from offset {source.min_offset} on, which would be "
                    "forgotten: remove the source by hand once it is read"
                )
            if reader.disable:
                raise SplitDelayedError(f"shard {reader.id} is paused, and reads {journal} first")
            through = await self._primaries.committed_through(
                reader.id, source.journal, timeout_seconds=ASK_SECONDS
            )
            if through < sealed:
                raise SplitDelayedError(
                    f"shard {reader.id} has read {source.journal} to {through}, and its seal ends at {sealed}"
                )

    async def _require_ended(self, journal: str, sealed: int) -> None:
        """Return if nothing that readers would show is behind a journal's seal.

        Successors of publishers repeat what is before it, and former primaries that wake up leave what is rolled back.

        Raises:
            SplitDelayedError: somebody published there against the rules, or may have; the error says who.
        """
        spec = (await self._journals.get(journal)).spec
        reading = await self._read_on(spec, end=sealed)
        source, fresh = await self._messages.source_of(spec), reading.open.behind()
        async with aclosing(source.batches(offset=sealed, block=False)) as batches:
            async for batch in batches:
                shown = fresh.read(batch)
                if shown is not None:
                    producer, begin = shown
                    raise SplitDelayedError(
                        f"producer {producer:012x} published into {journal} behind its seal, at offset {begin}: "
                        "shards go on reading it; have its program publish into the parts"
                    )
        for producer, (begin, _) in fresh.open.items():
            # A primary that woke up after its successor's rollback leaves one that it never acknowledges; another
            # program may still acknowledge its own.
            raise SplitDelayedError(
                f"producer {producer:012x} has a transaction open in {journal} behind its seal, at offset {begin}: "
                f"{_to_end_it(producer, journal)}"
            )

    async def make_parts(self, spec: JournalSpec, parts: Sequence[JournalPart]) -> None:
        """Create the parts that are not there."""
        for part in parts:
            change = ApplyRequest.Change(upsert=part_spec(spec, part), expect_mod_revision=0)
            try:
                await self._journals.apply([change])
            except ApplyConflictError:
                continue  # It is there.

    async def give_parts(self, journal: str, parts: Sequence[str]) -> None:
        """Make the parts sources of each shard that reads the journal: of many in one transaction, as it takes them.

        Raises:
            SplitDelayedError: a shard was changed meanwhile.
        """
        changes: list[tuple[Compare, Put]] = []
        for item_id, item in self._key_space.items.items():
            held = shard_of(item).spec
            changed = with_parts(held, journal, parts) if reads(held, journal) else None
            if changed is not None:
                key = self._keys.item(ItemId(item_id))
                put = Put(key, changed.SerializeToString(deterministic=True))
                changes.append((Compare.mod_revision(key, item.kv.mod_revision), put))
        await self._change_shards(journal, changes)

    async def _change_shards(self, journal: str, changes: Sequence[tuple[Compare, Put]]) -> None:
        """Change shards that are as they were read, many in one transaction.

        Raises:
            SplitDelayedError: one was changed meanwhile.
        """
        for begin in range(0, len(changes), TXN_OPERATIONS_MAX):
            batch = changes[begin : begin + TXN_OPERATIONS_MAX]
            compares, puts = zip(*batch, strict=True)
            result = await self._etcd.txn(compares, puts)
            if not result.succeeded:
                raise SplitDelayedError(f"a shard that reads {journal} was changed meanwhile")
            await self._key_space.read_back(result.header.revision)

    async def close(self, spec: JournalSpec) -> None:
        """Have the journal refuse new publishers, then say so in its spec.

        Raises:
            SplitDelayedError: its spec was changed meanwhile.
        """
        if is_divided(spec.labels):
            return
        try:
            await self._journals.append(
                spec.name,
                await self._control_message(spec),
                check_registers=UNDIVIDED,
                union_registers=DIVIDED,
            )
        except (RegisterMismatchError, AppendOutcomeUnknownError) as error:
            # It is closed already; or the next round finds out.
            if isinstance(error, AppendOutcomeUnknownError):
                raise SplitDelayedError(str(error)) from error
        await self._relabel(spec.name, (SPLIT_EPOCH, SPLIT_EPOCH_DIVIDED))

    async def have_publishers_leave(self, journal: str) -> None:
        """Have each shard that published into the journal leave it.

        Raises:
            SplitDelayedError: one did not; the error says which, and why.
            EndpointError: its member cannot be reached.
        """
        prefix = AuxiliaryKeys(self._root).prefix + b"rollbacks/"
        found = await self._etcd.get_range(prefix, prefix_range_end(prefix))
        # So that no shard is missed that published since it was made.
        if not await self._key_space.catch_up(timeout_seconds=CATCH_UP_SECONDS):
            raise SplitDelayedError("this member's view of the cluster is behind etcd's")
        left = self._left.setdefault(journal, set())
        for shard_id in publishers_among((kv.key for kv in found.kvs), prefix, journal):
            if shard_id in left or ItemId(shard_id) not in self._key_space.items:
                continue
            held = await self._primaries.leave(shard_id, journal, timeout_seconds=LEAVE_SECONDS)
            result = await self._etcd.txn((held.unchanged,), ())
            if not result.succeeded:
                raise SplitDelayedError(f"shard {shard_id} has another primary since it left")
            left.add(shard_id)
            _log.info("journal_split.publisher_left", journal=journal, shard=shard_id)

    async def seal(self, journal: str) -> None:
        """Make the seal at a write head at which no transaction is open, and write its place into the spec.

        Raises:
            SplitDelayedError: a transaction is open, or more was written; the error says which.
        """
        spec = (await self._journals.get(journal)).spec
        reading = await self._read_on(spec)
        if open_ := reading.open.since(self._clock.wall_seconds() - OPEN_SECONDS):
            raise SplitDelayedError(_told(open_[0], journal))
        try:
            sealed = await self._journals.append(
                journal,
                await self._control_message(spec),
                offset=reading.head,
                check_registers=selector(include=DIVIDED),
            )
        except (WrongAppendOffsetError, AppendOutcomeUnknownError) as error:
            raise SplitDelayedError(f"{journal} was written to before its seal") from error
        await self._relabel(journal, (SEALED_AT, str(sealed.commit.end)))

    def _require_lively(self, reading: JournalReading, journal: str) -> None:
        """Refuse to begin while a transaction is open that may never end: who reads the parts would wait for it.

        Raises:
            SplitDelayedError: there is one.
        """
        now = self._clock.wall_seconds()
        for each in reading.open.since(now - OPEN_SECONDS):
            age = now - each.began_unix_seconds
            if age > LIVELY_SECONDS:
                raise SplitDelayedError(
                    f"{_told(each, journal)}, {age:.0f} s ago: it must end before the division begins, or is "
                    f"forgotten {OPEN_SECONDS / 3600:.0f} hours after it began"
                )

    async def _read_on(self, spec: JournalSpec, *, end: int = 0) -> JournalReading:
        """Read the journal up to its write head, or to an offset, from where it was read to before."""
        known = self._readings.get(spec.name)
        reading = self._readings[spec.name] = await self._messages.read(spec, known, end=end)
        return reading

    async def _control_message(self, spec: JournalSpec) -> bytes:
        """Return an acknowledgement by a producer that has published nothing: readers pass over it."""
        clock = clock_at(int(self._clock.wall_seconds() * 1e9))
        return await self._messages.acknowledgement(spec, new_producer_id(), clock)

    async def _relabel(self, journal: str, label: tuple[str, str]) -> None:
        """Set a label of the journal, if it has none of the name.

        Raises:
            SplitDelayedError: its spec was changed meanwhile.
        """
        listed = await self._journals.get(journal)
        if value_of(listed.spec.labels, label[0]):
            return
        change = ApplyRequest.Change(
            upsert=with_labels(listed.spec, label), expect_mod_revision=listed.mod_revision
        )
        try:
            await self._journals.apply([change])
        except ApplyConflictError as error:
            raise SplitDelayedError(f"the spec of {journal} was changed meanwhile") from error

    async def _note(self, journal: str, phase: JournalSplitPhase, reason: str = "") -> None:
        """Tell how far a division is, if it is not over; it never falls back."""
        key = journal_split_key(self._root, journal)
        found = (await self._etcd.get_range(key)).kvs
        if not found:
            return
        record = decode_journal_split(found[0].value)
        noted = record.noted(phase, reason)
        if noted != record:
            await self._etcd.txn(
                (Compare.mod_revision(key, found[0].mod_revision),),
                (Put(key, encode_journal_split(noted)),),
            )


def _told(each: OpenTransaction, journal: str) -> str:
    return (
        f"producer {each.producer:012x} has a transaction open in {journal} since offset {each.begin} "
        f"({_to_end_it(each.producer, journal)})"
    )


def _to_end_it(producer: int, journal: str) -> str:
    return (
        f"if its program is dead: shardctl journals roll-back {journal} --producer {producer:012x}"
    )
