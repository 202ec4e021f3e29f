"""Rules of the terms that both services share: labels, selectors, processes, routes, headers, fragments, changes.

Functions raise `ValidationError` for the first rule broken, with the field's path below `parent`.

Source: gazette/core broker/protocol/{label,route,header,process_spec,endpoint,fragment}_extensions.go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol, TypeAlias
from urllib.parse import urlsplit

from broadsheet.runtime.errors import ValidationError
from broadsheet.wire import journal_pb2, shard_pb2
from broadsheet.wire.alphabet import (
    PATH_SYMBOLS,
    below,
    cleaned_path,
    require,
    shown,
    validate_alphabet,
    validate_journal_name,
    validate_token,
    within,
)
from broadsheet.wire.journal_pb2 import (
    CompressionCodec,
    Fragment,
    Header,
    Label,
    LabelSelector,
    LabelSet,
    ProcessSpec,
    Route,
)

LABEL_NAME_BYTES = (2, 64)
"""Shortest and longest label name, bytes."""
LABEL_VALUE_BYTES = (0, 1024)
"""Shortest and longest label value, bytes."""
ZONE_BYTES = (1, 32)
"""Shortest and longest zone, bytes."""
SUFFIX_BYTES = (4, 128)
"""Shortest and longest suffix of a process, bytes."""
PATH_POSTFIX_BYTES_MAX = 512
"""Longest path postfix of a fragment, bytes."""
_ENCODED_BYTES_KEPT_MAX = 4 << 10
"""Longest encoded header or route that is remembered as valid, bytes."""
_CODECS = frozenset(CompressionCodec.values()) - {CompressionCodec.INVALID}
SELECTOR_LABELS_MAX = 10_000
"""Labels of one half of a selector: a name of each object of a large cluster's part, as tools ask for them."""
_Change: TypeAlias = journal_pb2.ApplyRequest.Change | shard_pb2.ApplyRequest.Change
_Listed: TypeAlias = journal_pb2.ListResponse.Journal | shard_pb2.ListResponse.Shard


class _Answer(Protocol):
    """A message with a status and a header."""

    @property
    def status(self) -> int: ...

    @property
    def header(self) -> Header: ...

    # `Any`: each message takes the names of its own fields alone.
    def HasField(self, field_name: Any) -> bool: ...  # noqa: N802 - protobuf's name


def validate_label(label: Label, parent: str = "", *, prefix_allowed: bool = False) -> None:
    """Check one label; `prefix` may be set in selectors only.

    Raises:
        ValidationError: its name or value is malformed, or it is a prefix where none is allowed.
    """
    validate_token(label.name, below(parent, "name"), bytes_range=LABEL_NAME_BYTES)
    validate_alphabet(
        label.value, below(parent, "value"), symbols=PATH_SYMBOLS, bytes_range=LABEL_VALUE_BYTES
    )
    require(
        prefix_allowed or not label.prefix,
        below(parent, "prefix"),
        "expected false, prefixes are allowed in selectors only, got true",
    )


def validate_label_set(labels: LabelSet, parent: str = "", *, prefix_allowed: bool = False) -> None:
    """Check that a set is sorted, free of duplicates, and has no empty value beside others of its name.

    Raises:
        ValidationError: a label is malformed or out of order.
    """
    previous: Label | None = None
    for index, label in enumerate(labels.labels):
        # Paths are made only where a rule is broken, because a listing checks thousands of sets.
        try:
            validate_label(label, prefix_allowed=prefix_allowed)
            if previous is not None:
                _validate_order(previous, label)
        except ValidationError as error:
            raise error.under(below(parent, f"labels[{index}]")) from error.__cause__
        previous = label


def _validate_order(previous: Label, label: Label) -> None:
    before, now = (previous.name, previous.value), (label.name, label.value)
    if before >= now:
        raise ValidationError(
            "", f"expected labels sorted by name and value, each once, got {now} after {before}"
        )
    if previous.name == label.name and previous.value == "":
        raise ValidationError(
            "",
            f"expected no empty value beside other values of {label.name!r}, got {label.value!r}",
        )


def validate_spec_labels(
    labels: LabelSet, *, meta_labels: Iterable[str], single_valued: Iterable[str]
) -> None:
    """Check the labels of a declaration, its field `labels`.

    Args:
        labels: Its labels.
        meta_labels: Names that stand for the declaration itself in selectors.
        single_valued: Names that may have one value at most.

    Raises:
        ValidationError: the set is malformed, has a meta-label, or several values of such a name.
    """
    validate_label_set(labels, "labels")
    present = [label.name for label in labels.labels]
    for name in meta_labels:
        if name in present:
            raise ValidationError("labels", f"expected no label {name!r}: it is a meta-label")
    # Most sets have no name twice, and a listing checks thousands.
    if len(set(present)) == len(present):
        return
    for name in single_valued:
        values = [label.value for label in labels.labels if label.name == name]
        require(
            len(values) <= 1, "labels", f"expected at most one value of label {name}, got {values}"
        )


def validate_selector(selector: LabelSelector, parent: str = "") -> None:
    """Check both halves of a selector; prefixes are allowed.

    Raises:
        ValidationError: a half is no label set, or has more than `SELECTOR_LABELS_MAX` labels.
    """
    for half in ("include", "exclude"):
        # First, because each label takes its check.
        labels = len(getattr(selector, half).labels)
        require(
            labels <= SELECTOR_LABELS_MAX,
            below(parent, f"{half}.labels"),
            f"expected {SELECTOR_LABELS_MAX} at most, got {labels}; ask in several requests",
        )
    validate_label_set(selector.include, below(parent, "include"), prefix_allowed=True)
    validate_label_set(selector.exclude, below(parent, "exclude"), prefix_allowed=True)


def validate_process_id(process_id: ProcessSpec.ID, parent: str = "") -> None:
    """Check the identity of a process.

    Raises:
        ValidationError: its zone or suffix is malformed.
    """
    validate_token(process_id.zone, below(parent, "zone"), bytes_range=ZONE_BYTES)
    validate_token(process_id.suffix, below(parent, "suffix"), bytes_range=SUFFIX_BYTES)


def validate_endpoint(endpoint: str, field_path: str = "endpoint") -> None:
    """Check that an endpoint is an absolute URL with a host.

    Raises:
        ValidationError: it is not.
    """
    try:
        parts = urlsplit(endpoint)
        usable = bool(parts.scheme) and bool(parts.netloc) and parts.port != 0
    except ValueError as error:
        raise ValidationError(
            field_path, f"expected a URL such as http://host:port, got {shown(endpoint)}: {error}"
        ) from error
    require(
        usable,
        field_path,
        f"expected an absolute URL with a host, such as http://host:port, got {shown(endpoint)}",
    )


def validate_process_spec(process: ProcessSpec, parent: str = "") -> None:
    """Check a process: its identity and its endpoint.

    Raises:
        ValidationError: either is malformed.
    """
    validate_process_id(process.id, below(parent, "id"))
    validate_endpoint(process.endpoint, below(parent, "endpoint"))


def validate_route(route: Route, parent: str = "") -> None:
    """Check a route. A zero-valued route is invalid: without members the primary must be -1.

    Raises:
        ValidationError: members are out of order, the primary is out of range, or endpoints do not fit.
    """
    encoded = route.SerializeToString()
    # The shards of a listing have few different routes.
    if len(encoded) <= _ENCODED_BYTES_KEPT_MAX:
        _validate_encoded_route(encoded, parent)
    else:
        _validate_route(route, parent)


@lru_cache(maxsize=4_096)
def _validate_encoded_route(encoded: bytes, parent: str) -> None:
    _validate_route(Route.FromString(encoded), parent)


def _validate_route(route: Route, parent: str) -> None:
    members = route.members
    for index, member in enumerate(members):
        validate_process_id(member, below(parent, f"members[{index}]"))
    _require_ascending(
        [(member.zone, member.suffix) for member in members], below(parent, "members")
    )
    require(
        -1 <= route.primary < len(members),
        below(parent, "primary"),
        f"expected -1 or the index of one of {len(members)} members, got {route.primary}",
    )
    require(
        len(route.endpoints) in (0, len(members)),
        below(parent, "endpoints"),
        f"expected none or one for each of {len(members)} members, got {len(route.endpoints)}",
    )
    for index, endpoint in enumerate(route.endpoints):
        if endpoint:
            validate_endpoint(endpoint, below(parent, f"endpoints[{index}]"))


def validate_header(header: Header, parent: str = "") -> None:
    """Check a header: an identity (or none), a route, and the etcd state behind it.

    Raises:
        ValidationError: a part is malformed or missing.
    """
    encoded = header.SerializeToString(deterministic=True)
    # A broker's answers repeat the same header. A long one is unusual, and is not cached.
    if len(encoded) <= _ENCODED_BYTES_KEPT_MAX:
        _validate_encoded_header(encoded, parent)
    else:
        _validate_header(header, parent)


@lru_cache(maxsize=256)
def _validate_encoded_header(encoded: bytes, parent: str) -> None:
    _validate_header(Header.FromString(encoded), parent)


def _validate_header(header: Header, parent: str) -> None:
    if header.process_id.zone or header.process_id.suffix:
        validate_process_id(header.process_id, below(parent, "process_id"))
    validate_route(header.route, below(parent, "route"))
    etcd = header.etcd
    for name, value in (
        ("cluster_id", etcd.cluster_id),
        ("member_id", etcd.member_id),
        ("revision", etcd.revision),
        ("raft_term", etcd.raft_term),
    ):
        require(value > 0, below(parent, f"etcd.{name}"), f"expected a number above 0, got {value}")


def validate_status(status: int, statuses: Collection[int]) -> None:
    """Check that a status is one that the service knows.

    Raises:
        ValidationError: it is not.
    """
    if status not in statuses:
        raise ValidationError("status", f"expected a known status, got {status}")


def validate_status_and_header(response: _Answer, statuses: Collection[int]) -> None:
    """Check the status and the header of an answer.

    Raises:
        ValidationError: the status is unknown, or the header is missing or malformed.
    """
    validate_status(response.status, statuses)
    if not response.HasField("header"):
        raise ValidationError("header", "expected a header, got none")
    validate_header(response.header, "header")


def validate_change(
    change: _Change, *, upsert: Callable[[], None], delete: Callable[[], None]
) -> None:
    """Check a change of a journal or a shard.

    Args:
        change: Of an apply.
        upsert: Checks its declaration.
        delete: Checks its name, with the path of its field.

    Raises:
        ValidationError: it is neither or both of an upsert and a delete, either is malformed, or the revision that it
            expects is negative (other than -1), or zero for a delete.
    """
    upserts = change.HasField("upsert")
    require(
        upserts != bool(change.delete),
        "",
        f"expected exactly one of upsert and delete, got {'both' if upserts else 'neither'}",
    )
    if upserts:
        with within("upsert"):
            upsert()
    else:
        delete()
    revision = change.expect_mod_revision
    require(
        revision == -1 or revision >= (0 if upserts else 1),
        "expect_mod_revision",
        f"expected -1 (any), {'0 (must not exist) ' if upserts else ''}or a revision above 0, got {revision}",
    )


def validate_place(listed: _Listed) -> None:
    """Check the revision and the route of a listed journal or shard.

    Raises:
        ValidationError: the revision is not above 0, or the route is malformed.
    """
    if listed.mod_revision <= 0:
        raise ValidationError(
            "mod_revision", f"expected a revision above 0, got {listed.mod_revision}"
        )
    validate_route(listed.route, "route")


def validate_fragment(fragment: Fragment, parent: str = "") -> None:
    """Check the description of a fragment.

    Raises:
        ValidationError: its journal, range, codec or postfix is malformed.
    """
    validate_journal_name(fragment.journal, below(parent, "journal"))
    begin, end = fragment.begin, fragment.end
    if not 0 <= begin <= end:
        raise ValidationError(
            below(parent, "end"), f"expected 0 <= begin <= end, got [{begin}, {end})"
        )
    # The path is made only for a bad one, because each answer to an append has a fragment.
    if fragment.compression_codec not in _CODECS:
        validate_codec(fragment.compression_codec, below(parent, "compression_codec"))
    if fragment.path_postfix:
        _validate_path_postfix(fragment.path_postfix, below(parent, "path_postfix"))


def _validate_path_postfix(postfix: str, field_path: str) -> None:
    validate_alphabet(
        postfix, field_path, symbols=PATH_SYMBOLS, bytes_range=(0, PATH_POSTFIX_BYTES_MAX)
    )
    if postfix.startswith("/") or cleaned_path(postfix) != postfix:
        raise ValidationError(field_path, f"expected a clean relative path, got {shown(postfix)}")


def validate_codec(codec: int, field_path: str) -> None:
    """Check a compression codec: known, and not zero.

    Raises:
        ValidationError: it is zero or unknown.
    """
    if codec not in _CODECS:
        expected = ", ".join(CompressionCodec.keys()[1:])
        raise ValidationError(field_path, f"expected one of {expected}, got {codec}")


def _require_ascending(ids: Sequence[tuple[str, str]], field_path: str) -> None:
    for before, now in pairwise(ids):
        require(
            before < now,
            field_path,
            f"expected members strictly ascending by zone and suffix, got {now} after {before}",
        )
