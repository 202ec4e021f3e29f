"""Which parts of divided journals a stream holds back, and of which journals it is told."""

from __future__ import annotations

from broadsheet.spark_bridge.journal_source.divided_order import DividedOrder
from broadsheet.spark_bridge.journal_source.journal_state import JournalState
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.labels import SEALED_AT, SPLIT_OF, label_set


def _spec(name: str, *, part_of: str = "", sealed: str = "") -> JournalSpec:
    labels = {SPLIT_OF: part_of, SEALED_AT: sealed}
    return JournalSpec(
        name=name, labels=label_set({key: value for key, value in labels.items() if value})
    )


def test_part_of_a_part_waits_for_both_journals_before_it() -> None:
    """The journal is sealed at 10, its part at 5; what was read of each grows."""
    order = DividedOrder()
    order.learn(
        [
            _spec("a", sealed="10"),
            _spec("a-0", part_of="a", sealed="5"),
            _spec("a-0-0", part_of="a-0"),
        ]
    )

    assert order.held_back({}) == ["a-0", "a-0-0"]
    assert order.held_back({"a": JournalState(9)}) == ["a-0", "a-0-0"]
    assert order.held_back({"a": JournalState(10)}) == ["a-0-0"]
    assert order.held_back({"a": JournalState(10), "a-0": JournalState(5)}) == []


def test_part_waits_for_a_seal_and_for_no_journal_that_is_not_read() -> None:
    """The journal may be deleted, or left out by the selector."""
    order = DividedOrder()
    order.learn([_spec("a"), _spec("a-0", part_of="a"), _spec("b-0", part_of="b")])

    assert order.held_back({"a": JournalState(1 << 40)}) == ["a-0"]
    order.learn([_spec("a-0", part_of="a")])
    assert order.held_back({}) == []


def test_sealed_journal_without_parts_among_the_selected_is_told_once() -> None:
    """A query that selects a part knows that there are parts."""
    order = DividedOrder()
    specs = [_spec("a", sealed="10"), _spec("b", sealed="10"), _spec("b-0", part_of="b")]

    assert order.learn(specs) == ["a"]
    assert order.learn(specs) == []
