"""A model of how a recovery log changes hands: lives of a shard, one log with registers, and appends on their way.

    life     begins to play (with the hints of that moment) ─► reads ─► hands the log over to itself ─► recovered
             ─► commits ─► believes each that the log confirms ─► learns that it is fenced, or never does
    append   sent ─► arrives at any time, or never; whoever sent it may give up waiting, and send another copy
    etcd     promotes one life after the other, and takes hints from the one that is promoted

What operations mean is not modelled: they are made and played by the real `Playback` and `FileStateMachine`, the fence
is the real one, and the broker refuses by the embedded broker's own rule. A state of the model is the history that
these are fed with. A life never ends: one that does nothing more is as good as dead; if it then does, it is a zombie.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from broadsheet.broker.preconditions import JournalEnd, refusal, registers_after
from broadsheet.consumer.recoverylog.fence import fence_check, fence_of, holds_fence
from broadsheet.wire.journal_pb2 import AppendRequest, JournalSpec, LabelSet, Status
from tests.support.modelled_log import LOG, NO_HINTS, Made, hand_over, played, recorded, truth

_LETTERS = (b"a", b"b", b"c")
"""What each life's commits add to the state."""
_SPEC = JournalSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """How much may happen, and which rules hold."""

    lives: int = 2
    commits: int = 1
    """Of each life."""
    parts: int = 1
    """Appends that a commit takes."""
    copies: int = 1
    """Appends that are sent a second time."""
    losses: int = 0
    """Times that the journal loses its registers."""
    hints: bool = True
    """Whether a primary stores hints."""
    demands_fence: bool = True
    """A recorder's append demands that the registers name it."""
    sees_fence: bool = True
    """It is believed only if the registers name it afterwards."""
    fresh_authors: bool = True
    """A second copy of a hand-over is another author's."""


class Append(NamedTuple):
    """One copy of an append, on its way."""

    life: int
    number: int
    """Of the copies that the life has sent."""
    content: bytes
    author: int
    takes_over: bool
    """It sets the fence; else it demands it."""


class Life(NamedTuple):
    """One attempt to be the shard's primary."""

    phase: str = "new"
    """`new`, `playing`, `recording` or `fenced`."""
    hints: bytes = b""
    """What it plays from."""
    played: int = 0
    """Appends of the log that it has read."""
    known: int = 0
    """Appends of the log that it knows to be there."""
    fences: bool = False
    """The newest of its hand-overs that was answered took the fence."""
    author: int = 0
    sent: int = 0
    """Copies sent."""
    waits_for: int = 0
    """Number of the copy whose answer it awaits; 0: none."""
    recorded: int = 0
    """Appends that it recorded; the last one may be unanswered."""
    believed: int = 0
    """Of these, how many the log confirmed."""


class World(NamedTuple):
    """Everything there is."""

    lives: tuple[Life, ...]
    log: tuple[bytes, ...] = ()
    """What was appended."""
    registers: bytes = b""
    copies_left: int = 0
    losses_left: int = 0
    promoted: int = 0
    """Newest life that etcd made the primary."""
    stored_hints: bytes = b""
    underway: frozenset[Append] = frozenset()


def begin(model: Model) -> World:
    """Return the state in which nothing has happened."""
    life = Life() if model.hints else Life(phase="playing", hints=NO_HINTS)
    return World(
        (life,) * model.lives,
        copies_left=model.copies,
        losses_left=model.losses,
        stored_hints=NO_HINTS,
    )


def steps(model: Model, world: World) -> Iterator[tuple[str, World]]:
    """Yield everything that may happen next."""
    if world.promoted < model.lives - 1:
        yield f"life {world.promoted + 1} is promoted", world._replace(promoted=world.promoted + 1)
    if world.losses_left and world.registers:
        after = world._replace(registers=b"", losses_left=world.losses_left - 1)
        yield "the journal loses its registers", after
    for append in world.underway:
        yield _arrive(model, world, append)
    for number, life in enumerate(world.lives):
        for text, after in _live(model, world, number, life):
            yield f"life {number} {text}", after


def problem_of(model: Model, world: World) -> str:
    """Return what is wrong: a state that somebody relies on, and that whoever recovers next does not find."""
    truths = [truth(hints, world.log) for hints in {NO_HINTS, world.stored_hints}]
    for number, life in enumerate(world.lives):
        if life.phase == "lost":
            return f"life {number} cannot play the log from its hints"
        if life.phase not in ("recording", "fenced"):
            continue
        relied_on = recorded(_made(model, world, number, life.believed)).state
        for found in truths:
            if found is None:
                return "the log cannot be played from the stored hints"
            if not found.startswith(relied_on):
                return f"life {number} relies on {relied_on!r}, and {found!r} is what is recovered"
    return ""


# -- what a life does


def _live(model: Model, world: World, number: int, life: Life) -> Iterator[tuple[str, World]]:
    match life.phase:
        case "new":
            playing = life._replace(phase="playing", hints=world.stored_hints)
            yield "begins to play", _with(world, number, playing)
        case "playing":
            yield from _play(model, world, number, life)
        case "recording":
            yield from _record(model, world, number, life)


def _play(model: Model, world: World, number: int, life: Life) -> Iterator[tuple[str, World]]:
    if life.waits_for:
        if world.copies_left:
            yield "gives up waiting, and hands over again", _hand_over(model, world, number, life)
        return
    if life.played < len(world.log):
        yield "reads", _with(world, number, _read(world, life))
    if number > world.promoted or life.played < life.known:
        return
    if life.fences:
        yield (
            "goes on behind the operations that came first",
            _with(world, number, life._replace(phase="recording")),
        )
    else:
        yield "hands over", _hand_over(model, world, number, life)


def _read(world: World, life: Life) -> Life:
    found = played(life.hints, world.log, life.author)
    if found is None:
        return life._replace(phase="lost")
    if found.handed_over_at < 0:
        return life._replace(played=len(world.log))
    return life._replace(phase="recording", played=found.handed_over_at)


def _hand_over(model: Model, world: World, number: int, life: Life) -> World:
    again = life.waits_for > 0
    author = life.author or _author(number, 0)
    if again and model.fresh_authors:
        author = _author(number, life.sent)
    content = hand_over(life.hints, world.log[: life.played], author)
    return _send(world, number, life._replace(author=author), content, takes_over=True)


def _record(model: Model, world: World, number: int, life: Life) -> Iterator[tuple[str, World]]:
    if model.hints and number == world.promoted and life.believed:
        hints = recorded(_made(model, world, number, life.believed)).hints
        if hints != world.stored_hints:
            yield "stores hints", world._replace(stored_hints=hints)
    if life.waits_for:
        if world.copies_left:
            content = recorded(_made(model, world, number, life.recorded)).newest
            yield "appends again", _send(world, number, life, content, takes_over=False)
    elif life.recorded < model.commits * model.parts:
        content = recorded(_made(model, world, number, life.recorded + 1)).newest
        recording = life._replace(recorded=life.recorded + 1)
        yield "appends", _send(world, number, recording, content, takes_over=False)


def _made(model: Model, world: World, number: int, appends: int) -> Made:
    life = world.lives[number]
    recovered = world.log[: life.played]
    return Made(life.hints, recovered, life.author, _LETTERS[number] * appends, model.parts)


def _send(world: World, number: int, life: Life, content: bytes, *, takes_over: bool) -> World:
    append = Append(number, life.sent + 1, content, life.author, takes_over)
    after = life._replace(sent=append.number, waits_for=append.number)
    return _with(world, number, after)._replace(
        underway=world.underway | {append},
        copies_left=world.copies_left - (life.waits_for > 0),
    )


# -- what the broker does


def _arrive(model: Model, world: World, append: Append) -> tuple[str, World]:
    """Let an append arrive; its sender has the answer if it still waits for it."""
    text = f"copy {append.number} of life {append.life}"
    registers = LabelSet.FromString(world.registers)
    request = AppendRequest(journal=LOG)
    if append.takes_over:
        request.union_registers.CopyFrom(fence_of(append.author))
    elif model.demands_fence:
        request.check_registers.CopyFrom(fence_check(append.author))
    position = JournalEnd(len(world.log), registers, unconfirmed=False)
    accepted = refusal(request, _SPEC, position) == Status.OK
    after = world._replace(underway=world.underway - {append})
    if accepted:
        registers = registers_after(request, registers)
        after = after._replace(
            log=(*world.log, append.content), registers=registers.SerializeToString()
        )
    life = world.lives[append.life]
    if life.waits_for == append.number:
        trusted = accepted and (not model.sees_fence or holds_fence(registers, append.author))
        end = len(after.log)
        answered = _answered(life._replace(waits_for=0), append, end, trusted=trusted)
        after = _with(after, append.life, answered)
    return f"{text} {'arrives' if accepted else 'is refused'}", after


def _answered(life: Life, append: Append, end: int, *, trusted: bool) -> Life:
    if append.takes_over:
        return life._replace(known=end, fences=trusted)
    if trusted:
        return life._replace(believed=life.recorded)
    return life._replace(phase="fenced")


def _with(world: World, number: int, life: Life) -> World:
    lives = (*world.lives[:number], life, *world.lives[number + 1 :])
    return world._replace(lives=lives)


def _author(number: int, copies: int) -> int:
    return 1 + 100 * number + copies
