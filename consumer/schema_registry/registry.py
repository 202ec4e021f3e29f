"""A Schema Registry as an application declares it, and the message types of its subjects."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, get_args

from broadsheet.consumer.schema_registry.registered_type import (
    AvroFormat,
    JsonFormat,
    ProtobufFormat,
    RegisteredType,
    SchemaFormat,
)
from broadsheet.consumer.schema_registry.schema_ids import RecordPart, SchemaIdPlace
from broadsheet.consumer.stores.setting_files import read_files
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.libraries import needing

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from google.protobuf.message import Message

_DEFAULTS: Final[Mapping[str, Any]] = {
    # The first use of a schema waits on a thread of its shard, and a shard tries again anyway.
    "timeout": 5.0,
    "max.retries": 1,
}


class SchemaRegistry:
    """A registry with the interface of Confluent's. Nothing is opened before a message is encoded or decoded."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Declare it.

        Args:
            config: Of `confluent_kafka.schema_registry.SchemaRegistryClient`, at least `url`: texts, numbers and
                callbacks. Values `@/path`, such as of `basic.auth.user.info`, are read from files on each member.

        Raises:
            ValidationError: there is no address.
        """
        if not config.get("url"):
            raise ValidationError("config[url]", "expected the address of a Schema Registry")
        self._config = {**_DEFAULTS, **config}
        self._client: SchemaRegistryClient | None = None
        self._lock = threading.Lock()

    def avro(
        self,
        topic: str,
        schema: str | None = None,
        *,
        register: bool = True,
        of: RecordPart = "value",
        id_in: SchemaIdPlace = "prefix",
    ) -> RegisteredType:
        """Return the type of a topic's values, or keys, in Avro; messages are dicts, or what the schema says.

        Args:
            topic: Its name; the subject is `{topic}-value`, or `{topic}-key`.
            schema: Of messages that are sent, as JSON; readers need none.
            register: Register the schema if the registry lacks it; otherwise it must be there.
            of: The part of a record that it is the type of.
            id_in: Where the schema's id is in records that are sent: before the body, or in a header, as GUID, which
                not all registries have. Records of both forms are read.
        """
        return self._type(topic, of, AvroFormat(schema, register, id_in))

    def json(
        self,
        topic: str,
        schema: str | None = None,
        *,
        register: bool = True,
        of: RecordPart = "value",
        id_in: SchemaIdPlace = "prefix",
    ) -> RegisteredType:
        """Return the type of a topic's values, or keys, in JSON, which are checked against their schema.

        Messages are dicts, or what else the schema says.

        Args:
            topic: Its name; the subject is `{topic}-value`, or `{topic}-key`.
            schema: A JSON Schema, of messages that are sent; readers need none.
            register: As of `avro`.
            of: As of `avro`.
            id_in: As of `avro`.
        """
        return self._type(topic, of, JsonFormat(schema, register, id_in))

    def protobuf(
        self,
        topic: str,
        message_class: type[Message],
        *,
        register: bool = True,
        of: RecordPart = "value",
        id_in: SchemaIdPlace = "prefix",
    ) -> RegisteredType:
        """Return the type of a topic's values, or keys, in protobuf.

        Args:
            topic: Its name; the subject is `{topic}-value`, or `{topic}-key`.
            message_class: Of messages that are sent, and of those that are read.
            register: As of `avro`.
            of: As of `avro`.
            id_in: As of `avro`.
        """
        return self._type(topic, of, ProtobufFormat(message_class, register, id_in))

    def client(self) -> SchemaRegistryClient:
        """Return the client, which keeps each schema that it was told; one for all subjects.

        Raises:
            ExtraMissingError: the extra `[schema-registry]` is not installed.
            ValidationError: a setting is unknown, or a file cannot be read.
        """
        with self._lock:
            if self._client is None:
                with needing("SchemaRegistry", extra="schema-registry"):
                    from confluent_kafka.schema_registry import SchemaRegistryClient
                try:
                    self._client = SchemaRegistryClient(read_files(self._config))
                except (TypeError, ValueError) as error:
                    raise ValidationError("config", str(error)) from error
            return self._client

    def close(self) -> None:
        """End its connections; its message types are not used afterwards. A member that serves has no need to."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _type(self, topic: str, of: RecordPart, schema_format: SchemaFormat) -> RegisteredType:
        if not topic:
            raise ValidationError("topic", "expected the name of a topic")
        if of not in get_args(RecordPart):
            raise ValidationError("of", f"expected value or key, got {of!r}")
        if schema_format.id_in not in get_args(SchemaIdPlace):
            raise ValidationError(
                "id_in", f"expected prefix or header, got {schema_format.id_in!r}"
            )
        return RegisteredType(topic, of, schema_format, self.client)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is declared, without what was opened: applications are sent to executors."""
        return {"_config": self._config}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Declare the same registry, with nothing opened."""
        self.__dict__.update(state)
        self._client, self._lock = None, threading.Lock()

    def __repr__(self) -> str:
        """Return its address; settings may be secrets."""
        return f"SchemaRegistry({self._config['url']!r})"
