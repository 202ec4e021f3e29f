"""The registry of content types: one record for each, which holds everything that depends on the content type.

Nothing else in the project asks for a content type by name. To add one, write a module beside this one that ends with
its record, `CONTENT`, and add the line of the module to `_MODULES`. Its messages then work in shards, in
`shardctl journals read` and, if its message type is a `RowType`, in Spark.

Modules of content types import the libraries that the core does not need at first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final

from broadsheet.journals.content.content_type import ContentType
from broadsheet.journals.errors import ContentTypeError
from broadsheet.journals.message.framing import Framing

_MODULES: Final = (
    "json",
    "csv",
    "protobuf",
    "arrow",
    "avro",
)
"""The modules of this package that define a content type."""


def _records() -> Mapping[str, ContentType]:
    found: list[ContentType] = [
        import_module(f"broadsheet.journals.content.{module}").CONTENT for module in _MODULES
    ]
    return MappingProxyType({content.name: content for content in found})


_BY_NAME: Final = _records()


def content_types() -> tuple[str, ...]:
    """Return the names of all content types of messages."""
    return tuple(_BY_NAME)


def content_of(content_type: str, *, journal: str = "") -> ContentType:
    """Return the record of a content type; the error names `journal`.

    Raises:
        ContentTypeError: there is none.
    """
    found = _BY_NAME.get(content_type)
    if found is None:
        raise ContentTypeError(journal, content_type, f"expected one of {', '.join(_BY_NAME)}")
    return found


def registered(content_type: str) -> ContentType | None:
    """Return the record of a content type; None for one that only an application knows, such as of a Kafka source."""
    return _BY_NAME.get(content_type)


def framing_for(content_type: str, *, journal: str = "") -> Framing:
    """Return the framing of a content type; the error names `journal`.

    Raises:
        ContentTypeError: no framing of messages has this content type.
    """
    return content_of(content_type, journal=journal).framing
