"""Reads a range of a partition once more."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from confluent_kafka import Message

from consumer.errors import ReplayError
from consumer.message.batch import MessageBatch, MessageType
from consumer.sources.kafka.failures import is_end_of_partition, mends_itself, told_apart
from consumer.sources.kafka.partitions import PartitionReader
from consumer.sources.kafka.places import TopicPartitionKey
from consumer.sources.kafka.records import batch_of, name_of


async def replayed(
    reader: PartitionReader,
    key: TopicPartitionKey,
    *,
    begin: int,
    end: int,
    message_type: MessageType,
) -> AsyncGenerator[MessageBatch, None]:
    """Yield the messages of a partition in offsets [begin, end).

    Args:
        reader: Reads nothing yet.
        key: Topic and partition.
        begin: Offset of the first message.
        end: Offset behind the last.
        message_type: How values are encoded; they carry UUIDs.

    Raises:
        ReplayError: the partition ends before `end`.
        SourceError: it cannot be read.
    """
    name = name_of(*key)
    await reader.add({key: begin})
    read = begin
    while read < end:
        wanted: list[Message] = []
        for message in await reader.poll():
            offset, error = message.offset(), message.error()
            assert offset is not None
            if error is None:
                read = offset + 1
                wanted += [message] if offset < end else []
            elif is_end_of_partition(error):
                if max(read, offset) < end:
                    raise ReplayError(name, f"it ends at {offset}, before {end}")
                read = max(read, offset)
            elif not mends_itself(error):
                raise told_apart(name, error)
        if wanted:
            yield batch_of(wanted, message_type, sequenced=True)
