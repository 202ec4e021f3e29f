"""The options of a sink, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from allocator.errors import ValidationError
from allocator.etcd.config import EtcdConfig
from spark_bridge.errors import PublishError

DEFAULT_ROOT: Final = "/broadsheet"
RETENTION_DAYS: Final = 30.0
"""How long a name is remembered unless the option says otherwise: longer than anybody runs a failed job again."""

_TRUTHS: Final = {"true": True, "false": False}
# Lower case: Spark hands options over so. Those after the line break are Spark's own.
_KNOWN: Final = {
    name.lower(): name
    for name in (
        "address",
        "selector",
        "etcd",
        "etcdCaFile",
        "etcdCertFile",
        "etcdKeyFile",
        "etcdUsername",
        "etcdPassword",
        "root",
        "key",
        "mapping",
        "messageType",
        "uuidField",
        "ignoreNullFields",
        "publication",
        "retentionDays",
    )
} | {name.lower(): name for name in ("checkpointLocation", "path", "queryName", "outputMode")}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a user asked for."""

    address: str
    """A broker, `http://host:port`."""
    selector: str
    """Labels of the journals to write, e.g. `topic=flights`, or `name=flights/part-000`."""
    etcd: EtcdConfig
    """Remembers what is committed."""
    root: str
    """Beside which it is remembered."""
    key: str
    """Column that chooses the journal; empty if none."""
    mapping: str
    """`modulo`, `rendezvous` or `module:function`."""
    message_type: str
    """`module:Class` of protobuf messages; empty if none."""
    uuid_field: str
    ignore_null_fields: bool
    publication: str
    """Name that makes a batch write idempotent; empty if none."""
    retention_days: float


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Return the options of a sink.

    Args:
        given: By name, in any case.

    Raises:
        PublishError: an option is missing, unknown or malformed; the message names it.
    """
    options = {name.lower(): value.strip() for name, value in given.items()}
    _refuse_unknown(options)
    return SinkOptions(
        address=_required(options, "address", "a broker, e.g. http://127.0.0.1:8081"),
        selector=_required(
            options, "selector", "labels of the journals to write, e.g. name:prefix=flights/"
        ),
        etcd=_etcd(options),
        root=options.get("root", DEFAULT_ROOT).rstrip("/"),
        key=options.get("key", ""),
        mapping=options.get("mapping", "modulo"),
        message_type=options.get("messagetype", ""),
        uuid_field=options.get("uuidfield", "uuid"),
        ignore_null_fields=_truth(options, "ignoreNullFields", default=True),
        publication=options.get("publication", ""),
        retention_days=_days(options),
    )


def _refuse_unknown(options: Iterable[str]) -> None:
    unknown = sorted(set(options) - set(_KNOWN))
    if unknown:
        raise PublishError(
            f"{', '.join(unknown)}: no such option of the journal sink; there are {', '.join(_KNOWN.values())}"
        )


def _required(options: Mapping[str, str], name: str, expected: str) -> str:
    value = options.get(name.lower(), "")
    if not value:
        raise PublishError(f"{name}: the journal sink needs this option; expected {expected}")
    return value


def _etcd(options: Mapping[str, str]) -> EtcdConfig:
    endpoints = _required(
        options,
        "etcd",
        "endpoints of the etcd that remembers what is committed, e.g. 127.0.0.1:2379; without it a write "
        "that is repeated would publish its rows again",
    )

    def file(name: str) -> Path | None:
        value = options.get(name.lower())
        return Path(value) if value else None

    try:
        return EtcdConfig(
            endpoints=tuple(part.strip() for part in endpoints.split(",") if part.strip()),
            ca_file=file("etcdCaFile"),
            cert_file=file("etcdCertFile"),
            key_file=file("etcdKeyFile"),
            username=options.get("etcdusername"),
            password=options.get("etcdpassword"),
        )
    except ValidationError as error:
        raise PublishError(f"etcd: {error}") from error


def _truth(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name.lower())
    if value is None:
        return default
    if value.lower() not in _TRUTHS:
        raise PublishError(f"{name}: expected true or false, got {value!r}")
    return _TRUTHS[value.lower()]


def _days(options: Mapping[str, str]) -> float:
    text = options.get("retentiondays")
    if text is None:
        return RETENTION_DAYS
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not days > 0:
        raise PublishError(f"retentionDays: expected a number of days above 0, got {text!r}")
    return days
