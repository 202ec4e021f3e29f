"""The options of a read of journals.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final, Literal

from broadsheet.journals.message.clock_watch import CLOCK_AHEAD_SECONDS
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.content.time_zones import zone_of
from broadsheet.spark_bridge.format_options import TLS_OPTIONS, FormatOptions, OptionError, TlsPaths
from broadsheet.wire.selector_text import parse_selector

SMALL_PARTITION_BYTES: Final = 4 << 20
"""Default bytes of a partition below which a read is not cut further to occupy processors."""
PARTITION_BYTES: Final = 64 << 20
"""Default bytes of a journal that one task reads. The overhead of a task is that of some 10 MiB more."""
_ADDRESS: Final = "the address of a broker, e.g. http://127.0.0.1:8081"
_SELECTOR: Final = (
    "a label selector that says which journals to read, e.g. app.gazette.dev/message-type=Flight"
)
_ROWS: Final = "a number of rows, at least 1"
_BYTES: Final = "a number of bytes, at least 1"
_SECONDS: Final = "a number of seconds, at least 1"
_PARTITIONS: Final = "a number of partitions, at least 1"
_KNOWN: Final = (
    "address",
    "selector",
    "messageType",
    "schema",
    "uuidField",
    "mode",
    "columnNameOfCorruptRecord",
    "decode",
    "includeMetadata",
    "failOnDataLoss",
    "timeZone",
    "clockAheadSeconds",
    "refuseClocksAhead",
    "start",
    "end",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "maxBytesPerPartition",
    "minPartitions",
    "zone",
    *TLS_OPTIONS,
    "authKeysFile",
    "directFragments",
    "fragmentRoots",
    "fragmentHttp",
    "fragmentUrlSeconds",
)
URL_SECONDS: Final = 3600
"""Default life of the URLs of a batch read, which tasks may open late."""
CORRUPT_COLUMN: Final = "_corrupt_record"
"""Default name in Spark's own sources. Spark's configuration is not available where a source runs."""


_EXPECTED: Final = (
    "earliest, latest, a time such as 2026-03-01T00:00:00Z, "
    'or offsets by journal such as {"flights/part-000": 4096}'
)
_NAMED: Final = {"earliest": 0, "latest": -1}


@dataclass(frozen=True, slots=True)
class ReadStart:
    """Offsets of several journals at which a read starts or ends, as an option gives them; pure."""

    kind: Literal["earliest", "latest", "time", "offsets"]
    time: datetime | None = None
    """For kind `time`, with its zone."""
    offsets: Mapping[str, int] = field(default_factory=dict)
    """For kind `offsets`: by journal, bytes; -1 is the write head."""


EARLIEST: Final = ReadStart("earliest")
LATEST: Final = ReadStart("latest")


def parse_place(option: str, text: str) -> ReadStart:
    """Parse the text of an option that names a start or an end.

    Raises:
        OptionError: it is malformed.
    """
    stripped = text.strip()
    match stripped.lower():
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
    if stripped.startswith("{"):
        return ReadStart("offsets", offsets=_offsets(option, stripped))
    try:
        time = datetime.fromisoformat(stripped)
    except ValueError as error:
        raise OptionError(option, _EXPECTED, got=text) from error
    if time.tzinfo is None:
        raise OptionError(option, f"{_EXPECTED}; the time needs a zone, such as Z", got=text)
    return ReadStart("time", time=time)


def _offsets(option: str, text: str) -> dict[str, int]:
    try:
        values: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise OptionError(option, f"{_EXPECTED}, as JSON ({error})", got=text) from error
    offsets: dict[str, int] = {}
    for journal, value in values.items():
        offset = _NAMED.get(value, None) if isinstance(value, str) else value
        # Not `isinstance`, because JSON's `true` is an int in Python.
        if type(offset) is not int or offset < -1:
            expected = f"of {journal} an offset in bytes, at least 0, or earliest or latest"
            raise OptionError(option, expected, got=json.dumps(value))
        offsets[journal] = offset
    return offsets


class ReadMode(Enum):
    """Treatment of damaged records."""

    FAILFAST = "an error ends the read"
    PERMISSIVE = "a row of nulls, with the bytes in a column of their own"
    DROPMALFORMED = "it is left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentAccess:
    """Rules for reading stored fragments without the broker; see `DirectFragments` of the journal client."""

    enabled: bool = True
    roots: tuple[str, ...] = ()
    allow_http: bool = False
    url_seconds: int = URL_SECONDS
    """Life of the signed URLs of a batch read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Access to the brokers; paths are those on each machine."""

    address: str
    zone: str = ""
    tls: TlsPaths = field(default_factory=TlsPaths)
    auth_keys_file: str | None = None
    """A file instead of the keys themselves, because Spark shows options in plans and logs."""
    fragments: FragmentAccess = field(default_factory=FragmentAccess)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of a read: the journals, its start and end, and its limits."""

    access: Access
    selector: str
    message_type: str | None = None
    """`module:attribute`, a protobuf class or a msgspec Struct."""
    uuid_field: str = "uuid"
    """UUID's field of protobuf messages."""
    mode: ReadMode = ReadMode.FAILFAST
    corrupt_column: str = CORRUPT_COLUMN
    """Column for the bytes of a damaged record, if the schema has it."""
    adds_corrupt_column: bool = False
    """Whether it is added to inferred columns, because it was named."""
    decode: bool = True
    """Whether messages are decoded; else they are bytes in column `value`."""
    schema: str | None = None
    """Columns as DDL."""
    include_metadata: bool = False
    fail_on_data_loss: bool = True
    """Whether bytes that are gone before they were read fail the read."""
    time_zone: str | None = None
    """Zone of timestamps in texts that name none; None: the session's."""
    clock_ahead_seconds: int = int(CLOCK_AHEAD_SECONDS)
    """Lead of a message's timestamp over the driver's clock from which it is warned of."""
    refuse_clocks_ahead: bool = False
    """Whether such a message also fails the read."""
    start: ReadStart = EARLIEST
    start_text: str = "earliest"
    """The option's text."""
    end: ReadStart = LATEST
    rows_max: int | None = None
    """Of a micro-batch."""
    bytes_max: int | None = None
    """Of a micro-batch."""
    partition_bytes: int = PARTITION_BYTES
    partitions_min: int | None = None
    """Least partitions of a read, over all journals. None: one for each processor of the driver's machine, if each has
    `SMALL_PARTITION_BYTES` then.
    """


def read_options(options: Mapping[str, Any]) -> ReadOptions:
    """Return the options of a read.

    Raises:
        OptionError: one is unknown, missing or wrong.
    """
    # Spark passes the argument of `load` in this option.
    if "path" in options:
        raise OptionError("path", "none: journals are chosen by selector", got=str(options["path"]))
    given = FormatOptions(options, known=_KNOWN)
    start_text = given.text_or_none("start") or "earliest"
    return ReadOptions(
        access=Access(
            address=given.text("address", _ADDRESS),
            zone=given.text_or_none("zone") or "",
            tls=TlsPaths.of(given),
            auth_keys_file=given.text_or_none("authKeysFile"),
            fragments=_fragments(given),
        ),
        selector=_selector(given),
        message_type=_message_type(given),
        uuid_field=given.text_or_none("uuidField") or "uuid",
        mode=_mode(given),
        corrupt_column=given.text_or_none("columnNameOfCorruptRecord") or CORRUPT_COLUMN,
        adds_corrupt_column=given.text_or_none("columnNameOfCorruptRecord") is not None,
        decode=given.flag("decode", default=True),
        schema=given.text_or_none("schema"),
        include_metadata=given.flag("includeMetadata"),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        time_zone=_time_zone(given),
        clock_ahead_seconds=given.count_or_none("clockAheadSeconds", _SECONDS)
        or int(CLOCK_AHEAD_SECONDS),
        refuse_clocks_ahead=given.flag("refuseClocksAhead"),
        start=parse_place("start", start_text),
        start_text=start_text,
        end=_end(given),
        rows_max=given.count_or_none("maxRowsPerTrigger", _ROWS),
        bytes_max=given.count_or_none("maxBytesPerTrigger", _BYTES),
        partition_bytes=given.count_or_none("maxBytesPerPartition", _BYTES) or PARTITION_BYTES,
        partitions_min=given.count_or_none("minPartitions", _PARTITIONS),
    )


def _fragments(given: FormatOptions) -> FragmentAccess:
    direct = (given.text_or_none("directFragments") or "auto").strip().lower()
    if direct not in ("auto", "off"):
        raise OptionError("directFragments", "auto or off", got=direct)
    text = given.text_or_none("fragmentRoots") or ""
    roots = tuple(root for each in text.split(",") if (root := each.strip()))
    if not all(root.startswith("/") for root in roots):
        expected = "absolute paths of directories on each machine, separated by commas"
        raise OptionError("fragmentRoots", expected, got=text)
    return FragmentAccess(
        enabled=direct == "auto",
        roots=roots,
        allow_http=given.flag("fragmentHttp"),
        url_seconds=given.count_or_none("fragmentUrlSeconds", _SECONDS) or URL_SECONDS,
    )


def _selector(given: FormatOptions) -> str:
    text = given.text("selector", _SELECTOR)
    try:
        parse_selector(text)
    except ValidationError as error:
        raise OptionError("selector", f"{_SELECTOR} ({error})", got=text) from error
    return text


def _message_type(given: FormatOptions) -> str | None:
    text = given.text_or_none("messageType")
    if text is not None and not all(text.partition(":")):
        expected = "module:attribute of a protobuf message class or a msgspec Struct class"
        raise OptionError("messageType", expected, got=text)
    return text


def _mode(given: FormatOptions) -> ReadMode:
    text = given.text_or_none("mode") or ReadMode.FAILFAST.name
    try:
        return ReadMode[text.strip().upper()]
    except KeyError as error:
        expected = ", ".join(mode.name for mode in ReadMode)
        raise OptionError("mode", f"one of {expected}", got=text) from error


def _end(given: FormatOptions) -> ReadStart:
    text = given.text_or_none("end") or "latest"
    end = parse_place("end", text)
    if end.kind not in ("latest", "offsets"):
        expected = 'latest, or offsets by journal such as {"flights/part-000": 4096}'
        raise OptionError("end", expected, got=text)
    return end


def _time_zone(given: FormatOptions) -> str | None:
    name = given.text_or_none("timeZone")
    if name is not None:
        try:
            zone_of(name)
        except ValueError as error:
            expected = "a time zone such as Europe/Paris, UTC or +05:30"
            raise OptionError("timeZone", expected, got=name) from error
    return name
