"""Messages of the journals, and the mapping of words to journals."""

from __future__ import annotations

from typing import Final

import msgspec

from broadsheet.journals import JsonStructType, MappedJournal, Meta, fnv1a_32, modulo_mapping


class Line(msgspec.Struct):
    """A line of a text."""

    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    text: str = ""


class Word(msgspec.Struct):
    """An occurrence of a word in a line."""

    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    word: str = ""


LINES: Final = JsonStructType(Line)
WORDS: Final = JsonStructType(Word)
LINE_JOURNALS: Final = tuple(f"word-count/lines/part-{index:03d}" for index in range(2))
WORD_JOURNALS: Final = tuple(f"word-count/words/part-{index:03d}" for index in range(4))
SPLIT_SHARDS: Final = tuple(f"word-count/split-{index:03d}" for index in range(2))
COUNT_SHARDS: Final = tuple(f"word-count/count-{index:03d}" for index in range(4))
_TARGETS: Final = [MappedJournal(journal, WORDS.content_type) for journal in WORD_JOURNALS]

by_word: Final = modulo_mapping(lambda message: str(message.word).encode(), lambda: _TARGETS)
"""Mapping of each word to one journal, so that one shard has its count."""


def shard_of(word: str) -> str:
    """Return the id of the shard that counts a word."""
    return COUNT_SHARDS[fnv1a_32(word.encode()) % len(WORD_JOURNALS)]
