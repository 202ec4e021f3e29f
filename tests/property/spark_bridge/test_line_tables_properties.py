"""Messages found in whole chunks against messages parsed one by one."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from broadsheet.journals.content.arrow import ARROW_STREAM, ArrowType
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.batch import batch_of
from broadsheet.journals.message.framing import FixedFraming, LineFraming
from broadsheet.journals.message.uuid import build_uuid, format_uuid
from broadsheet.spark_bridge.content.registry import Tables
from broadsheet.spark_bridge.journal_source.line_tables import LineTables
from broadsheet.spark_bridge.journal_source.message_table import FrameTables, MessageTable

OTHER_UUID = "00000000-0000-0000-0000-000000000000"
TRAPS = [
    f'{{"_meta":{{"uuid":"{OTHER_UUID}"}}}}',
    f'x,"_meta":{{"uuid":"{OTHER_UUID}"}}}}',
    "\\",
    "",
    "plain",
]
"""Strings that look like what is searched for."""

UUIDS = st.builds(
    build_uuid, st.integers(0, 2**48 - 1), st.integers(0, 2**64 - 1), st.integers(0, 1023)
).map(format_uuid)


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """A message with its UUID first, last, in the middle, or nowhere, and with UUIDs that are not its own."""
    uuid = draw(UUIDS)
    meta = draw(
        st.sampled_from(
            [
                {"uuid": uuid},
                {"uuid": uuid, "more": 1},
                {"more": {"uuid": OTHER_UUID}, "uuid": uuid},
                {"uuid": uuid.upper()},
                {"uuid": ""},
                {},
                None,
            ]
        )
    )
    others = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["a", "b", 'c","_meta', "uuid"]),
                st.sampled_from([*TRAPS, 1, {"_meta": {"uuid": OTHER_UUID}}]),
            ),
            max_size=3,
        )
    )
    at = draw(st.integers(0, len(others)))
    members: list[tuple[str, object]] = [*others]
    if draw(st.integers(0, 9)):
        members.insert(at, ("_meta", meta))
    line = msgspec.json.encode(dict(members))
    return line.replace(b":", b": ") if draw(st.integers(0, 9)) == 0 else line


def rows_of(table: MessageTable) -> list[tuple[int, ...]]:
    """Return a table's messages as tuples."""
    columns = (table.begins, table.ends, table.producers, table.clocks, table.flags)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def fed_in_chunks(tables: Tables, content: bytes, cuts: random.Random) -> list[tuple[int, ...]]:
    """Return the messages of content that arrives in chunks cut anywhere."""
    rows: list[tuple[int, ...]] = []
    at = 0
    while at < len(content):
        size = cuts.choice([1, 7, 60, 200, 5000])
        rows += rows_of(tables.feed(content[at : at + size]))
        at += size
    return rows


@given(st.lists(lines(), max_size=12), st.integers(0, 2**32).map(random.Random))
@settings(max_examples=300, deadline=None)
def test_line_tables_find_what_a_parser_finds(messages: list[bytes], cuts: random.Random) -> None:
    """Plan: UUIDs in any place, decoys in strings, keys and nested objects. Why: a wrong UUID loses a message."""
    content = b"".join(line + b"\n" for line in messages)
    offset = cuts.randrange(1000)
    frames = LineFraming().unframer(journal="a/b", offset=offset).feed(content)
    batch, error = batch_of("a/b", frames, JsonType())
    assert error is None
    tables = LineTables("a/b")
    tables.restart(offset)

    found = fed_in_chunks(tables, content, cuts)

    columns = (batch.begins, batch.ends, batch.producers, batch.clocks, batch.flags)
    assert found == list(zip(*(column.tolist() for column in columns), strict=True))


@given(
    st.integers(0, 2**64 - 1 - 64),
    st.lists(st.sampled_from([0, 1, 2, 1023]), min_size=1, max_size=40),
    st.booleans(),
    st.integers(0, 2**32).map(random.Random),
)
@settings(max_examples=200, deadline=None)
def test_line_tables_find_a_producers_run(
    clock: int, flags: list[int], meta_first: bool, cuts: random.Random
) -> None:
    """Plan: one producer's messages, clocks one after the other. Why: their UUIDs are decoded together."""
    messages: list[bytes] = []
    for index, flag in enumerate(flags):
        meta = ("_meta", {"uuid": format_uuid(build_uuid(7, clock + index, flag))})
        others = [("a", index)] * cuts.randrange(2)
        members = [meta, *others] if meta_first else [*others, meta]
        messages.append(msgspec.json.encode(dict(members)))
    content = b"".join(line + b"\n" for line in messages)
    frames = LineFraming().unframer(journal="a/b", offset=0).feed(content)
    batch, error = batch_of("a/b", frames, JsonType())
    assert error is None

    columns = (batch.begins, batch.ends, batch.producers, batch.clocks, batch.flags)
    expected = list(zip(*(column.tolist() for column in columns), strict=True))
    assert rows_of(LineTables("a/b").feed(content)) == expected
    assert fed_in_chunks(LineTables("a/b"), content, cuts) == expected


@pytest.mark.parametrize("digit", ["g", " ", "\u00e4"])
@pytest.mark.parametrize("place", [0, 7, 8, 35])
def test_line_tables_find_the_one_of_a_run_that_is_no_uuid(digit: str, place: int) -> None:
    """Plan: a wrong digit anywhere in the middle one. Why: those around it are decoded together."""
    uuids = [format_uuid(build_uuid(7, clock, 1)) for clock in range(100, 103)]
    uuids[1] = uuids[1][:place] + digit + uuids[1][place + 1 :]
    lines_ = [f'{{"number":1,"_meta":{{"uuid":"{uuid}"}}}}\n'.encode() for uuid in uuids]

    with pytest.raises(FramingError, match=f"offset {len(lines_[0])}\\b"):
        LineTables("a/b").feed(b"".join(lines_))


@given(st.lists(UUIDS, max_size=8), st.integers(0, 2**32).map(random.Random))
@settings(max_examples=50, deadline=None)
def test_frame_tables_find_each_frame(uuids: list[str], cuts: random.Random) -> None:
    """Plan: frames of a UUID and some bytes, in chunks cut anywhere. Why: the other content types go this way."""
    payloads = [
        bytes.fromhex(uuid.replace("-", "")) + cuts.randbytes(cuts.randrange(30)) for uuid in uuids
    ]
    content = b"".join(map(FixedFraming().frame, payloads))

    found = fed_in_chunks(FrameTables("a/b", ARROW_STREAM, ArrowType().uuid_of), content, cuts)

    assert [end - begin for begin, end, *_ in found] == [len(p) + 8 for p in payloads]
    whole = rows_of(FrameTables("a/b", ARROW_STREAM, ArrowType().uuid_of).feed(content))
    assert found == whole


@pytest.mark.parametrize("line", [b"", b"[1]", b"{", b'{"_meta":{"uuid":"no"}}'])
def test_line_tables_say_where_no_message_stands(line: bytes) -> None:
    """Plan: a wrong line behind a good one. Why: whoever must remove it needs its offset."""
    tables = LineTables("a/b")
    tables.restart(100)
    with pytest.raises(FramingError, match="103"):
        tables.feed(b"{}\n" + line + b"\n")


@pytest.mark.parametrize("meta_first", [True, False])
def test_last_line_is_judged_like_those_before_it(meta_first: bool) -> None:
    """A line with a UUID where it is searched for counts as a message though a text in it is malformed, wherever it
    stands: else what a batch holds would depend on how its bytes arrived.
    """
    meta, rest = f'"_meta":{{"uuid":"{OTHER_UUID}"}}', r'"a":"\ud800"'
    line = f"{{{meta},{rest}}}\n" if meta_first else f"{{{rest},{meta}}}\n"
    twice = LineTables("j").feed(2 * line.encode())
    alone = LineTables("j").feed(line.encode())

    assert len(twice) == 2
    assert len(alone) == 1
