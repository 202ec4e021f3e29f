"""Recovery of a shard's files from its log: as a hot standby first, then for one attempt as primary.

    standby     play the log into a directory of our own, and go on playing
    promoted    take the log over: fence it, play what is left, open the files where they are
    fork        play another shard's log up to a mark, and go on in our own log from there

A recovery is taken over once. A primary that failed then starts another, from the log as it is then. One that was not
admitted leaves the recovery to its next attempt.

Source: gazette/core consumer/recovery.go (beginRecovery, completeRecovery).
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import structlog

from broadsheet.allocator.model import ItemId
from broadsheet.consumer.elastic.fork import attempt_of_fork
from broadsheet.consumer.errors import RecoveryLogError, SplitDelayedError
from broadsheet.consumer.recoverylog.fence import author_from
from broadsheet.consumer.recoverylog.follower import StandbyFollower
from broadsheet.consumer.recoverylog.fsm import live_segments
from broadsheet.consumer.recoverylog.hint_store import fetch_hints
from broadsheet.consumer.recoverylog.hints import recovery_log_of
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.recoverylog.ownership import claim_of, owner_record
from broadsheet.consumer.recoverylog.playback import PlaybackProgress
from broadsheet.consumer.recoverylog.player import Player, Recovered
from broadsheet.consumer.recoverylog.recorder import Recorder
from broadsheet.consumer.shard.environment import ShardEnvironment
from broadsheet.consumer.shard.hint_keeper import HintKeeper
from broadsheet.consumer.shard.replica_status import AssignmentSource
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.errors import ContentTypeError
from broadsheet.journals.pipelining import TokenSource
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ShardSpec

AUTHOR_BYTES = 8

_log = structlog.get_logger()


class Recovery:
    """Recovery of one attempt. Entering starts to play; leaving removes the remaining files."""

    def __init__(
        self,
        spec: ShardSpec,
        assignment: AssignmentSource,
        environment: ShardEnvironment,
        new_follower: Callable[[Path], StandbyFollower | None] = lambda _: None,
        *,
        parent: ShardSpec | None = None,
    ) -> None:
        """Make a recovery, on the event loop.

        Args:
            spec: Names the log and where hints are.
            assignment: Returns ours as last observed.
            environment: The services and limits of this process.
            new_follower: Returns what follows the files in a directory until the log is taken over, if anything does.
            parent: The shard whose log is played, because this one becomes its fork, or absorbs it. None: our own is.
        """
        self._spec = spec
        self._assignment = assignment
        self._environment = environment
        self._log = recovery_log_of(spec)
        self._parent = parent
        self._fqn = environment.keys.item(ItemId(spec.id)).decode()
        self._claim = claim_of(environment.keys.root, spec)
        self._directory = new_directory(environment, spec.id)
        self._appends = AppendService(
            environment.journals, turns=TokenSource(environment.random_bytes)
        )
        self._outcome: asyncio.Future[Recovered | BaseException]
        self._outcome = asyncio.get_running_loop().create_future()
        self._player: Player | None = None
        self.follower = new_follower(self._directory)
        """The follower of the played files."""
        self._author = 0
        self._mark = ""
        """Path of the property at which the playback of another shard's log is to end; empty: of none."""
        self._counted_bytes = 0
        self.is_taken_over = False
        """True once `take_over` was called. Until then the recovery outlives the attempts that end."""
        self._recorder: Recorder | None = None
        self.ended = asyncio.Event()
        """Set once playing is over, one way or the other."""
        self.tailing = asyncio.Event()
        """Set once all is played that the log had when we began: a standby worth promoting."""
        self.local_state: LocalState | None = None
        """Set once the log is ours."""

    @property
    def progress(self) -> PlaybackProgress:
        """Progress of the log's playback."""
        return self._player.progress if self._player is not None else PlaybackProgress()

    @property
    def failure(self) -> BaseException | None:
        """Error that ended the playback, if it failed."""
        outcome = self._outcome.result() if self._outcome.done() else None
        return outcome if isinstance(outcome, BaseException) else None

    def failure_for(self, spec: ShardSpec) -> BaseException | None:
        """Return why this recovery is none of a shard's with this spec; None: it can be taken over.

        It failed, or the spec has another log, or other hints, than when it began.
        """
        began = self._spec
        if recovery_log_of(spec) != self._log or spec.hint_prefix != began.hint_prefix:
            return RecoveryLogError(
                self._log, f"the spec of shard {spec.id} has another log or other hints since"
            )
        return self.failure

    @property
    def recorded_bytes(self) -> int:
        """Bytes recorded into the log since it was taken over."""
        return self._recorder.recorded_bytes if self._recorder is not None else 0

    @property
    def directory(self) -> Path:
        """The directory of the shard's files, played or written by its store."""
        return self._directory

    def story(self) -> str:
        """Return the recent events of the player; empty if nothing was played."""
        return self._player.story() if self._player is not None else ""

    def overdue_append(self, seconds: float) -> str:
        """Return the log if an append to it has been under way for so long; else the empty string."""
        return self._appends.overdue(seconds)

    def start(self, group: TaskGroup) -> None:
        """Begin to play, in tasks of `group`, which never fail."""
        group.start_soon(self._appends.run(), name=f"record {self._spec.id}")
        group.start_soon(self._play(group), name=f"play {self._spec.id}")

    async def take_over(self, *, promoted: bool) -> HintKeeper:
        """Become the log's only recorder, with all files in `local_state`; return the keeper of their hints.

        Args:
            promoted: Whether we stood by before.

        Raises:
            ServiceError: the log cannot be played, or appended to.
            OSError: as of the disk.
        """
        self.is_taken_over = True
        if promoted and not self.tailing.is_set():
            self._tell_cold()
        self._author = author_from(
            int.from_bytes(self._environment.random_bytes(AUTHOR_BYTES), "big")
        )
        if self._player is not None:
            self._player.hand_over(self._author)
        # Shielded, because a caller that is cancelled must leave the future to the player, which sets it.
        recovered = await asyncio.shield(self._outcome)
        if isinstance(recovered, BaseException):
            raise recovered
        hints = recovered.fsm.hints(recovered.log)
        recorder = self._recorder = Recorder(
            recovered.fsm,
            self._appends,
            log=self._log,
            author=recovered.author,
            head=recovered.head,
        )
        record = owner_record(recovered.fsm.properties, self._claim)
        if record is not None:
            recorder.set_property(*record)
        return self._keeper(recovered, recorder, hints)

    def end_at(self, mark: str) -> None:
        """Have the parent's log played up to the operation that sets a property, which is not recorded yet.

        Requires:
            `tailing` is set.
        """
        assert self._player is not None, "it tails"
        self._mark = mark
        self._player.stop_at_mark(mark)

    async def marked(self) -> Path:
        """Wait until the other shard's log is played up to the mark; return where its files are then.

        Raises:
            SplitDelayedError: the playback had ended at the mark of an earlier attempt.
            ServiceError: the log cannot be played.
            OSError: as of the disk.
        """
        return (await self._recovered_at_mark()).directory

    async def _recovered_at_mark(self) -> Recovered:
        recovered = await asyncio.shield(self._outcome)
        if isinstance(recovered, BaseException):
            raise recovered
        # A playback that was slow may come to a former mark just before it is told another one. The other shard has
        # gone on since, so what it committed would be missing.
        if self._mark not in recovered.fsm.properties:
            raise SplitDelayedError(
                "the other shard's log was played up to the mark of an earlier attempt; it is played once more"
            )
        return recovered

    async def open_own_log(self) -> None:
        """Check our own log, and have its broker open it, which takes longer than an append does later.

        Raises:
            ServiceError: it is no recovery log, or cannot be appended to.
        """
        await self._check_log(self._log)
        await self._environment.journals.append(self._log, b"")

    async def fork(self) -> tuple[HintKeeper, FSMHints]:
        """Go on in our own log from the mark in the parent's; return our hints, and what keeps them.

        The hints end in our own log, and all that they cover is durable.

        Requires:
            `open_own_log` was called.

        Raises:
            HintsError: our log is one of the parent's history, so that the hints would be out of order.
            SplitDelayedError: the playback had ended at the mark of an earlier attempt.
            ServiceError: the parent's log cannot be played, or ours cannot be appended to.
            OSError: as of the disk.
        """
        recovered = await self._recovered_at_mark()
        recorder = self._recorder = Recorder(
            recovered.fsm,
            self._appends,
            log=self._log,
            author=author_from(int.from_bytes(self._environment.random_bytes(AUTHOR_BYTES), "big")),
            head=recovered.head,
        )
        taken = recorder.take_over()
        record = owner_record(recovered.fsm.properties, self._claim)
        if record is not None:
            recorder.set_property(*record)
        hints, covered = recorder.snapshot_hints()
        await asyncio.wrap_future(taken)
        await asyncio.wrap_future(covered)
        # What could not be recovered from must not be committed either.
        live_segments(hints)
        return self._keeper(recovered, recorder, hints), hints

    def _keeper(self, recovered: Recovered, recorder: Recorder, hints: FSMHints) -> HintKeeper:
        """Open the files for the store; return the keeper of their hints."""
        self.local_state = LocalState(
            recovered.directory,
            recorder,
            follower=self.follower,
            fork=attempt_of_fork(recovered.fsm.properties, self._fqn),
        )
        return HintKeeper(
            recorder,
            hints,
            spec=self._spec,
            assignment=self._assignment,
            environment=self._environment,
        )

    async def copy_to(self, target: Path) -> bool:
        """Copy the played files, as of now or a little later, below `target`; False if this is no standby.

        Raises:
            ServiceError: no broker tells where the log ends, or played files make no sense.
            OSError: as of the disk.
        """
        return self._player is not None and await self._player.copy_to(target)

    @property
    def is_followed(self) -> bool:
        """True from when the follower was shown the first files until playing is over, also if it failed."""
        return self._player is not None and self._player.is_followed

    async def follow_through(self) -> StandbyFollower | None:
        """Return the follower, once it has taken in all that the log holds now; None if nothing follows this standby.

        Raises:
            ServiceError: no broker tells where the log ends.
        """
        if self._player is None or not await self._player.follow_through():
            return None
        return self.follower

    async def discard(self) -> None:
        """Remove the files; processes that hold them open can still read them."""
        await asyncio.to_thread(self._discard)

    def _discard(self) -> None:
        if self.follower is not None:
            self.follower.discard()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _play(self, group: TaskGroup) -> None:
        try:
            outcome: Recovered | BaseException = await self._played(group)
        except Exception as error:
            outcome = error
        self._count_played()
        self._outcome.set_result(outcome)
        self.ended.set()

    async def _played(self, group: TaskGroup) -> Recovered:
        environment, played = self._environment, self._parent or self._spec
        stored = await fetch_hints(environment.etcd, played)
        hints = stored.picked(recovery_log_of(played))
        await self._check_log(hints.log)
        player = Player(
            environment.journals,
            hints,
            self._directory,
            clock=environment.clock,
            # A parent's log is looked at only.
            claim=self._claim if self._parent is None else None,
            follower=self.follower,
        )
        self._player = player
        if self._author:
            player.hand_over(self._author)
        group.start_soon(self._note_tailing(player), name=f"tail {self._spec.id}")
        return await player.run()

    async def _note_tailing(self, player: Player) -> None:
        await player.tailing.wait()
        self.tailing.set()
        self._count_played()

    async def _check_log(self, log: str) -> None:
        """Verify that the log exists and is a recovery log.

        Raises:
            JournalNotFoundError: it was never applied, or was deleted.
            ContentTypeError: it is a journal of something else.
        """
        listed = await self._environment.journals.get(log)
        found = [each.value for each in listed.spec.labels.labels if each.name == CONTENT_TYPE]
        if found != [CONTENT_TYPE_RECOVERY_LOG]:
            raise ContentTypeError(
                log,
                ", ".join(found),
                f"expected {CONTENT_TYPE_RECOVERY_LOG}, for it is the recovery log of shard {self._spec.id}",
            )

    def _count_played(self) -> None:
        """Count what was played since the last call."""
        played_bytes = self.progress.played_bytes
        self._environment.metrics.record_recovered(played_bytes - self._counted_bytes)
        self._counted_bytes = played_bytes

    def _tell_cold(self) -> None:
        """Report the promotion of a standby that must still play for a while."""
        progress = self.progress
        self._environment.metrics.record_cold_promotion()
        _log.warning(
            "shard.cold_promotion",
            shard=self._spec.id,
            behind_bytes=progress.behind_bytes,
            behind_seconds=progress.behind_seconds,
        )


def new_directory(environment: ShardEnvironment, shard_id: str) -> Path:
    """Return a name that was never used: two lives of a shard may overlap in one process."""
    # For those who look there; a shard's id may be longer than a file's name.
    readable = shard_id.replace("/", "_").encode()[:_READABLE_BYTES_MAX].decode(errors="ignore")
    return environment.state_directory / f"{readable}-{environment.random_bytes(4).hex()}"


_READABLE_BYTES_MAX = 200
