"""Detects a peer that fell silent without closing its connection, and ends its lease once three observers agree.

Its machine lost power, its packets are dropped, or its process is stopped.

    heard ──phi over the threshold──► suspected ──another member cannot connect to it──────► witnessed
      ▲                                   │                                                     │
      └──────────── any beat ─────────────┴─────────────── any beat ────────────────────────────┤
                                          etcd says that its lease was not renewed meanwhile ───┴──► lease revoked

A live member renews its lease every second, even if its packets to other members are lost. A wrong verdict is harmless
to data, because a primary that lives is fenced by its successor; but it costs that process its life, so all three are
required. In a cluster of two there is no other member to ask: this member then tries once more itself, over a new
connection.

A process whose event loop is blocked for long, by the application or by a large plan, neither beats nor renews its
lease; but gRPC's threads still accept connections, so it keeps its lease until that expires.

While this process itself was stopped, it could not hear: that time does not count as silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import grpc
import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.etcd.api import Etcd, LeaseLife
from broadsheet.allocator.model import Member, MemberId
from broadsheet.allocator.ops import LeaseId
from broadsheet.consumer.member.accrual import AccrualDetector
from broadsheet.consumer.registry.key_space import process_of
from broadsheet.consumer.resolver.hearing import BEAT_SECONDS, MUTE_CODES, Hearing
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.tls import handshake_advice, is_failed_handshake
from broadsheet.wire.peer_pb2 import TESTIMONY_HEARD, TESTIMONY_SILENT

TICK_SECONDS = 0.1
"""Between two looks at the silence."""
LATE_SECONDS = 0.1
"""A look that comes later than this means that this process was stopped."""
WITNESSES_ASKED = 3
"""Members asked at a time; one that is silent itself proves nothing."""
UNRENEWED_SECONDS_MIN = 2
"""Age at which a lease counts as not renewed: two renewals and more were due."""
AGAIN_SECONDS_FIRST, AGAIN_SECONDS_MAX = 0.1, 2.0
"""Between two questions about one suspect."""
RECONNECT_SECONDS_MAX = 1.0
_log = structlog.get_logger()


class HeartbeatListener:
    """Listens to one life of one peer; `suspected` is set while its silence is too long. `run` until cancelled."""

    def __init__(self, member: Member, hearing: Hearing, *, threshold: float, clock: Clock) -> None:
        """Bind the listener.

        Args:
            member: Whom to listen to.
            hearing: Hears.
            threshold: Phi from which it is suspected.
            clock: Time.
        """
        self.member = member
        self.suspected = asyncio.Event()
        self._endpoint = process_of(member).process_spec.endpoint
        self._hearing = hearing
        self._threshold = threshold
        self.clock = clock
        self._detector = AccrualDetector(expected_seconds=BEAT_SECONDS)
        self._is_untrusted = False

    @property
    def silence_seconds(self) -> float:
        """Seconds since the peer was last heard."""
        return self._detector.silence_seconds(self.clock.monotonic_seconds())

    async def run(self) -> None:
        """Listen, and look at the silence."""
        async with TaskGroup() as group:
            group.start_soon(self._listen(), name=f"hear {self.member.member_id}")
            group.start_soon(self._look(), name=f"look at {self.member.member_id}")

    async def _listen(self) -> None:
        backoff = Backoff(max_seconds=RECONNECT_SECONDS_MAX)
        while True:
            is_first = True
            try:
                async with self._hearing.beats(self._endpoint) as beats:
                    async for _ in beats:
                        if is_first:
                            self._detector.on_gap()
                            backoff.reset()
                            is_first = self._is_untrusted = False
                            _log.info("peer.heard", member=str(self.member.member_id))
                        self._detector.on_beat(self.clock.monotonic_seconds())
            except grpc.aio.AioRpcError as error:
                if is_failed_handshake(error.details() or ""):
                    # The peer answers, so it lives. It is heard again once its certificate or ours is renewed.
                    self._detector.on_gap()
                    self._tell_untrusted(error)
                elif error.code() in MUTE_CODES:
                    # The peer lives, and will never beat for us: only its lease and its port remain
                    # to be watched. It may have beaten for us before its keys changed; the end of
                    # those beats is no silence.
                    self._detector.on_gap()
                    _log.info(
                        "peer.sends_no_heartbeats",
                        member=str(self.member.member_id),
                        code=error.code().name,
                    )
                    return
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # The peer cancelled the stream, because it stops its server.
            await backoff.sleep()

    def _tell_untrusted(self, error: grpc.aio.AioRpcError) -> None:
        if self._is_untrusted:
            return  # Each attempt would say the same.
        self._is_untrusted = True
        detail = error.details() or ""
        _log.warning(
            "peer.untrusted",
            member=str(self.member.member_id),
            cause=handshake_advice(self._endpoint, detail) or detail,
        )

    async def _look(self) -> None:
        before = self.clock.monotonic_seconds()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self.clock.monotonic_seconds()
            late_seconds = now - before - TICK_SECONDS
            before = now
            if late_seconds > LATE_SECONDS:
                self._detector.on_own_pause(late_seconds)
            if self._detector.phi(now) >= self._threshold:
                self.suspected.set()
            else:
                self.suspected.clear()


class WitnessPanel:
    """Other members, which are asked whether they hear a suspect."""

    def __init__(self, hearing: Hearing, others: Callable[[MemberId], Sequence[Member]]) -> None:
        """Bind the panel.

        Args:
            hearing: Asks.
            others: Returns the members that may be witnesses: all but this one, the suspect, and those that leave.
        """
        self._hearing = hearing
        self._others = others
        self._random = Random()

    async def is_silent_to_another(self, suspect: Member) -> bool:
        """Return whether a second witness does not hear the suspect either: this member, if there is no other."""
        others = list(self._others(suspect.member_id))
        if not others:
            return not await self._hearing.hears(process_of(suspect).process_spec.endpoint)
        picked = self._random.sample(others, min(WITNESSES_ASKED, len(others)))
        async with TaskGroup() as group:
            asked = [
                group.start_soon(
                    self._hearing.testimony(
                        process_of(witness).process_spec.endpoint,
                        suspect.member_id,
                        suspect.kv.create_revision,
                    ),
                    name=f"ask {witness.member_id}",
                )
                for witness in picked
            ]
        said = [each.result() for each in asked]
        return TESTIMONY_SILENT in said and TESTIMONY_HEARD not in said


def is_unrenewed(life: LeaseLife, asked_seconds: float) -> bool:
    """Tell whether a lease was not renewed as often as a live member would.

    A live member renews once a round trip, if that takes longer than the pause between renewals. Its way to etcd is
    taken to be as long as ours.

    Args:
        life: As etcd told.
        asked_seconds: How long etcd took to tell.
    """
    return life.age_seconds_min >= UNRENEWED_SECONDS_MIN + int(asked_seconds)


class SilenceWatch:
    """Judges one life of one peer by its silence. `run` until cancelled, or the peer's lease is ended."""

    def __init__(
        self,
        listener: HeartbeatListener,
        panel: WitnessPanel,
        etcd: Etcd,
        *,
        revoke: Callable[[], Awaitable[bool]],
        on_suspected: Callable[[], None],
    ) -> None:
        """Bind the watch.

        Args:
            listener: Listens to the peer; run by this watch.
            panel: Tells whether others hear it.
            etcd: Tells how old its lease is.
            revoke: Ends its lease; False if that must be tried again.
            on_suspected: Called when it is suspected.
        """
        self._listener = listener
        self._clock = listener.clock
        self._member = listener.member
        self._panel = panel
        self._etcd = etcd
        self._revoke = revoke
        self._on_suspected = on_suspected

    async def run(self) -> None:
        """Listen to the peer, and judge its silence."""
        async with TaskGroup() as group:
            group.start_soon(self._listener.run(), name=f"listen to {self._member.member_id}")
            await self._judge()
            group.stop()

    async def _judge(self) -> None:
        """Return once the peer's lease is ended."""
        member = str(self._member.member_id)
        while True:
            await self._listener.suspected.wait()
            self._on_suspected()
            silent_seconds = round(self._listener.silence_seconds, 2)
            _log.info("peer.suspected", member=member, silent_seconds=silent_seconds)
            if await self._condemned():
                return
            _log.info("peer.heard_again", member=member)

    async def _condemned(self) -> bool:
        """Collect evidence against the suspect until its lease is ended; False if it is heard before."""
        backoff = Backoff(initial_seconds=AGAIN_SECONDS_FIRST, max_seconds=AGAIN_SECONDS_MAX)
        suspected = self._listener.suspected
        is_witnessed = False
        while suspected.is_set():
            if not is_witnessed:
                is_witnessed = await self._panel.is_silent_to_another(self._member)
                if is_witnessed:
                    backoff.reset()
                    continue
            # The answers took time, in which the suspect may have been heard.
            elif await self._is_unrenewed() and suspected.is_set() and await self._revoke():
                return True
            await backoff.sleep()
        return False

    async def _is_unrenewed(self) -> bool:
        """Return whether etcd has not seen a recent renewal, either. An etcd without an answer proves nothing."""
        began = self._clock.monotonic_seconds()
        try:
            life = await self._etcd.lease_life(LeaseId(self._member.kv.lease))
        except EtcdError as error:
            _log.info("peer.lease_unknown", member=str(self._member.member_id), cause=str(error))
            return False
        asked_seconds = self._clock.monotonic_seconds() - began
        return life is not None and is_unrenewed(life, asked_seconds)
