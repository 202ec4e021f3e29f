"""Exactly once, whatever happens in whatever order: crashes, lost answers, zombies, splits, replays, deferrals."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings, strategies as st

from broadsheet.journals.message.sequence_rules import SequenceOutcome
from broadsheet.journals.message.uuid import Flags
from tests.support.message_batches import Written, WrittenJournal
from tests.support.simulated_shard import SimulatedShard, World, judged, read_committed

STEPS_MAX = 20_000


def written_inputs(random: Random) -> tuple[list[WrittenJournal], list[int]]:
    """Write two journals by producers that publish both ways and opt out, with duplicates; return them and the numbers
    that are committed.
    """
    journals = [WrittenJournal("in/a"), WrittenJournal("in/b")]
    committed: list[int] = []
    number = 0
    clock = 10
    for journal in journals:
        open_spans: dict[int, list[Written]] = {}
        for _ in range(random.randint(3, 25)):
            producer = random.randint(1, 3)
            clock += random.randint(1, 3)
            span = open_spans.setdefault(producer, [])
            if producer == 3 or random.random() < 0.1:
                number += 1
                message = Written(producer, clock, Flags.OUTSIDE_TXN, str(number).encode())
                committed.append(number)
                span.clear()  # What its producer leaves pending is lost.
                journal.batch(*[message] * random.choice((1, 1, 2)))
            elif random.random() < 0.1:
                number += 1
                flags = random.choice((Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN))
                committed.append(number)  # Without a clock, it is of no transaction.
                journal.batch(Written(producer, 0, flags, str(number).encode()))
            elif span and random.random() < 0.4:
                committed.extend(int(message.payload) for message in span)
                span.clear()
                acknowledgement = Written(producer, clock, Flags.ACK_TXN, b"0")
                journal.batch(*[acknowledgement] * random.choice((1, 1, 2)))
            else:
                number += 1
                message = Written(producer, clock, Flags.CONTINUE_TXN, str(number).encode())
                span.append(message)
                repeated = random.choice(([message], [message], list(span)))
                journal.batch(message)
                if len(repeated) > 1:
                    journal.batch(*repeated)
    return journals, committed


def run_to_end(shard: SimulatedShard) -> None:
    """Let things happen until the shard has consumed its input."""
    for _ in range(STEPS_MAX):
        if shard.finished and shard.undone:
            return
        if shard.failure is not None:
            return
        shard.step()
    with judged(shard):
        raise AssertionError(f"not finished after {STEPS_MAX} steps: the shard hangs")


def check_outputs(world: World, *, in_order: bool) -> None:
    """Each output shows what the store has of it, and nothing is left pending there."""
    for output in world.outputs:
        expected = [number for number in world.stored if world.output_of(number) is output]
        seen = read_committed(output)
        if not in_order:
            expected.sort()
            seen.numbers.sort()
        assert seen.numbers == expected
        assert seen.pending == 0, "messages of a dead producer stay pending for ever"
        assert SequenceOutcome.ACK_ROLLBACK_LOST_PROGRESS not in seen.outcomes


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_crashes_at_any_point_leave_every_input_reflected_once(seed: int) -> None:
    """Crash between any two things, several times; the store and a reader of the output then hold each input once."""
    random = Random(seed)
    inputs, committed = written_inputs(random)
    world = World(inputs)
    for _ in range(random.randint(0, 5)):
        shard = SimulatedShard(world, random)
        for _ in range(random.randint(1, 120)):
            if shard.finished:
                break
            shard.step()
        with judged(shard):
            assert shard.failure is None

    last = SimulatedShard(world, random)
    run_to_end(last)

    with judged(last):
        assert last.failure is None
        assert sorted(world.stored) == sorted(committed)
        check_outputs(world, in_order=True)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_zombie_that_goes_on_beside_its_successor_changes_nothing(seed: int) -> None:
    """The old primary runs on, interleaved at will with the new one: it cannot commit, and what it published stays
    unseen, and is undone.
    """
    random = Random(seed)
    inputs, committed = written_inputs(random)
    world = World(inputs)
    zombie = SimulatedShard(world, random)
    for _ in range(random.randint(1, 100)):
        zombie.step()

    successor = SimulatedShard(world, random)
    for _ in range(STEPS_MAX):
        if successor.finished:
            break
        chosen = random.choice((zombie, successor))
        if not (chosen.finished or chosen.failure):
            chosen.step()

    with judged(zombie, successor):
        assert successor.finished
        assert successor.failure is None
        assert sorted(world.stored) == sorted(committed)
    last = SimulatedShard(world, random)
    run_to_end(last)  # What the zombie wrote late is undone late.
    with judged(zombie, successor, last):
        check_outputs(world, in_order=False)
