"""Labels that say where a relay carries messages, keys of records, and the specs of `shardctl sink`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from broadsheet.cli.sink.sink_specs import (
    SinkOptions,
    SinkPart,
    parts_of_topic,
    require_carried_once,
    settings_of,
    specs_of,
)
from broadsheet.consumer.relay.record_keys import json_key, json_keys
from broadsheet.consumer.relay.sink_labels import Sink, SinkKind, labels_of_sink, sink_of
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.labels import label_set
from broadsheet.wire.shard_pb2 import ShardSpec
from broadsheet.wire.validation_terms import validate_label_set

OPTIONS = SinkOptions(
    settings=(),
    prefix="",
    min_txn="0s",
    max_txn="1s",
    hot_standbys=1,
    disabled=False,
    print_only=False,
)
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
_SETTINGS = st.dictionaries(st.from_regex(r"[a-z.]{1,30}", fullmatch=True), _TEXTS, max_size=4)


@given(
    kind=st.sampled_from(SinkKind),
    to=_TEXTS.filter(bool),
    key=_TEXTS,
    from_topic=_TEXTS,
    settings=_SETTINGS,
)
def test_sink_of_any_texts_comes_back_from_valid_labels(
    kind: SinkKind, to: str, key: str, from_topic: str, settings: dict[str, str]
) -> None:
    """Addresses have colons, commas and at signs, which labels must not."""
    sink = Sink(kind=kind, to=to, key=key, from_topic=from_topic, settings=settings)

    labels = labels_of_sink(sink)

    validate_label_set(labels)
    assert sink_of(labels) == sink


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ({}, r"labels\[broadsheet.dev/sink\]: expected one of kafka"),
        ({"broadsheet.dev/sink": "mysql"}, "got 'mysql'"),
        ({"broadsheet.dev/sink": "kafka"}, r"labels\[broadsheet.dev/sink-to\]"),
    ],
)
def test_labels_that_name_no_sink_are_refused(labels: dict[str, str], problem: str) -> None:
    """The error names the label that an operator must correct."""
    with pytest.raises(ValidationError, match=problem):
        sink_of(label_set(labels))


@pytest.mark.parametrize(
    ("path", "payload", "key"),
    [
        ("id", b'{"id":"a\\u00fc","x":[1]}', "aü".encode()),
        ("id", b'{"x":{"id":1},"id":12.50}', b"12.50"),
        ("a.b", b'{"a":{"c":0,"b":"k"}}', b"k"),
        ("a.b", b'{"a":null}', None),
        ("id", b'{"id":null}', None),
        ("id", b"{}", None),
        ("class", b'{"class":"c"}', b"c"),
        ("my-key", b'{"my-key":{"a":1}}', b'{"a":1}'),
    ],
)
def test_key_is_the_field_of_the_message(path: str, payload: bytes, key: bytes | None) -> None:
    """The partition, and so the order, depends on it: a text is its UTF-8, anything else its JSON."""
    assert json_key(path)(payload) == key
    assert json_keys(path)([payload]) == [key]


@pytest.mark.parametrize("payload", [b"[1]", b"nope", b'{"a":1}'])
def test_message_that_has_no_place_for_the_key_is_refused(payload: bytes) -> None:
    """It goes to the dead letters, if the shard has some."""
    with pytest.raises(ValueError, match=r".+"):
        json_key("a.b")(payload)
    with pytest.raises(ValueError, match=r".+"):
        json_keys("a.b")([payload])


@pytest.mark.parametrize("others", [[], [b'{"k":12345678901234567890}'], [b"{}", b'{"k":null}']])
def test_keys_of_many_messages_are_those_of_each(others: list[bytes]) -> None:
    """Texts alone are read in a shorter way."""
    payloads = [b'{"k":"a"}', *others, b'{"n":1,"k":"\\u00fc"}', b'{"k":""}', b'{"k":"b","k":"c"}']

    assert json_keys("k")(payloads) == [json_key("k")(each) for each in payloads]
    with pytest.raises(ValueError, match=r".+"):
        json_keys("k")([*payloads, b"nope"])


def test_specs_have_one_shard_for_each_part_with_valid_ids() -> None:
    """Names of journals may hold symbols that ids must not."""
    sink = Sink(kind=SinkKind.KAFKA, to="orders")

    specs = specs_of(sink, [SinkPart("a=b/c%d", "a=b/c%d"), *parts_of_topic(2)], OPTIONS)

    assert [each.id for each in specs] == [
        "kafka/orders/a_b/c_d",
        "kafka/orders/part-000",
        "kafka/orders/part-001",
    ]
    assert [source.journal for source in specs[0].sources] == ["a=b/c%d"]
    with pytest.raises(ValidationError, match="two shards would have the id"):
        specs_of(sink, [SinkPart("a=b"), SinkPart("a%b")], OPTIONS)


@pytest.mark.parametrize("texts", [["a"], ["=b"], ["a=1", "a=2"]])
def test_malformed_settings_are_refused(texts: list[str]) -> None:
    """A setting that is dropped silently would surprise later."""
    with pytest.raises(ValidationError, match="--set"):
        settings_of(texts)
    assert settings_of(["a=b=c"]) == {"a": "b=c"}


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (Sink(kind=SinkKind.KAFKA, to="orders", settings={"bootstrap.servers": "a:1"}), "in/0"),
        (
            Sink(
                kind=SinkKind.KAFKA,
                to="orders",
                from_topic="raw",
                settings={"bootstrap.servers": "a:1"},
            ),
            "raw",
        ),
    ],
    ids=["journal", "topic"],
)
def test_second_shard_that_carries_the_same_to_the_same_place_is_refused(
    other: Sink, what: str
) -> None:
    """Each record would be there twice; other places, other sources and other applications are free."""
    part = [SinkPart(what, "" if other.from_topic else what)]
    present = specs_of(other, part, OPTIONS)
    again = specs_of(other, part, replace(OPTIONS, prefix="again"))

    with pytest.raises(ValidationError, match=f"kafka/orders/{what} carries {what} to orders"):
        require_carried_once(again, present)

    for free in (replace(other, to="more"), replace(other, settings={"bootstrap.servers": "b:1"})):
        require_carried_once(specs_of(free, part, replace(OPTIONS, prefix="again")), present)
    require_carried_once(again, [ShardSpec(id="counter"), *again])
