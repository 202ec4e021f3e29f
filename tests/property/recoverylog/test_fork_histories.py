"""Random histories of a log with recorders, a stranger, successors that race, and lost registers.

No recovery loses what an author recorded while he held the fence.
"""

from __future__ import annotations

from copy import deepcopy
from random import Random

from hypothesis import example, given, settings, strategies as st

from broadsheet.consumer.recoverylog.forks import leads_elsewhere
from broadsheet.consumer.recoverylog.playback import Playback
from broadsheet.wire.recorded_op_pb2 import FSMHints
from tests.support.recorded_ops import LOG, ChainedOp, OpChain

STRANGER = 0x4711
STEPS = ["record", "record", "record", "late", "strange", "strange", "lose", "succeed", "hints"]


class _History:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.content = b""
        self.fence: int | None = None
        """The author that the registers name; None: they are lost."""
        self.recorder: OpChain | None = None
        """The newest recorder; None: it has ended."""
        self.former: list[OpChain] = []
        """Recorders that do not know yet that they were replaced."""
        self.stranger: OpChain | None = None
        self.promised: set[str] = set()
        """Files that were created while the registers named their author: their commits are acknowledged."""
        self.hints = [FSMHints(log=LOG)]
        self.fsm_hints: FSMHints | None = None
        self.files = 0
        self.authors = 0
        self.refusals = 0

    def append(self, op: ChainedOp) -> None:
        self.content += op.framed

    def record(self, chain: OpChain) -> bool:
        """Append one file as recorders do, under their fence; return whether it may go on."""
        if self.fence not in (None, chain.author):
            return False
        self.files += 1
        path = f"/f{self.files}"
        self.append(chain.create(path))
        if self.fence == chain.author:
            self.promised.add(path)
        return self.fence == chain.author

    def step(self, step: str) -> None:
        match step:
            case "record" if self.recorder is not None:
                if not self.record(self.recorder):
                    self.recorder = None
            case "late" if self.former:
                chain = self.random.choice(self.former)
                if not self.record(chain):
                    self.former.remove(chain)
            case "strange":
                self.append_as_stranger()
            case "lose":
                self.fence = None
            case "succeed":
                self.succeed()
            case "hints" if self.fsm_hints is not None:
                self.hints.append(self.fsm_hints)
            case _:
                pass

    def append_as_stranger(self) -> None:
        """Append without a fence: from where the newest recorder is, or behind what it appended before."""
        if self.stranger is None or self.random.random() < 0.4:
            if self.recorder is None:
                return
            self.stranger = self.recorder.branch(STRANGER)
        if self.random.random() < 0.5:
            self.files += 1
            self.append(self.stranger.create(f"/f{self.files}"))
        else:
            self.append(self.stranger.nothing())

    def succeed(self) -> None:
        """Have a new author play the log, and take it over; another may append right before."""
        self.authors += 1
        author = self.authors
        passed: dict[int, int] = {}
        hints = self.random.choice(self.hints)
        playback = self.playback(
            hints, passed, frozenset() if self.fence is None else frozenset({self.fence})
        )
        if playback is None:
            return
        old, began = self.recorder, len(self.content)
        if old is not None:
            self.former.append(old)
            if self.random.random() < 0.5 and not self.record(old):
                self.former.remove(old)
        if self.random.random() < 0.2:
            self.append_as_stranger()
        while True:
            self.content += playback.hand_over_to(author)
            self.fence = author
            self.recorder = None
            if self.random.random() < 0.2:
                return  # It crashed.
            playback.feed(began, self.content[began:])
            fork = playback.fork
            if fork is None:
                break
            elsewhere = leads_elsewhere(fork, ())
            if elsewhere is None:
                self.refusals += 1
                return
            passed |= fork.followed if elsewhere else fork.others
            self.authors += 1
            author = self.authors
            found = self.playback(hints, passed, frozenset({author}))
            if found is None:
                return
            playback, began = found, len(self.content)
        fsm = playback.fsm
        self.recorder = OpChain(author, seq=fsm.next_seq, checksum=fsm.next_checksum)
        self.fsm_hints = deepcopy(fsm.hints(LOG))

    def playback(
        self, hints: FSMHints, passed: dict[int, int], holders: frozenset[int]
    ) -> Playback | None:
        """Play all as a player does that takes nothing over; None if it refuses."""
        decided: set[tuple[int, int]] = set()
        while True:
            playback = Playback(hints, passed, decided)
            begin = playback.position.offset
            playback.feed(begin, self.content[begin:])
            fork = playback.fork
            if fork is None:
                if playback.strayed or not playback.complete:
                    self.refusals += 1
                    return None
                return playback
            elsewhere = leads_elsewhere(fork, holders)
            if elsewhere is None:
                self.refusals += 1
                return None
            losers = fork.followed if elsewhere else fork.others
            passed.update(losers)
            if not losers:
                decided.add((fork.passed, fork.seq_no))

    def check(self) -> None:
        """Recover with the oldest and the newest hints."""
        holders = frozenset() if self.fence is None else frozenset({self.fence})
        for hints in (self.hints[0], self.hints[-1]):
            playback = self.playback(hints, {}, holders)
            if playback is not None:
                assert self.promised <= set(playback.fsm.links)


_RETURNS = (
    "lose strange succeed succeed late hints strange succeed record record strange late hints hints "
    "record record succeed strange"
)
"""A stranger returns to the branch that is followed, so that nobody is of the other one alone."""


@settings(max_examples=100, deadline=None)
@example(
    [*_RETURNS.split(), "succeed", "strange"], 24057
)  # The stranger returns to the branch that is followed.
@given(st.lists(st.sampled_from(STEPS), max_size=30), st.integers(0, 1 << 30))
def test_recovery_has_all_that_was_recorded_under_the_fence_or_is_refused(
    steps: list[str], seed: int
) -> None:
    """Plan: forks by a stranger and by former recorders, races at hand-overs, crashes there, hints from behind forks.
    Why: acknowledgements of such commits are out, so a recovery without one publishes its messages twice.
    """
    history = _History(Random(seed))
    history.succeed()
    for step in steps:
        history.step(step)
        history.check()
