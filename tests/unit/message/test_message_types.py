"""Message types: where the UUID is, and what is no message."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from broadsheet.journals.content.csv import CSV, CsvType
from broadsheet.journals.content.json import JsonStructType, JsonType, Meta
from broadsheet.journals.content.protobuf import ProtobufType
from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.batch import batch_of
from broadsheet.journals.message.framing import Frames
from broadsheet.journals.message.uuid import NIL_UUID, build_uuid, format_uuid
from broadsheet.wire.journal_pb2 import Label
from broadsheet.wire.shard_pb2 import Checkpoint

UUID_A = build_uuid(0x0102030405, 1600, 1)
UUID_B = build_uuid(0x0102030406, 3200, 2)


class Flight(msgspec.Struct):
    """A message of the tests."""

    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    tail: str = ""


def payload_of(uuid: bytes) -> bytes:
    """Return a JSON payload with this UUID."""
    return b'{"x":[1,{"_meta":5}],"_meta":{"k":1,"uuid":"%s"}}' % format_uuid(uuid).encode()


def frames_of(*payloads: bytes) -> Frames:
    """Return payloads at offsets 0, 10, 20, and so on."""
    begins = np.arange(len(payloads), dtype=np.int64) * 10
    return Frames(begins, begins + 10, list(payloads))


@pytest.mark.parametrize(
    ("payload", "uuid"),
    [
        (payload_of(UUID_A), UUID_A),
        (payload_of(UUID_A).upper().replace(b"UUID", b"uuid").replace(b"_META", b"_meta"), UUID_A),
        (b"{}", NIL_UUID),
        (b'{"_meta":null}', NIL_UUID),
        (b'{"_meta":{}}', NIL_UUID),
        (b'{"_meta":{"uuid":null}}', NIL_UUID),
        (b'{"_meta":{"uuid":""}}', NIL_UUID),
    ],
)
def test_json_uuid_is_found_alone_and_in_bulk(payload: bytes, uuid: bytes) -> None:
    """Plan: every way to have or lack a UUID, next to one that has it. Why: both paths must agree."""
    json_type = JsonType()

    assert json_type.uuid_of(payload) == uuid
    assert json_type.uuids_of([payload_of(UUID_B), payload]) == UUID_B + uuid


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[1]",
        b"5",
        b'{"a":',
        b"{} {}",
        b'\xff{"a":1}',
        b'{"_meta":5}',
        b'{"_meta":{"uuid":7}}',
        b'{"_meta":{"uuid":"xyz"}}',
        b'{"_meta":{"uuid":"%s"}}' % UUID_A.hex().encode(),
        b'{"_meta":{"uuid":"0000000000000-1000-8000-000000000000"}}',
        b'{"_meta":{"uuid":"00000000-0000-1000-8000-00000000000 "}}',
        b'{"_meta":{"uuid":"0 000000-0000-1000-8000-00000000000  "}}',
    ],
)
def test_json_bad_payload_ends_the_batch_before_it(payload: bytes) -> None:
    """Plan: a good, a bad, a good payload. Why: what precedes is used, and the error names the offset."""
    batch, error = batch_of("a/j", frames_of(payload_of(UUID_A), payload, b"{}"), JsonType())

    assert list(batch.clocks) == [1600]
    assert list(batch.payloads) == [payload_of(UUID_A)]
    assert isinstance(error, FramingError)
    assert (error.journal, error.offset) == ("a/j", 10)


def test_batch_of_good_payloads_has_all_columns() -> None:
    """Plan: two producers and a message without UUID. Why: sequencing sees nothing but these columns."""
    batch, error = batch_of(
        "a/j;m", frames_of(payload_of(UUID_A), payload_of(UUID_B), b"{}"), JsonType()
    )

    assert error is None
    assert batch.journal == "a/j;m"
    assert (batch.begins.tolist(), batch.ends.tolist()) == ([0, 10, 20], [10, 20, 30])
    assert batch.producers.tolist() == [0x0102030405, 0x0102030406, 0]
    assert (batch.clocks.tolist(), batch.flags.tolist()) == ([1600, 3200, 0], [1, 2, 0])


def test_json_set_uuid_keeps_other_meta() -> None:
    """Plan: stamp a message that has `_meta`. Why: applications keep their own facts there."""
    json_type, message = JsonType(), {"_meta": {"op": "u"}, "n": 1}

    json_type.set_uuid(message, UUID_A)

    assert message == {"_meta": {"op": "u", "uuid": format_uuid(UUID_A)}, "n": 1}
    assert json_type.uuid_of(json_type.encode(message)) == UUID_A
    assert json_type.decode(json_type.encode(message)) == message


def test_json_struct_round_trips_and_acknowledges() -> None:
    """Plan: stamp, encode, decode a Struct and an acknowledgement. Why: both must be readable as the same class."""
    struct_type = JsonStructType(Flight)
    for message in (Flight(tail="N1"), struct_type.new_acknowledgement("a/j")):
        struct_type.set_uuid(message, UUID_A)

        payload = struct_type.encode(message)

        assert struct_type.uuid_of(payload) == UUID_A
        assert struct_type.uuids_of([payload]) == UUID_A
        assert struct_type.decode(payload) == message


def test_json_struct_wrong_payload_names_the_class() -> None:
    """Plan: a field of another type. Why: the application's author must see which class refused it."""
    with pytest.raises(ValueError, match="not a Flight"):
        JsonStructType(Flight).decode(b'{"tail":5}')


def test_json_struct_unfit_classes_are_refused_at_construction() -> None:
    """Plan: a required field; no `_meta`. Why: the first acknowledgement would fail instead, in production."""

    class Strict(msgspec.Struct):
        tail: str

    class Bare(msgspec.Struct):
        tail: str = ""

    with pytest.raises(TypeError, match="Strict needs defaults for tail"):
        JsonStructType(Strict)
    with pytest.raises(TypeError, match="Bare needs a field meta"):
        JsonStructType(Bare)


def test_protobuf_uuid_round_trips() -> None:
    """Plan: a class with a bytes field. Why: the UUID must survive serialization."""
    protobuf_type = ProtobufType(Checkpoint.Source.ProducerEntry, uuid_field="id")
    message = protobuf_type.new_acknowledgement("a/j")
    assert protobuf_type.uuid_of(protobuf_type.encode(message)) == NIL_UUID

    protobuf_type.set_uuid(message, UUID_A)

    payload = protobuf_type.encode(message)
    assert protobuf_type.uuid_of(payload) == UUID_A
    assert protobuf_type.decode(payload) == message


def test_protobuf_bad_payloads_are_value_errors() -> None:
    """Plan: no protobuf; a UUID of 3 bytes. Why: the reader turns these into an error with an offset."""
    protobuf_type = ProtobufType(Checkpoint.Source.ProducerEntry, uuid_field="id")

    with pytest.raises(ValueError, match="not a ProducerEntry"):
        protobuf_type.uuid_of(b"\xff")
    with pytest.raises(ValueError, match="3 bytes, expected 16"):
        protobuf_type.uuid_of(Checkpoint.Source.ProducerEntry(id=b"abc").SerializeToString())


def test_protobuf_class_without_bytes_field_is_refused() -> None:
    """Plan: a class whose field is a string. Why: better at start than at the first message."""
    with pytest.raises(TypeError, match="Label needs a field `bytes value`"):
        ProtobufType(Label, uuid_field="value")


@pytest.mark.parametrize("text", ["two\nlines", "two\rlines", 'a "quote"', "a,b", ""])
def test_csv_field_of_any_text_is_one_record_again(text: str) -> None:
    """Plan: encode, frame, unframe and decode a field. Why: a line end that was not quoted made two records of one, and
    the journal unreadable.
    """
    kind = CsvType(columns=1)
    uuid = format_uuid(build_uuid(7 | 1 << 40, 1 << 50, 0))
    framed = framing_for(CSV).frame(kind.encode([uuid, text]))

    frames = framing_for(CSV).unframer(journal="a/b", offset=0).feed(framed)

    assert [kind.decode(payload) for payload in frames.payloads] == [[uuid, text]]
