"""Rules of a journal's declaration, in the order in which violations are reported.

Source: gazette/core broker/protocol/journal_spec_extensions.go, fragment_store.go.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.alphabet import require, shown, validate_journal_name, within
from broadsheet.wire.journal_pb2 import CompressionCodec, JournalSpec, LabelSet
from broadsheet.wire.labels import (
    CONTENT_TYPE,
    MESSAGE_SUBTYPE,
    MESSAGE_TYPE,
    NAME,
    PREFIX,
    SINGLE_VALUED,
    value_of,
    values_of,
)
from broadsheet.wire.validation_terms import validate_codec, validate_spec_labels

REPLICATION_MAX = 5
"""Most copies of a journal."""
FRAGMENT_LENGTH_MIN, FRAGMENT_LENGTH_MAX = 1 << 10, 1 << 34
"""Bounds of a fragment's target length, bytes."""
REFRESH_SECONDS_MIN, REFRESH_SECONDS_MAX = 1, 24 * 3600
"""Bounds of the interval at which stores are listed."""
FLUSH_SECONDS_MIN = 60
"""Shortest flush interval other than none."""
FLAGS = (
    JournalSpec.NOT_SPECIFIED,
    JournalSpec.O_RDONLY,
    JournalSpec.O_WRONLY,
    JournalSpec.O_RDWR,
)
"""Values that `flags` may have: one bit, or none."""

_MIME_TYPE = re.compile(r"[A-Za-z0-9\-_+.%]+(/[A-Za-z0-9\-_+.%]+)?")
_SCHEMES_WITH_BUCKET = ("s3", "gs", "azure")
_NANOSECONDS = 1_000_000_000


def validate_journal_spec(spec: JournalSpec) -> None:
    """Check a journal's declaration.

    Raises:
        ValidationError: the first rule broken, with the path of its field.
    """
    validate_journal_name(spec.name, "name")
    require(
        1 <= spec.replication <= REPLICATION_MAX,
        "replication",
        f"expected 1 to {REPLICATION_MAX} copies, got {spec.replication}",
    )
    _validate_labels(spec.labels)
    with within("fragment"):
        _validate_fragment(spec.fragment)
    require(
        spec.flags in FLAGS,
        "flags",
        f"expected NOT_SPECIFIED, O_RDONLY, O_WRONLY or O_RDWR, got {spec.flags}",
    )
    require(
        spec.max_append_rate >= 0,
        "max_append_rate",
        f"expected 0 (unlimited) or bytes a second, got {spec.max_append_rate}",
    )
    require(
        spec.suspend.level in JournalSpec.Suspend.Level.values(),
        "suspend.level",
        f"expected NONE, PARTIAL or FULL, got {spec.suspend.level}",
    )
    require(
        spec.suspend.offset >= 0,
        "suspend.offset",
        f"expected an offset of 0 or more, got {spec.suspend.offset}",
    )


def _validate_labels(labels: LabelSet) -> None:
    validate_spec_labels(labels, meta_labels=(NAME, PREFIX), single_valued=SINGLE_VALUED)
    content_type = value_of(labels, CONTENT_TYPE)
    for needed, dependent in ((CONTENT_TYPE, MESSAGE_TYPE), (MESSAGE_TYPE, MESSAGE_SUBTYPE)):
        require(
            not values_of(labels, dependent) or bool(values_of(labels, needed)),
            "labels",
            f"expected label {needed} beside {dependent}, got none",
        )
    require(
        not values_of(labels, CONTENT_TYPE) or _MIME_TYPE.fullmatch(content_type) is not None,
        "labels",
        f"expected a MIME type as {CONTENT_TYPE}, such as application/x-ndjson, got {shown(content_type)}",
    )


def _validate_fragment(fragment: JournalSpec.Fragment) -> None:
    require(
        FRAGMENT_LENGTH_MIN <= fragment.length <= FRAGMENT_LENGTH_MAX,
        "length",
        f"expected {FRAGMENT_LENGTH_MIN} to {FRAGMENT_LENGTH_MAX} bytes, got {fragment.length}",
    )
    validate_codec(fragment.compression_codec, "compression_codec")
    for index, store in enumerate(fragment.stores):
        validate_store(store, f"stores[{index}]")
    offloads = fragment.compression_codec == CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION
    require(
        not (offloads and fragment.stores and fragment.stores[0].startswith("file:")),
        "compression_codec",
        "expected another codec: a file:// store cannot decompress GZIP_OFFLOAD_DECOMPRESSION",
    )
    refresh = fragment.refresh_interval.ToNanoseconds()
    require(
        REFRESH_SECONDS_MIN * _NANOSECONDS <= refresh <= REFRESH_SECONDS_MAX * _NANOSECONDS,
        "refresh_interval",
        f"expected {REFRESH_SECONDS_MIN} s to {REFRESH_SECONDS_MAX} s, got {refresh / _NANOSECONDS:g} s",
    )
    flush = fragment.flush_interval.ToNanoseconds()
    require(
        flush == 0 or flush >= FLUSH_SECONDS_MIN * _NANOSECONDS,
        "flush_interval",
        f"expected 0 or at least {FLUSH_SECONDS_MIN} s, got {flush / _NANOSECONDS:g} s",
    )
    # The template language is Go's. Without an implementation, only unclosed actions can be found.
    template = fragment.path_postfix_template
    require(
        template.count("{{") == template.count("}}"),
        "path_postfix_template",
        f"expected each '{{{{' to have its '}}}}', got {shown(template)}",
    )


def validate_store(store: str, field_path: str) -> None:
    """Check the URL of a fragment store.

    Raises:
        ValidationError: its scheme is unknown, its bucket is missing, or it does not end in `/`.
    """
    try:
        url = urlsplit(store)
    except ValueError as error:
        raise ValidationError(field_path, f"expected a URL, got {shown(store)}: {error}") from error
    problem = _store_problem(url)
    require(not problem, field_path, f"{problem}, got {shown(store)}")


def _store_problem(url: SplitResult) -> str:
    if url.scheme in _SCHEMES_WITH_BUCKET:
        if not url.netloc:
            return f"expected a bucket, as in {url.scheme}://bucket/path/"
    elif url.scheme == "azure-ad":
        if not url.netloc or len([part for part in url.path.split("/") if part]) < 2:
            return "expected azure-ad://tenant/account/container/path/"
    elif url.scheme == "file":
        if url.netloc:
            return "expected no host, as in file:///path/"
    else:
        return "expected the scheme s3, gs, azure, azure-ad or file"
    return "" if url.path.endswith("/") else "expected a path that ends in '/'"
