"""Journals and the messages in them: clients, the publisher, content types, mappings, and messages byte by byte.

`ArrowType` needs the extra `[spark]` (pyarrow). A name that is not exported here is internal.
"""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.journals.append_fence import WriterEpochRegister as WriterEpochRegister
    from broadsheet.journals.append_service import AppendService as AppendService
    from broadsheet.journals.client import JournalClient as JournalClient
    from broadsheet.journals.content.arrow import ArrowType as ArrowType
    from broadsheet.journals.content.csv import CsvType as CsvType
    from broadsheet.journals.content.json import (
        NDJSON as NDJSON,
        JsonStructType as JsonStructType,
        JsonType as JsonType,
        Meta as Meta,
        json_uuid_of as json_uuid_of,
    )
    from broadsheet.journals.content.protobuf import ProtobufType as ProtobufType
    from broadsheet.journals.content.registry import framing_for as framing_for
    from broadsheet.journals.errors import JournalError as JournalError
    from broadsheet.journals.message.batch import (
        Envelope as Envelope,
        MessageBatch as MessageBatch,
        MessageType as MessageType,
    )
    from broadsheet.journals.message.partitioning import (
        KeyColumn as KeyColumn,
        MappedJournal as MappedJournal,
        field_key as field_key,
        fnv1a_32 as fnv1a_32,
        modulo_mapping as modulo_mapping,
        random_mapping as random_mapping,
        rendezvous_mapping as rendezvous_mapping,
    )
    from broadsheet.journals.message.publisher import (
        PendingAppend as PendingAppend,
        Publisher as Publisher,
    )
    from broadsheet.journals.message.reader import (
        BatchOptions as BatchOptions,
        RingLimits as RingLimits,
        open_source as open_source,
        read_committed as read_committed,
    )
    from broadsheet.journals.message.uuid import (
        Flags as Flags,
        MessageClock as MessageClock,
        build_uuid as build_uuid,
        new_producer_id as new_producer_id,
        parse_uuid as parse_uuid,
    )
    from broadsheet.journals.message_writer import (
        MessageWriter as MessageWriter,
        PublishedRange as PublishedRange,
    )
    from broadsheet.journals.topic import Topic as Topic, open_topic as open_topic
    from broadsheet.journals.transport import TransportPolicy as TransportPolicy
    from broadsheet.security.endpoints import BROKER_ADDRESS_DEFAULT as BROKER_ADDRESS_DEFAULT
    from broadsheet.wire.journal_pb2 import (
        JournalSpec as JournalSpec,
        LabelSelector as LabelSelector,
    )

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
