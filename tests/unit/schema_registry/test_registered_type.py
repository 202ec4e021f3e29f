"""Message types of a Schema Registry, as far as no registry need answer."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from broadsheet.consumer.errors import SourceUnavailableError
from broadsheet.consumer.schema_registry.registry import SchemaRegistry
from broadsheet.consumer.sources.received import Payload, WithMetadata, prepare_of
from broadsheet.journals.content.json import JsonType
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import Label

SCHEMA = '{"type": "record", "name": "Total", "fields": [{"name": "user", "type": "string"}]}'
VALUE = b"\0\0\0\0\x07body"


@pytest.fixture
def silent() -> Iterator[SchemaRegistry]:
    """A registry whose port nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        registry = SchemaRegistry({"url": f"http://127.0.0.1:{port}", "max.retries": 0})
        yield registry
        registry.close()


def test_registry_without_an_address_is_refused() -> None:
    """The error names the setting."""
    with pytest.raises(ValidationError, match=r"config\[url\]: expected the address"):
        SchemaRegistry({"timeout": 1.0})


def test_setting_that_the_client_does_not_know_is_refused() -> None:
    """At the first use, by the client's own words."""
    registry = SchemaRegistry({"url": "http://127.0.0.1:1", "patience": 1})
    with pytest.raises(ValidationError, match=r"config: .*patience"):
        registry.client()


def test_secret_of_a_file_that_is_absent_is_told_by_its_setting() -> None:
    """As of Kafka's settings."""
    registry = SchemaRegistry({"url": "http://127.0.0.1:1", "basic.auth.user.info": "@/absent"})
    with pytest.raises(ValidationError, match=r"basic.auth.user.info: cannot read the file"):
        registry.client()


def test_repr_has_no_secret() -> None:
    """It may be logged."""
    registry = SchemaRegistry({"url": "http://r:1", "basic.auth.user.info": "me:secret"})
    assert repr(registry) == "SchemaRegistry('http://r:1')"


@pytest.mark.parametrize("value", [b"", b"\0\0\0", b'{"user": "a"}', b"\x01\0\0\0\x07body"])
def test_value_without_a_head_is_a_damaged_message(silent: SchemaRegistry, value: bytes) -> None:
    """The registry is not asked; the error names the subject and what is there."""
    orders = silent.avro("orders")
    orders.prepare([(value, ())])
    with pytest.raises(ValueError, match=r"subject orders-value: expected a zero byte and") as told:
        orders.decode(value)
    assert (value[:5].hex(" ") or "no bytes") in str(told.value)


@dataclass(frozen=True)
class Metadata:
    """Of a message with headers."""

    headers: tuple[tuple[str, bytes | None], ...] = ()


class Headed(Payload[Metadata]):
    """The payload of a source that knows headers."""

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Those of its metadata."""
        return self.metadata.headers


def test_header_decides_the_form_of_a_source_s_payload(silent: SchemaRegistry) -> None:
    """A value that could be read by the id before its body is damaged, and the registry is not asked."""
    orders = silent.avro("orders")
    hostile = Headed(VALUE, Metadata((("__value_schema_id", b"\0\0\0\0\x07"),)))
    damaged = pytest.raises(ValueError, match="subject orders-value: header __value_schema_id")
    with damaged:
        orders.decode(hostile)
    with damaged:
        orders.decode(VALUE, hostile.headers)
    with pytest.raises(SourceUnavailableError):
        orders.decode(Headed(VALUE, Metadata((("__key_schema_id", b""),))))


def test_tombstone_with_a_header_is_no_empty_message(silent: SchemaRegistry) -> None:
    """Of protobuf, no bytes are a message."""
    header = ("__value_schema_id", b"\x01" + bytes(17))
    absent = Headed(None, Metadata((header,)))
    labels = silent.protobuf("orders", Label)
    assert labels.decode(b"", [header]) == Label()
    with pytest.raises(ValueError, match="subject orders-value: expected a value, got a tombstone"):
        labels.decode(absent)


def test_id_in_a_place_that_there_is_not_is_refused(silent: SchemaRegistry) -> None:
    """At the declaration; an encoder without room for headers refuses, too."""
    with pytest.raises(ValidationError, match="id_in: expected prefix or header, got 'suffix'"):
        silent.json("orders", id_in="suffix")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="subject orders-value: expected an output with headers"):
        silent.avro("orders", SCHEMA, id_in="header").encode({"user": "a"})


def test_registry_that_does_not_answer_is_no_fault_of_a_message(silent: SchemaRegistry) -> None:
    """Of a source and of an output alike: the attempt is made again."""
    orders = silent.avro("orders", SCHEMA)
    for call in (lambda: orders.prepare([(VALUE, ())]), lambda: orders.encode({"user": "a"})):
        with pytest.raises(SourceUnavailableError, match="schema registry, subject orders-value"):
            call()


def test_key_has_a_subject_of_its_own(silent: SchemaRegistry) -> None:
    """So key and value of a topic have schemas that change apart; the declaration is sent to executors."""
    declared = silent.avro("orders", '"string"', of="key")
    keys = pickle.loads(pickle.dumps(declared))  # noqa: S301 - its own
    assert keys.subject == "orders-key"
    with pytest.raises(SourceUnavailableError, match="schema registry, subject orders-key"):
        keys.encode("a")
    with pytest.raises(ValidationError, match="of: expected value or key, got 'header'"):
        silent.avro("orders", of="header")  # type: ignore[arg-type]


def test_messages_that_are_sent_need_a_schema(silent: SchemaRegistry) -> None:
    """Readers do not, so its absence shows at the first message."""
    with pytest.raises(ValidationError, match="schema: expected one, because messages are sent"):
        silent.avro("orders").encode({"user": "a"})


def test_text_that_is_no_schema_is_refused(silent: SchemaRegistry) -> None:
    """By the client's own words, with the subject."""
    with pytest.raises(ValidationError, match="subject orders-value"):
        silent.avro("orders", '{"type": "nonsense"}').encode({})


def test_type_is_sent_to_executors_without_what_was_opened(silent: SchemaRegistry) -> None:
    """A client has locks, which cannot be pickled; the same type is declared there."""
    orders = silent.avro("orders", SCHEMA)
    with pytest.raises(SourceUnavailableError):
        orders.encode({"user": "a"})

    sent = pickle.loads(pickle.dumps(orders))  # noqa: S301 - pickled by this test

    assert (sent.subject, sent.content_type) == ("orders-value", "avro/binary")
    with pytest.raises(SourceUnavailableError):
        sent.encode({"user": "a"})


def test_sources_prepare_types_of_a_registry_alone(silent: SchemaRegistry) -> None:
    """With or without metadata."""
    orders = silent.avro("orders")
    assert prepare_of(orders) == orders.prepare
    assert prepare_of(WithMetadata(orders)) == orders.prepare
    assert prepare_of(JsonType()) is None
    assert prepare_of(WithMetadata(JsonType())) is None
