"""Which journal a row goes to: the same as any other publisher of the key chooses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from broadsheet.journals.message.partitioning import (
    MappedJournal,
    fnv1a_32,
    fnv1a_32_of,
    modulo_mapping,
    rendezvous_mapping,
    stable_order,
)
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_sink.options import write_options
from broadsheet.spark_bridge.journal_sink.row_mapping import mapping_for

KEYS = ["", "a", "N14228", "unassigned-9E", "ünïcödé ✈", "x" * 300, "a", *map(str, range(200))]
JOURNALS = tuple(f"topic/part-{index:03d}" for index in range(7))
REQUIRED = {"address": "http://127.0.0.1:1", "selector": "topic=x", "etcd": "127.0.0.1:2"}


def _indices(rows: pa.RecordBatch, **options: str) -> list[int]:
    mapping = mapping_for(
        write_options({**REQUIRED, **options}),
        journal_count=len(JOURNALS),
        schema=from_arrow_schema(rows.schema),
    )
    found: list[int] = mapping.indices(rows, JOURNALS).tolist()
    return found


def test_fnv1a_32_of_agrees_with_the_reference() -> None:
    """Of each length, none included, and of a slice, whose offsets do not begin at zero."""
    texts = pa.array(KEYS)

    assert fnv1a_32_of(texts).tolist() == [fnv1a_32(key.encode()) for key in KEYS]
    assert fnv1a_32_of(texts.slice(3, 4)).tolist() == [fnv1a_32(k.encode()) for k in KEYS[3:7]]
    assert fnv1a_32_of(texts.slice(0, 0)).tolist() == []


def test_fnv1a_32_of_keys_longer_than_a_block() -> None:
    """Keys are fetched 16 bytes at a time: lengths around that and twice that, no two bytes of a key alike."""
    keys = [bytes(range(32, 32 + length)).decode() for length in (17, 15, 33, 16, 32, 31, 0, 48)]

    assert fnv1a_32_of(pa.array(keys)).tolist() == [fnv1a_32(key.encode()) for key in keys]


@pytest.mark.parametrize("top", [3, 0xFFFF, 0x10000, 2**40])
def test_stable_order_of_small_and_large_values(top: int) -> None:
    """Values that fit 16 bits are sorted as such, others as they are; equal ones stay in their order."""
    values = np.array([top, 0, top - 1, 1, top, 0])

    assert stable_order(values).tolist() == [1, 5, 3, 2, 0, 4]
    assert stable_order(values[:0]).tolist() == []


@pytest.mark.parametrize("mapping", ["modulo", "rendezvous"])
def test_key_mappings_agree_with_other_publishers(mapping: str) -> None:
    """A shard that publishes by the same key must choose the same journals."""
    targets = [MappedJournal(journal, "application/x-ndjson") for journal in JOURNALS]
    make = {"modulo": modulo_mapping, "rendezvous": rendezvous_mapping}[mapping]
    reference = make(lambda key: str(key).encode(), lambda: targets)

    found = _indices(pa.record_batch({"k": pa.array(KEYS)}), key="k", mapping=mapping)

    assert [JOURNALS[index] for index in found] == [reference(key).journal for key in KEYS]
    assert len(set(found)) == len(JOURNALS)


def test_key_mapping_of_numbers_and_bytes() -> None:
    """A number's key is its text, a binary value's its bytes: as Spark's own cast to string says."""
    texts = pa.record_batch({"k": pa.array(["17", "-4"])})
    numbers = pa.record_batch({"k": pa.array([17, -4])})
    binary = pa.record_batch({"k": pa.array([b"17", b"-4"])})

    assert _indices(texts, key="k") == _indices(numbers, key="k") == _indices(binary, key="k")


def by_length(rows: pa.RecordBatch, journals: tuple[str, ...]) -> Any:
    """Choose by the length of the key."""
    return np.array([len(key) % len(journals) for key in rows.column("k").to_pylist()])


def beyond(rows: pa.RecordBatch, journals: tuple[str, ...]) -> Any:
    """Choose a journal that is not there."""
    return [len(journals)] * rows.num_rows


def too_few(rows: pa.RecordBatch, journals: tuple[str, ...]) -> Any:
    """Choose for the first row alone."""
    del rows, journals
    return [0]


def _path_of(function: Any) -> str:
    return f"{__name__}:{function.__name__}"


def test_application_mapping_chooses() -> None:
    """The application's function sees the whole batch at once, and needs no key."""
    rows = pa.record_batch({"k": pa.array(KEYS)})

    assert _indices(rows, mapping=_path_of(by_length)) == [len(k) % 7 for k in KEYS]


@pytest.mark.parametrize(
    ("function", "message"),
    [(beyond, r"expected indices in \[0, 7\), got 7 to 7"), (too_few, r"expected 2 integers")],
)
def test_application_mapping_that_makes_no_sense_is_named(function: Any, message: str) -> None:
    """The error names the function and what it should have returned."""
    rows = pa.record_batch({"k": pa.array(["a", "b"])})

    with pytest.raises(PublishError, match=rf"mapping {_path_of(function)}: {message}"):
        _indices(rows, mapping=_path_of(function))


def test_null_key_names_the_column() -> None:
    """A row without a key has no journal; the error says how many there are and what to do."""
    rows = pa.record_batch({"k": pa.array(["a", None])})

    with pytest.raises(PublishError, match=r"column k: the key of 1 rows is null"):
        _indices(rows, key="k")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"option key: expected the column .*among 7 journals.*it is not set"),
        ({"key": "x"}, r"option key: expected one of the columns \['k', 'l'\]; got 'x'"),
        ({"key": "l"}, r"option key: expected a column of plain values; l holds array<bigint>"),
        ({"mapping": "nowhere:f"}, r"option mapping: .*No module named 'nowhere'"),
    ],
)
def test_mapping_options_that_do_not_fit_are_named(options: dict[str, str], message: str) -> None:
    """On the driver, before any task runs."""
    rows = pa.record_batch({"k": pa.array(["a"]), "l": pa.array([[1]])})

    with pytest.raises(OptionError, match=message):
        _indices(rows, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": ""}, r"option address: expected the address of a broker"),
        ({"selector": "=="}, r"option selector: expected a label selector"),
        ({"etcd": ""}, r"option etcd: .*would publish its rows again"),
        ({"etcd": "a:b:c:"}, r"option etcd: "),
        ({"root": "no"}, r"option root: expected a prefix of keys"),
        ({"mapping": "hash"}, r"option mapping: expected modulo, rendezvous or module:function"),
        ({"publication": " "}, r"option publication: expected a name"),
        ({"retentionDays": "0"}, r"option retentionDays: expected a number of days"),
        ({"ignoreNullFields": "no"}, r"option ignoreNullFields: expected true or false"),
        ({"etcdPasswordFile": "/no/where"}, r"option etcdPasswordFile: expected a file"),
        ({"publicaton": "x"}, r"option publicaton: expected one of"),
    ],
)
def test_write_options_that_are_wrong_are_named(options: dict[str, str], message: str) -> None:
    """Each error names the option, what was expected, and what it got."""
    with pytest.raises(OptionError, match=message):
        write_options({**REQUIRED, **options})
