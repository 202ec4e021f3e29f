"""Values and keys whose schemas are in a registry, encoded and decoded by Confluent's client.

The registry answers over HTTP, so what it must tell is fetched apart from the decoding: a source calls `prepare` on its
own thread, where an outage is the source's, and not that of a message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from broadsheet.consumer.application import RecordHeaders
from broadsheet.consumer.errors import SourceError, SourceUnavailableError
from broadsheet.consumer.schema_registry.schema_ids import (
    IdentifiedPart,
    RecordPart,
    SchemaIdPlace,
    SchemaKind,
    identified,
)
from broadsheet.journals.message.uuid import NIL_UUID
from broadsheet.runtime.errors import BroadsheetError, ValidationError
from broadsheet.runtime.libraries import needing

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from google.protobuf.message import Message

_PASSING: Final = (408, 425, 429)
"""Statuses of HTTP by which a registry asks to try again; those from 500 on do, too."""
_NOT_FOUND: Final = 404
_ABSENT: Final = (40401, 40402, 40403)
"""Codes of a registry for a subject, a version and a schema that it does not have. Other 404s are not a registry's."""
_SAID_MAX: Final = 500
"""Characters of an error that are told: some registries send whole schemas."""
# A client's codec: of a message and a context, or of bytes and one. `Any`: the application's own message class.
Codec = Callable[[Any, Any], Any]


class _NoGuidError(Exception):
    """The registry has given a schema no GUID."""


class SchemaFormat(Protocol):
    """One of the registry's three kinds of schemas."""

    @property
    def id_in(self) -> SchemaIdPlace:
        """Where records that are sent have the id of their schema."""
        ...

    @property
    def kind(self) -> SchemaKind:
        """The registry's name of it."""
        ...

    @property
    def content_type(self) -> str:
        """Content type of the values."""
        ...

    def encoder(self, client: SchemaRegistryClient) -> Codec:
        """Return the client's serializer.

        Raises:
            ValidationError: there is no schema to encode by, or it is none.
        """
        ...

    def decoder(self, client: SchemaRegistryClient) -> Codec:
        """Return the client's deserializer."""
        ...


def _options(**more: Any) -> dict[str, Any]:
    """Return settings of codecs. `Any`: flags and callbacks."""
    from confluent_kafka.schema_registry import topic_subject_name_strategy

    # The client's default asks for associations of topics, which other registries than Confluent's do not have.
    return {"subject.name.strategy": topic_subject_name_strategy, **more}


def _encoder_options(id_in: SchemaIdPlace, *, register: bool) -> dict[str, Any]:
    from confluent_kafka.schema_registry import prefix_schema_id_serializer

    place = prefix_schema_id_serializer if id_in == "prefix" else _put_guid_into_header
    return _options(**{"auto.register.schemas": register, "schema.id.serializer": place})


def _decoder_options() -> dict[str, Any]:
    from confluent_kafka.schema_registry import prefix_schema_id_deserializer

    # `IdentifiedPart` has the id before the body in either form: where a header has it, the client would refuse short
    # bodies of Avro, and take the first of several headers.
    return _options(**{"schema.id.deserializer": prefix_schema_id_deserializer})


def _put_guid_into_header(body: bytes, context: Any, schema_id: Any) -> bytes:
    """Serialize an id as the client's own function does, but tell if there is none. `Any`: the client's classes."""
    from confluent_kafka.schema_registry import header_schema_id_serializer

    if schema_id.guid is None:
        raise _NoGuidError
    return header_schema_id_serializer(body, context, schema_id)


def _required(schema: str | None) -> str:
    if schema is None:
        raise ValidationError("schema", "expected one, because messages are sent")
    return schema


@dataclass(frozen=True, slots=True)
class AvroFormat:
    """Avro."""

    schema: str | None
    register: bool
    id_in: SchemaIdPlace = "prefix"
    kind: SchemaKind = "AVRO"
    content_type: str = "avro/binary"

    def encoder(self, client: SchemaRegistryClient) -> Codec:
        """As of `SchemaFormat`."""
        from confluent_kafka.schema_registry.avro import AvroSerializer

        conf = _encoder_options(self.id_in, register=self.register)
        codec: Codec = AvroSerializer(client, _required(self.schema), conf=conf)
        return codec

    def decoder(self, client: SchemaRegistryClient) -> Codec:
        """As of `SchemaFormat`."""
        from confluent_kafka.schema_registry.avro import AvroDeserializer

        codec: Codec = AvroDeserializer(client, conf=_decoder_options())
        return codec


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """JSON Schema."""

    schema: str | None
    register: bool
    id_in: SchemaIdPlace = "prefix"
    kind: SchemaKind = "JSON"
    content_type: str = "application/json"

    def encoder(self, client: SchemaRegistryClient) -> Codec:
        """As of `SchemaFormat`."""
        from confluent_kafka.schema_registry.json_schema import JSONSerializer

        conf = _encoder_options(self.id_in, register=self.register)
        codec: Codec = JSONSerializer(_required(self.schema), client, conf=conf)
        return codec

    def decoder(self, client: SchemaRegistryClient) -> Codec:
        """As of `SchemaFormat`."""
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer

        codec: Codec = JSONDeserializer(
            None, schema_registry_client=client, conf=_decoder_options()
        )
        return codec


@dataclass(frozen=True, slots=True)
class ProtobufFormat:
    """Protobuf."""

    message_class: type[Message]
    register: bool
    id_in: SchemaIdPlace = "prefix"
    kind: SchemaKind = "PROTOBUF"
    content_type: str = "application/x-protobuf"

    def encoder(self, client: SchemaRegistryClient) -> Codec:
        """As of `SchemaFormat`."""
        from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

        conf = _encoder_options(self.id_in, register=self.register)
        codec: Codec = ProtobufSerializer(self.message_class, client, conf=conf)
        return codec

    def decoder(self, client: SchemaRegistryClient) -> Codec:
        """As of `SchemaFormat`."""
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

        # Without the writer's schema, which the class makes up for: registries other than Confluent's cannot tell it in
        # the form that the client asks for.
        del client
        codec: Codec = ProtobufDeserializer(self.message_class, _decoder_options())
        return codec


class RegisteredType:
    """The message type of a topic's values or keys. They have no room for a UUID, so each counts as committed."""

    def __init__(
        self,
        topic: str,
        part: RecordPart,
        schema_format: SchemaFormat,
        client: Callable[[], SchemaRegistryClient],
    ) -> None:
        """Open nothing yet; see `SchemaRegistry`, which makes them."""
        self.subject = f"{topic}-{part}"
        self.content_type = schema_format.content_type
        self._topic, self._part = topic, part
        self._format, self._client = schema_format, client
        self._forget()

    def _forget(self) -> None:
        self._encoder: Codec | None = None
        self._decoder: Codec | None = None
        self._sent_by = "schema id not registered yet"
        """The last schema that was sent by."""
        self._prepared: set[int | UUID] = set()
        """Schemas that the decoder was told."""
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return what is declared, without codecs: applications are sent to executors."""
        kept = ("subject", "content_type", "_topic", "_part", "_format", "_client")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Declare the same type."""
        self.__dict__.update(state)
        self._forget()

    def __repr__(self) -> str:
        """Return its subject."""
        return f"RegisteredType({self.subject!r}, {self.content_type!r})"

    def prepare(self, records: Iterable[tuple[bytes, RecordHeaders]]) -> None:
        """Fetch the schemas of some records that were not met before. It waits for the registry.

        Args:
            records: Of each the part that this is the type of, and the headers.

        Raises:
            SourceUnavailableError: the registry does not answer.
            SourceError: it refuses us.
        """
        for content, headers in records:
            try:
                part = self._identified(content, headers)
            except ValueError:
                continue  # `decode` tells of it where the message can be left out.
            if part.schema in self._prepared:
                continue
            try:
                self._decoded(part)
            except SourceError:
                raise
            except Exception:  # noqa: S112 - it is the message's, and `decode` tells of it
                continue
            self._prepared.add(part.schema)

    def decode(self, payload: bytes, headers: RecordHeaders | None = None) -> Any:
        """Return the message of a value, or a key.

        Args:
            payload: The value, or the key.
            headers: Of its record; None: as the payload has them, if it is a source's.

        Raises:
            ValueError: it has no id, or two, the registry has no such schema, or the body is not of it. The error names
                subject and id.
            SourceError: as of `prepare`.
        """
        if getattr(payload, "absent", False):
            # A header would make an empty message of it.
            raise ValueError(f"subject {self.subject}: expected a value, got a tombstone")
        part = self._identified(payload, headers)
        try:
            return self._decoded(part)
        except SourceError:
            raise
        # Every exception: those of the client's codecs have no root.
        except Exception as error:
            raise ValueError(f"subject {self.subject}, {part}: {_said(error)}") from error

    def encode(self, message: Any) -> bytes:
        """Return a message as a value alone.

        Raises:
            ValueError: its id goes into a header, for which there is no place here.
            ValueError, SourceError, ValidationError: as of `encode_record`.
        """
        if self._format.id_in == "header":
            raise ValueError(
                f"subject {self.subject}: expected an output with headers, such as a KafkaOutput, because of "
                "id_in='header'"
            )
        return self.encode_record(message)[0]

    def encode_record(self, message: Any) -> tuple[bytes, RecordHeaders]:
        """Return a message as a value, or a key, and the header with its id, if that is where ids go.

        The first message asks the registry for the schema's id.

        Raises:
            ValueError: the message is not of the schema. The error names subject and id.
            SourceUnavailableError: the registry does not answer.
            SourceError: it refuses the schema, or us, or has no GUIDs, which headers need.
            ValidationError: no schema was given, or it is none.
        """
        with self._lock:
            if self._encoder is None:
                self._encoder = self._opened(self._format.encoder)
            encoder = self._encoder
        context = self._context()
        try:
            content: bytes = encoder(message, context)
        except Exception as error:
            self._raise_of_registry(error, self._sent_by, absent_is_fault=True)
            raise ValueError(f"subject {self.subject}, {self._sent_by}: {_said(error)}") from error
        headers: RecordHeaders = tuple(context.headers)
        self._sent_by = str(self._identified(content, headers))
        return content, headers

    def uuid_of(self, payload: bytes) -> bytes:
        """Return none: 16 zero bytes."""
        del payload
        return NIL_UUID

    def set_uuid(self, message: Any, uuid: bytes) -> None:
        """Do nothing: values have no place for one."""

    def new_acknowledgement(self, journal: str) -> Any:
        """Refuse: values of a registry are in topics alone, which have no acknowledgements.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"{journal}: expected another message type, values of a Schema Registry have no place for UUIDs"
        )

    def _identified(self, content: bytes, headers: RecordHeaders | None) -> IdentifiedPart:
        try:
            # Payloads of sources have them; those of another origin are bytes.
            found = getattr(content, "headers", ()) if headers is None else headers
            return identified(content, found, self._part, self._format.kind)
        except ValueError as error:
            raise ValueError(f"subject {self.subject}: {error}") from error

    def _decoded(self, part: IdentifiedPart) -> Any:
        with self._lock:
            if self._decoder is None:
                self._decoder = self._opened(self._format.decoder)
            decoder = self._decoder
        try:
            return decoder(bytes(part.framed), self._context())
        except Exception as error:
            if isinstance(part.schema, UUID):
                self._raise_without_guids(error, part)
            self._raise_of_registry(error, str(part), absent_is_fault=False)
            raise

    def _opened(self, codec: Callable[[SchemaRegistryClient], Codec]) -> Codec:
        with needing("SchemaRegistry", extra="schema-registry"):
            client = self._client()
            try:
                return codec(client)
            except (BroadsheetError, ImportError):
                raise
            # Every exception: parsers of schemas raise errors of any class.
            except Exception as error:
                raise ValidationError(
                    "schema",
                    f"expected one of subject {self.subject}, got an error: {_said(error)}",
                ) from error

    def _context(self) -> Any:
        from confluent_kafka.serialization import MessageField, SerializationContext

        return SerializationContext(self._topic, MessageField(self._part), headers=[])

    def _raise_without_guids(self, error: Exception, part: IdentifiedPart) -> None:
        """Raise the record's fault if the registry serves, and just knows no schemas by GUID.

        Otherwise any program that may send a record could stop the shard with a header.
        """
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        is_absent = any(
            isinstance(each, SchemaRegistryError)
            and each.http_status_code == _NOT_FOUND
            and each.error_code not in _ABSENT
            for each in _causes(error)
        )
        if not is_absent:
            return
        try:
            self._client().get_schema_types()
        except Exception as told:
            self._raise_of_registry(told, str(part), absent_is_fault=True)
            raise
        raise ValueError(f"the registry knows no schemas by GUID: {_said(error)}") from error

    def _raise_of_registry(self, error: Exception, schema: str, *, absent_is_fault: bool) -> None:
        """Raise what the registry, and not a message, is to blame for."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError
        from httpx2 import TransportError

        source = f"schema registry, subject {self.subject}"
        for each in _causes(error):
            if isinstance(each, _NoGuidError):
                raise SourceError(
                    source,
                    "it gives schemas no GUIDs, which ids in headers are: use id_in='prefix'",
                ) from error
            if isinstance(each, TransportError):
                raise SourceUnavailableError(source, _said(each)) from error
            if not isinstance(each, SchemaRegistryError):
                continue
            status = each.http_status_code
            if status in _PASSING or status >= 500:
                raise SourceUnavailableError(source, _said(each)) from error
            if each.error_code not in _ABSENT or absent_is_fault:
                raise SourceError(source, f"{schema}: {_said(each)}") from error


def _causes(error: BaseException) -> Iterable[BaseException]:
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__ or each.__context__


def _said(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:_SAID_MAX]
