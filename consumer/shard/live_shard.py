"""A shard assigned to this process: its start, service, failures, restarts and stop.

    new ─► BACKFILL ─► STANDBY ─► (slot 0) ─► attempt 1: restore ─► ready, PRIMARY ─► transactions ─┐
              ▲                                                                                     │ error
              └──────────────── attempt 2: back-off ◄── FAILED (errors, next retry) ◄───────────────┘

Each *attempt* to be the primary has its own worker thread, store, publisher and append service, and ends for good.
`ShardReference` is how others use a shard.

With a recovery log, each attempt first plays it (`broadsheet.consumer.shard.recovery`); a standby goes on playing.

Source: gazette/core consumer/shard.go (what a shard does, and when it tells etcd). Restarts in place are our own.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import structlog

from broadsheet.allocator.model import Assignment, ItemId
from broadsheet.allocator.state.load import Lag
from broadsheet.consumer.application import FollowingApplication, Store
from broadsheet.consumer.elastic.family import is_fork
from broadsheet.consumer.elastic.flip import HeldKey, Rest
from broadsheet.consumer.errors import (
    AssignmentLostError,
    ShardHeldBackError,
    SplitDelayedError,
)
from broadsheet.consumer.recoverylog.follower import StandbyFollower
from broadsheet.consumer.recoverylog.hints import has_recovery_log
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.recoverylog.playback import PlaybackProgress
from broadsheet.consumer.registry.failure_kind import FailureKind, failure_kind
from broadsheet.consumer.shard.dead_letters import DeadLetters, dead_letter_journal
from broadsheet.consumer.shard.environment import ShardEnvironment
from broadsheet.consumer.shard.forking import Forking, stored_spec
from broadsheet.consumer.shard.hint_keeper import HintKeeper
from broadsheet.consumer.shard.holding import HoldOrder
from broadsheet.consumer.shard.primary import PrimaryAttempt
from broadsheet.consumer.shard.progress import Usage
from broadsheet.consumer.shard.recovery import Recovery
from broadsheet.consumer.shard.replica_status import (
    Availability,
    ReplicaStatusWriter,
    failed_status,
)
from broadsheet.consumer.shard.shard_reference import ShardReference as ShardReference
from broadsheet.consumer.shard.stall_watch import StallWatch
from broadsheet.consumer.shard.supervision import (
    AttemptFailure,
    RestartDecision,
    Supervision,
    place_in_code,
    text_of,
    trace_of,
    way_past,
)
from broadsheet.consumer.shard.transaction_events import Activity
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.clock_watch import ClockWatch
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.labels import FORK_OF, value_of
from broadsheet.wire.progress_pb2 import Progress
from broadsheet.wire.shard_pb2 import ReplicaStatus, ShardSpec

_log = structlog.get_logger()


class LiveShard:
    """A shard of this process; implements `broadsheet.consumer.application.Shard`.

    The resolver creates it for a new assignment, keeps it over a promotion, and stops it when the assignment is gone
    or was created again (`broadsheet.consumer.resolver.local_shards`).
    """

    def __init__(
        self,
        spec: ShardSpec,
        assignment: Assignment,
        environment: ShardEnvironment,
        *,
        created_revision: int = 0,
    ) -> None:
        """Make a shard, on the event loop; nothing runs before `start`.

        Args:
            spec: Its current spec. Never changed, replaced by `on_assignment_changed`.
            assignment: Our own assignment as observed; slot 0 is the primary.
            environment: The services and limits of this process.
            created_revision: Revision that created the shard; 0: not known.
        """
        self.created_revision = created_revision
        self._spec = spec
        self._assignment = assignment
        self._environment = environment
        self._forking: Forking | None = None
        self._fqn = environment.keys.item(ItemId(spec.id)).decode()
        self._random = environment.new_random()
        self._status = ReplicaStatusWriter(
            environment.etcd,
            environment.key_space,
            lambda: self._assignment,
            random=self._random,
        )
        self._supervision = Supervision(environment.config.restarts)
        self._dead_letters = DeadLetters()
        self._clocks = ClockWatch(
            environment.clock,
            ahead_seconds=environment.config.clock_ahead_seconds,
            count=partial(environment.metrics.record_clocks_ahead, self._fqn),
        )
        self._promoted = asyncio.Event()
        self._spec_changed = asyncio.Event()
        self._stood_by = False
        """Whether the last attempt ended as a standby's."""
        self._stopping = False
        self._stop_asked = False
        self._succeeded = asyncio.Event()
        self._recovery: Recovery | None = None
        self._telling: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._attempt = self._new_attempt()
        self.availability = Availability(
            self,
            self._status,
            overdue_append=self._overdue_append,
            metrics=environment.metrics,
        )
        """Told whether brokers can be reached; tells it on."""
        if self.primary:
            self._promoted.set()

    # -- for the application

    @property
    def id(self) -> str:
        """The shard's id."""
        return self._spec.id

    @property
    def fqn(self) -> str:
        """Full etcd key of the shard's spec."""
        return self._fqn

    @property
    def spec(self) -> ShardSpec:
        """The current spec; read-only."""
        return self._spec

    @property
    def journals(self) -> JournalClient:
        """A journal client, for use on the event loop."""
        return self._environment.journals

    @property
    def local_state(self) -> LocalState | None:
        """Directory of an embedded store's files; set while we are the primary of a shard with a recovery log."""
        return self._recovery.local_state if self._recovery is not None else None

    def story(self) -> str:
        """Return the recent events of the current attempt's state machines, as text, for the report of a defect."""
        played = self._recovery.story() if self._recovery is not None else ""
        return "\n".join(filter(None, (self._attempt.story(), played)))

    def progress(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return (read_through, publish_at) of the current attempt's completed transactions, bytes by journal."""
        return self._attempt.progress.copies()

    # -- for the resolver

    @property
    def assignment(self) -> Assignment:
        """Our own assignment as last observed."""
        return self._assignment

    @property
    def usage(self) -> Usage:
        """Resources that the current attempt has used so far."""
        return self._attempt.usage

    @property
    def lag(self) -> Lag | None:
        """Lag of a standby in its recovery log; None for a primary, or without a log."""
        if self._recovery is None or self.primary:
            return None
        progress = self._recovery.progress
        seconds = progress.behind_seconds
        return Lag(seconds if seconds is not None else math.inf, progress.behind_bytes)

    @property
    def unread_bytes(self) -> int:
        """Bytes of the sources that a primary's transactions have not read, as far as brokers told; 0 of a standby."""
        return self._environment.metrics.lags.unread_bytes(self.fqn) if self.primary else 0

    @property
    def recorded_bytes(self) -> int:
        """Bytes that the current attempt has recorded into its recovery log; 0 without one."""
        return self._recovery.recorded_bytes if self._recovery is not None else 0

    @property
    def files(self) -> Path | None:
        """The directory of the shard's files, if it has a recovery log; the files may be gone at any time."""
        return self._recovery.directory if self._recovery is not None else None

    @property
    def playback(self) -> PlaybackProgress | None:
        """Progress of the recovery log's playback; None without a log, or while none is played."""
        return self._recovery.progress if self._recovery is not None else None

    @property
    def key_change(self) -> Progress | None:
        """Progress of the split or merge for which this replica works; None: there is none, or it has done its part."""
        if self._forking is not None:
            return self._forking.progress
        return self._attempt.absorbing.progress or self._attempt.purge

    @property
    def store(self) -> Store | None:
        """The store while the current attempt serves; it may go at any time, so use only what any thread may."""
        return self._attempt.store if self.is_ready else None

    @property
    def is_ready(self) -> bool:
        """Report whether the current attempt has restored its store, and has not ended."""
        return self._attempt.ready.done() and not self._attempt.ended

    @property
    def activity(self) -> Activity:
        """Activity that the current attempt's transactions wait for."""
        return self._attempt.activity

    @property
    def is_due(self) -> bool:
        """Report whether the current attempt has a transaction due that needs no input."""
        return self._attempt.is_due

    def stack(self) -> str:
        """Return the present stack of the application's thread; empty if nothing runs there."""
        return self._attempt.stack()

    @property
    def primary(self) -> bool:
        """Report whether our slot is 0."""
        return self._assignment.slot == 0

    @property
    def terminal(self) -> asyncio.Future[BaseException | None]:
        """Future that resolves with the cause, never raising, when the current attempt ends by any exit."""
        return self._attempt.terminal

    def start(self, group: TaskGroup) -> None:
        """Start to serve, in a task of `group`; that task never fails."""
        assert self._task is None, "a shard is started once"
        if not self._stopping:
            self._task = group.start_soon(self._run(), name=f"shard {self.id}")
            # Also if it is cancelled before its first step.
            self._task.add_done_callback(lambda _: self._end_attempt())

    async def rest(self, seconds: float) -> None:
        """Wait for so long, or until we are the primary."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._promoted.wait()

    def on_assignment_changed(self, spec: ShardSpec, assignment: Assignment) -> None:
        """Adopt a newer spec, status or slot (a promotion). Called at each applied change of the key space."""
        before, self._spec = self._spec, spec
        self._assignment = assignment
        if self.primary:
            self._promoted.set()
        if spec != before:
            self._spec_changed.set()
            sources_changed = list(spec.sources) != list(before.sources)
            self._attempt.on_spec_changed(sources_changed=sources_changed)

    async def copy_played(self, target: Path) -> bool:
        """Copy the files that a standby has played, as of now or a little later, below `target`.

        Returns False if there are none: we are not a standby (yet, or any more), or have no recovery log.

        Raises:
            ServiceError: no broker tells where the log ends, or played files make no sense.
            OSError: as of the disk.
        """
        if self._recovery is None or self.primary:
            return False
        return await self._recovery.copy_to(target)

    async def follow_played(self) -> StandbyFollower | None:
        """Return what follows a standby's files, once it has taken in what the log holds now; None if nothing does.

        Raises:
            ServiceError: no broker tells where the log ends.
        """
        if self._recovery is None or self.primary:
            return None
        return await self._recovery.follow_through()

    async def prepare_fork(self, order: HoldOrder) -> Rest:
        """Rest for an attempt of a fork or a merge; return our assignment, by which the other shard commits.

        Raises:
            SplitDelayedError: not now: we do not serve, or rest already.
            ServiceError: the log cannot be written, or etcd does not answer.
        """
        if not self.is_ready or self._stopping:
            raise SplitDelayedError(f"shard {self.id} does not serve here now")
        return await self._attempt.holding.prepare(order)

    async def settle_publishing(self) -> HeldKey:
        """Have all that was published acknowledged; return the assignment with which we publish.

        Raises:
            SplitDelayedError: not now: we do not serve, or rest.
        """
        if not self.is_ready or self._stopping:
            raise SplitDelayedError(f"shard {self.id} does not serve here now")
        return await self._attempt.holding.settle()

    def committed_through(self, source: str) -> int:
        """Return through where the committed checkpoint has read a source, bytes; have what was read since committed.

        Args:
            source: As the spec has it, with its suffix.

        Raises:
            SplitDelayedError: we do not serve here now.
        """
        if not self.is_ready or self._stopping:
            raise SplitDelayedError(f"shard {self.id} does not serve here now")
        return self._attempt.committed_through(source)

    def acquire(self) -> ShardReference:
        """Take a reference to the current attempt, without waiting.

        Raises:
            ShardStoppedError: the attempt ended (and the next did not begin yet), or the shard was stopped.
        """
        return ShardReference(self._attempt)

    async def stop(self, *, grace_seconds: float | None = None) -> None:
        """Finish or abort the transaction, destroy the store, end the worker thread. Idempotent.

        Called again with a grace of 0, it ends the grace that an earlier call gave.

        Args:
            grace_seconds: How long the transaction may take to finish; None is as configured, 0 aborts it.
        """
        first, self._stop_asked = not self._stop_asked, True
        self._stopping = True
        if self._task is None:
            self._end_attempt()
            return
        if grace_seconds is None:
            grace_seconds = self._environment.config.stop_grace_seconds
        if first:
            if self._attempt.request_stop() and grace_seconds > 0:
                await asyncio.wait((self._task,), timeout=grace_seconds)
            self._task.cancel()
        elif grace_seconds == 0:
            self._task.cancel()
        await asyncio.wait((self._task,))

    async def hand_over(self) -> None:
        """Keep serving until the successor has fenced us, or `on_succeeded`, but for a bounded time; then stop."""
        seconds = self._environment.config.hand_over_seconds
        if self._task is not None and self.is_ready:
            self._stopping = True
            async with TaskGroup() as group:
                succeeded = group.start_soon(self._succeeded.wait(), name=f"successor {self.id}")
                await asyncio.wait(
                    (self._task, succeeded), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
                group.stop()
            if self._attempt.ended:  # The attempt was fenced: its own tear-down follows.
                await asyncio.wait((self._task,), timeout=seconds)
            _log.info("shard.handed_over", shard=self.id)
        await self.stop()

    def on_succeeded(self) -> None:
        """Record that the successor serves."""
        self._succeeded.set()

    # -- life

    def _new_attempt(self) -> PrimaryAttempt:
        return PrimaryAttempt(
            self,
            lambda: self._assignment,
            self._environment,
            self._dead_letters,
            on_read=self._clocks.on_read,
        )

    async def _run(self) -> None:
        # Binds the shard's name to every log line below, including the application's.
        structlog.contextvars.bind_contextvars(shard=self.id)
        async with TaskGroup() as group:
            group.start_soon(self.availability.run(), name=f"availability {self.id}")
            await self._live()
            group.stop()

    async def _live(self) -> None:
        while not self._stopping:
            cause = await self._live_once()
            if cause is None or self._stopping:
                return
            await self._try_again(cause, stood_by=self._stood_by)

    async def _try_again(self, cause: BaseException, *, stood_by: bool = False) -> None:
        """Wait as long as the failure asks for, and make the next attempt."""
        await self._back_off(cause, stood_by=stood_by)
        self._spec_changed.clear()
        self._attempt = self._new_attempt()

    def _overdue_append(self, seconds: float) -> str:
        recorded = self._recovery.overdue_append(seconds) if self._recovery is not None else ""
        return recorded or self._attempt.overdue_append(seconds)

    def _end_attempt(self) -> None:
        """Resolve the futures of an attempt that never ran."""
        if not self._attempt.ended:
            self._attempt.terminal.set_result(None)

    async def _live_once(self) -> BaseException | None:
        """Run as standby until promoted, then serve as primary until that ends; return the cause, or None for a
        stop.
        """
        self._stood_by = False
        if is_fork(self._spec):
            return await self._become_fork()
        if not has_recovery_log(self._spec):
            await self._stand_by(None)
            return await self._attempt.run(self._serve_primary, None)
        recovery = Recovery(
            self._spec, lambda: self._assignment, self._environment, self._new_follower
        )
        try:
            async with TaskGroup() as group:
                self._recovery = recovery
                recovery.start(group)
                telling = self._tell_standing(recovery)
                self._telling = group.start_soon(telling, name=f"standing {self.id}")
                cause = await self._recover_and_serve(recovery)
                group.stop()
        finally:
            self._recovery = self._telling = None
            await recovery.discard()
        return cause

    async def _become_fork(self) -> BaseException | None:
        """Follow the parent, commit the fork, then serve as primary until that ends; return the cause."""
        # There is one replica of a fork; another one waits for what becomes of the spec.
        async with TaskGroup() as group:
            waits = [
                group.start_soon(event.wait(), name=f"fork {self.id}")
                for event in (self._promoted, self._spec_changed)
            ]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            group.stop()
        if not (self.primary and is_fork(self._spec)):
            error = SplitDelayedError("it is no fork any more, or another replica makes it one")
            self._attempt.terminal.set_result(error)
            return error
        try:
            parent, _ = await stored_spec(self._environment, value_of(self._spec.labels, FORK_OF))
        # Whatever it is, such as an etcd that does not answer: this attempt fails, not the member.
        except Exception as error:
            self._attempt.terminal.set_result(error)
            return error
        recovery = Recovery(
            self._spec,
            lambda: self._assignment,
            self._environment,
            self._new_follower,
            parent=parent,
        )
        try:
            async with TaskGroup() as group:
                self._recovery = recovery
                recovery.start(group)
                telling = group.start_soon(self._tell_following(recovery), name=f"fork {self.id}")
                cause = await self._fork_and_serve(recovery, parent.id, telling)
                group.stop()
        finally:
            self._recovery = None
            await recovery.discard()
        return cause

    async def _fork_and_serve(
        self, recovery: Recovery, parent: str, telling: asyncio.Task[None]
    ) -> BaseException | None:
        forking = self._forking = Forking(self, self._environment, recovery, parent)
        try:
            async with TaskGroup() as group:
                group.start_soon(forking.report(), name=f"report fork {self.id}")
                keeper = await forking.commit()
                group.stop()
        except Exception as error:
            self._attempt.terminal.set_result(error)
            return error
        finally:
            self._forking = None
            telling.cancel()

        async def kept() -> HintKeeper:
            return keeper

        return await self._attempt.run(self._serve_primary, kept)

    async def _tell_following(self, recovery: Recovery) -> None:
        """Report BACKFILL while the parent's files lag, then STANDBY: a fork is as ready as it can be."""
        if not self._supervision.failures:
            await self._status.replace(ReplicaStatus(code=ReplicaStatus.BACKFILL))
        await recovery.tailing.wait()
        await self._status.replace(ReplicaStatus(code=ReplicaStatus.STANDBY))

    def _new_follower(self, directory: Path) -> StandbyFollower | None:
        application = self._environment.application
        if not isinstance(application, FollowingApplication):
            return None
        # A primary's store makes what it needs while it opens the files, in one pass; a fork's, while it follows.
        if self.primary and not is_fork(self._spec):
            return None
        return application.new_follower(self, directory)

    async def _recover_and_serve(self, recovery: Recovery) -> BaseException | None:
        promoted = not self.primary
        await self._stand_by(recovery)
        # Recorded now, because the promotion may come before the next attempt.
        only_followed = not self.primary
        while (failure := recovery.failure_for(self._spec)) is None:
            cause = await self._attempt.run(
                self._serve_primary, partial(recovery.take_over, promoted=promoted)
            )
            if cause is None or self._stopping or recovery.is_taken_over:
                return cause
            # Not admitted, e.g. held back: what is played, and what follows it, goes on until the next attempt.
            self._stop_telling()
            await self._try_again(cause)
            # What ends the recovery meanwhile is found by a replica that only follows.
            only_followed = True
        self._stood_by = only_followed
        self._attempt.terminal.set_result(failure)
        return failure

    async def _stand_by(self, recovery: Recovery | None) -> None:
        """Wait until we are promoted, or `recovery` fails."""
        async with TaskGroup() as group:
            if recovery is None and not self.primary:
                group.start_soon(self._tell_standing(None), name=f"standby {self.id}")
            waits = [group.start_soon(self._promoted.wait(), name=f"promotion {self.id}")]
            if recovery is not None:
                waits.append(group.start_soon(recovery.ended.wait(), name=f"played {self.id}"))
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            group.stop()

    async def _tell_standing(self, recovery: Recovery | None) -> None:
        """Report BACKFILL while files lag, then STANDBY. Remote state is always ready, and a primary reports more."""
        if recovery is not None:
            if not self._supervision.failures:  # Otherwise FAILED, with its reason, stays visible.
                await self._status.replace(ReplicaStatus(code=ReplicaStatus.BACKFILL))
            await recovery.tailing.wait()
        if not self.primary:
            await self._status.replace(ReplicaStatus(code=ReplicaStatus.STANDBY))

    async def _serve_primary(self) -> None:
        """Report PRIMARY, then watch for a stall as long as the attempt lasts."""
        await self._say_primary()
        _log.info("shard.primary", shard=self.id, attempt=self._supervision.failures + 1)
        if self._environment.config.stall_seconds > 0:
            await StallWatch(
                self._attempt,
                self._environment,
                self,
                say_stalled=self._say_stalled,
                say_moving=self._say_primary,
            ).run()

    def _was_healthy(self, attempt: PrimaryAttempt) -> bool:
        since = attempt.ready_at_monotonic_seconds
        now = self._environment.clock.monotonic_seconds()
        return since is not None and now - since >= self._environment.config.healthy_seconds

    def _stop_telling(self) -> None:
        if self._telling is not None:
            self._telling.cancel()  # From now on its writes are out of date, or refused.

    async def _say_primary(self) -> None:
        self._stop_telling()
        await self._status.replace(ReplicaStatus(code=ReplicaStatus.PRIMARY))

    async def _say_stalled(self, description: str) -> None:
        await self._status.replace(failed_status((description,)))

    def _judge(self, cause: BaseException, *, stood_by: bool) -> RestartDecision:
        """Decide on the restart after a failure, and record a message to skip."""
        attempt = self._attempt
        verdict = self._supervision.on_failure(
            AttemptFailure(
                failure_kind(cause),
                place=attempt.failed_at,
                healthy=self._was_healthy(attempt),
                held_seconds=cause.seconds if isinstance(cause, ShardHeldBackError) else 0.0,
                stood_by=stood_by,
            ),
            can_skip=bool(dead_letter_journal(self._spec)),
            jitter=self._random.random(),
        )
        self._environment.metrics.record_failure(self.fqn)
        if verdict.poison is not None:
            self._dead_letters.leave_out(verdict.poison, text_of(cause))
            self._environment.metrics.record_dead_letter(self.fqn)
        self._dead_letters.suspect = verdict.suspect or self._dead_letters.suspect
        return verdict

    async def _back_off(self, cause: BaseException, *, stood_by: bool) -> None:
        """Report FAILED with the cause; wait for the next attempt, another spec or, as a standby, a promotion."""
        verdict = self._judge(cause, stood_by=stood_by)
        outlook = self._outlook(verdict, cause)
        # Fixing the application needs the place in its code; other errors are explained by their
        # message.
        trace = {"exception": trace_of(cause)} if verdict.kind is FailureKind.APPLICATION else {}
        _log.warning("shard.failed", shard=self.id, error=text_of(cause), outlook=outlook, **trace)
        async with TaskGroup() as group:
            if not isinstance(cause, AssignmentLostError):
                is_ours = verdict.kind is not FailureKind.APPLICATION
                place = "" if is_ours else place_in_code(cause)
                status = failed_status(filter(None, (text_of(cause), place, outlook)))
                group.start_soon(self._status.replace(status), name=f"failed {self.id}")
            waits = [group.start_soon(self._spec_changed.wait(), name=f"spec {self.id}")]
            if stood_by:
                # What a standby found was about a replica that only follows. The shard has no other primary now.
                waits.append(group.start_soon(self._promoted.wait(), name=f"promotion {self.id}"))
            await asyncio.wait(
                waits, timeout=verdict.delay_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            group.stop()
        if stood_by and self.primary:
            self._supervision.on_promoted()

    def _outlook(self, verdict: RestartDecision, cause: BaseException) -> str:
        """Return the status text on what happens next."""
        kind = f"attempt {verdict.attempt} failed ({verdict.kind.value})"
        place = self._attempt.failed_at
        if place is not None and verdict.kind is FailureKind.APPLICATION:
            kind += f" at offset {place.begin} of {place.journal}"
        if verdict.poison is not None:
            kind += "; the message goes to the dead-letter journal"
        kind += way_past(
            cause,
            sources=[source.journal for source in self._spec.sources],
            can_skip=bool(dead_letter_journal(self._spec)),
        )
        quarantined = "; QUARANTINED" if verdict.quarantined else ""
        if verdict.delay_seconds is None:
            return f"{kind}{quarantined}; not retried before the spec changes"
        at = self._environment.clock.wall_seconds() + verdict.delay_seconds
        return f"{kind}{quarantined}; next at {datetime.fromtimestamp(at, UTC).isoformat(timespec='seconds')}"
