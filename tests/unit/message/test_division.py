"""Divided journals as publishers see them: which part takes a key, for single messages and for rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.division import DividedJournals
from broadsheet.journals.message.partitioning import (
    KeyColumn,
    MappedJournal,
    field_key,
    modulo_mapping,
    rendezvous_mapping,
)
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import MessageClock
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.key_range import KeyRange, group_of, range_labels
from broadsheet.wire.labels import SPLIT_EPOCH, SPLIT_OF, label_set

KEYS = [f"k{number}" for number in range(40)]
TARGETS = [MappedJournal("test/a", NDJSON), MappedJournal("test/b", NDJSON)]


def _part(name: str, of: str, begin: int, end: int, *labels: tuple[str, str]) -> JournalSpec:
    return JournalSpec(
        name=name, labels=label_set((SPLIT_OF, of), *range_labels(KeyRange(begin, end)), *labels)
    )


def _divided() -> DividedJournals:
    """Journal a is divided, and its second part as well; b is not."""
    divided = DividedJournals()
    divided.learn(
        [
            JournalSpec(name="test/a", labels=label_set((SPLIT_EPOCH, "1"))),
            _part("test/a-0000", "test/a", 0, 0x800),
            _part("test/a-0800", "test/a", 0x800, 0x1000, (SPLIT_EPOCH, "1")),
            _part("test/a-0800-0800", "test/a-0800", 0x800, 0xC00),
            _part("test/a-0800-0c00", "test/a-0800", 0xC00, 0x1000),
            # Its parts are being made.
            JournalSpec(name="test/b"),
            _part("test/b-0000", "test/b", 0, 0x800),
        ]
    )
    return divided


def _expected(journal: str, key: str) -> str:
    group = group_of(key.encode())
    if journal == "test/b":
        return journal
    if group < 0x800:
        return "test/a-0000"
    return "test/a-0800-0800" if group < 0xC00 else "test/a-0800-0c00"


def _published(publisher: Publisher) -> dict[str, int]:
    return {each.journal: b"".join(each.content).count(b"\n") for each in publisher.take_appends()}


def test_key_of_a_divided_journal_goes_into_the_innermost_part_of_its_group() -> None:
    """Parts may be divided themselves; a journal whose division has not begun takes its keys itself."""
    divided = _divided()
    for make in (modulo_mapping, rendezvous_mapping):
        mapping = make(field_key("key"), lambda: TARGETS)
        for key in KEYS:
            message = {"key": key}
            mapped = mapping(message)
            found = divided.mapped(mapped, mapping, message)
            assert found.journal == _expected(mapped.journal, key)


def test_key_whose_part_was_deleted_is_for_the_divided_journal() -> None:
    """It refuses what is published there; to search for another part would never end."""
    divided = _divided()
    divided.learn([_part("test/a-0000", "test/a", 0, 0x800)], divided="test/a")
    for key in KEYS:
        lost = group_of(key.encode()) >= 0x800
        assert divided.part_of("test/a", key.encode()) == ("test/a" if lost else "test/a-0000")
    assert divided.lacks_part("test/a")


def test_part_that_is_missing_is_told_of_the_journal_that_lacks_it() -> None:
    """The parts of a part need no other keys than its own."""
    divided = _divided()
    assert not any(divided.lacks_part(journal) for journal in divided.parts)
    divided.learn([_part("test/a-0800-0800", "test/a-0800", 0x800, 0xC00)], divided="test/a-0800")
    assert {journal for journal in divided.parts if divided.lacks_part(journal)} == {"test/a-0800"}


def test_parts_of_a_journal_that_is_not_divided_yet_are_known_as_such() -> None:
    """They take no key, and are none of the journals that keys are mapped to."""
    divided = DividedJournals()
    divided.learn([_part("test/a-0000", "test/a", 0, 0x800), _part("test/c", "test/d", 0, 0x800)])
    assert divided.roots(["test/a", "test/a-0000", "test/b", "test/c"]) == (
        "test/a",
        "test/b",
        "test/c",
    )
    assert divided.below(["test/a", "test/b"]) == {"test/a-0000"}
    assert divided.part_of("test/a", b"key") == "test/a"


def test_parts_that_name_each_other_as_the_whole_end_the_search() -> None:
    """Nothing that we write labels journals so; somebody's file may."""
    divided = DividedJournals()
    divided.learn(
        [
            _part("test/a", "test/b", 0, 0x1000, (SPLIT_EPOCH, "1")),
            _part("test/b", "test/a", 0, 0x1000, (SPLIT_EPOCH, "1")),
        ]
    )
    assert divided.part_of("test/a", b"key") in ("test/a", "test/b")
    assert divided.below(["test/a"]) == {"test/a", "test/b"}


def test_rows_go_where_single_messages_go() -> None:
    """A column of keys and the keys one by one choose the same parts."""
    one, rows = (Publisher(MessageClock(), 1, divided=_divided()) for _ in range(2))
    mapping = modulo_mapping(field_key("key"), lambda: TARGETS)
    for key in KEYS:
        one.publish_uncommitted(mapping, {"key": key}, JsonType())
    rows.publish_batch(KeyColumn("key", lambda: TARGETS), pa.table({"key": KEYS}), JsonType())

    found = _published(one)
    assert found == _published(rows)
    assert found.keys() == {"test/a-0000", "test/a-0800-0800", "test/a-0800-0c00", "test/b"}


def test_messages_without_a_key_go_into_one_part() -> None:
    """What one publisher sends without keys stays in order."""
    publisher = Publisher(MessageClock(), 1, divided=_divided())
    for number in range(5):
        publisher.publish_uncommitted(TARGETS[0], {"n": number}, JsonType())

    def anywhere(message: Any) -> MappedJournal:
        del message
        return TARGETS[0]

    publisher.publish_uncommitted(anywhere, {"n": 5}, JsonType())

    assert _published(publisher) == {_expected("test/a", ""): 6}


def test_division_that_is_learned_in_a_transaction_holds_from_then_on() -> None:
    """A publisher's view changes while it publishes: the transaction ends in both, and each is acknowledged."""
    divided = DividedJournals()
    publisher = Publisher(MessageClock(), 1, divided=divided)
    publisher.publish_uncommitted(TARGETS[0], {"n": 0}, JsonType())
    divided.learn([_part("test/a-0000", "test/a", 0, 0x1000)], divided="test/a")
    publisher.publish_uncommitted(TARGETS[0], {"n": 1}, JsonType())

    assert _published(publisher) == {"test/a": 1, "test/a-0000": 1}
    assert [each.journal for each in publisher.build_ack_intents()] == ["test/a", "test/a-0000"]
