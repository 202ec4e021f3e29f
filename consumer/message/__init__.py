"""Messages byte by byte, for programs that publish or read without a shard: framing, UUIDs, clocks, hashes, sources."""

from typing import TYPE_CHECKING

from broadsheet.allocator.runtime.door import lazy_names

if TYPE_CHECKING:
    from broadsheet.consumer.journal.append_fence import WriterEpochRegister
    from broadsheet.consumer.message.framing import NDJSON, framing_for
    from broadsheet.consumer.message.mapping import fnv1a_32
    from broadsheet.consumer.message.publisher import PendingAppend
    from broadsheet.consumer.message.reader import BatchOptions, RingLimits, open_source
    from broadsheet.consumer.message.types import json_uuid_of
    from broadsheet.consumer.message.uuid import (
        MessageClock,
        build_uuid,
        new_producer_id,
        parse_uuid,
    )

__all__ = [
    "NDJSON",
    "BatchOptions",
    "MessageClock",
    "PendingAppend",
    "RingLimits",
    "WriterEpochRegister",
    "build_uuid",
    "fnv1a_32",
    "framing_for",
    "json_uuid_of",
    "new_producer_id",
    "open_source",
    "parse_uuid",
]

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would believe in any name.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "BatchOptions": "broadsheet.consumer.message.reader",
            "RingLimits": "broadsheet.consumer.message.reader",
            "WriterEpochRegister": "broadsheet.consumer.journal.append_fence",
            "MessageClock": "broadsheet.consumer.message.uuid",
            "NDJSON": "broadsheet.consumer.message.framing",
            "PendingAppend": "broadsheet.consumer.message.publisher",
            "build_uuid": "broadsheet.consumer.message.uuid",
            "fnv1a_32": "broadsheet.consumer.message.mapping",
            "framing_for": "broadsheet.consumer.message.framing",
            "json_uuid_of": "broadsheet.consumer.message.types",
            "new_producer_id": "broadsheet.consumer.message.uuid",
            "open_source": "broadsheet.consumer.message.reader",
            "parse_uuid": "broadsheet.consumer.message.uuid",
        },
    )
