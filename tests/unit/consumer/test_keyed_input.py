"""Runs of messages of each content type as the declared columns of a keyed application."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from broadsheet.consumer.keyed.grouping import rows_of
from broadsheet.consumer.keyed.row_types import StateRowType
from broadsheet.consumer.keyed.txn_time import TimeState, begun, observe
from broadsheet.consumer.keyed.watermark import WatermarkRules
from broadsheet.journals import ArrowType, CsvType, JsonType, MessageType
from broadsheet.journals.content.arrow import ArrowMessage
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.uuid import Flags, build_uuid

SCHEMA = StateRowType("key string NOT NULL, n long, missing double").schema


def run_of(message_type: MessageType, messages: Sequence[Any]) -> MessageBatch:
    """Return a run of messages, the last of which is an acknowledgement."""
    payloads = []
    for clock, message in enumerate([*messages, message_type.new_acknowledgement("in")], start=1):
        message_type.set_uuid(message, build_uuid(7, clock << 4, Flags.CONTINUE_TXN))
        payloads.append(message_type.encode(message))
    count = len(payloads)
    flags = [*[Flags.CONTINUE_TXN] * (count - 1), Flags.ACK_TXN]
    numbers = list(range(count))
    return MessageBatch("in", numbers, numbers, [7] * count, numbers, flags, payloads, message_type)


def _arrow_messages() -> list[Any]:
    rows = pa.record_batch({"other": [None], "n": pa.array([1], pa.int32()), "key": ["a"]})
    return [ArrowMessage(rows), ArrowMessage(pa.record_batch({"key": ["b"], "n": [2]}))]


def test_rows_of_json_messages_have_the_declared_columns() -> None:
    """Fields that are not declared are left out, those that a message lacks are null; acknowledgements are no rows."""
    batch = run_of(JsonType(), [{"key": "a", "n": 1, "other": [1]}, {"n": 2, "key": "b"}])

    table = rows_of(batch, SCHEMA)

    assert table.to_pylist() == [
        {"key": "a", "n": 1, "missing": None},
        {"key": "b", "n": 2, "missing": None},
    ]
    assert table.schema.names == SCHEMA.names


def test_rows_of_arrow_messages_are_cast_to_the_declared_types() -> None:
    """Producers of one journal may differ in order, width and number of columns."""
    table = rows_of(run_of(ArrowType(), _arrow_messages()), SCHEMA)

    assert table.select(["key", "n"]).to_pylist() == [{"key": "a", "n": 1}, {"key": "b", "n": 2}]
    assert table.schema.types == SCHEMA.types


def test_rows_of_csv_records_are_fields_by_number() -> None:
    """CSV records name no fields, so an application declares those that it wants of `f1`, `f2` and so on."""
    batch = run_of(CsvType(columns=3), [["", "a", "x", "1"], ["", "b", "y", "2"]])

    table = rows_of(batch, StateRowType("f3 long, f1 string").schema)

    assert table.to_pylist() == [{"f3": 1, "f1": "a"}, {"f3": 2, "f1": "b"}]


def test_rows_that_do_not_fit_name_their_place() -> None:
    """The shard fails at this message, or leaves it out, so the error must know it."""
    with pytest.raises(FramingError, match="in"):
        rows_of(run_of(JsonType(), [{"key": "a", "n": "many"}]), SCHEMA)


def test_sources_that_are_no_journals_count_from_their_first_row() -> None:
    """Partitions of a topic are known when they have rows; from then on they hold the watermark as journals do."""
    rules = WatermarkRules()
    state = begun(TimeState(), rules, (), 1000)
    observe(state, "topic/0", 70)
    state = begun(state, rules, (), 1001)
    assert state.watermark_ms == 70
    observe(state, "topic/1", 50)
    observe(state, "topic/0", 90)

    assert begun(state, rules, (), 1002).watermark_ms == 70
    observe(state, "topic/1", 80)
    assert begun(state, rules, (), 1002).watermark_ms == 80
