"""What a word is, and that everybody agrees on the shard that counts it."""

from __future__ import annotations

import pytest

from broadsheet.examples.word_count.app import words_of
from broadsheet.examples.word_count.messages import (
    COUNT_SHARDS,
    WORD_JOURNALS,
    Word,
    by_word,
    shard_of,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat, the DOG.", ["the", "cat", "the", "dog"]),
        ("don't 'quote' it’s", ["don't", "quote", "it’s"]),
        ("snake_case x2 Straße", ["snake", "case", "x", "straße"]),
        ("— 42 …", []),
    ],
)
def test_words_of_text_are_its_letters_in_lower_case(text: str, expected: list[str]) -> None:
    """Punctuation, digits and underscores part words; apostrophes inside do not."""
    assert words_of(text) == expected


def test_shard_of_word_reads_the_journal_that_the_word_goes_to() -> None:
    """Who asks and who publishes choose by the same hash, or counts would be looked for where they are not."""
    words = [f"word{index}" for index in range(100)]

    journals = {word: by_word(Word(word=word)).journal for word in words}

    assert set(journals.values()) == set(WORD_JOURNALS)
    assert {
        word: COUNT_SHARDS[WORD_JOURNALS.index(journal)] for word, journal in journals.items()
    } == {word: shard_of(word) for word in words}
