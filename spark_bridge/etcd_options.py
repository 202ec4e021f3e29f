"""The options of formats that name an etcd and a root in it.

Pure, except for reading the file of a password.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.keys import check_root
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.format_options import FormatOptions, OptionError

ETCD_OPTIONS: Final = (
    "etcd",
    "root",
    "etcdCaFile",
    "etcdCertFile",
    "etcdKeyFile",
    "etcdUsername",
    "etcdPasswordFile",
)


def etcd_of(given: FormatOptions, expected: str) -> EtcdConfig:
    """Return the etcd that the options name.

    Args:
        given: The options.
        expected: Text of the error if option `etcd` is wrong or not set.

    Raises:
        OptionError: one of them is wrong, or `etcd` is not set.
    """
    text = given.text("etcd", expected)
    try:
        return EtcdConfig(
            endpoints=tuple(part.strip() for part in text.split(",") if part.strip()),
            ca_file=_path(given, "etcdCaFile"),
            cert_file=_path(given, "etcdCertFile"),
            key_file=_path(given, "etcdKeyFile"),
            username=given.text_or_none("etcdUsername"),
            password=_password(given),
        )
    except ValidationError as error:
        raise OptionError("etcd", f"{expected} ({error})", got=text) from error


def root_of(given: FormatOptions, *, default: str) -> str:
    """Return the prefix of keys that option `root` names.

    Raises:
        OptionError: it is no absolute clean path.
    """
    text = given.text_or_none("root") or default
    try:
        check_root(text)
    except ValidationError as error:
        expected = f"a prefix of keys such as {default} ({error})"
        raise OptionError("root", expected, got=text) from error
    return text


def _path(given: FormatOptions, name: str) -> Path | None:
    text = given.text_or_none(name)
    return Path(text) if text else None


def _password(given: FormatOptions) -> str | None:
    # A file instead of the password itself, because Spark shows options in plans and logs.
    path = _path(given, "etcdPasswordFile")
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        expected = f"a file with the password, readable on the driver ({error})"
        raise OptionError("etcdPasswordFile", expected, got=str(path)) from error
