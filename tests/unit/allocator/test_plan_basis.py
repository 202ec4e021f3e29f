"""What a plan rests on: its numbers are other ones after what counts, and after that alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.allocator.state.derived_state import DerivedState
from broadsheet.allocator.state.failed_replicas import FailedSince
from broadsheet.allocator.state.mirror import Mirror
from tests.support.memory_cluster import ValueConsistency
from tests.support.plain_values import PlainDecoder

KEYS = Keys("/r")
ITEM, OTHER = ItemId("item"), ItemId("other")
MEMBER, NEWCOMER = MemberId("zone", "old"), MemberId("zone", "new")
REPLICA = KEYS.assignment(ITEM, MEMBER, 0)


class Watched:
    """A mirror and its derived state."""

    def __init__(self) -> None:
        self.mirror = Mirror(KEYS, PlainDecoder())
        self.revision = 1
        self.put(KEYS.item(ITEM), b"R=1")
        self.put(KEYS.member(MEMBER), b"limit=5")
        self.put(REPLICA, b"backfill")
        self.mirror.take_changes()
        self.derived = DerivedState(
            self.mirror,
            local_id=MEMBER,
            failed=FailedSince(
                lambda assignment: assignment.kv.value == b"failed",
                ValueConsistency(),
                after_seconds=60.0,
            ),
        )

    def put(self, key: bytes, value: bytes, *, again: bool = False) -> None:
        """Show the mirror a key; `again`: it was deleted, and made again."""
        self.revision += 1
        known = None if again else self.mirror.kv_or_none(key)
        created = known.create_revision if known is not None else self.revision
        self.mirror.put(
            KeyValue(
                key=key,
                value=value,
                create_revision=created,
                mod_revision=self.revision,
                version=1,
                lease=0,
            )
        )

    def basis_after(self, change: Callable[[Watched], object]) -> tuple[int, int]:
        """Return the basis once a change shows."""
        change(self)
        self.derived.apply(self.mirror.take_changes())
        return self.derived.basis


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.put(KEYS.item(OTHER), b"R=1"),
        lambda w: w.put(KEYS.item(ITEM), b"R=1"),
        lambda w: w.mirror.delete(KEYS.item(ITEM)),
        lambda w: w.put(KEYS.member(NEWCOMER), b"limit=5"),
        lambda w: w.put(KEYS.member(MEMBER), b"limit=5,exiting"),
        lambda w: w.put(KEYS.assignment(ITEM, NEWCOMER, 1), b""),
        lambda w: w.mirror.delete(REPLICA),
        lambda w: w.put(REPLICA, b"", again=True),
    ],
    ids=[
        "item-comes",
        "item-written",
        "item-goes",
        "member-comes",
        "member-written",
        "replica-comes",
        "replica-goes",
        "replica-made-again",
    ],
)
def test_basis_is_another_one_after_what_counts(change: Callable[[Watched], object]) -> None:
    """A plan that was made before any of these may not be carried out after it."""
    watched = Watched()
    before = watched.derived.basis

    assert watched.basis_after(change) != before


def test_basis_stays_when_replicas_report() -> None:
    """Statuses are written all the time: a plan is as good as it was."""
    watched = Watched()
    before = watched.derived.basis

    assert watched.basis_after(lambda w: w.put(REPLICA, b"consistent")) == before


def test_basis_is_another_one_when_a_failed_replica_is_given_up() -> None:
    """By time alone: what a plan would be made for is not what it was."""
    watched = Watched()
    watched.put(KEYS.assignment(ITEM, NEWCOMER, 1), b"failed")
    watched.derived.apply(watched.mirror.take_changes())
    watched.derived.observe_failures(0.0)
    before = watched.derived.basis

    watched.derived.observe_failures(61.0)

    assert watched.derived.basis != before
