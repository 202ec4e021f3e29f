"""Values that handlers write to state, of every kind, and the types of fields that they are written to."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import Row

TYPES = (
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "boolean",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "decimal(10,2)",
    "decimal(38,18)",
    "array<int>",
    "array<double>",
    "map<string,int>",
    "struct<a:int,b:string>",
    "array<struct<a:int>>",
    "int not null",
    "string not null",
    "double not null",
    "boolean not null",
)
_NUMBERS: list[Any] = [1, 0, -1, 127, 128, 300, 32768, 2**31, 2**31 - 1, 2**63 - 1, 2**63]
_NUMBERS += [-(2**63) - 1, 2**70, 1.5, 0.1, -0.0, float("nan"), float("inf"), 1e300]
_DECIMALS = [Decimal(each) for each in ("1.234", "1.235", "5", "123456789012.5", "NaN")]
_TIMES: list[Any] = [
    date(2020, 1, 2),
    datetime(2020, 1, 2, 3, 4, 5, 678901),  # noqa: DTZ001 - as handlers have it
    datetime(2020, 1, 2, 3, 4, 5, tzinfo=ZoneInfo("Asia/Tokyo")),
    pd.Timestamp("2020-01-02 03:04:05"),
    timedelta(seconds=1),
]
_NUMPY = [np.int64(7), np.int32(7), np.float32(0.1), np.float64(0.5), np.bool_(True), np.str_("s")]
_CONTAINERS: list[Any] = [
    [1, 2],
    (1, 2),
    [],
    [1.5, None],
    ["x"],
    {"a": 1},
    {"a": 1.5},
    {},
    {1: 2},
    {"a": 1, "b": "z"},
    Row(a=1, b="z"),
    Row(b="z", a=1),
    (1, "z"),
    (1,),
    [{"a": 1}],
    [Row(a=1)],
    [(1,)],
    [[1]],
]
VALUES: list[Any] = [None, True, *_NUMBERS, "5", "true", "", b"ab", bytearray(b"cd"), *_DECIMALS]
VALUES += [*_TIMES, *_NUMPY, *_CONTAINERS]
"""A vector names a value by its place here."""
