"""Messages byte by byte, for programs that publish or read without a shard: framing, UUIDs, clocks, hashes."""

from typing import TYPE_CHECKING

from allocator.runtime.door import lazy_names

if TYPE_CHECKING:
    from consumer.journal.append_fence import WriterEpochRegister
    from consumer.message.framing import NDJSON, framing_for
    from consumer.message.mapping import fnv1a_32
    from consumer.message.publisher import PendingAppend
    from consumer.message.types import json_uuid_of
    from consumer.message.uuid import MessageClock, build_uuid, new_producer_id, parse_uuid

__all__ = [
    "NDJSON",
    "MessageClock",
    "PendingAppend",
    "WriterEpochRegister",
    "build_uuid",
    "fnv1a_32",
    "framing_for",
    "json_uuid_of",
    "new_producer_id",
    "parse_uuid",
]

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would believe in any name.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "WriterEpochRegister": "consumer.journal.append_fence",
            "MessageClock": "consumer.message.uuid",
            "NDJSON": "consumer.message.framing",
            "PendingAppend": "consumer.message.publisher",
            "build_uuid": "consumer.message.uuid",
            "fnv1a_32": "consumer.message.mapping",
            "framing_for": "consumer.message.framing",
            "json_uuid_of": "consumer.message.types",
            "new_producer_id": "consumer.message.uuid",
            "parse_uuid": "consumer.message.uuid",
        },
    )
