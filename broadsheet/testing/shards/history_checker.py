"""Checks the invariants of a run from its journals and tables, without using the parts under test.

    S0  shards fail only for foreseen reasons, and no error goes unhandled
    S1  each committed input is reflected exactly once: in the state that is durable, and in the published output
    S2  an output is visible if, and only if, the transaction that published it is durable
    S3  durable state only grows: no store commits after a newer restore, and a commit reported as durable is durable
    S4  a shard's status belongs to its own assignment, and is true in the end

Inputs are numbered. The application records each number in its state, with the count of those before it, and publishes
the number or not. So the numbers committed, recorded and visible can be compared at any moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.etcd.api import KeyPut
from broadsheet.allocator.keys import AssignmentKey, Keys
from broadsheet.allocator.ops import KeyValue
from broadsheet.consumer.recoverylog.playback import CreateFile, Playback, RemoveFile
from broadsheet.consumer.registry.failure_kind import FailureKind
from broadsheet.consumer.stores.json_file import decode_documents
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.message.batch import batch_of
from broadsheet.journals.message.sequence_rules import SequenceOutcome
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.journals.message.uuid import Flags
from broadsheet.testing.allocator.kernel.run import Findings, InvariantViolation
from broadsheet.testing.allocator.kernel.store import StoreCommit
from broadsheet.testing.shards.broker import Appended
from broadsheet.testing.shards.stores import State
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ReplicaStatus

INPUTS = ("in/a", "in/b")
OUTPUTS = ("out/a", "out/b")
LOG = "logs/shard-1"
FOREIGN = 1_000_000
"""First number of other producers' messages in the outputs."""


ALLOCATOR: Final = "allocator"
"""Author of assignments."""
BROKEN_ON_PURPOSE: Final = "the application is broken on purpose"
_FORESEEN: Final = (FailureKind.TRANSIENT, FailureKind.FENCED)
ENDLESS: Final = 1 << 30
"""Bound of its memory, messages and bytes: endless, because it never reads twice."""


_STATE = "/state.json"


class RecoveredView:
    """The state that a recovery from one log would find, as the log of a `RecordedStore` grows."""

    def __init__(self, log: str) -> None:
        self._playback = Playback(FSMHints(log=log))
        self._files: dict[int, bytearray] = {}
        self._decoded_fnode = 0
        self.state: Mapping[str, int] = {}
        """State of the last complete commit."""

    def feed(self, appended: Appended) -> bool:
        """Play an append; return whether the state has changed."""
        for change in self._playback.feed(appended.begin, appended.content):
            if isinstance(change, CreateFile):
                self._files[change.fnode] = bytearray()
            elif isinstance(change, RemoveFile):
                del self._files[change.fnode]
            else:
                file = self._files[change.fnode]
                file[change.offset : change.offset + len(change.content)] = change.content
        fnode = self._playback.fsm.links.get(_STATE, 0)
        if fnode == self._decoded_fnode or fnode == 0:
            return False
        self._decoded_fnode = fnode
        document, _ = decode_documents(bytes(self._files[fnode]))
        self.state = msgspec.json.decode(document, type=State)
        return True


class CommittedHistory:
    """The messages that a committed reader sees of one journal, as it grows. They are JSON with a number at `id`."""

    def __init__(self, journal: str) -> None:
        self._unframer = framing_for(NDJSON, journal=journal).unframer(journal=journal, offset=0)
        self._sequencer = Sequencer({}, ring_messages=ENDLESS, ring_bytes=ENDLESS)
        self._type = JsonType()
        self.outcomes: Counter[SequenceOutcome] = Counter()
        """Messages by their outcome."""

    def feed(self, appended: Appended) -> list[int]:
        """Return the numbers of messages that an append makes visible, in order."""
        return [message["id"] for message in self.messages(appended)]

    def messages(self, appended: Appended) -> list[Mapping[str, Any]]:
        """Return the messages that an append makes visible, in order."""
        frames = self._unframer.feed(appended.content)
        batch, error = batch_of(appended.journal, frames, self._type)
        assert error is None, f"{appended} is no message: {error}"
        seen: list[Mapping[str, Any]] = []
        index = 0
        while index < len(batch):
            queued = self._sequencer.queue(batch, index)
            index = queued.next_index
            self.outcomes.update(queued.outcomes)
            while self._sequencer.emitting:
                run = self._sequencer.peek(ENDLESS)
                assert run is not None, "everything is in memory"
                seen += [
                    envelope.message
                    for envelope, flags in zip(run.envelopes(), run.flags, strict=True)
                    if flags != Flags.ACK_TXN
                ]
                self._sequencer.consume(len(run))
        return seen

    def pending(self) -> list[int]:
        """Return the producers whose messages were neither committed nor rolled back."""
        return [
            int.from_bytes(entry.id, "big")
            for source in self._sequencer.take_checkpoint().values()
            for entry in source.producers
            if entry.state.begin >= 0
        ]


def output_of(number: int) -> str | None:
    """Return the journal to which a number is published."""
    return (*OUTPUTS, None)[number % 3]


@dataclass(slots=True)
class HistoryChecker:
    """Checks the invariants at each event. Implements `broadsheet.testing.shards.stores.StoreObserver`."""

    tell: Callable[[str], object] = lambda _: None
    """Called with each event."""
    findings: Findings = field(default_factory=Findings)
    committed: set[int] = field(default_factory=set)
    """Numbers of committed inputs."""
    durable: dict[str, int] = field(default_factory=dict)
    """The state that a recovery would find now."""
    visible: dict[str, list[int]] = field(default_factory=dict)
    """Numbers that a reader of each output has seen, in order."""
    commits: int = 0
    """Number of states that became durable."""
    restores: int = 0
    """Number of times that a store was opened."""
    _views: dict[str, CommittedHistory] = field(default_factory=dict)
    _log: RecoveredView = field(default_factory=lambda: RecoveredView(LOG))

    def __post_init__(self) -> None:
        self._views = {journal: CommittedHistory(journal) for journal in (*INPUTS, *OUTPUTS)}
        self.visible = {journal: [] for journal in OUTPUTS}

    # -- events

    def on_appended(self, appended: Appended) -> None:
        """Check an append to a journal."""
        if appended.journal == LOG:
            if self._log.feed(appended):
                self.on_durable(self._log.state)
            return
        numbers = self._views[appended.journal].feed(appended)
        if numbers:
            self.tell(f"{appended.journal} shows {_shown(numbers)}")
        if appended.journal in INPUTS:
            self.committed.update(numbers)
        else:
            self._on_visible(appended.journal, numbers)

    def on_durable(self, state: Mapping[str, int]) -> None:
        """Check a state that is durable from now on."""
        self.commits += 1
        added = [number for number in state if number not in self.durable]
        self.tell(f"durable: {_shown([int(number) for number in added])}")
        if not self.durable.items() <= state.items():
            gone = sorted(self.durable.items() - state.items())
            self.violate("S3", f"a commit was made beside a newer one: {gone} are gone or changed")
        if sorted(state.values()) != list(range(len(state))):
            self.violate("S1", f"an input was noted twice, or lost: {state}")
        strangers = [number for number in added if int(number) not in self.committed]
        if strangers:
            self.violate("S1", f"inputs {strangers} are reflected, and not committed")
        self.durable = dict(state)

    def on_restored(self, state: Mapping[str, int]) -> None:
        """Check the state that a store restored; one that is no longer the owner may restore an older state."""
        self.restores += 1
        self.tell(f"restored {len(state)} of {len(self.durable)}")
        if not state.items() <= self.durable.items():
            self.violate("S3", f"a store was restored with {state}, durable is {self.durable}")

    def on_believed(self, state: Mapping[str, int]) -> None:
        """Check a state that a store was told to be durable."""
        if not state.items() <= self.durable.items():
            self.violate("S3", f"a store was told that {state} is durable; {self.durable} is")

    def on_consumed(self, number: int, *, again: bool) -> None:
        """Check an input given to the application; `again` if its state has it already."""
        if again:
            self.violate("S1", f"input {number} was delivered to a state that reflects it")
        if number not in self.committed:
            self.violate("S1", f"input {number} was delivered, and is not committed")

    def violate(self, invariant: str, problem: str) -> None:
        """Record a violation."""
        self.findings.violate(InvariantViolation(invariant, problem))

    # -- at rest

    def missing(self) -> list[str]:
        """Return the expectations of a run's end that are not met yet, in words."""
        found: list[str] = []
        unreflected = {number for number in self.committed if str(number) not in self.durable}
        if unreflected:
            found.append(f"inputs {sorted(unreflected)} are not reflected")
        for journal in OUTPUTS:
            expected = {n for n in self.committed if output_of(n) == journal}
            invisible = expected.difference(self.visible[journal])
            if invisible:
                found.append(f"{journal} does not show {sorted(invisible)}")
        return found

    def pending(self, others: Collection[int]) -> list[str]:
        """Return outputs with messages of the shard's producers that stay pending for ever, in words.

        Args:
            others: Producers other than the shard's.
        """
        left = {journal: set(self._views[journal].pending()) - set(others) for journal in OUTPUTS}
        return [
            f"{journal} has messages of {[f'{each:012x}' for each in sorted(producers)]} pending"
            for journal, producers in left.items()
            if producers
        ]

    def _on_visible(self, journal: str, numbers: list[int]) -> None:
        for number in numbers:
            if number >= FOREIGN:
                continue
            if str(number) not in self.durable:
                self.violate("S2", f"{journal} shows {number}, whose transaction is not durable")
            if number in self.visible[journal]:
                self.violate("S1", f"{journal} shows {number} twice")
            if output_of(number) != journal:
                self.violate("S1", f"{journal} shows {number}, which is not for it")
            self.visible[journal].append(number)


class StatusChecker:
    """Checks the statuses of shards in etcd at each revision: S0 and S4."""

    def __init__(self, keys: Keys, findings: Findings) -> None:
        self._keys = keys
        self._findings = findings
        self._codes: dict[AssignmentKey, ReplicaStatus.Code.ValueType] = {}

    def on_commit(self, commit: StoreCommit) -> None:
        """Check a revision."""
        for event in commit.events:
            key = event.kv.key if isinstance(event, KeyPut) else event.key
            assignment = self._assignment_or_none(key)
            if assignment is None:
                continue
            if not isinstance(event, KeyPut):
                self._codes.pop(assignment, None)
                continue
            self._judge(commit.author, assignment, event.kv)

    def untrue(self) -> list[str]:
        """Return the statuses that are untrue although everything works, in words."""
        return [
            f"{key.member_id} says {ReplicaStatus.Code.Name(code)} at slot {key.slot}"
            for key, code in self._codes.items()
            if code != (ReplicaStatus.STANDBY if key.slot else ReplicaStatus.PRIMARY)
        ]

    def _judge(self, author: str, assignment: AssignmentKey, kv: KeyValue) -> None:
        status = ReplicaStatus.FromString(kv.value)
        self._codes[assignment] = status.code
        if author == ALLOCATOR:
            return  # It moves an assignment together with its status.
        if author != str(assignment.member_id):
            self._violate("S4", f"{author} says {status} of {assignment}")
        if kv.create_revision == kv.mod_revision or not kv.lease:
            self._violate("S4", f"{author} says {status} of {assignment}, which was gone")
        self._look_at_failure(status)

    def _look_at_failure(self, status: ReplicaStatus) -> None:
        """Check the reason of a shard's failure."""
        text = "; ".join(status.errors)
        foreseen = any(f"({kind.value})" in text for kind in _FORESEEN)
        if status.code == ReplicaStatus.FAILED and not foreseen and BROKEN_ON_PURPOSE not in text:
            self._violate("S0", f"a shard failed: {text}")

    def _violate(self, invariant: str, problem: str) -> None:
        self._findings.violate(InvariantViolation(invariant, problem))

    def _assignment_or_none(self, key: bytes) -> AssignmentKey | None:
        try:
            parsed = self._keys.parse(key)
        except KeyDecodeError:
            return None
        return parsed if isinstance(parsed, AssignmentKey) else None


def _shown(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
