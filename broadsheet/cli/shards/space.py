"""Shard specs in YAML: one file, in which values that shards share are stated once.

    common:
      max_txn_duration: 1s
    shards:
    - id: part-000
      sources: [{journal: my/topic/part-000}]
      revision: 123          # absent or 0: create; -1: whatever is there
    - {id: part-001, delete: true, revision: 456}

`push_down` gives every shard what `common` says unless it says something itself; `hoist` is the way back. A zero,
false or empty value cannot override a value of `common`: it looks like "not said".

Source: gazette/core consumer/shardspace (the file's shape and the two operations).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from broadsheet.cli.durations import format_duration, parse_duration
from broadsheet.cli.specs.files import errors_name_places, require_distinct
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.yaml_documents import decode_yaml, encode_yaml
from broadsheet.wire import journal_pb2, shard_pb2
from broadsheet.wire.labels import label_set
from broadsheet.wire.validation_shard import validate_shard_apply_request


class LabelNode(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """A label."""

    name: str
    value: str = ""


class SourceNode(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """A source journal."""

    journal: str
    min_offset: int = 0
    after: str = ""
    after_offset: int = 0


class ShardFields(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Fields of a ShardSpec except its id. Durations are text; zero values are "not said"."""

    sources: tuple[SourceNode, ...] = ()
    recovery_log_prefix: str = ""
    hint_prefix: str = ""
    hint_backups: int = 0
    max_txn_duration: str = ""
    min_txn_duration: str = ""
    disable: bool = False
    hot_standbys: int = 0
    labels: tuple[LabelNode, ...] = ()
    disable_wait_for_ack: bool = False
    ring_buffer_size: int = 0
    read_channel_size: int = 0


FIELD_NAMES = ShardFields.__struct_fields__
# Fields that a node and a spec have under one name.
_AS_THEY_ARE = ("recovery_log_prefix", "hint_prefix", "disable", "disable_wait_for_ack")
_INTEGERS = ("hint_backups", "hot_standbys", "ring_buffer_size", "read_channel_size")
_DURATIONS = ("max_txn_duration", "min_txn_duration")


class ShardNode(ShardFields, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One shard of the file."""

    comment: str = ""
    id: str
    delete: bool | None = None
    revision: int = 0
    """Mod revision that the stored spec must have; 0: must not exist; -1: any."""


class ShardSpace(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A whole file."""

    common: ShardFields = msgspec.field(default_factory=ShardFields)
    shards: tuple[ShardNode, ...] = ()


def parse_shard_space(text: str, source: str) -> ShardSpace:
    """Parse a file's text.

    Args:
        text: The YAML.
        source: Its name, for error messages.

    Raises:
        ValidationError: it is no YAML, or has an unknown field or a value of the wrong type; the message names both.
    """
    return decode_yaml(text, ShardSpace, source)


def format_shard_space(space: ShardSpace) -> str:
    """Return the YAML of a file, without unset values; each shard begins with its id."""
    document = msgspec.to_builtins(space)
    if not document.get("common"):
        document.pop("common", None)
    document["shards"] = [{"id": shard["id"], **shard} for shard in document.get("shards", ())]
    return encode_yaml(document)


def push_down(space: ShardSpace) -> ShardSpace:
    """Return the space with `common` merged into each shard, and empty itself."""
    return ShardSpace(shards=tuple(_with_common(shard, space.common) for shard in space.shards))


def hoist(space: ShardSpace) -> ShardSpace:
    """Return the space with values that all shards share moved to `common`. Inverse of `push_down`."""
    if not space.shards:
        return space
    first, *others = space.shards
    common = ShardFields(**{name: getattr(first, name) for name in FIELD_NAMES})
    for other in others:
        common = _intersect(common, other)
    return ShardSpace(
        common=common, shards=tuple(_subtract(shard, common) for shard in space.shards)
    )


def space_of_listing(shards: Iterable[shard_pb2.ListResponse.Shard]) -> ShardSpace:
    """Return the file that, applied at once, would change nothing."""
    return hoist(ShardSpace(shards=tuple(_node_of(listed) for listed in shards)))


def changes_of(space: ShardSpace) -> list[shard_pb2.ApplyRequest.Change]:
    """Return the changes that a file requests, in its order.

    Raises:
        ValidationError: a duration cannot be read, or a deletion has no revision.
    """
    return [
        _change_of(shard, f"shards[{index}]") for index, shard in enumerate(push_down(space).shards)
    ]


def _change_of(shard: ShardNode, path: str) -> shard_pb2.ApplyRequest.Change:
    change = shard_pb2.ApplyRequest.Change(expect_mod_revision=shard.revision)
    if not shard.delete:
        change.upsert.CopyFrom(_spec_of(shard, path))
        return change
    if shard.revision == 0:
        problem = "a deletion needs the shard's revision, or -1 to delete whatever is there"
        raise ValidationError(f"{path}.revision", problem)
    change.delete = shard.id
    return change


def _spec_of(shard: ShardNode, path: str) -> shard_pb2.ShardSpec:
    spec = shard_pb2.ShardSpec(
        id=shard.id,
        sources=[
            shard_pb2.ShardSpec.Source(
                journal=source.journal,
                min_offset=source.min_offset,
                after=source.after,
                after_offset=source.after_offset,
            )
            for source in shard.sources
        ],
        labels=label_set(*((label.name, label.value) for label in shard.labels)),
        **{name: getattr(shard, name) for name in _AS_THEY_ARE},
    )
    for name in _INTEGERS:
        _set_integer(spec, name, getattr(shard, name), path)
    for name in _DURATIONS:
        text = getattr(shard, name)
        if text:
            getattr(spec, name).CopyFrom(parse_duration(text, f"{path}.{name}"))
    return spec


def _set_integer(spec: shard_pb2.ShardSpec, name: str, value: int, path: str) -> None:
    try:
        setattr(spec, name, value)
    except ValueError as error:
        raise ValidationError(f"{path}.{name}", f"{value} is out of range") from error


def _node_of(listed: shard_pb2.ListResponse.Shard) -> ShardNode:
    spec = listed.spec
    # Field values, typed by the struct that takes them.
    values: dict[str, Any] = {name: getattr(spec, name) for name in (*_AS_THEY_ARE, *_INTEGERS)}
    values |= {name: format_duration(getattr(spec, name)) for name in _DURATIONS}
    sources = (
        SourceNode(
            journal=each.journal,
            min_offset=each.min_offset,
            after=each.after,
            after_offset=each.after_offset,
        )
        for each in spec.sources
    )
    return ShardNode(
        id=spec.id,
        revision=listed.mod_revision,
        sources=tuple(sources),
        labels=label_nodes(spec.labels),
        **values,
    )


def label_nodes(labels: journal_pb2.LabelSet) -> tuple[LabelNode, ...]:
    """Return a set of labels as the file has it."""
    return tuple(LabelNode(name=label.name, value=label.value) for label in labels.labels)


def _with_common(shard: ShardNode, common: ShardFields) -> ShardNode:
    merged: dict[
        str, Any
    ] = {}  # field values of either struct, typed by the struct that takes them
    for name in FIELD_NAMES:
        merged[name] = getattr(shard, name) or getattr(common, name)
    merged["labels"] = union_by_name(common.labels, shard.labels)
    return msgspec.structs.replace(shard, **merged)


def union_by_name(
    common: tuple[LabelNode, ...], own: tuple[LabelNode, ...]
) -> tuple[LabelNode, ...]:
    """Return the labels of both; where both name one, only `own` values count."""
    own_names = {label.name for label in own}
    kept = [label for label in common if label.name not in own_names]
    return tuple(sorted([*kept, *own], key=lambda label: (label.name, label.value)))


def _values_by_name(labels: tuple[LabelNode, ...]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for label in labels:
        values.setdefault(label.name, []).append(label.value)
    return values


def _intersect(common: ShardFields, other: ShardFields) -> ShardFields:
    shared: dict[str, Any] = {}  # as in _with_common
    for name in FIELD_NAMES:
        if name != "labels" and getattr(common, name) == getattr(other, name):
            shared[name] = getattr(common, name)
    others = _values_by_name(other.labels)
    mine = _values_by_name(common.labels)
    shared["labels"] = tuple(
        label for label in common.labels if others.get(label.name) == mine[label.name]
    )
    return ShardFields(**shared)


def _subtract(shard: ShardNode, common: ShardFields) -> ShardNode:
    rest: dict[str, Any] = {}  # as in _with_common
    defaults = ShardFields()
    for name in FIELD_NAMES:
        if name != "labels" and getattr(shard, name) == getattr(common, name):
            rest[name] = getattr(defaults, name)
    hoisted = {label.name for label in common.labels}
    rest["labels"] = tuple(label for label in shard.labels if label.name not in hoisted)
    return msgspec.structs.replace(shard, **rest)


def read_shard_changes(text: str, source: str) -> list[shard_pb2.ApplyRequest.Change]:
    """Return a file's changes, checked as far as possible without a server.

    Args:
        text: The file's.
        source: Its name, for error messages.

    Raises:
        ValidationError: the file is wrong; the message names the place in it.
    """
    changes = changes_of(parse_shard_space(text, source))
    places = places_of(changes)
    require_distinct(source, [change.delete or change.upsert.id for change in changes], places)
    with errors_name_places(source, places):
        validate_shard_apply_request(shard_pb2.ApplyRequest(changes=changes))
    return changes


def places_of(changes: Sequence[shard_pb2.ApplyRequest.Change]) -> list[str]:
    """Return the place in its file of each change."""
    return [f"shards[{index}]" for index in range(len(changes))]
