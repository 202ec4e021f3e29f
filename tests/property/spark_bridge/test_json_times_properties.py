"""A text's value does not depend on the messages beside it: columns at once, and one by one, read alike."""

from __future__ import annotations

from datetime import tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
from hypothesis import example, given, strategies as st
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from broadsheet.spark_bridge.content.json import JsonDecoder
from broadsheet.spark_bridge.content.time_zones import zone_of
from broadsheet.spark_bridge.journal_source.byte_runs import FetchedContent
from broadsheet.spark_bridge.journal_source.columns import RowColumns

_ZONES = [ZoneInfo("UTC"), ZoneInfo("America/New_York"), zone_of("+05:30")]
_TYPES = [
    TimestampType(),
    TimestampNTZType(),
    DateType(),
    DecimalType(10, 2),
    StructType([StructField("a", TimestampType()), StructField("b", TimestampNTZType())]),
]


@st.composite
def _texts(draw: st.DrawFn) -> str:
    """Return a text like a timestamp, most of them valid."""
    number = st.integers
    text = f"{draw(number(1969, 2040)):04}-{draw(number(1, 12)):02}-{draw(number(1, 31)):02}"
    if draw(st.booleans()):
        time = draw(
            st.sampled_from(["{0:02}", "{0:02}:{1:02}", "{0:02}:{1:02}:{2:02}", "{0:02}{1:02}"])
        )
        text += draw(st.sampled_from("T ")) + time.format(
            draw(number(0, 23)), draw(number(0, 59)), draw(number(0, 60))
        )
        if text.count(":") == 2:
            text += draw(st.sampled_from(["", ".1", ".123456", ".1234567", "."]))
        text += draw(st.sampled_from(["", "", "Z", "+05:30", "-0330", "+01", " Europe/Paris", "z"]))
    return draw(st.sampled_from(["", "", "", " "])) + text


def _value(text: str, kind: DataType) -> Any:
    return {"a": text, "b": text} if isinstance(kind, StructType) else text


def _read(values: list[Any], kind: DataType, zone: tzinfo) -> list[Any]:
    data = b"".join(msgspec.json.encode({"x": value}) + b"\n" for value in values)
    columns = RowColumns(StructType([StructField("x", kind)]), include_metadata=False)
    content = FetchedContent("a/b", data, np.array([0]), np.array([0]))
    decoder = JsonDecoder(columns, permissive=True, zone=zone)
    found: list[Any] = decoder.decode(content).column("x").to_pylist()
    return found


_NUMBERS = st.sampled_from(["1", "1.005", "-1.005", "1_000", " 1", "1e2", "99999999.995", "+1"])


@example(["2024-07-01T12:00:00", "2024-07-01T12:00:00+05:30"], TimestampNTZType(), _ZONES[0])
@example(["2024-03-10T02:30:00", "2024-11-03T01:30:00"], TimestampType(), _ZONES[1])
@example(["2038-04-01", "1"], TimestampType(), _ZONES[1])
@given(
    st.lists(_texts() | _NUMBERS, min_size=1, max_size=5),
    st.sampled_from(_TYPES),
    st.sampled_from(_ZONES),
)
def test_value_of_a_text_is_the_same_alone_and_beside_others(
    texts: list[str], kind: DataType, zone: tzinfo
) -> None:
    """Each text is read alone, and all together: Arrow reads whole columns, and gives up for one bad value among them.

    Why: a text with an offset was local time by one parser, and UTC by the other.
    """
    values = [_value(text, kind) for text in texts]

    assert _read(values, kind, zone) == [_read([value], kind, zone)[0] for value in values]
