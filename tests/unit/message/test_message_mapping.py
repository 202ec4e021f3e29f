"""Mappings: the partitions that Go publishers choose, too."""

from __future__ import annotations

import gc
from collections.abc import Callable
from random import Random

import pytest

from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.errors import NoPartitionsError
from broadsheet.journals.message.partitioning import (
    RULES,
    MappedJournal,
    Partitions,
    fnv1a_32,
    hashes_of,
    modulo_mapping,
    random_mapping,
    rendezvous_mapping,
)

MODULO_443 = {
    "It always": 119,
    "seems": 54,
    "impossible": 308,
    "until": 97,
    "it is done.": 179,
    "- Nelson Mandela": 437,
    "Shall I compare": 84,
    "thee to": 300,
    "a summer's day?": 214,
    "Thou art more": 135,
    "lovely and more": 118,
    "temperate - Shakespeare": 228,
}
RENDEZVOUS = {
    "It always": 21,
    "seems": 179,
    "impossible": 50,
    "until": 13,
    "it is done.": 337,
    "- Nelson Mandela": 29,
    "Shall I compare": 110,
    "thee to": 395,
    "a summer's day?": 192,
    "Thou art more": 394,
    "lovely and more": 344,
    "temperate - Shakespeare": 75,
}
"""Source: gazette/core message/routines_test.go, regression fixtures of both mappings."""


def partitions_of(count: int) -> Partitions:
    """Return `count` partitions of a topic."""
    choices = [MappedJournal(f"a/topic/part-{index:03d}", NDJSON) for index in range(count)]
    return lambda: choices


def test_fnv1a_32_known_values() -> None:
    """Plan: values published with the algorithm. Why: every publisher of a topic must agree."""
    assert [fnv1a_32(data) for data in (b"", b"a", b"foobar")] == [
        0x811C9DC5,
        0xE40C292C,
        0xBF9CF968,
    ]


def test_modulo_mapping_fixtures_are_stable() -> None:
    """Plan: known keys over 443 partitions. Why: a key that moves splits its state over two shards."""
    mapping = modulo_mapping(str.encode, partitions_of(443))

    chosen = {key: mapping(key) for key in MODULO_443}

    assert chosen == {
        key: MappedJournal(f"a/topic/part-{index:03d}", NDJSON) for key, index in MODULO_443.items()
    }


@pytest.mark.parametrize("count", [400, 500])
def test_rendezvous_mapping_fixtures_are_stable_as_partitions_grow(count: int) -> None:
    """Plan: known keys over 400 and 500 partitions. Why: growing a topic must move few keys."""
    mapping = rendezvous_mapping(str.encode, partitions_of(count))

    chosen = {key: mapping(key).journal for key in RENDEZVOUS}

    assert chosen == {key: f"a/topic/part-{index:03d}" for key, index in RENDEZVOUS.items()}


def test_rendezvous_mapping_notices_new_partitions() -> None:
    """Plan: replace the list between two messages. Why: cached hashes must not outlive it."""
    choices = [MappedJournal("a/one", NDJSON)]
    mapping = rendezvous_mapping(str.encode, lambda: choices)
    assert mapping("key").journal == "a/one"

    choices = [MappedJournal("a/two", NDJSON)]

    assert mapping("key").journal == "a/two"


@pytest.mark.parametrize("make", [modulo_mapping, rendezvous_mapping])
def test_keys_that_never_repeat_leave_memory(
    make: Callable[[Callable[[str], bytes], Partitions], Callable[[str], MappedJournal]],
) -> None:
    """Plan: 20,000 keys, each once. Why: a key for each stream or order is usual, and a process must not grow by it."""

    class Key(bytes):
        """A key that can be found while it is in memory, and is no other test's."""

    mapping = make(lambda message: Key(message.encode()), partitions_of(4))

    for number in range(20_000):
        mapping(str(number))

    assert 0 < sum(isinstance(each, Key) for each in gc.get_objects()) < 10_000


def test_random_mapping_spreads() -> None:
    """Plan: 101 messages over 100 partitions. Why: one journal must not take all."""
    mapping = random_mapping(partitions_of(100), Random(7))

    assert len({mapping("same").journal for _ in range(101)}) > 30


def test_mappings_without_partitions_say_so() -> None:
    """Plan: an empty topic. Why: this is a missing journal, not a bad message."""
    none: Partitions = lambda: ()  # noqa: E731 - as a user would write it
    for mapping in (
        modulo_mapping(str.encode, none),
        rendezvous_mapping(str.encode, none),
        random_mapping(none, Random(1)),
    ):
        with pytest.raises(NoPartitionsError, match="no partitions"):
            mapping("key")


@pytest.mark.parametrize("rule", RULES)
def test_partition_rule_by_columns_agrees_with_single_keys(rule: str) -> None:
    """A rule's two forms are one rule: a publisher of rows and a publisher of messages must agree on every key."""
    pa = pytest.importorskip("pyarrow")
    names = [f"topic/part-{index:03d}" for index in range(5)]
    choices = [MappedJournal(name, "application/x-ndjson") for name in names]
    keys = ["", "N14228", "ünïcödé ✈", "x" * 40, *map(str, range(100))]
    one_by_one = RULES[rule].mapping(str.encode, lambda: choices)

    at_once = RULES[rule].indices(hashes_of(pa.array(keys)), names)

    assert [names[index] for index in at_once] == [one_by_one(key).journal for key in keys]
