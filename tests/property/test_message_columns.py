"""Messages found and sequenced as columns, beside the same done for one message at a time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

from broadsheet.journals.content.csv import CsvFraming
from broadsheet.journals.content.json import JsonType, json_uuid_of
from broadsheet.journals.message.batch import UNREADABLE, MessageBatch, batch_of
from broadsheet.journals.message.framing import Frames, LineFraming, Payloads
from broadsheet.journals.message.sequence import Run, committed_part, scan_run
from broadsheet.journals.message.sequence_rules import (
    NOTHING_PENDING,
    ProducerClocks,
    SequenceOutcome,
    decide,
)
from broadsheet.journals.message.uuid import FEW, Flags, build_uuid, format_uuid, parse_uuid
from tests.support.sequencing import Message, messages_of

UUIDS = st.builds(
    build_uuid, st.integers(0, 2**48 - 1), st.integers(0, 2**64 - 1), st.integers(0, 1023)
).map(format_uuid)
OTHER = "ffffffff-ffff-1fff-bfff-ffffffffffff"
HOSTILE = [
    b"",
    b" ",
    b"[1]",
    b"7",
    b"null",
    b'{"a":1',
    b"{}{}",
    b"{} {}",
    b'{"a":{}',
    b'{"b":1}}',
    b'{"a":',
    b"1}",
    b"\xff",
    b'{"_meta":5}',
    b'{"_meta":{"uuid":"no"}}',
    b'{"a":"\x00"}',
    b'{"a":' + b"[" * 1200 + b"]" * 1200 + b"}",
]
"""Lines that are no messages, some of which make messages together with the next one."""


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """A JSON line with its UUID anywhere or nowhere, twice, escaped, and with UUIDs that are not its own."""
    uuid = draw(UUIDS)
    shape = draw(
        st.sampled_from(
            [
                '{{"_meta":{{"uuid":"{u}"}},"k":"key"}}',
                '{{"k":"key","_meta":{{"uuid":"{u}"}}}}',
                '{{ "_meta" : {{ "uuid" : "{u}" }} }}',
                '{{"_meta":{{"uuid":"{o}"}},"_meta":{{"uuid":"{u}"}}}}',
                '{{"_meta":{{"uuid":"{o}","uuid":"{u}"}}}}',
                '{{"_meta":{{"uuid":"{o}"}},"_meta":null}}',
                '{{"\\u005fmeta":{{"u\\u0075id":"{u}"}}}}',
                '{{"a":{{"_meta":{{"uuid":"{o}"}}}},"_meta":{{"uuid":"{u}"}}}}',
                '{{"a":{{"_meta":{{"uuid":"{o}"}}}}}}',
                '{{"a":"{{\\"_meta\\":{{\\"uuid\\":\\"{o}\\"}}}}","_meta":{{"uuid":"{u}"}}}}',
                '{{"a":"}}{{","_meta":{{"uuid":"{u}"}}}}',
                '{{"_meta":{{"uuid":""}}}}',
                '{{"_meta":{{"more":[1,{{}}],"uuid":"{u}"}},"ü":"é"}}',
                "{{}}",
            ]
        )
    )
    text = shape.format(u=uuid.upper() if draw(st.booleans()) else uuid, o=OTHER)
    return text.encode() + draw(st.sampled_from([b"", b"", b"", b" ", b"\r"]))


def fed(unframer: Any, content: bytes, cuts: random.Random) -> list[Frames]:
    """Return the frames of content that arrives in chunks cut anywhere."""
    found, at = [], 0
    while at < len(content):
        size = cuts.choice([1, 9, 70, 20_000, 20_000])
        found.append(unframer.feed(content[at : at + size]))
        at += size
    return found


@given(
    st.lists(st.one_of(lines(), lines(), lines(), st.sampled_from(HOSTILE)), max_size=12),
    st.sampled_from([0, FEW]),
    st.integers(0, 2**32).map(random.Random),
)
@settings(max_examples=200, deadline=None)
def test_json_lines_as_columns_are_what_they_are_one_by_one(
    drawn: list[bytes], more: int, cuts: random.Random
) -> None:
    """UUIDs in any place, decoys, and lines that are none: each message has its UUID and its content, and the first
    line that is none is named.
    """
    # Only many are taken together.
    payloads = [*drawn, *[b"{}"] * more]
    content = b"".join(line + b"\n" for line in payloads)
    expected: list[Message] = []
    culprit, offset = None, 0
    for line in payloads:
        try:
            columns = parse_uuid(json_uuid_of(line))
        except ValueError:
            culprit = offset
            break
        expected.append(Message(offset, offset + len(line) + 1, *columns, line))
        offset += len(line) + 1

    found: list[Message] = []
    error = None
    for frames in fed(LineFraming().unframer(journal="a/b", offset=0), content, cuts):
        batch, error = batch_of("a/b", frames, JsonType())
        found += messages_of(batch)
        decoded = [each.message for each in batch.envelopes()]
        assert decoded == [JsonType().decode(payload) for payload in batch.payloads]
        if error is not None:
            break

    assert found == expected
    assert (None if error is None else error.offset) == culprit


@given(
    st.lists(st.text('a",\n\r', max_size=12), max_size=8), st.integers(0, 2**32).map(random.Random)
)
@settings(max_examples=150, deadline=None)
def test_csv_records_are_the_same_however_they_arrive(
    records: list[str], cuts: random.Random
) -> None:
    """Quotes, and newlines within quotes, cut anywhere: a record ends where its quotes are closed."""
    framing = CsvFraming()
    content = b"".join(
        framing.frame(record.encode()) for record in records if record.count('"') % 2 == 0
    )
    expected, begin, quotes = [], 0, 0
    for at, code in enumerate(content):
        quotes += code == ord('"')
        if code == ord("\n") and quotes % 2 == 0:
            expected.append((begin, at + 1, content[begin:at]))
            begin = at + 1

    found: list[tuple[int, int, bytes]] = []
    for frames in fed(framing.unframer(journal="a/b", offset=0), content, cuts):
        found += zip(frames.begins.tolist(), frames.ends.tolist(), frames.payloads, strict=True)

    assert found == expected


def run_one_by_one(batch: MessageBatch, producers: dict[int, ProducerClocks]) -> Run:
    """Return a batch's run, by a decision for each message."""
    run = Run(len(batch))
    indices: list[int] = []
    through: list[int] = []
    known = dict(producers)
    for index, message in enumerate(messages_of(batch)):
        producer = known.get(message.producer)
        if not message.clock:
            run.flags_void |= message.flags not in (Flags.OUTSIDE_TXN, UNREADABLE)
        else:
            run.producer_ids.add(message.producer)
            run.unknown_flags += message.flags != Flags.OUTSIDE_TXN
            producer = producer or ProducerClocks(message.clock - 1)
            outcome = decide(message.flags, message.clock, producer)
            if outcome is SequenceOutcome.OUTSIDE_ALREADY_ACKED:
                run.duplicates += 1
                if through:
                    through[-1] = message.end
                else:
                    run.leading_duplicates_end = message.end
                continue
            run.spans_discarded += outcome is SequenceOutcome.SPAN_DISCARDED
            known[message.producer] = ProducerClocks(message.clock)
        indices.append(index)
        through.append(message.end)
    run.indices = np.array(indices, dtype=np.intp)
    run.read_through = np.array(through, dtype=np.int64)
    return run


@st.composite
def runs(draw: st.DrawFn) -> tuple[MessageBatch, dict[int, ProducerClocks]]:
    """Messages that commit themselves, of some producers, with duplicates, unknown flags, and some that opted out."""
    messages = draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(0, 8), st.sampled_from([0, 0, 0, 3, 700])),
            min_size=1,
            max_size=12,
        )
    )
    damaged = draw(st.sets(st.integers(0, 11), max_size=2))
    rows = [
        (0, 0, UNREADABLE)
        if index in damaged
        else (producer, clock * 16, draw(st.integers(0, 2)) if not clock else flags)
        for index, (producer, clock, flags) in enumerate(messages)
    ]
    producers = {
        producer: ProducerClocks(
            16 * draw(st.integers(0, 6)), 16 * draw(st.integers(0, 9)), begin=begin
        )
        for producer in draw(st.sets(st.integers(1, 3)))
        for begin in [draw(st.sampled_from([NOTHING_PENDING, 1]))]
    }
    begins = [10 * index for index in range(len(rows))]
    batch = MessageBatch(
        "a/b",
        begins,
        [begin + 10 for begin in begins],
        [producer for producer, _, _ in rows],
        [clock for _, clock, _ in rows],
        [flags for _, _, flags in rows],
        Payloads.of([b"{}"] * len(rows)),
        JsonType(),
    )
    return batch, producers


@given(runs())
@settings(max_examples=200, deadline=None)
def test_run_as_columns_is_what_it_is_one_by_one(
    run: tuple[MessageBatch, dict[int, ProducerClocks]],
) -> None:
    """Producers mixed, known, new, with something pending: the same are duplicates, and the same is counted."""
    batch, producers = run

    found = scan_run(batch, 0, len(batch), producers=producers)

    expected = run_one_by_one(batch, producers)
    for name in Run.__slots__:
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    part = committed_part(batch, found)
    assert [m.flags for m in messages_of(part)] == [
        0 if not m.clock and m.flags != UNREADABLE else m.flags for m in messages_of(part)
    ]


@given(st.lists(st.binary(max_size=6), max_size=6), st.data())
@settings(max_examples=100, deadline=None)
def test_payloads_are_a_list_of_bytes(payloads: list[bytes], data: st.DataObject) -> None:
    """Parts, picks and copies of views are those of the list."""
    views = Payloads.of(payloads)
    cut = data.draw(st.integers(0, len(payloads)))
    picked = sorted(data.draw(st.sets(st.integers(0, len(payloads) - 1)))) if payloads else []

    assert views == payloads
    assert list(views[cut:]) == payloads[cut:]
    assert list(views.take(np.array(picked, dtype=np.intp))) == [payloads[at] for at in picked]
    assert views[cut:].compact() == payloads[cut:]
    assert bytes(views.lines() or b"") == b"\n".join(payloads)
