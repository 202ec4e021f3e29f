"""The readers and writers of Spark rows, one record for each content type.

Content types are read and written row by row, by their `RowType` (`rows.py`), so that a new one needs no code here.
Those whose record in `journals/content` names a module here (`spark_columns`) are read and written by columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TypeAlias

from broadsheet.journals.content.registry import content_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from broadsheet.spark_bridge.content.encoder import Encoder
    from broadsheet.spark_bridge.journal_sink.options import WriteOptions
    from broadsheet.spark_bridge.journal_source.byte_runs import FetchedContent
    from broadsheet.spark_bridge.journal_source.columns import RowColumns
    from broadsheet.spark_bridge.journal_source.message_table import MessageTable, UuidOf
    from broadsheet.spark_bridge.journal_source.options import ReadOptions
    from broadsheet.wire.journal_pb2 import LabelSet


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


Inference: TypeAlias = Callable[[list[bytes], bool], "StructType"]
"""Returns the columns of messages, given the beginnings of journals, and whether a message that cannot be read raises
ValueError instead of being skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkContent:
    """The parts that Spark's source and sink need of a content type."""

    uuid_of: Callable[[str, ReadOptions], UuidOf]
    """Returns the function that finds the UUIDs of a journal's messages. Raises `OptionError`."""
    decoder: Callable[[str, ReadOptions, RowColumns], RowDecoder]
    """Returns the decoder of a journal's messages. Raises `OptionError`."""
    encoder: Callable[[StructType, WriteOptions, LabelSet], Encoder]
    """Returns the encoder of rows for journals with some labels. Raises `OptionError`, or `PublishError` if the rows do
    not fit."""
    inference: Callable[[str, ReadOptions], Inference]
    """Returns the function that infers columns; raises `OptionError` if messages of this content type name none."""
    tables: Callable[[str, bool], Tables] | None = None
    """Returns the finder of a journal's messages, around damage or not, that is faster than frame by frame."""


@lru_cache
def spark_content_of(content_type: str, *, journal: str = "") -> SparkContent:
    """Return the record of a content type; the error names `journal`.

    Raises:
        ContentTypeError: there is no such content type.
    """
    content = content_of(content_type, journal=journal)
    # By name, because these modules import this one.
    module = import_module(f"broadsheet.spark_bridge.content.{content.spark_columns or 'rows'}")
    found: SparkContent = (
        module.CONTENT if content.spark_columns else module.content_of_rows(content)
    )
    return found
