"""A random history of two processes and three workers, each of which acts on what it last saw, however old that is."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from broadsheet.leases import rules
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned

ACTIONS = (
    *("look", "take", "look and take", "look and take", "renew", "evict", "assign", "hand off"),
    *("commit", "commit", "commit", "commit", "commit", "commit", "zombie", "zombie"),
)

READ_EVERY = 4
"""Steps whose answers are taken at their word, and one that is not."""


@dataclass(slots=True)
class _Worker:
    """A worker, what it believes to hold, and what it saw when it last looked."""

    name: str
    manager: LeaseManager
    held: Versioned | None = None
    seen: Versioned | None = None
    acquisitions: list[Versioned] = field(default_factory=list)
    """Every lease that it ever held: a zombie may act on any of them."""

    async def look(self) -> Versioned | None:
        self.seen = await self.manager.get_lease("a")
        return self.seen

    async def take(self) -> Versioned | None:
        if self.seen is None:
            return None
        taken = await self.manager.take(self.seen, self.name)
        if taken is not None:
            self.held = taken
            self.acquisitions.append(taken)
        return taken

    async def renew(self) -> Versioned | None:
        if self.held is not None:
            self.held = await self.manager.renew(self.held)
        return self.held

    async def evict(self) -> Versioned | None:
        return None if self.seen is None else await self.manager.evict(self.seen)

    async def assign(self, name: str) -> Versioned | None:
        return None if self.seen is None else await self.manager.assign(self.seen, name)

    async def hand_off(self, name: str) -> Versioned | None:
        if self.held is None:
            return None
        return await self.manager.assign(self.held, name, graceful=True)

    async def do(self, action: str, other: str) -> Versioned | None:
        """Act, and return the lease as it was left by that; None if nothing is known of it."""
        match action:
            case "look":
                return await self.look()
            case "take":
                return await self.take()
            case "look and take":
                looked = await self.look()
                return await self.take() or looked
            case "renew":
                return await self.renew()
            case "evict":
                return await self.evict()
            case "assign":
                return await self.assign(other)
            case _:
                return await self.hand_off(other)

    async def commit(self, held: Versioned, position: Position) -> Versioned | None:
        return await self.manager.update(held, lambda record: rules.commit(record, position))


async def run_history(manager: LeaseManager, rival: LeaseManager, *, seed: int, steps: int) -> None:
    """Check that a commit succeeds if, and only if, the fence under which it is made is that of the record.

    Epochs only grow, no two acquisitions share an epoch or a fence, and checkpoints never go back.

    Args:
        manager: Of the first process.
        rival: Of the second.
        seed: Of the history.
        steps: Its length.
    """
    random = Random(seed)
    workers = [_Worker("w1", manager), _Worker("w2", rival), _Worker("w3", manager)]
    await manager.create_lease(LeaseRecord(key="a"))
    commits = refusals = 0
    before = await manager.get_lease("a")
    assert before is not None
    for step in range(steps):
        worker, other = random.sample(workers, 2)
        action = random.choice(ACTIONS)
        if action in ("commit", "zombie"):
            held = worker.held
            if action == "zombie" and worker.acquisitions:
                held = random.choice(worker.acquisitions)
            if held is None:
                continue
            is_present = (
                before.fence == held.fence
                and before.record.holder == worker.name
                and before.record.counter == held.record.counter
            )
            committed = await worker.commit(held, Position(str(step)))
            assert (committed is not None) == is_present, (step, action, held, before)
            commits, refusals = commits + is_present, refusals + (not is_present)
            if held is worker.held:
                worker.held = committed
            told = committed
        else:
            told = await worker.do(action, other.name)
        # What was refused must have changed nothing; of the rest the answer tells, which is compared now and then.
        after = told if told and step % READ_EVERY else await manager.get_lease("a")
        assert after is not None
        assert after.record.epoch - before.record.epoch in (0, 1)
        assert _place(after) >= _place(before)
        before = after

    acquired = [held for worker in workers for held in worker.acquisitions]
    assert len({held.record.epoch for held in acquired}) == len(acquired)
    assert len({held.fence for held in acquired}) == len(acquired)
    assert commits >= 3
    assert refusals >= 3


def _place(found: Versioned) -> Position:
    return found.record.checkpoint or Position("TRIM_HORIZON")
