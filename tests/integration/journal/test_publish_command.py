"""`shardctl journals publish` and `append --lines` at a real broker: what a user types, and what they are told."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from click.testing import CliRunner, Result

from broadsheet.cli.journals.line_input import line_blocks
from broadsheet.cli.main import main
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.arrow import ARROW_STREAM
from broadsheet.journals.content.avro import AVRO, SCHEMA_LABEL, schema_label
from broadsheet.journals.content.csv import CSV
from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.content.protobuf import PROTOBUF_FIXED
from broadsheet.wire import journal_pb2 as pb
from broadsheet.wire.labels import CONTENT_TYPE, label_set
from tests.support.broker import journal_spec

Shardctl: TypeAlias = Callable[..., Awaitable[Result]]
PARTS = ("in/part-000", "in/part-001")


@pytest.fixture
def shardctl(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Shardctl:
    """`shardctl journals …` at the test's broker, in a thread, because the broker is on this loop."""
    monkeypatch.setenv("BROKER_ADDRESS", broker.address)

    async def run(*arguments: str, stdin: str = "") -> Result:
        runner = CliRunner()
        return await asyncio.to_thread(
            runner.invoke, main, ["journals", *arguments], input=stdin, catch_exceptions=False
        )

    return run


async def _declare(
    journals: JournalClient, *names: str, content_type: str = NDJSON, **labels: str
) -> None:
    chosen = {CONTENT_TYPE: content_type, **labels}
    specs = [journal_spec(name, labels=label_set(chosen)) for name in names]
    await journals.apply([pb.ApplyRequest.Change(upsert=spec) for spec in specs])


async def _read(shardctl: Shardctl, journal: str, *options: str) -> list[dict[str, object]]:
    read = await shardctl("read", journal, "--messages", *options)
    assert read.exit_code == 0, read.output
    return [json.loads(line) for line in read.stdout.splitlines()]


async def test_publish_prints_the_offsets_of_each_journal(
    journals: JournalClient, shardctl: Shardctl, tmp_path: Path
) -> None:
    """A script waits for a shard to read what was published: the answer has the offsets it needs."""
    await _declare(journals, *PARTS)
    events = tmp_path / "events.jsonl"
    events.write_text("".join(f'{{"key":"{key}"}}\n' for key in "abcabc") + "\n  \n")

    table = await shardctl("publish", "in/", "--key", "key", "-f", str(events))
    answer = await shardctl(
        "publish", "-l", "name:prefix=in/", "--key", "key", "-o", "json", stdin='{"key":"a"}'
    )

    header, *rows = [line.split() for line in table.stdout.splitlines()]
    assert header == ["JOURNAL", "MESSAGES", "BEGIN", "END"]
    assert sum(int(messages) for _, messages, _, _ in rows) == 6
    [published] = json.loads(answer.stdout)["journals"]
    assert published["messages"] == 1
    assert published["end"] == await journals.write_head(published["journal"])
    keys = {part: {row["key"] for row in await _read(shardctl, part)} for part in PARTS}
    assert keys[PARTS[0]] | keys[PARTS[1]] == set("abc")
    assert not keys[PARTS[0]] & keys[PARTS[1]]


async def test_bad_line_is_named_with_what_was_published(
    journals: JournalClient, shardctl: Shardctl
) -> None:
    """A hundred lines and one mistake: the user corrects it, and goes on behind what is published."""
    await _declare(journals, *PARTS)
    lines = '{"key":"a"}\n{"key":"b"}\n\n{"key":}\n{"key":"c"}\n'

    refused = await shardctl("publish", "in/", "--key", "key", stdin=lines)
    no_key = await shardctl("publish", "in/", "--key", "key", stdin='{"other":1}\n')
    no_object = await shardctl("publish", PARTS[0], stdin="[1]\n")
    atomic = await shardctl("publish", "in/", "--key", "key", "--atomic", stdin=lines)
    whole = await shardctl("publish", "in/", "--key", "key", "--atomic", stdin='{"key":"z"}\n')

    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: line 4: not JSON: ")
    assert refused.stderr.endswith("; published before it: 2 lines\n")
    assert no_key.stderr == (
        "Error: line 1: the message has no field 'key'; published before it: 0 lines\n"
    )
    assert "line 1: expected a JSON object, got [1]" in no_object.stderr
    assert atomic.stderr.endswith("; nothing is published\n")
    assert whole.exit_code == 0, whole.output
    shown = [row["key"] for part in PARTS for row in await _read(shardctl, part)]
    assert sorted(map(str, shown)) == ["a", "b", "z"]


@pytest.mark.parametrize(
    ("content_type", "lines", "bad"),
    [
        (CSV, ['["","a","1"]', '["","b","2"]'], '["c","3"]'),
        (AVRO, ['{"user":"a","n":1}', '{"user":"b","n":2}'], '{"user":"c","n":"3"}'),
        (ARROW_STREAM, ['{"user":"a","n":1}', '{"user":"b","n":2}'], '{"user":"c","n":"3"}'),
    ],
    ids=["csv", "avro", "arrow"],
)
async def test_lines_become_messages_of_any_content_type(
    journals: JournalClient, shardctl: Shardctl, content_type: str, lines: list[str], bad: str
) -> None:
    """What is read as JSON lines is published as such; a bad row is named, and the rows before it are there."""
    schema = {
        "type": "record",
        "name": "Click",
        "fields": [{"name": "user", "type": "string"}, {"name": "n", "type": "long"}],
    }
    labels = {SCHEMA_LABEL: schema_label(schema)} if content_type == AVRO else {}
    await _declare(journals, PARTS[0], content_type=content_type, **labels)

    published = await shardctl("publish", PARTS[0], stdin="\n".join(lines))
    refused = await shardctl("publish", PARTS[0], stdin="\n".join([*lines, bad, lines[0]]))
    read = await shardctl("read", PARTS[0], "--messages")

    assert published.exit_code == 0, published.output
    assert refused.stderr.startswith("Error: line 3: ")
    assert refused.stderr.endswith("; published before it: 2 lines\n")
    rows = [json.loads(line) for line in read.stdout.splitlines()]
    expected = [json.loads(line) for line in lines * 2]
    if content_type == CSV:
        rows = [["", *row[1:]] for row in rows]
    assert rows == expected


async def test_protobuf_needs_the_class_of_its_messages(
    journals: JournalClient, shardctl: Shardctl
) -> None:
    """JSON names a protobuf message's fields; a field that it does not have is no message."""
    await _declare(journals, PARTS[0], content_type=PROTOBUF_FIXED)
    message_type = "tests.support.order_messages:Order"

    unnamed = await shardctl("publish", PARTS[0], stdin="{}")
    published = await shardctl(
        "publish", PARTS[0], "--message-type", message_type, stdin='{"name":"a"}'
    )
    wrong = await shardctl(
        "publish", PARTS[0], "--message-type", message_type, stdin='{"title":"a"}'
    )

    assert "expected module:Class of the protobuf messages" in unnamed.stderr
    assert published.exit_code == 0, published.output
    assert 'no field named "title"' in wrong.stderr
    [row] = await _read(shardctl, PARTS[0], "--message-type", message_type)
    assert row["name"] == "a"


async def test_append_of_lines_refuses_what_readers_refuse(
    journals: JournalClient, shardctl: Shardctl
) -> None:
    """A line that is no message would fail every shard that reads the journal: it never gets there."""
    await _declare(journals, PARTS[0])
    await _declare(journals, "csv/a", content_type=CSV)
    await _declare(journals, "avro/a", content_type=AVRO)
    await _declare(journals, "bytes/a", content_type="text/plain")

    bad = await shardctl("append", PARTS[0], "--lines", stdin='{"key":"a"}\nkey=b\n')
    unended = await shardctl("append", PARTS[0], "--lines", stdin='{"key":"a"}')
    csv = await shardctl("append", "csv/a", "--lines", stdin=",a\nx,b\n")
    open_quote = await shardctl("append", "csv/a", "--lines", stdin=',"a\n')
    avro = await shardctl("append", "avro/a", "--lines", stdin="{}\n")
    plain = await shardctl("append", "bytes/a", "--lines", stdin="any\nthing")

    assert bad.stderr.startswith("Error: line 2: no message of application/x-ndjson: ")
    assert bad.stderr.endswith("; appended before it: nothing\n")
    assert unended.stderr == f"appended [0, 12) to {PARTS[0]}\n"
    assert "line 2: no message of text/csv: the first field 'x' is not a UUID" in csv.stderr
    assert "line 1: a quote is not closed" in open_quote.stderr
    assert "which are no lines: use shardctl journals publish" in avro.stderr
    assert plain.stderr == "appended [0, 9) to bytes/a\n"
    assert await journals.write_head(PARTS[0]) == 12
    assert await journals.write_head("csv/a") == 0


async def test_lines_of_a_pipe_come_while_it_is_open() -> None:
    """`tail -f | shardctl journals publish`: a line must not wait for the next four megabytes."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb", buffering=0) as source:
        blocks = line_blocks(stream, option="--file")
        source.write(b"1\n2\n3")
        first = await anext(blocks)
        source.write(b"3\n4")
        source.close()
        rest = [block async for block in blocks]

    assert (first.first, first.lines) == (1, [b"1", b"2"])
    numbered = [(block.first + at, line) for block in rest for at, line in enumerate(block.lines)]
    assert numbered == [(3, b"33"), (4, b"4")]
    assert rest[-1].end == 8
