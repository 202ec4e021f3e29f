"""A message batch as an Arrow table, or a data frame.

JSON lines and CSV records are parsed where they lie in the buffer that was read; Arrow's parsers release the
interpreter's lock. Arrow messages already are rows. Other messages are decoded one by one. Either way a table has the
values that `MessageBatch.messages` decodes, or it is refused. Needs pyarrow, which is imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broadsheet.journals.content.content_type import rows_one_by_one
from broadsheet.journals.content.message_type import MessageRun
from broadsheet.journals.content.registry import registered
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.json_columns import integers_of
from broadsheet.journals.message.json_tables import may_be_rounded

if TYPE_CHECKING:
    import pyarrow as pa


def table_of(run: MessageRun, schema: pa.Schema | None) -> pa.Table:
    """Return a run of messages as a table, as `MessageBatch.to_arrow` describes.

    Args:
        run: The messages.
        schema: Columns to read; None: all, with the types that the messages suggest.

    Raises:
        FramingError: a message cannot be decoded, or a value does not fit the schema.
    """
    import pyarrow as pa

    if not len(run):
        return (schema or pa.schema([])).empty_table()
    content = registered(run.message_type.content_type)
    try:
        return (rows_one_by_one if content is None else content.table)(run, schema)
    except pa.ArrowException as error:
        for _ in run.messages():
            pass  # Names the message that is none, if that is the cause.
        raise FramingError(
            run.journal,
            offset=int(run.begins[0]),
            end=int(run.ends[-1]),
            detail=f"these {len(run)} messages do not fit one table: {error}",
        ) from error


def pandas_of(table: pa.Table) -> Any:
    """Return a table as a `pandas.DataFrame` of equal values."""
    # pandas makes floating-point numbers of integers among nulls, for want of a null of that type.
    return table.to_pandas(
        integer_object_nulls=any(_is_rounded_by_pandas(each) for each in integers_of(table))
    )


def _is_rounded_by_pandas(numbers: Any) -> bool:
    return bool(numbers.null_count) and may_be_rounded(numbers)
