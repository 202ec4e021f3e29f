"""The application, in two stages: lines are split into words, and words are counted.

    lines/part-000…001 ─► shards split-000…001 ─► words/part-000…003, by word ─► shards count-000…003

The first stage publishes; the second keeps state. Both are shards of one application: a shard's stage follows from the
journal that it reads. A crash of either loses no word and counts none twice, because words become visible with the
commit of the transaction that read their line, and are counted with the commit of the one that read them.
"""

from __future__ import annotations

import re

import grpc

from broadsheet.consumer import Resolver, Shard
from broadsheet.consumer.stores import SqliteStore
from broadsheet.examples.word_count import api
from broadsheet.examples.word_count.messages import LINE_JOURNALS, LINES, WORDS, Word, by_word
from broadsheet.examples.word_count.store import CountStore
from broadsheet.journals import Envelope, Flags, JournalSpec, MessageType, Publisher

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
"""Letters of any alphabet, with apostrophes inside."""


class WordCount:
    """Splits lines or counts words, depending on the shard's source."""

    def new_store(self, shard: Shard) -> SqliteStore:
        """Return counts, or a store with nothing but the checkpoint."""
        splits = shard.spec.sources[0].journal in LINE_JOURNALS
        return SqliteStore(shard) if splits else CountStore(shard)

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Return lines or words."""
        return LINES if journal_spec.name in LINE_JOURNALS else WORDS

    def consume_message(
        self, shard: Shard, store: SqliteStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Count a word, or publish the words of a line."""
        del shard
        if envelope.flags == Flags.ACK_TXN:
            return
        if isinstance(store, CountStore):
            store.add(envelope.message.word)
            return
        for word in words_of(envelope.message.text):
            publisher.publish_uncommitted(by_word, Word(word=word), WORDS)

    def finalize_txn(self, shard: Shard, store: SqliteStore, publisher: Publisher) -> None:
        """Do nothing, because nothing is cached."""

    def register_services(self, server: grpc.aio.Server, resolver: Resolver) -> None:
        """Serve counts."""
        api.register(server, resolver)


def create() -> WordCount:
    """Make the application."""
    return WordCount()


def words_of(text: str) -> list[str]:
    """Return the words of a text in their order, in lower case."""
    return [word.lower() for word in _WORD.findall(text)]
