"""Files of exported leases: what is written is read, and what is wrong is told by line."""

from __future__ import annotations

import pytest

from broadsheet.leases.migration.export_file import export_lines, read_export
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.runtime.errors import ValidationError

RECORDS = (
    LeaseRecord(key="a", owner="w1", epoch=3, checkpoint=Position("17", 2, "4096")),
    # The name is that of a field of ours.
    LeaseRecord(
        key="b",
        pending=Position("9"),
        pending_state=b"\x00\xff",
        attrs={"owner": '"theirs"', "ü": "[1,null]"},
    ),
)
HEADER = '{"broadsheet_leases":1,"from":"x","count":1}\n'
LINE = '{"record":{"key":"a"}}\n'


def test_file_is_read_as_it_was_written() -> None:
    """Also foreign attributes that are named like ours."""
    text = "".join(export_lines(RECORDS, origin="etcd:/a"))

    assert read_export(text, "x.jsonl") == RECORDS
    assert text.startswith('{"broadsheet_leases":1,"from":"etcd:/a","count":2}\n')


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "x, line 1: is not valid JSON"),
        ("[1]", "x, line 1: expected an object"),
        ('{"key":"a"}', 'x, line 1: expected {"broadsheet_leases":1'),
        (HEADER.replace(":1,", ":2,", 1) + LINE, "x, line 1.broadsheet_leases: expected 1, got 2"),
        (HEADER, "x: expected 1 leases, got 0: export it again"),
        (HEADER + LINE + LINE, "x, line 3: lease a occurs twice"),
        (HEADER + '{"record":', "x, line 2: is not valid JSON"),
        (HEADER + '{"key":"a"}', "x, line 2: expected record, and perhaps attrs, as objects"),
        (HEADER + '{"record":{"key":"a","epoch":"1"}}', "x, line 2: lease a: its record cannot be"),
    ],
)
def test_file_that_is_wrong_says_where(text: str, problem: str) -> None:
    """Another file, another version, one that was cut off or edited."""
    with pytest.raises(ValidationError) as caught:
        read_export(text, "x")

    assert problem in str(caught.value)
