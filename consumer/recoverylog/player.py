"""Plays a recovery log into a directory: as far as it goes, and on, until it is handed over.

    BACKFILL ──► at the write head ──► tailing (a hot standby) ──► hand-over asked for
                                                                     │  an operation of the new author, which also
                                                                     ▼  takes the fence; read up to it
                                                                   recovered: files at their paths

The operation that hands the log over takes the next sequence number. Whatever the old recorder wrote before is part of
what is recovered; whatever it writes after bears a wrong number, and is refused by the broker besides. If another
operation came first, as is likely where the old recorder is busy, ours does not apply. It took the fence all the same,
so nothing follows what came first: the log is recovered once all before ours is read. Only if its answer did not tell
that the fence was ours is it tried again from where the log is then.

A log may have a fork (`broadsheet.consumer.recoverylog.forks`). Which branch is the log's history is asked at its end,
also by a standby that tails it, and before it is handed over; all is then played once more, without the other branch.

An operation whose answer was lost may arrive at any later time, and take the fence with it. So it is repeated under
another author: were it ours, it would give the log back to us when others have long recorded in it.

One enum says what is decided about the end; it never goes back, whatever is asked for late or twice:

    PLAYING ── stop_at_head ──► STOPPING ── all is played ───────────────────────► FINISHED
     │ │                           │ hand_over                                    ▲ ▲    ▲
     │ └─────── hand_over ─────────┴─► HANDING_OVER ── our operation is played ───│─┘    │
     │                                 ▲    │                                     │      │
     │                                 │    └── it took the fence ──► FENCED ── all before it is played, or it is
     │                                 └──── a fork stands before it ───┘         │
     └── the operation that `stop_at_mark` names is played ───────────────────────┘

The last of these ends without a trace in the log, whose recorder goes on: behind the mark nothing is played.

`tailing` is beside it: set at the first head, in whatever state. Only the event loop moves the state, because requests
arrive there while the thread plays.

The event loop reads ahead; what has arrived is decoded and written on a thread.

Source: gazette/core consumer/recoverylog/player.go (states, checks, hand-over). Reading ahead and the thread are ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from broadsheet.consumer.errors import LogDataLossError, RecoveryLogError
from broadsheet.consumer.recoverylog.fence import author_from, fence_holders, fence_of, holds_fence
from broadsheet.consumer.recoverylog.follower import FollowedFiles, StandbyFollower
from broadsheet.consumer.recoverylog.foreign_bytes import COMPLETION_BYTES_MAX
from broadsheet.consumer.recoverylog.forks import Fork, leads_elsewhere
from broadsheet.consumer.recoverylog.fsm import FileStateMachine
from broadsheet.consumer.recoverylog.log_feed import LINGER_SECONDS, LogFeeds
from broadsheet.consumer.recoverylog.ownership import LogClaim, check_claim
from broadsheet.consumer.recoverylog.playback import Playback, PlaybackProgress, PlayingTime
from broadsheet.consumer.recoverylog.standby_files import CopyOrders, PlayedFiles, PlayThread
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import AppendOutcomeUnknownError, JournalUnavailableError
from broadsheet.journals.reader import ReadSpan
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.errors import EndpointError, ServiceError
from broadsheet.runtime.story import StoryEntry, new_story, noting, story_text
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.recorded_op_pb2 import FSMHints

STEP_BYTES: Final = 4 << 20
"""Played at once, about: who waits for the player waits for so many bytes, of tiny operations a quarter of a second."""
INJECT_BACKOFF_SECONDS_MAX: Final = 1.0
"""Longest pause between attempts to take the log over: no member serves the shard meanwhile."""

_LOST_END: Final = (
    "it was deleted and applied again, or has lost its end. Restore the journal, or recover from a backup of the hints "
    "(shardctl shards rewind)"
)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Recovered:
    """The end of a playback."""

    fsm: FileStateMachine
    directory: Path
    """Holds the files, at their paths."""
    log: str
    """Where the operations end."""
    head: int
    """Offset after the last of them, bytes."""
    author: int
    """The author whom the log was handed over to; 0: none."""


class PlayerState(Enum):
    """The decision about the end of a playback."""

    PLAYING = "playing"
    """No end was asked for: at the log's end it waits for more."""
    STOPPING = "stopping"
    """It ends at the log's end, without a trace in it."""
    HANDING_OVER = "handing over"
    """At the log's end it appends the operation that hands the log over, again if that one was not the next."""
    FENCED = "fenced"
    """That operation took the fence: no other process records any more, so the log ends before it."""
    FINISHED = "finished"


_NEXT: Final[Mapping[PlayerState, frozenset[PlayerState]]] = {
    PlayerState.PLAYING: frozenset(
        {PlayerState.STOPPING, PlayerState.HANDING_OVER, PlayerState.FINISHED}
    ),
    PlayerState.STOPPING: frozenset({PlayerState.HANDING_OVER, PlayerState.FINISHED}),
    PlayerState.HANDING_OVER: frozenset({PlayerState.FENCED, PlayerState.FINISHED}),
    PlayerState.FENCED: frozenset({PlayerState.HANDING_OVER, PlayerState.FINISHED}),
    PlayerState.FINISHED: frozenset(),
}
_STORY_FIELDS: Final = ("state", "tailing", "author", "log", "played_to", "head")


class Player:
    """Plays once. `run` it; ask for its end with `hand_over` or `stop_at_head`."""

    def __init__(
        self,
        journals: JournalClient,
        hints: FSMHints,
        directory: Path,
        *,
        clock: Clock | None = None,
        claim: LogClaim | None = None,
        follower: StandbyFollower | None = None,
    ) -> None:
        """Take what to play and where to, on the event loop.

        Args:
            journals: Reads the log, and appends to it what hands it over.
            hints: What to read.
            directory: Absolute; emptied first, and removed if playback fails.
            clock: Times the rate of playing.
            claim: Of the shard that is to record here. None: the log is only looked at, so it may be any shard's.
            follower: Takes in what is played, from the log's head on.

        Raises:
            HintsError: the hints contradict themselves.
        """
        self._journals = journals
        self._log = hints.log
        self._hints = hints
        self._directory = directory
        self._clock = clock or SystemClock()
        self._claim = claim
        self._playback = Playback(hints)
        self._passed_over: dict[int, int] = {}
        """Authors who are not followed, each with the sequence number from which on."""
        self._decided_forks: set[tuple[int, int]] = set()
        """Forks whose losers returned to the branch that is followed."""
        self._plays_again = False
        """The log has a fork, and it is known which branch is its history, so all is to be played once more."""
        self._look: tuple[int, frozenset[int]] | None = None
        """The log's end when the registers were read because of a fork, and the authors whom they named."""
        self._is_undecided = False
        """The registers do not tell which branch of the fork it is; a standby waits then until it is promoted."""
        self._hinted = list(self._playback.fsm.hinted_segments)
        self._files = PlayedFiles(directory, hints.log)
        self._heads: dict[str, int] = {}
        self._lost_ends: dict[str, tuple[int, int]] = {}
        """Bytes [begin, end) before a log's head that the broker has lost."""
        self._author = 0
        self._mark = ""
        """Path of the property behind which the playback ends; empty: of none."""
        self._injected_at = -1
        """Where our newest operation stands that is to hand the log over."""
        self._state = PlayerState.PLAYING
        self._wake = asyncio.Event()
        self._copies = CopyOrders(self._files, on_order=self._wake.set)
        self._follower = follower
        self._followed: FollowedFiles | None = None
        """Set from the head on: only then all files are there that belong together."""
        self.tailing = asyncio.Event()
        """Set once it has played all there was when it began."""
        self.progress = PlaybackProgress()
        self._story = new_story()
        self._tell("created")

    @property
    def state(self) -> PlayerState:
        """The decision about its end."""
        return self._state

    def story(self) -> str:
        """Return the recent events with what each changed, as text; a failed assertion in `run` has it as a note."""
        now = self._story_entry("now", ())
        return story_text(f"the player of {self._log}", [*self._story, now], _STORY_FIELDS)

    def hand_over(self, author: int) -> None:
        """Have the log handed over to `author`, or to one that `Recovered` names, at its end; `run` then returns.

        Nothing changes if it has been handed over already, or `run` has reached the end it was asked for.

        Args:
            author: Not 0, which names no author.
        """
        if self._state not in (PlayerState.FENCED, PlayerState.FINISHED):
            # Not later, because the fence has the name of the author it was taken for.
            self._author = self._unpassed(author)
        if self._state in (PlayerState.PLAYING, PlayerState.STOPPING):
            self._move(PlayerState.HANDING_OVER)
        self._tell("hand_over", author)
        self._end()

    def stop_at_head(self) -> None:
        """Have `run` return at the log's end, without a trace in it, unless it is to be handed over there."""
        if self._state is PlayerState.PLAYING:
            self._move(PlayerState.STOPPING)
        self._tell("stop_at_head")
        self._end()

    def stop_at_mark(self, path: str) -> None:
        """Have `run` return behind the operation that sets a property, which was not recorded yet.

        What its recorder appends behind it is not played. If it is to be handed over before, that is done. From now on
        the log is read without delay, because its recorder rests until the mark is played.

        Args:
            path: Of the property.
        """
        self._mark = self._playback.mark = path
        self._tell("stop_at_mark", path)
        self._wake.set()

    def _end(self) -> None:
        self._copies.refuse()
        if self._followed is not None:
            self._followed.stop()
        self._wake.set()

    def _move(self, to: PlayerState) -> None:
        assert to in _NEXT[self._state], f"a player is {self._state.value}, not to be {to.value}"
        self._state = to

    def _tell(self, event: str, *details: object) -> None:
        self._story.append(self._story_entry(event, details))

    def _story_entry(self, event: str, details: tuple[object, ...]) -> StoryEntry:
        at = self._playback.position
        state = (
            self._state,
            self.tailing.is_set(),
            self._author,
            at.log,
            at.offset,
            self._heads.get(at.log),
        )
        return self._clock.monotonic_seconds(), event, details, state, ()

    async def copy_to(self, target: Path) -> bool:
        """Copy the files as of the log's end, or a little later, to their paths below `target`.

        Waits until all is played that was appended before this was called. False if the player ends first.

        Args:
            target: A directory that does not exist yet. What is left in it by a failure is the caller's to remove.

        Raises:
            ServiceError: no broker tells where the log ends.
            OSError: as of the disk.
        """
        if self._state is not PlayerState.PLAYING or not self.tailing.is_set():
            return False
        return await self._copies.order(target, through=await self._write_head(self._log))

    @property
    def is_followed(self) -> bool:
        """True from when the follower was shown the first files until playing is over, also if it failed."""
        return self._followed is not None

    async def follow_through(self) -> bool:
        """Wait until the follower has taken in all that was appended before this was called.

        False if there is none, or the player ends first.

        Raises:
            ServiceError: no broker tells where the log ends.
        """
        if self._state is not PlayerState.PLAYING or self._followed is None:
            return False
        return await self._followed.through(await self._write_head(self._log))

    async def run(self) -> Recovered:
        """Play until asked to end.

        Raises:
            LogDataLossError: the log lacks what the hints say.
            ForeignLogError: the log is another shard's.
            RecoveryLogError: played files make no sense.
            ServiceError: the log cannot be read or appended to.
            OSError: as of the disk.
        """
        with noting(self.story):
            return await self._run()

    async def _run(self) -> Recovered:
        thread = PlayThread()
        live = False
        try:
            self._check_claim()  # Hints name the owner, too: a stranger need not read the log.
            await self._play_through(thread)
            while self._plays_again:
                await self._stop_following(thread)
                if self._follower is not None:
                    await thread.run(self._follower.reset)
                await thread.run(self._files.discard)
                self._go_back()
                await self._play_through(thread)
            # Once more: two strangers may have begun with an empty log, and the other was first.
            self._check_claim()
            await self._stop_following(thread)
            await thread.run(lambda: self._files.make_live(self._playback.fsm))
            live = True
        finally:
            self._copies.refuse()
            if self._followed is not None:
                self._followed.stop()
            await thread.end(self._files.close if live else self._discard)
        self._report()
        log, end = self._playback.position.log, self._playback.whole_to
        return Recovered(self._playback.fsm, self._directory, log, end, self._author)

    def _discard(self) -> None:
        """Remove all files; on the thread."""
        if self._followed is not None:
            self._followed.end()
        if self._follower is not None:
            # Before its files are removed, which are beside these: a RocksDB that finds them gone sleeps for a second
            # before it closes, and all threads of the process with it.
            self._follower.discard()
        self._files.discard()

    async def _stop_following(self, thread: PlayThread) -> None:
        followed, self._followed = self._followed, None
        if followed is not None:
            followed.stop()
            await thread.run(followed.end)

    async def _follow(self, thread: PlayThread) -> None:
        """Show what was played to the follower, if it is to take it in."""
        if self._follower is None or self._state is not PlayerState.PLAYING:
            return
        if self._plays_again:
            return  # The branch that was played may be no history.
        if self._followed is None:
            self._followed = self._files.followed_by(self._follower)
        played_to = self._playback.position.offset
        if self._followed.linked_to < played_to:
            await thread.run(partial(self._followed.link, self._playback.fsm, played_to))

    async def _play_through(self, thread: PlayThread) -> None:
        await thread.run(self._files.prepare)
        await self._find_heads()
        async with TaskGroup() as group:
            await self._play(group, thread)
            group.stop()

    # -- reading

    async def _play(self, group: TaskGroup, thread: PlayThread) -> None:
        feeds = LogFeeds(
            self._journals,
            self._playback.position,
            group,
            self._wake.set,
            linger_seconds=0.0 if self._is_awaited else LINGER_SECONDS,
        )
        # Before anything is read: what is dead in front of the first jump would be read by the way.
        feeds.prepare(self._playback.upcoming)
        while not self._is_over():
            if self._is_awaited:
                feeds.hurry(self._playback.position)
            if self._at_head():
                await self._on_head()
                if self._is_over():
                    break
                await self._follow(thread)
            self._wake.clear()
            if self._playback.position.log == self._log:
                await self._copies.make(
                    thread, self._playback.fsm, played_to=self._playback.position.offset
                )
            spans = self._take(feeds)
            if not spans and self._pass_lost_end():
                continue
            if not spans:
                if not self.progress.behind_bytes:
                    self.progress.on_idle()
                await self._wait()
                continue
            began = self._clock.monotonic_seconds()
            await thread.run(partial(self._play_spans, spans))
            if self._playback.handed_over:
                await self._on_handed_over()
            elif self._playback.marked:
                await self._on_marked()
            self._go_on(feeds)
            position = self._playback.position
            heads = {
                **self._heads,
                position.log: max(self._head(), feeds.current.write_head),
            }
            self.progress.on_played(
                position.offset,
                self._playback.left_bytes(heads),
                played_bytes=sum(len(span.content) for span in spans),
                time=PlayingTime(began, self._clock.monotonic_seconds()),
            )
        feeds.close()

    def _take(self, feeds: LogFeeds) -> list[ReadSpan]:
        """Return what has arrived, as far as it is worth a step."""
        spans: list[ReadSpan] = []
        taken_to, taken_bytes = self._playback.position.offset, 0
        try:
            while taken_bytes < STEP_BYTES and (span := feeds.take(taken_to)) is not None:
                spans.append(span)
                taken_to, taken_bytes = span.end, taken_bytes + len(span.content)
        except ServiceError:
            if not spans:
                raise  # Else the next call does: what was read may be all that is needed.
        return spans

    def _play_spans(self, spans: Sequence[ReadSpan]) -> None:
        """Decode and write; on the thread. What comes behind a hand-over, or a jump elsewhere, is dead."""
        log = self._playback.position.log
        for span in spans:
            self._play_span(span)
            seek = self._playback.seek
            ended = self._playback.handed_over or self._playback.marked
            if ended or (seek is not None and seek.log != log):
                break

    def _play_span(self, span: ReadSpan) -> None:
        seek = self._playback.seek
        if seek is not None:
            if span.end <= seek.offset:
                return  # Nothing in it is live.
            self._playback.go_to(seek)
        self._files.apply(self._playback.feed(span.offset, span.content))

    def _go_on(self, feeds: LogFeeds) -> None:
        """Read where the player is to go on, and prepare where it will go then."""
        seek = self._playback.seek
        if seek is not None and not feeds.current.reaches(seek):
            feeds.jump(seek)
            self._playback.go_to(seek)
            self._tell("jumped")
        feeds.prepare(self._playback.upcoming)

    @property
    def _is_awaited(self) -> bool:
        """Report whether somebody waits for the end of the playback."""
        return self._state is not PlayerState.PLAYING or bool(self._mark)

    async def _wait(self) -> None:
        """Wait for more to read, or to be asked to end, if that is not so already."""
        if self._state is PlayerState.PLAYING or not self._at_head():
            await self._wake.wait()

    def _is_over(self) -> bool:
        # A method, for type checkers believe that what they just compared stays.
        return self._state is PlayerState.FINISHED or self._plays_again

    # -- at the head

    def _head(self) -> int:
        return self._heads[self._playback.position.log]

    def _at_head(self) -> bool:
        """Tell whether all is played that we know of."""
        position = self._playback.position
        if position.offset < self._head():
            return False
        if not self._playback.complete:
            raise LogDataLossError(
                position.log,
                f"it ends at {position.offset}, before {self._playback.fsm.hinted_segments[0]} of the hints: "
                f"{self._why_short()}",
            )
        return True

    def _pass_lost_end(self) -> bool:
        """Go to the head if the broker has nothing before it, because a read would wait there; return whether it did.

        Raises:
            LogDataLossError: the hints have live content there.
        """
        position = self._playback.position
        begin, end = self._lost_ends.get(position.log, (0, 0))
        if not begin <= position.offset < end:
            return False
        del self._lost_ends[position.log]  # What is appended from now on comes behind it.
        self._playback.feed(end, b"")
        return True

    def _check_claim(self) -> None:
        if self._claim is not None:
            check_claim(self._log, self._playback.fsm.properties, self._claim)

    def _why_short(self) -> str:
        """Return the reason why the log lacks operations that its hints name."""
        playback = self._playback
        if playback.skipped_bytes or playback.whole_to < playback.position.offset:
            at = playback.first_skipped if playback.skipped_bytes else playback.whole_to
            return f"{_LOST_END}. Or bytes that no recorder wrote, the first at {at}, hide the rest: who else appends?"
        return _LOST_END

    async def _on_head(self) -> None:
        # Before the claim is checked, because the other branch of a fork may have a stranger's.
        if await self._must_play_on():
            return
        # Before anything is appended, because a hand-over would fence the log's rightful recorder.
        self._check_claim()
        if not self.tailing.is_set():
            self.progress.tailing = True
            self.tailing.set()
            self._tell("tailing")
        match self._state:
            case PlayerState.STOPPING:
                await self._stop_unless_more_is_there()
            case PlayerState.HANDING_OVER:
                self._check_appended()
                self._heads[self._log] = await self._inject()
            case PlayerState.FENCED:
                self._check_appended()
                self._move(PlayerState.FINISHED)
                self._tell("all before the fence is played")
            case PlayerState.PLAYING | PlayerState.FINISHED:
                pass

    async def _on_handed_over(self) -> None:
        if not await self._must_play_on():
            self._move(PlayerState.FINISHED)
            self._tell("handed over")

    async def _on_marked(self) -> None:
        if await self._must_play_on():
            return
        if self._playback.fork is not None:
            # Who follows another branch than the log's recorder would make a shard of what was never committed.
            raise RecoveryLogError(
                self._log,
                f"it has a fork, so what stands before {self._mark} is not known for sure",
            )
        if not self._playback.complete:
            raise LogDataLossError(
                self._log, f"{self._mark} stands before what the hints name: {self._why_short()}"
            )
        self._move(PlayerState.FINISHED)
        self._tell("marked")

    async def _must_play_on(self) -> bool:
        """Tell whether the log has a fork, and more is to be played: up to where the registers were read, or all again.

        Raises:
            LogDataLossError: nothing tells which branch is the log's history, and each may hold commits.
        """
        fork = self._playback.fork
        is_playing = self._state is PlayerState.PLAYING
        if fork is None or (is_playing and self._is_undecided):
            return False
        holders = await self._holders()
        if holders is None:
            return True
        elsewhere = leads_elsewhere(fork, holders)
        if elsewhere is not None:
            self._choose_branch(fork, elsewhere=elsewhere)
            return True
        if is_playing:
            # The primary serves. Who is to take over from it is told when that is asked for.
            self._is_undecided, self._look = True, None
            return False
        raise LogDataLossError(
            self._log,
            f"authors {fork.passed:#x} and {next(iter(fork.followed)):#x} both recorded operation {fork.seq_no}, "
            f"the former at {fork.offset}, the latter before, and both went on; the journal's "
            "registers do not tell who held the log. Find out who else records there, and recover from a backup of the "
            "hints (shardctl shards rewind)",
        )

    async def _holders(self) -> frozenset[int] | None:
        """Return the authors who held the log, as far as all is played that is known of; None if more is to be played.

        Without that, an author who was just named would be of no branch.
        """
        if self._state is PlayerState.FENCED or self._playback.handed_over:
            return frozenset()  # The registers name us.
        if self._look is None:
            response = await self._journals.append(self._log, b"")
            self._look = response.commit.end, fence_holders(response.registers)
        end, holders = self._look
        if self._playback.position.offset < end:
            self._heads[self._log] = max(end, self._head())
            return None
        return holders

    def _choose_branch(self, fork: Fork, *, elsewhere: bool) -> None:
        """Have all played once more, without the authors of one branch."""
        _log.warning(
            "recovery_log.fork",
            log=self._log,
            seq_no=fork.seq_no,
            offset=fork.offset,
            authors=[f"{author:#x}" for author in (fork.passed, *fork.followed)],
            followed=f"{fork.passed if elsewhere else next(iter(fork.followed)):#x}",
        )
        self._tell("fork", fork.seq_no, elsewhere)
        self._plays_again = True
        losers = fork.followed if elsewhere else fork.others
        self._passed_over.update(losers)
        if not losers:
            # The same fork would be found in each playback, and a later one would never be.
            self._decided_forks.add((fork.passed, fork.seq_no))
        if self._state is PlayerState.FENCED:
            self._move(PlayerState.HANDING_OVER)
        if self._injected_at >= 0:
            # Operations under the name that stands on the branch which is left would be passed over with it.
            self._author = author_from(self._author)
        self._author = self._unpassed(self._author)

    def _unpassed(self, author: int) -> int:
        """Return `author`, or another name if playback passes over what it records."""
        while author in self._passed_over:
            author = author_from(author)
        return author

    def _go_back(self) -> None:
        """Begin once more, on the branch that was chosen."""
        self._playback = Playback(self._hints, self._passed_over, self._decided_forks)
        self._playback.mark = self._mark
        self._injected_at, self._plays_again = -1, False
        self._look, self._is_undecided = None, False

    async def _stop_unless_more_is_there(self) -> None:
        head = await self._write_head(self._log)
        # A hand-over that was asked for meanwhile is still to be made.
        if head <= self._playback.position.offset and self._state is PlayerState.STOPPING:
            self._move(PlayerState.FINISHED)
        self._heads[self._log] = max(head, self._head())
        self._tell("write head", head)

    def _check_appended(self) -> None:
        self._check_followed()
        self._check_heard()

    def _check_followed(self) -> None:
        """Check that the log does not go on with operations that we could not follow: a hand-over would undo them."""
        strayed = self._playback.strayed
        if strayed:
            raise LogDataLossError(
                self._log,
                f"its last {strayed} operations follow from others than those played so far "
                f"({dict(self._playback.ignored)}); taking it over would lose them. Look who else records there, and "
                "recover from a backup of the hints (shardctl shards rewind)",
            )

    def _check_heard(self) -> None:
        """Check that what we appended is read as an operation, though perhaps not as the next one."""
        whole_to = self._playback.whole_to
        if whole_to <= self._injected_at:
            raise RecoveryLogError(
                self._log,
                f"what stands at {whole_to} has no end, and takes our operation at {self._injected_at} for a part "
                "of it: no recorder writes that, so find out who else appends to this journal",
            )

    async def _inject(self) -> int:
        """Append what hands the log over; return where it ends, bytes. For as long as it takes: all is played."""
        backoff = Backoff(max_seconds=INJECT_BACKOFF_SECONDS_MAX)
        while True:
            try:
                # Foreign bytes at the end of the log would take our operation for their own rest.
                completion = self._playback.completion
                zeros = bytes(completion if completion <= COMPLETION_BYTES_MAX else 0)
                response = await self._journals.append(
                    self._log,
                    zeros + self._playback.hand_over_to(self._author),
                    union_registers=fence_of(self._author),
                )
            except AppendOutcomeUnknownError:
                # It may stand there, and then it applies; the next one's number is stale, and it is tried once more.
                self._author = author_from(self._author)
                self._tell("answer lost")
                await backoff.sleep()
                continue
            except (EndpointError, JournalUnavailableError) as error:
                _log.warning("recovery_log.hand_over_waits", log=self._log, error=str(error))
                await backoff.sleep()
                continue
            played_to = self._playback.position.offset
            if response.commit.begin < played_to:
                # What we have played is not there any more: what follows ours would follow from nothing.
                raise LogDataLossError(
                    self._log,
                    f"the operation that hands it over landed at {response.commit.begin}, and it was played up to "
                    f"{played_to}: {_LOST_END}",
                )
            self._injected_at = response.commit.begin
            if holds_fence(response.registers, self._author):
                self._move(PlayerState.FENCED)
            self._tell("injected", response.commit.begin, response.commit.end)
            return response.commit.end

    async def _write_head(self, log: str) -> int:
        """Return a log's write head behind all appends that were under way, bytes."""
        response = await self._journals.append(log, b"")
        return response.commit.end

    async def _content_end(self, log: str, head: int) -> int:
        """Return where a log's content ends, bytes: its head, unless the broker lost the end, and its head was reset.

        Raises:
            LogDataLossError: there was content, and nothing is left.
        """
        if not head or await self._journals.has_content_at(log, head - 1):
            return head
        ends = [each.spec.end for each in await self._journals.list_fragments(log)]
        if not ends:
            raise LogDataLossError(
                log,
                f"all of it, up to {head}, is gone: restore the journal's files. For a shard that starts from nothing, "
                "delete the shard and its log, and apply both again",
            )
        return max(ends)

    async def _find_heads(self) -> None:
        for log in {self._log, *(segment.log for segment in self._hinted)}:
            self._heads[log] = await self._write_head(log)
            end = await self._content_end(log, self._heads[log])
            if end < self._heads[log]:
                self._lost_ends[log] = end, self._heads[log]
        for segment in self._hinted:
            head = self._heads[segment.log]
            if segment.first_offset >= head or segment.last_offset > head:
                raise LogDataLossError(
                    segment.log,
                    f"it ends at {head}, and its hints have {segment}: {_LOST_END}",
                )
        self.progress.behind_bytes = self._playback.left_bytes(self._heads)
        self._tell("heads found")

    def _report(self) -> None:
        playback = self._playback
        if playback.ignored or playback.skipped_bytes:
            _log.warning(
                "recovery_log.odd",
                log=self._log,
                skipped_bytes=playback.skipped_bytes,
                ignored={verdict.name: count for verdict, count in playback.ignored.items()},
            )
