"""Settings of a broker process: its data directory, durability and bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

import click

from broadsheet.runtime.errors import ValidationError
from broadsheet.security.auth import TrustConfig, require_certificates
from broadsheet.security.endpoints import is_loopback
from broadsheet.security.secret_url import SecretUrl
from broadsheet.security.tls import TlsConfig
from broadsheet.serving.places import option_of

MEBIBYTE = 1 << 20


def _bound(default: int, explanation: str) -> Any:
    """Return a field of a bound; `Any`, because a dataclass turns it into a number. A default of 0 may stay 0."""
    return field(default=default, metadata={"help": explanation, "least": min(default, 1)})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerBounds:
    """Bounds on what all clients of one broker process may use together.

    Each is an option of the process and a metric; a field's `help` says what it counts. A bound refuses or slows the
    client that exceeds it; no bound makes a client wait for another one that has stalled.
    """

    message_bytes_max: int = _bound(8 * MEBIBYTE, "Largest message received, bytes.")
    request_bytes_max: int = _bound(
        256 * 1024, "Largest request without its content, bytes; Apply has --message-bytes-max."
    )
    calls_max: int = _bound(16_384, "Calls in progress.")
    calls_per_connection_max: int = _bound(4_096, "Calls in progress on one connection.")
    calls_per_host_max: int = _bound(0, "Calls in progress of one host; 0: half of --calls-max.")
    public_calls_max: int = _bound(
        1_024, "Calls in progress of services that need no token: health and reflection."
    )
    public_calls_per_connection_max: int = _bound(64, "The same on one connection.")
    unread_calls_max: int = _bound(
        4_096, "Calls whose request has not arrived; a further one takes the place of the oldest."
    )
    append_streams_max: int = _bound(1_024, "Open append streams.")
    append_streams_per_connection_max: int = _bound(16, "The same on one connection.")
    append_streams_bytes_max: int = _bound(
        96 * MEBIBYTE,
        "Content of unfinished appends of streams, bytes; above it, no more is read, and appends "
        "that wait for predecessors are refused.",
    )
    append_after_max: int = _bound(64, "Predecessors that one append may name.")
    append_name_bytes_max: int = _bound(64, "Longest name of a pipelined append, bytes.")
    appends_per_journal_max: int = _bound(
        256,
        "Appends of a journal whose content is being received; a further one takes the place of "
        "the one that has been silent longest.",
    )
    readers_max: int = _bound(8_192, "Reads in progress.")
    readers_per_journal_max: int = _bound(1_024, "Reads in progress of one journal.")
    readers_bytes_max: int = _bound(
        64 * MEBIBYTE,
        "Content on its way to readers, bytes; above it, content goes in small pieces, and readers "
        "that take nothing are cut off.",
    )

    def __post_init__(self) -> None:
        """Raise ValidationError if a bound is too low."""
        for each in fields(self):
            value, least = getattr(self, each.name), each.metadata["least"]
            if value < least:
                raise ValidationError(each.name, f"expected at least {least}, got {value}")


def bound_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each bound to a command: `--calls-max` for `calls_max`."""
    for each in reversed(fields(BrokerBounds)):
        command = click.option(
            option_of(each.name),
            type=click.IntRange(min=each.metadata["least"]),
            default=each.default,
            show_default=True,
            help=each.metadata["help"],
        )(command)
    return command


def bounds_of(options: dict[str, Any]) -> BrokerBounds:
    """Return the bounds set by command-line options; `Any`, because the command has other options too."""
    return BrokerBounds(**{each.name: options[each.name] for each in fields(BrokerBounds)})


SPARE_BYTES_MAX = 512 * MEBIBYTE
DIRECT_COMMIT_BYTES_MAX = 64 * 1024
SCRUB_BYTES_PER_SECOND = 4 * MEBIBYTE
"""Verifies a terabyte in three days, at a hundredth of the rate at which a disk reads."""


class SyncMode(Enum):
    """The moment when committed bytes are forced to the disk."""

    ALWAYS = "always"
    """Before each acknowledgement: survives kill -9 and power loss."""
    INTERVAL = "interval"
    """In the background: survives kill -9; a power loss may take the last interval."""
    OFF = "off"
    """At the kernel's discretion: survives kill -9 only."""


@dataclass(frozen=True, slots=True)
class Durability:
    """The policy under which appends are acknowledged."""

    mode: SyncMode = SyncMode.ALWAYS
    interval_seconds: float = 0.0
    """Time between background syncs; only with `INTERVAL`."""

    @staticmethod
    def parse(text: str) -> Durability:
        """Read `always`, `interval=<milliseconds>` or `off`.

        Raises:
            ValidationError: it is none of these.
        """
        name, _, argument = text.partition("=")
        if text in (SyncMode.ALWAYS.value, SyncMode.OFF.value):
            return Durability(SyncMode(text))
        if name == SyncMode.INTERVAL.value and argument.isdecimal() and int(argument) > 0:
            return Durability(SyncMode.INTERVAL, int(argument) / 1000)
        raise ValidationError(
            "durability", f"expected always, interval=<milliseconds> or off, got {text!r}"
        )

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        if self.mode is SyncMode.INTERVAL:
            return f"{self.mode.value}={round(self.interval_seconds * 1000)}"
        return str(self.mode.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker process."""

    data_dir: Path
    admin_port: int | None = None
    """Port of health, metrics and debugging over HTTP, on `host`; 0 lets the system choose, None: none."""
    """Root of everything the broker keeps."""
    host: str = "127.0.0.1"
    port: int = 0
    """Port to listen on; zero lets the kernel choose."""
    zone: str = "local"
    """Failure domain shown in routes."""
    durability: Durability = Durability()
    auth_keys: str = field(default="", repr=False)
    """Base64 keys, separated by commas or spaces, or `file:PATH` of a file with them; empty serves everyone."""
    trust: TrustConfig = field(default_factory=TrustConfig)
    """Callers who are believed beside those with keys."""
    allow_unauthenticated: bool = False
    """Permission to serve addresses other than loopback without keys."""
    tls: TlsConfig | None = None
    """Files for TLS; with a certificate, the broker serves `https://` only."""
    min_append_rate: int = 65_536
    """Lowest rate of an append, bytes a second; slower clients are cut off so that they pin no memory."""
    staged_memory_bytes_max: int = 128 * MEBIBYTE
    """Content of uncommitted appends held in memory, over all journals; further content goes to files."""
    append_memory_bytes_max: int = 16 * MEBIBYTE
    """Content of one append held in memory; further content goes to a file."""
    append_bytes_max: int = 1024 * MEBIBYTE
    """Largest append."""
    journals_max: int = 10_000
    read_chunk_bytes: int = 256 * 1024
    """Most content of one read message."""
    bounds: BrokerBounds = field(default_factory=BrokerBounds)
    """Bounds on what all clients together may use."""
    free_space_floor_bytes: int = 64 * MEBIBYTE
    """Free space below which appends are refused; reads go on."""
    direct_commit_bytes_max: int = DIRECT_COMMIT_BYTES_MAX
    """Largest commit that the event loop may make itself, while the disk is fast; 0 leaves all to threads."""
    spare_bytes_max: int = SPARE_BYTES_MAX
    """Files of removed fragments that are kept to be overwritten; given up when the disk is short of space."""
    file_root: Path | None = None
    """Root of file:// stores: sealed fragments of journals with such a store are published there; None: nowhere."""
    cloud_stores: tuple[str | SecretUrl, ...] = ()
    """s3://, gs:// and azure:// stores that specs may name, and all below them; a query is for the library."""
    local_fragment_bytes_max: int | None = None
    """Bytes of published fragments that also stay in the data directory; None keeps all."""
    accept_catalogue_loss: bool = False
    """Start although the catalogue lacks acknowledged changes; journals that it does not name are quarantined."""
    retention_enabled: bool = False
    """Delete sealed fragments older than their journal's retention."""
    scrub_bytes_per_second: int = SCRUB_BYTES_PER_SECOND
    """Rate at which sealed fragments are verified in the background; 0 switches this off."""
    scrub_interval_seconds: float = 86_400.0
    """Time from the end of a pass over all fragments to the next one."""
    scrub_delay_seconds: float = 60.0
    """Time from the start to the first pass, because a start already reads a lot."""
    maintenance_interval_seconds: float = 60.0
    """Interval between checks of flush intervals and retention."""
    stop_grace_seconds: float = 15.0
    """Longest duration of a graceful stop."""

    def __post_init__(self) -> None:
        """Raise ValidationError if certificates are to permit something, and none is asked for.

        Also if the file root and the data directory overlap.
        """
        stores = tuple(SecretUrl.of(each) for each in self.cloud_stores)
        object.__setattr__(self, "cloud_stores", stores)
        require_certificates(self.trust, self.tls)
        if self.file_root is not None:
            root, data = self.file_root.resolve(), self.data_dir.resolve()
            # Specs name paths below the root, and could name the broker's own files.
            if root.is_relative_to(data) or data.is_relative_to(root):
                raise ValidationError(
                    "file_root", f"expected a directory apart from the data in {data}, got {root}"
                )

    @property
    def is_guarded(self) -> bool:
        """True if only this machine can connect, or keys or certificates are asked for, or the operator allows all."""
        certificates = self.tls is not None and self.tls.requires_client_certificates
        guards = self.auth_keys or self.trust.is_any or certificates or self.allow_unauthenticated
        return bool(guards) or is_loopback(self.host)

    @property
    def scheme(self) -> str:
        """Scheme of the broker's address."""
        return "https" if self.tls is not None and self.tls.serves else "http"
