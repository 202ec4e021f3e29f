"""Values and keys that begin with the id of their schema, encoded and decoded by Confluent's client.

    00  id (4 bytes, big-endian)  [protobuf: which message of the file]  body

The registry answers over HTTP, so what it must tell is fetched apart from the decoding: a source calls `prepare` on its
own thread, where an outage is the source's, and not that of a message.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from broadsheet.consumer.errors import SourceError, SourceUnavailableError
from broadsheet.journals.message.uuid import NIL_UUID
from broadsheet.runtime.errors import BroadsheetError, ValidationError
from broadsheet.runtime.libraries import needing

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from google.protobuf.message import Message

_HEAD: Final = struct.Struct(">bI")
_MAGIC: Final = 0
_PASSING: Final = (408, 425, 429)
"""Statuses of HTTP by which a registry asks to try again; those from 500 on do, too."""
_ABSENT: Final = (40401, 40402, 40403)
"""Codes of a registry for a subject, a version and a schema that it does not have. Other 404s are not a registry's."""
_SAID_MAX: Final = 500
"""Characters of an error that are told: some registries send whole schemas."""
# A client's codec: of a message and a context, or of bytes and one. `Any`: the application's own message class.
Codec = Callable[[Any, Any], Any]
RecordPart: TypeAlias = Literal["value", "key"]
"""A part of a record, as names of subjects end with it."""


class SchemaFormat(Protocol):
    """One of the registry's three kinds of schemas."""

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


def _required(schema: str | None) -> str:
    if schema is None:
        raise ValidationError("schema", "expected one, because messages are sent")
    return schema


@dataclass(frozen=True, slots=True)
class AvroFormat:
    """Avro."""

    schema: str | None
    register: bool
    content_type: str = "avro/binary"

    def encoder(self, client: SchemaRegistryClient) -> Codec:
        """As of `SchemaFormat`."""
        from confluent_kafka.schema_registry.avro import AvroSerializer

        conf = _options(**{"auto.register.schemas": self.register})
        codec: Codec = AvroSerializer(client, _required(self.schema), conf=conf)
        return codec

    def decoder(self, client: SchemaRegistryClient) -> Codec:
        """As of `SchemaFormat`."""
        from confluent_kafka.schema_registry.avro import AvroDeserializer

        codec: Codec = AvroDeserializer(client, conf=_options())
        return codec


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """JSON Schema."""

    schema: str | None
    register: bool
    content_type: str = "application/json"

    def encoder(self, client: SchemaRegistryClient) -> Codec:
        """As of `SchemaFormat`."""
        from confluent_kafka.schema_registry.json_schema import JSONSerializer

        conf = _options(**{"auto.register.schemas": self.register})
        codec: Codec = JSONSerializer(_required(self.schema), client, conf=conf)
        return codec

    def decoder(self, client: SchemaRegistryClient) -> Codec:
        """As of `SchemaFormat`."""
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer

        codec: Codec = JSONDeserializer(None, schema_registry_client=client, conf=_options())
        return codec


@dataclass(frozen=True, slots=True)
class ProtobufFormat:
    """Protobuf."""

    message_class: type[Message]
    register: bool
    content_type: str = "application/x-protobuf"

    def encoder(self, client: SchemaRegistryClient) -> Codec:
        """As of `SchemaFormat`."""
        from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

        conf = _options(**{"auto.register.schemas": self.register})
        codec: Codec = ProtobufSerializer(self.message_class, client, conf=conf)
        return codec

    def decoder(self, client: SchemaRegistryClient) -> Codec:
        """As of `SchemaFormat`."""
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

        # Without the writer's schema, which the class makes up for: registries other than Confluent's cannot tell it in
        # the form that the client asks for.
        del client
        codec: Codec = ProtobufDeserializer(self.message_class, _options())
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
        self._sent_id = "not registered yet"
        """Of the last schema that was sent by."""
        self._prepared: set[int] = set()
        """Ids of schemas that the decoder was told."""
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

    def prepare(self, payloads: Iterable[bytes]) -> None:
        """Fetch the schemas of some payloads that were not met before. It waits for the registry.

        Raises:
            SourceUnavailableError: the registry does not answer.
            SourceError: it refuses us.
        """
        for payload in payloads:
            try:
                schema_id = _id_of(payload)
            except ValueError:
                continue  # `decode` tells of it where the message can be left out.
            if schema_id in self._prepared:
                continue
            try:
                self._decoded(payload)
            except SourceError:
                raise
            except Exception:  # noqa: S112 - it is the message's, and `decode` tells of it
                continue
            self._prepared.add(schema_id)

    def decode(self, payload: bytes) -> Any:
        """Return the message of a value.

        Raises:
            ValueError: it does not begin with an id, the registry has no such schema, or the body is not of it. The
                error names subject and id.
            SourceError: as of `prepare`.
        """
        schema_id = _id_of(payload, self.subject)
        try:
            return self._decoded(payload)
        except SourceError:
            raise
        # Every exception: those of the client's codecs have no root.
        except Exception as error:
            raise ValueError(
                f"subject {self.subject}, schema id {schema_id}: {_said(error)}"
            ) from error

    def encode(self, message: Any) -> bytes:
        """Return a message as a value; the first one asks the registry for the schema's id.

        Raises:
            ValueError: the message is not of the schema. The error names subject and id.
            SourceUnavailableError: the registry does not answer.
            SourceError: it refuses the schema, or us.
            ValidationError: no schema was given, or it is none.
        """
        with self._lock:
            if self._encoder is None:
                self._encoder = self._opened(self._format.encoder)
            encoder = self._encoder
        try:
            value: bytes = encoder(message, self._context())
        except Exception as error:
            self._raise_of_registry(error, absent_is_fault=True)
            raise ValueError(
                f"subject {self.subject}, schema id {self._sent_id}: {_said(error)}"
            ) from error
        self._sent_id = str(_id_of(value))
        return value

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

    def _decoded(self, payload: bytes) -> Any:
        with self._lock:
            if self._decoder is None:
                self._decoder = self._opened(self._format.decoder)
            decoder = self._decoder
        try:
            return decoder(bytes(payload), self._context())
        except Exception as error:
            self._raise_of_registry(error, absent_is_fault=False)
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

        return SerializationContext(self._topic, MessageField(self._part))

    def _raise_of_registry(self, error: Exception, *, absent_is_fault: bool) -> None:
        """Raise what the registry, and not a message, is to blame for."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError
        from httpx2 import TransportError

        source = f"schema registry, subject {self.subject}"
        for each in _causes(error):
            if isinstance(each, TransportError):
                raise SourceUnavailableError(source, _said(each)) from error
            if not isinstance(each, SchemaRegistryError):
                continue
            status = each.http_status_code
            if status in _PASSING or status >= 500:
                raise SourceUnavailableError(source, _said(each)) from error
            if each.error_code not in _ABSENT or absent_is_fault:
                raise SourceError(source, f"schema id {self._sent_id}: {_said(each)}") from error


def _id_of(payload: bytes, subject: str = "") -> int:
    if len(payload) < _HEAD.size or payload[0] != _MAGIC:
        raise ValueError(
            f"subject {subject}: expected a zero byte and the 4 bytes of a schema id at the beginning, got "
            f"{bytes(payload[: _HEAD.size]).hex(' ') or 'no bytes'}"
        )
    found: int = _HEAD.unpack_from(payload)[1]
    return found


def _causes(error: BaseException) -> Iterable[BaseException]:
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__ or each.__context__


def _said(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:_SAID_MAX]
