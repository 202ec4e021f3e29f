"""A member's part in elections: it claims, beats while its allocation makes progress, and resigns.

    claim     compares  leader key and epoch as observed, own key there    puts epoch + 1, and the leader key
    beat      compares  epoch unchanged, own key there                     puts the leader key, one beat further
    renew     compares  epoch unchanged, own key there                     puts epoch + 1, and the leader key
    resign    compares  epoch unchanged, own key there                     deletes the leader key
    allocate  compares  epoch unchanged, own key there                     whatever is decided, with `fence`

The fence is the revision of the *epoch's* key, which only a claim or a renewal changes: beats do not interfere with the
leader's writes, and everything that a superseded leader sends is refused, however late.

Leadership is read from the mirror alone, so a claim whose answer is lost is found like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import structlog

from broadsheet.allocator.config import Runtime
from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.etcd.prefix_mirror import PrefixMirror
from broadsheet.allocator.key_space import KeySpace, ObserverStage
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.leader.election import (
    CandidateRecord,
    Election,
    ElectionAction,
    ElectionView,
    EpochRecord,
    LeaderRecord,
    LeadershipConfig,
    encoded,
    name_of,
)
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.ops import Compare, Delete, KeyValue, Put
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.story import new_story, story_text
from broadsheet.runtime.task_group import TaskGroup

RESIGN_SECONDS_MAX = 0.5
"""A leaving member does not wait longer for etcd, because the end of its lease has the same effect a little later."""

_log = structlog.get_logger()
_STORY_FIELDS: Final = ("leader", "epoch", "own_epoch", "candidates", "stuck", "resigned")


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to write assignments, as comparisons."""

    epoch: int
    """Grows with every leadership of the root, over all members and times."""
    compares: tuple[Compare, ...]
    """The comparisons of every write of the leader."""


class Leadership:
    """Follows the election of one root. Run it (`run`) beside the session."""

    def __init__(
        self,
        etcd: Etcd,
        key_space: KeySpace,
        *,
        member_id: MemberId,
        config: LeadershipConfig,
        runtime: Runtime,
    ) -> None:
        self._etcd = etcd
        self._key_space = key_space
        self._keys = AuxiliaryKeys(key_space.keys.root)
        self._member_id = member_id
        self._config = config
        self._clock = runtime.clock
        self._backoff = Backoff(max_seconds=config.claim_grace_seconds, random=runtime.random)
        self._election = Election(config)
        self._changed = asyncio.Event()
        self._observers: list[Callable[[], None]] = []
        self._deadline_monotonic_seconds = float("-inf")
        """The time until which the leader beats."""
        self._stuck = False
        self._was_refused = False
        """Whether our allocation last made no progress while we led. Until it does, we do not claim: otherwise, if a
        leaving leader gives way to us, we would take leadership from it again and again, and do nothing."""
        self._resigned = False
        self._mirror = PrefixMirror(
            etcd,
            self._keys.leader,
            on_update=self._on_update,
            backoff=Backoff(random=runtime.random),
        )
        self._view: ElectionView | None = None
        self._story = new_story()
        self._story.append((0.0, "created", (), (None, None, None, 0, False, False), ()))
        self.fence: Fence | None = None
        """The comparisons of every write; None while we do not lead."""
        key_space.observe(ObserverStage.DERIVE, self._on_key_space_update)

    @property
    def config(self) -> LeadershipConfig:
        """The times of the election."""
        return self._config

    @property
    def leader_id(self) -> MemberId | None:
        """The leader, as far as it is known."""
        return None if self._view is None else self._view.leading_member()

    def observe(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fence` changes."""
        self._observers.append(callback)

    def story(self) -> str:
        """Return the recent events of the election as this member saw them, with what each changed."""
        return story_text(f"the election of {self._member_id}", self._story, _STORY_FIELDS)

    def report_progress(self) -> None:
        """Report progress of the allocation: the leader may beat for the time of a turn without another report."""
        self._extend_deadline(self._config.turn_seconds_max)

    @contextmanager
    def long_computation(self) -> Iterator[None]:
        """Let the leader beat for the time of a solve, and report progress when the computation has a result."""
        self._extend_deadline(self._config.solve_seconds_max)
        yield
        self.report_progress()

    def _extend_deadline(self, seconds: float) -> None:
        self._deadline_monotonic_seconds = self._clock.monotonic_seconds() + seconds
        if self._stuck:
            self._stuck = False
            self._changed.set()

    async def run(self) -> None:
        """Take part in elections, for ever."""
        async with TaskGroup() as group:
            group.start_soon(self._mirror.watch(), name="leadership watch")
            group.start_soon(self._campaign(), name="leadership campaign")
            group.start_soon(self._beat_regularly(), name="leadership beat")

    async def resign(self) -> None:
        """Give up leadership, if we have it, and do not claim it again. Bounded in time; etcd need not answer."""
        # Before the first `await`: from here on, nothing here may write as the leader.
        self._resigned = True
        fence, self.fence = self.fence, None
        candidate = self._candidate_put(may_lead=False)
        if fence is None or candidate is None:
            return
        with suppress(EtcdError, TimeoutError):
            async with asyncio.timeout(RESIGN_SECONDS_MAX):
                # Both in one transaction, so that the others do not wait for a candidate that will not claim.
                await self._etcd.txn(fence.compares, (Delete(self._keys.leader), candidate))
                _log.info("leadership.resigned", epoch=fence.epoch)

    def _on_key_space_update(self) -> None:
        # Only members decide who may lead; assignments change all the time.
        if self._key_space.changes.members:
            self._on_update()

    def _on_update(self) -> None:
        before, self.fence = self.fence, self._fence_in(self._refresh_view())
        if self.fence != before:
            self._tell(before)
        self._changed.set()

    def _tell(self, before: Fence | None) -> None:
        if self.fence is not None:
            _log.info("leadership.taken", member=str(self._member_id), epoch=self.fence.epoch)
        elif before is not None:
            _log.warning("leadership.lost", member=str(self._member_id), epoch=before.epoch)
        for observer in self._observers:
            observer()

    def _refresh_view(self) -> ElectionView:
        # A copy, because the view is compared with the next one.
        members = dict(self._key_space.members)
        self._view = ElectionView.of(
            self._member_id, self._keys, members, self._mirror.kvs, before=self._view
        )
        return self._view

    def _fence_in(self, view: ElectionView) -> Fence | None:
        epoch_kv = view.own_leadership()
        if epoch_kv is None or view.epoch is None or self._resigned:
            return None
        return Fence(
            view.epoch.epoch,
            (
                Compare.mod_revision(epoch_kv.key, epoch_kv.mod_revision),
                self._own_key_compare(view),
            ),
        )

    def _own_key_compare(self, view: ElectionView) -> Compare:
        kv = view.members[self._member_id].kv
        return Compare.create_revision(kv.key, kv.create_revision)

    async def _campaign(self) -> None:
        await self._mirror.wait_until_loaded()
        while True:
            self._changed.clear()
            try:
                pause_seconds = await self._step()
            except EtcdError as error:
                pause_seconds = self._backoff.next_seconds()
                _log.warning("leadership.step_failed", cause=str(error))
            else:
                self._backoff.reset()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    await self._changed.wait()

    async def _step(self) -> float | None:
        """Take the due action, and return when to check again if nothing changes."""
        view, now = self._refresh_view(), self._clock.monotonic_seconds()
        # Without our member's key there is no lease to claim on, and the comparison with that key would fail.
        if self._resigned or self._stuck or self._member_id not in view.members:
            self._tell_story(now, ElectionAction.WAIT, view)
            return None
        self._election = self._election.observed(view, now)
        decision = self._election.decision(view, now)
        if view.leader_refusal and not self._was_refused:
            _log.warning("leadership.of_later_release", cause=view.leader_refusal)
        self._was_refused = bool(view.leader_refusal)
        self._tell_story(now, decision.action, view)
        match decision.action:
            case ElectionAction.STAND:
                await self._stand(view)
            case ElectionAction.CONFIRM:
                await self._confirm(view)
            case ElectionAction.CLAIM:
                await self._claim(view)
            case ElectionAction.WAIT:
                pass
        return decision.again_after_seconds

    def _tell_story(self, now: float, action: ElectionAction, view: ElectionView) -> None:
        state = (
            None if view.leader is None else view.leader.member,
            None if view.epoch is None else view.epoch.epoch,
            None if self.fence is None else self.fence.epoch,
            len(view.candidates),
            self._stuck,
            self._resigned,
        )
        # Not at every beat of the leader, because those would push all else out of the story.
        if action is not ElectionAction.WAIT or state != self._story[-1][3]:
            self._story.append((now, action.value, (), state, ()))

    async def _stand(self, view: ElectionView) -> None:
        candidate = self._candidate_put(may_lead=True)
        if candidate is not None:
            await self._etcd.txn((self._own_key_compare(view),), (candidate,))

    def _candidate_put(self, *, may_lead: bool) -> Put | None:
        member = self._key_space.members.get(self._member_id)
        if member is None:
            return None
        value = encoded(CandidateRecord(may_lead=may_lead))
        return Put(self._keys.candidate(self._member_id), value, lease=member.kv.lease)

    async def _confirm(self, view: ElectionView) -> None:
        found = await self._etcd.get_range(self._keys.leader)
        suspected = 0 if view.leader_kv is None else view.leader_kv.mod_revision
        if [kv.mod_revision for kv in found.kvs] == [suspected]:
            _log.warning("leadership.suspected", leader=view.leader and view.leader.member)
        # If the beat changed, the mirror is about to show it, and the time starts over.
        self._election = self._election.confirmed(self._clock.monotonic_seconds())

    async def _claim(self, view: ElectionView) -> None:
        epoch = self._next_epoch(view)
        name = name_of(self._member_id)
        lease = view.members[self._member_id].kv.lease
        leader = LeaderRecord(member=name, epoch=epoch, beat=0)
        result = await self._etcd.txn(
            (
                _as_observed(self._keys.leader, view.leader_kv),
                _as_observed(self._keys.epoch, view.epoch_kv),
                self._own_key_compare(view),
            ),
            (
                Put(self._keys.epoch, encoded(EpochRecord(member=name, epoch=epoch))),
                Put(self._keys.leader, encoded(leader), lease=lease),
            ),
        )
        _log.info(
            "leadership.claimed" if result.succeeded else "leadership.claim_refused",
            member=name,
            epoch=epoch,
            superseded=view.leader and view.leader.member,
        )

    async def renew(self, fence: Fence) -> None:
        """Claim leadership again, from ourselves: requests still in flight under `fence` are then refused.

        The outcome appears in the mirror. Nothing happens if another member leads by now.

        Raises:
            EtcdError: etcd does not answer.
        """
        view = self._refresh_view()
        if self.fence is None or view.leader_kv is None:
            return
        name, epoch = name_of(self._member_id), fence.epoch + 1
        leader = LeaderRecord(member=name, epoch=epoch, beat=0)
        await self._etcd.txn(
            fence.compares,
            (
                Put(self._keys.epoch, encoded(EpochRecord(member=name, epoch=epoch))),
                Put(self._keys.leader, encoded(leader), lease=view.leader_kv.lease),
            ),
        )
        _log.info("leadership.renewed", member=name, epoch=epoch)

    def _next_epoch(self, view: ElectionView) -> int:
        if view.epoch is not None:
            return view.epoch.epoch + 1
        # The last epoch is unknown: a revision is larger than any epoch, because each epoch took one revision.
        return max(self._mirror.revision, 1)

    async def beat(self) -> None:
        """Write a beat, if we lead. An unreachable etcd is not an error, because the next beat is soon."""
        view, fence = self._refresh_view(), self.fence
        if fence is None or view.leader is None or view.leader_kv is None:
            return
        leader = LeaderRecord(
            member=view.leader.member, epoch=fence.epoch, beat=view.leader.beat + 1
        )
        put = Put(self._keys.leader, encoded(leader), lease=view.leader_kv.lease)
        try:
            await self._etcd.txn(fence.compares, (put,))
        except EtcdError as error:
            _log.warning("leadership.beat_failed", epoch=fence.epoch, cause=str(error))

    async def _beat_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._config.beat_seconds)
            if self._clock.monotonic_seconds() < self._deadline_monotonic_seconds:
                await self.beat()
            elif self.fence is not None:
                # No beat any more, so that another candidate supersedes a leader whose allocation hangs.
                self._stuck = True
                _log.warning("leadership.stuck", epoch=self.fence.epoch)


def _as_observed(key: bytes, kv: KeyValue | None) -> Compare:
    return Compare.mod_revision(key, 0 if kv is None else kv.mod_revision)
