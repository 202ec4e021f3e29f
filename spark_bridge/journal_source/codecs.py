"""Selects a content type's codec: finding messages and UUIDs on the driver, and decoding them in tasks.

* `application/x-ndjson`: JSON, a line each;
* `text/csv`: CSV, the UUID first;
* `application/x-protobuf-fixed`: protobuf of one class, length-prefixed;
* `application/vnd.apache.arrow.stream`: Arrow, a UUID and a stream of one batch each, length-prefixed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from google.protobuf.message import Message

from broadsheet.journals.errors import ContentTypeError
from broadsheet.journals.message.framing import ARROW_STREAM, CSV, NDJSON, PROTOBUF_FIXED
from broadsheet.journals.message.types import ArrowType, CsvType, ProtobufType, json_uuid_of
from broadsheet.spark_bridge.content.time_zones import session_zone
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_source.byte_runs import FetchedContent
from broadsheet.spark_bridge.journal_source.columns import RowColumns
from broadsheet.spark_bridge.journal_source.line_tables import LineTables, LineTablesAroundDamage
from broadsheet.spark_bridge.journal_source.message_table import FrameTables, MessageTable, UuidOf
from broadsheet.spark_bridge.journal_source.message_types import load_message_class
from broadsheet.spark_bridge.journal_source.options import ReadMode, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from broadsheet.spark_bridge.journal_source.damage import TolerantDecoder

_READABLE: Final = (NDJSON, CSV, PROTOBUF_FIXED, ARROW_STREAM)


class Tables(Protocol):
    """Finds the messages of one journal."""

    def restart(self, offset: int) -> None:
        """Continue at `offset`, where a frame begins; an incomplete frame is dropped."""
        ...

    def feed(self, content: bytes) -> MessageTable:
        """Add the next bytes, and return the messages that end in them.

        Raises:
            FramingError: they are not messages.
        """
        ...


class RowDecoder(Protocol):
    """Decodes the messages of one journal."""

    def whole_bytes(self, data: bytes) -> int:
        """Return how many bytes of `data`, which begins with a frame, are whole frames."""
        ...

    def decode(self, content: FetchedContent) -> pa.RecordBatch:
        """Return the messages of some content.

        Raises:
            FramingError: a message cannot be decoded, or does not fit the columns.
        """
        ...


def tables_for(journal: str, content_type: str, options: ReadOptions) -> Tables:
    """Return the finder of a journal's messages.

    Raises:
        ContentTypeError: messages of this type cannot be read.
        OptionError: the message type is needed for that, and is missing or wrong.
    """
    read_around = options.mode is not ReadMode.FAILFAST
    if content_type == NDJSON:
        return LineTablesAroundDamage(journal) if read_around else LineTables(journal)
    uuid_of = uuid_of_messages(journal, content_type, options)
    return FrameTables(journal, content_type, uuid_of, read_around=read_around)


def uuid_of_messages(journal: str, content_type: str, options: ReadOptions) -> UuidOf:
    """Return the function that finds the UUID of a journal's messages.

    Raises:
        ContentTypeError: messages of this type cannot be read.
        OptionError: the message type is needed for that, and is missing or wrong.
    """
    if content_type == NDJSON:
        return json_uuid_of
    if content_type == PROTOBUF_FIXED:
        return _protobuf_type(journal, options).uuid_of
    if content_type == CSV:
        # The number of columns matters only for acknowledgements, which a reader does not write.
        return CsvType(columns=0).uuid_of
    if content_type == ARROW_STREAM:
        return ArrowType().uuid_of
    raise _unreadable(journal, content_type)


def tolerant_decoder_for(
    journal: str, content_type: str, *, options: ReadOptions, columns: RowColumns
) -> TolerantDecoder:
    """Return the decoder of a journal's messages that treats undecodable ones as the mode says.

    Raises:
        ContentTypeError: messages of this type cannot be read.
        OptionError: an option or a column does not fit them.
    """
    from broadsheet.spark_bridge.journal_source.damage import TolerantDecoder

    inner = decoder_for(journal, content_type, options=options, columns=columns)
    return TolerantDecoder(inner, columns, content_type=content_type, mode=options.mode)


def decoder_for(
    journal: str, content_type: str, *, options: ReadOptions, columns: RowColumns
) -> RowDecoder:
    """Return the decoder of a journal's messages.

    Raises:
        ContentTypeError: messages of this type cannot be read.
        OptionError: an option or a column does not fit them.
    """
    if not options.decode:
        from broadsheet.spark_bridge.journal_source.raw_decoder import RawDecoder

        uuid_of = uuid_of_messages(journal, content_type, options)
        return RawDecoder(columns, content_type=content_type, uuid_of=uuid_of)
    if content_type == NDJSON:
        from broadsheet.spark_bridge.content.json import JsonDecoder

        permissive = options.mode is ReadMode.PERMISSIVE
        return JsonDecoder(columns, permissive=permissive, zone=session_zone(options.time_zone))
    if content_type == CSV:
        from broadsheet.spark_bridge.content.csv import CsvDecoder

        return CsvDecoder(columns, zone=session_zone(options.time_zone))
    from broadsheet.spark_bridge.content.arrow import ArrowDecoder
    from broadsheet.spark_bridge.content.protobuf import ProtobufDecoder

    if content_type == PROTOBUF_FIXED:
        message_class = protobuf_class(journal, options)
        return ProtobufDecoder(columns, message_class, uuid_field=options.uuid_field)
    if content_type == ARROW_STREAM:
        return ArrowDecoder(columns)
    raise _unreadable(journal, content_type)


def protobuf_class(journal: str, options: ReadOptions) -> type[Message]:
    """Return the class of a journal's protobuf messages.

    Raises:
        OptionError: the option names none.
    """
    if options.message_type is None:
        expected = f"module:Class of the protobuf messages of {journal}"
        raise OptionError("messageType", expected, got=None)
    found = load_message_class(options.message_type)
    if not issubclass(found, Message):
        expected = f"a protobuf message class, for {journal} holds {PROTOBUF_FIXED}"
        raise OptionError("messageType", expected, got=options.message_type)
    return found


def _protobuf_type(journal: str, options: ReadOptions) -> ProtobufType:
    try:
        return ProtobufType(protobuf_class(journal, options), uuid_field=options.uuid_field)
    except TypeError as error:
        expected = f"the name of a bytes field ({error})"
        raise OptionError("uuidField", expected, got=options.uuid_field) from error


def _unreadable(journal: str, content_type: str) -> ContentTypeError:
    return ContentTypeError(journal, content_type, f"expected one of {', '.join(_READABLE)}")
