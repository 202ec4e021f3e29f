"""A model of one writer that appends to a journal over a bad connection: each append in one copy or more.

    copy      sent ─► arrives at any time, or never; its answer arrives, or is lost
    writer    sends a copy, waits for its answer, or takes it for lost and sends another; then comes the next append
    another   writer of the same name sets the register to a value of its own

What is demanded and set is the real `DuplicateFence`'s, and the broker refuses by the embedded broker's own rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from broadsheet.broker.preconditions import JournalEnd, refusal, registers_after
from broadsheet.journals.append_fence import DuplicateFence, RefusalMeaning, WriterEpochRegister
from broadsheet.wire.journal_pb2 import AppendRequest, JournalSpec, LabelSet, Status
from broadsheet.wire.labels import label_set

_SPEC = JournalSpec()
NAME = "copies"


@dataclass(frozen=True, slots=True)
class Model:
    """How much may happen."""

    appends: int = 2
    copies: int = 3
    """Of all appends together."""
    others: int = 0
    """Times that another writer of the same name sets the register."""
    fenced: bool = True


class Copy(NamedTuple):
    """One copy of an append, on its way."""

    number: int
    """Of all copies that were sent."""
    append: int
    request: bytes


class World(NamedTuple):
    """Everything there is."""

    log: tuple[int, ...] = ()
    """Appends, as they landed."""
    registers: bytes = b""
    underway: frozenset[Copy] = frozenset()
    sent: int = 0
    append: int = 0
    """That the writer is at."""
    answers: tuple[tuple[int, bytes | None], ...] = ()
    """On their way: to which copy, and the registers if it was refused."""
    waits_for: int = 0
    """Number of the copy whose answer the writer awaits; 0: none."""
    seen: str = ""
    next: str = ""
    others: int = 0
    gave_up: bool = False


def steps(model: Model, world: World) -> Iterator[tuple[str, World]]:
    """Yield everything that may happen next."""
    for copy in sorted(world.underway):
        yield f"copy {copy.number} of append {copy.append} arrives", _arrive(world, copy)
    for number, registers in world.answers:
        yield f"the answer to copy {number} arrives", _answered(model, world, number, registers)
    if world.others < model.others:
        other = label_set((NAME, f"other-{world.others}"))
        yield (
            "another writer sets the register",
            world._replace(registers=other.SerializeToString(), others=world.others + 1),
        )
    if world.gave_up or world.append >= model.appends or world.sent >= model.copies:
        return
    if not world.waits_for:
        yield f"append {world.append} is sent", _send(model, world)
    else:
        fence = _fence(world)
        fence.on_doubt()
        lost = _with(world, fence)._replace(waits_for=0)
        yield f"append {world.append} is in doubt, and sent again", _send(model, lost)


def problem_of(world: World) -> str:
    """Return what is wrong: an append behind one that was sent after it."""
    if list(world.log) != sorted(world.log):
        return f"the journal holds {world.log}"
    if set(range(world.append)) - set(world.log):
        return f"the writer is at {world.append}, the journal holds {world.log}"
    return ""


def _send(model: Model, world: World) -> World:
    fence = _fence(world)
    request = AppendRequest(journal="a/journal")
    if model.fenced:
        request.check_registers.CopyFrom(fence.demanded)
        if fence.change is not None:
            request.union_registers.CopyFrom(fence.change)
    number = world.sent + 1
    copy = Copy(number, world.append, request.SerializeToString())
    return world._replace(underway=world.underway | {copy}, sent=number, waits_for=number)


def _arrive(world: World, copy: Copy) -> World:
    request = AppendRequest.FromString(copy.request)
    registers = LabelSet.FromString(world.registers)
    head = len(world.log) + 1
    status = refusal(request, _SPEC, JournalEnd(head, registers, unconfirmed=False))
    underway = world.underway - {copy}
    if status == Status.REGISTER_MISMATCH:
        answer = (copy.number, world.registers)
        return world._replace(underway=underway, answers=(*world.answers, answer))
    after = registers_after(request, registers).SerializeToString()
    return world._replace(
        underway=underway,
        log=(*world.log, copy.append),
        registers=after,
        answers=(*world.answers, (copy.number, None)),
    )


def _answered(model: Model, world: World, number: int, registers: bytes | None) -> World:
    answers = tuple(each for each in world.answers if each[0] != number)
    world = world._replace(answers=answers)
    if number != world.waits_for:
        return world  # Nobody listens any more.
    world = world._replace(waits_for=0)
    fence = _fence(world)
    if registers is None:
        fence.on_landed()
        return _with(world, fence)._replace(append=world.append + 1)
    refused = fence.on_refused(LabelSet.FromString(registers))
    world = _with(world, fence)
    if refused is RefusalMeaning.UNKNOWN:
        return world._replace(gave_up=True)
    return world._replace(append=world.append + 1) if refused is RefusalMeaning.LANDED else world


def _fence(world: World) -> DuplicateFence:
    # The number of the copy: never the same twice.
    register = WriterEpochRegister(NAME, lambda size: world.sent.to_bytes(size, "big"))
    fence = DuplicateFence(register)
    fence.seen, fence.next = world.seen, world.next
    return fence


def _with(world: World, fence: DuplicateFence) -> World:
    return world._replace(seen=fence.seen, next=fence.next)
