"""Reads a format's options, and what they name; the error of a wrong one says what was expected."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broadsheet.spark_bridge.errors import SparkBridgeError

if TYPE_CHECKING:
    from broadsheet.security.tls import TlsConfig

_CACHED_NAMES_MAX = 64
_FLAGS = {"true": True, "false": False}


class OptionError(SparkBridgeError):
    """An option of a format is wrong."""

    def __init__(self, name: str, expected: str, *, got: str | None) -> None:
        shown = "it is not set" if got is None else f"got {got!r}"
        super().__init__(f"option {name}: expected {expected}; {shown}")
        self.name = name
        self.expected = expected


class FormatOptions:
    """The options of one format, with case-insensitive names."""

    def __init__(self, options: Mapping[str, str], *, known: Collection[str]) -> None:
        """Take the options.

        Raises:
            OptionError: one is unknown; a misspelt one would otherwise be ignored without notice.
        """
        names = {name.lower() for name in known}
        self._values = {name.lower(): str(value) for name, value in options.items()}
        for name in sorted(self._values.keys() - names):
            raise OptionError(name, f"one of {', '.join(sorted(known))}", got=name)

    def text_or_none(self, name: str) -> str | None:
        """Return an option's text; None if it is not set."""
        return self._values.get(name.lower())

    def text(self, name: str, expected: str) -> str:
        """Return an option's text.

        Raises:
            OptionError: it is not set, or empty.
        """
        value = self.text_or_none(name)
        if value is None or not value.strip():
            raise OptionError(name, expected, got=value)
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return whether an option is `true`.

        Raises:
            OptionError: it is neither `true` nor `false`.
        """
        value = self.text_or_none(name)
        if value is None:
            return default
        if value.strip().lower() not in _FLAGS:
            raise OptionError(name, "true or false", got=value)
        return _FLAGS[value.strip().lower()]

    def count_or_none(self, name: str, expected: str) -> int | None:
        """Return an option's number, at least 1; None if it is not set.

        Raises:
            OptionError: it is not a number of at least 1.
        """
        value = self.text_or_none(name)
        if value is None:
            return None
        if not value.strip().isdecimal() or int(value) < 1:
            raise OptionError(name, expected, got=value)
        return int(value)


@lru_cache(maxsize=_CACHED_NAMES_MAX)
def imported(name: str, *, option: str) -> Any:
    """Return the object that an option names by `module:attribute`: a message class, a mapping.

    Args:
        name: The option's value.
        option: The option's name, for the error.

    Raises:
        OptionError: it names nothing.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise OptionError(option, "module:name", got=name)
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        expected = (
            "module:name of something that the driver and every executor can import, installed or shipped with "
            f"--py-files ({error})"
        )
        raise OptionError(option, expected, got=name) from error
    return found


TLS_OPTIONS: Final = ("caFile", "certFile", "keyFile", "serverName")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPaths:
    """Files for TLS, at the same path on the driver and on executors, and the name that servers have."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None

    @staticmethod
    def of(given: FormatOptions) -> TlsPaths:
        """Return the files that options name.

        Raises:
            OptionError: a certificate is given without its key, or a key without its certificate.
        """
        ca_file, cert_file, key_file, server_name = (
            given.text_or_none(name) or None for name in TLS_OPTIONS
        )
        if (cert_file is None) != (key_file is None):
            given_name, other = (
                ("keyFile", "certFile") if cert_file is None else ("certFile", "keyFile")
            )
            raise OptionError(given_name, f"{other} beside it", got=cert_file or key_file)
        return TlsPaths(
            ca_file=ca_file, cert_file=cert_file, key_file=key_file, server_name=server_name
        )

    @staticmethod
    def of_config(tls: TlsConfig | None) -> TlsPaths:
        """Return the files of a configuration; none without it."""
        if tls is None:
            return TlsPaths()
        paths = (tls.ca_file, tls.cert_file, tls.key_file)
        ca_file, cert_file, key_file = (None if path is None else str(path) for path in paths)
        return TlsPaths(
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
            server_name=tls.server_name,
        )

    def options(self) -> dict[str, str]:
        """Return the options that name these files."""
        files = (self.ca_file, self.cert_file, self.key_file, self.server_name)
        return {name: file for name, file in zip(TLS_OPTIONS, files, strict=True) if file}

    def config(self) -> TlsConfig | None:
        """Return the configuration of a client; None without files."""
        if self == TlsPaths():
            return None
        # Imported here with gRPC, because Spark may fork a process that reads options.
        from broadsheet.security.tls import TlsConfig

        paths = (self.ca_file, self.cert_file, self.key_file)
        ca_file, cert_file, key_file = (None if path is None else Path(path) for path in paths)
        return TlsConfig(
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
            server_name=self.server_name,
        )
