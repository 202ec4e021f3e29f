"""The file of a `JsonFileStore`: three JSON documents, one a line.

    {"journal/a": 1234}                      offsets read through, bytes by journal (for older readers)
    {...}                                    the application's state
    {"sources": ..., "ack_intents": ...}     the checkpoint

Source: gazette/core consumer/store_json_file.go (the documents and the names in the third).
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from google.protobuf.message import DecodeError

from broadsheet.allocator.documents import decode_json
from broadsheet.consumer.checkpoint import read_through_of
from broadsheet.consumer.protocol.identity_pb2 import JournalEpoch
from broadsheet.consumer.protocol.shard_pb2 import Checkpoint

StateT = TypeVar("StateT")


class _ProducerState(msgspec.Struct, omit_defaults=True):
    last_ack: int = 0
    begin: int = 0


class _Producer(msgspec.Struct):
    id: bytes
    """Base64 in the file, as every `bytes` here."""
    state: _ProducerState


class _Source(msgspec.Struct, omit_defaults=True):
    read_through: int = 0
    producers: list[_Producer] = []
    resume: bytes = b""
    epoch: bytes = b""
    """A JournalEpoch, encoded; empty if there is none."""
    reset: bytes = b""
    segments: list[bytes] = []
    """Ids; their contents are in files beside this one."""
    forgotten: bytes = b""


class _Checkpoint(msgspec.Struct, omit_defaults=True):
    sources: dict[str, _Source] = {}
    ack_intents: dict[str, bytes] = {}


def encode_documents(state: bytes, checkpoint: Checkpoint) -> bytes:
    """Return the file's content.

    Args:
        state: The application's state, one JSON document without a newline.
        checkpoint: What the state has read through.
    """
    sources = {
        journal: _Source(
            source.read_through,
            [
                _Producer(entry.id, _ProducerState(entry.state.last_ack, entry.state.begin))
                for entry in source.producers
            ],
            source.resume,
            source.epoch.SerializeToString(deterministic=True),
            source.reset,
            [segment.id for segment in source.segments],
            source.forgotten,
        )
        for journal, source in sorted(checkpoint.sources.items())
    }
    third = _Checkpoint(sources, dict(sorted(checkpoint.ack_intents.items())))
    first = dict(sorted(read_through_of(checkpoint).items()))
    encode = msgspec.json.encode
    return b"\n".join((encode(first), state, encode(third), b""))


def decode_documents(content: bytes) -> tuple[bytes, Checkpoint]:
    """Return the state's document and the checkpoint. Without a third document, the first one's offsets are used.

    Raises:
        ValueError: the content is no such file.
    """
    documents = content.splitlines()
    if len(documents) not in (2, 3):
        raise ValueError(f"expected three JSON documents, a line each, got {len(documents)} lines")
    offsets = decode_json(documents[0], dict[str, int])
    checkpoint = Checkpoint()
    if len(documents) == 2:
        for journal, read_through in offsets.items():
            checkpoint.sources[journal].read_through = read_through
        return documents[1], checkpoint
    _fill(checkpoint, decode_json(documents[2], _Checkpoint))
    return documents[1], checkpoint


def _epoch(encoded: bytes) -> JournalEpoch:
    try:
        return JournalEpoch.FromString(encoded)
    except DecodeError as error:
        raise ValueError(f"sources: expected an encoded epoch, got {encoded!r}: {error}") from error


def _fill(checkpoint: Checkpoint, document: _Checkpoint) -> None:
    for journal, source in document.sources.items():
        filled = checkpoint.sources[journal]
        filled.read_through = source.read_through
        filled.resume = source.resume
        if source.epoch:
            filled.epoch.CopyFrom(_epoch(source.epoch))
        filled.reset = source.reset
        filled.forgotten = source.forgotten
        for segment_id in source.segments:
            filled.segments.add(id=segment_id)
        for producer in source.producers:
            entry = filled.producers.add(id=producer.id)
            entry.state.last_ack = producer.state.last_ack
            entry.state.begin = producer.state.begin
    for journal, intent in document.ack_intents.items():
        checkpoint.ack_intents[journal] = intent
