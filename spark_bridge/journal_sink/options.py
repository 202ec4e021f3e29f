"""The options of a write into journals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.journals.message.partitioning import RULES
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.etcd_options import ETCD_OPTIONS, etcd_of, root_of
from broadsheet.spark_bridge.format_options import TLS_OPTIONS, FormatOptions, OptionError, TlsPaths
from broadsheet.spark_bridge.journal_sink.commit_record import NO_BATCH, RETENTION_DAYS
from broadsheet.spark_bridge.journal_source.options import Access
from broadsheet.wire.selector_text import parse_selector

DEFAULT_ROOT: Final = "/broadsheet"
MODULO: Final = "modulo"

_ADDRESS: Final = "the address of a broker, e.g. http://127.0.0.1:8081"
_SELECTOR: Final = "a label selector that says which journals to write, e.g. name:prefix=flights/"
_ETCD: Final = (
    "endpoints of the etcd that remembers what is committed, e.g. 127.0.0.1:2379; without it a write that is "
    "repeated would publish its rows again"
)
_KNOWN: Final = (
    "address",
    "selector",
    "key",
    "mapping",
    "messageType",
    "uuidField",
    "ignoreNullFields",
    "publication",
    "retentionDays",
    "acceptCommittedThrough",
    "zone",
    *TLS_OPTIONS,
    "authKeysFile",
    *ETCD_OPTIONS,
    # Options of Spark itself, which it passes on.
    "checkpointLocation",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of a write: the journals, the messages' format, and the etcd that records commits."""

    access: Access
    selector: str
    """Chooses the journals."""
    etcd: EtcdConfig
    root: str
    """Root in etcd, beside which commits are recorded."""
    key: str | None = None
    """Column that chooses among the journals."""
    mapping: str = MODULO
    """`modulo`, `rendezvous` or `module:function`."""
    message_type: str | None = None
    """`module:Class` of protobuf messages."""
    uuid_field: str = "uuid"
    """Of protobuf messages."""
    ignore_null_fields: bool = True
    """Of JSON messages."""
    publication: str | None = None
    """Publication name that makes a batch write idempotent."""
    retention_days: int = RETENTION_DAYS
    accepted_through: int = NO_BATCH
    """Number of the last micro-batch that the caller declares committed."""
    checkpoint: str = ""
    """A query's checkpoint location; empty if the option is not set."""


def write_options(options: Mapping[str, Any]) -> WriteOptions:
    """Return the options of a write.

    Raises:
        OptionError: one is unknown, missing or wrong.
    """
    given = FormatOptions(options, known=_KNOWN)
    return WriteOptions(
        access=Access(
            address=given.text("address", _ADDRESS),
            zone=given.text_or_none("zone") or "",
            tls=TlsPaths.of(given),
            auth_keys_file=given.text_or_none("authKeysFile"),
        ),
        selector=_selector(given),
        etcd=etcd_of(given, _ETCD),
        root=root_of(given, default=DEFAULT_ROOT),
        key=given.text_or_none("key") or None,
        mapping=_mapping(given),
        message_type=given.text_or_none("messageType"),
        uuid_field=given.text_or_none("uuidField") or "uuid",
        ignore_null_fields=given.flag("ignoreNullFields", default=True),
        publication=_publication(given),
        retention_days=given.count_or_none("retentionDays", "a number of days, at least 1")
        or RETENTION_DAYS,
        accepted_through=_accepted_through(given),
        checkpoint=(given.text_or_none("checkpointLocation") or "").rstrip("/"),
    )


def _selector(given: FormatOptions) -> str:
    text = given.text("selector", _SELECTOR)
    try:
        parse_selector(text)
    except ValidationError as error:
        raise OptionError("selector", f"{_SELECTOR} ({error})", got=text) from error
    return text


def _accepted_through(given: FormatOptions) -> int:
    name = "acceptCommittedThrough"
    text = given.text_or_none(name)
    if text is None:
        return NO_BATCH
    if not text.strip().isdecimal():
        expected = "the number of the batch that the error named, through which committed batches hold the query's rows"
        raise OptionError(name, expected, got=text)
    return int(text)


def _mapping(given: FormatOptions) -> str:
    text = given.text_or_none("mapping") or MODULO
    if text not in RULES and not all(text.partition(":")):
        raise OptionError("mapping", f"{', '.join(RULES)} or module:function", got=text)
    return text


def _publication(given: FormatOptions) -> str | None:
    text = given.text_or_none("publication")
    if text is not None and not text.strip():
        expected = "a name, unique under the root, that makes the write idempotent"
        raise OptionError("publication", expected, got=text)
    return text
