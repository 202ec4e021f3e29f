"""Journal specs in YAML: a tree by name, in which directories hold what their journals share.

    name: flights/
    replication: 1
    fragment: {length: 67108864, compression_codec: NONE, refresh_interval: 1m}
    labels: [{name: content-type, value: application/x-ndjson}]
    children:
    - {name: flights/part-000}
    - {name: flights/part-001, revision: 42}

A directory's name ends in `/` (or is empty); everything else is a journal. Zero values are inherited from the nearest
directory that says something; labels merge by name and the inner one wins; `delete` is inherited.

Source: gazette/core broker/journalspace (the tree's shape and its two operations).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from broadsheet.cli.durations import format_duration, parse_duration
from broadsheet.cli.shards.space import LabelNode, label_nodes, union_by_name
from broadsheet.cli.specs.files import errors_name_places, require_distinct
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.yaml_documents import decode_yaml, encode_yaml
from broadsheet.wire import journal_pb2
from broadsheet.wire.labels import label_set
from broadsheet.wire.validation_journal import validate_apply_request


class FragmentNode(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """`JournalSpec.Fragment`, with names for numbers."""

    length: int = 0
    compression_codec: str = ""
    stores: tuple[str, ...] = ()
    refresh_interval: str = ""
    retention: str = ""
    flush_interval: str = ""
    path_postfix_template: str = ""


_DURATIONS = ("refresh_interval", "retention", "flush_interval")
"""Fields that are durations in the spec, under the same names."""


class SuspendNode(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """`JournalSpec.Suspend`, with a name for its level."""

    level: str = ""
    offset: int = 0


class JournalNode(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A directory or a journal."""

    comment: str = ""
    name: str = ""
    delete: bool = False
    replication: int = 0
    labels: tuple[LabelNode, ...] = ()
    fragment: FragmentNode = FragmentNode()
    flags: str = ""
    max_append_rate: int = 0
    suspend: SuspendNode | None = None
    revision: int = 0
    """Mod revision that the stored spec must have; 0: must not exist; -1: any."""
    children: tuple[JournalNode, ...] = ()

    @property
    def is_directory(self) -> bool:
        """Report whether the node only groups others."""
        return not self.name or self.name.endswith("/")


def parse_journal_space(text: str, source: str) -> JournalNode:
    """Parse a file's text.

    Args:
        text: The YAML.
        source: Its name, for error messages.

    Raises:
        ValidationError: it is no YAML, has an unknown field, or its tree is malformed.
    """
    root = decode_yaml(text, JournalNode, source)
    _check_tree(root, source)
    return root


def format_journal_space(root: JournalNode) -> str:
    """Return the YAML of a tree, without unset values."""
    return encode_yaml(root)


def changes_of(root: JournalNode) -> list[journal_pb2.ApplyRequest.Change]:
    """Return the changes that a tree requests, in its order.

    Raises:
        ValidationError: a duration, codec, flag or level cannot be read, or a deletion has no revision.
    """
    return [_change_of(journal) for journal in _push_down(root)]


def tree_of_listing(journals: Sequence[journal_pb2.ListResponse.Journal]) -> JournalNode:
    """Return the tree that, applied at once, would change nothing; values that all journals share appear once."""
    nodes = [_node_of(listed) for listed in journals]
    if len(nodes) < 2:
        return nodes[0] if nodes else JournalNode()
    shared: dict[str, Any] = {}  # field values, typed by the struct that takes them
    for name in ("replication", "labels", "fragment", "flags", "max_append_rate"):
        values = [getattr(node, name) for node in nodes]
        if all(value == values[0] for value in values):
            shared[name] = values[0]
    defaults = JournalNode()
    rest = {name: getattr(defaults, name) for name in shared}
    prefix = posixpath.commonprefix([node.name for node in nodes])
    return JournalNode(
        name=prefix[: prefix.rfind("/") + 1],
        children=tuple(msgspec.structs.replace(node, **rest) for node in nodes),
        **shared,
    )


def _check_tree(node: JournalNode, path: str) -> None:
    if not node.is_directory:
        if node.children:
            raise ValidationError(
                f"{path}.children", f"{node.name} is a journal: a directory's name ends in '/'"
            )
        return
    if node.revision:
        raise ValidationError(f"{path}.revision", "a directory has no revision; its journals do")
    for index, child in enumerate(node.children):
        child_path = f"{path}.children[{index}]"
        if not child.name.startswith(node.name) or child.name == node.name:
            raise ValidationError(
                f"{child_path}.name", f"expected a name below {node.name!r}, got {child.name!r}"
            )
        _check_tree(child, child_path)


def _push_down(node: JournalNode) -> Iterable[JournalNode]:
    if not node.is_directory:
        yield node
        return
    for child in node.children:
        yield from _push_down(_with_parent(child, node))


def _with_parent(child: JournalNode, parent: JournalNode) -> JournalNode:
    fragment = FragmentNode(
        **{
            name: getattr(child.fragment, name) or getattr(parent.fragment, name)
            for name in FragmentNode.__struct_fields__
        }
    )
    return msgspec.structs.replace(
        child,
        delete=child.delete or parent.delete,
        replication=child.replication or parent.replication,
        labels=union_by_name(parent.labels, child.labels),
        fragment=fragment,
        flags=child.flags or parent.flags,
        max_append_rate=child.max_append_rate or parent.max_append_rate,
        suspend=child.suspend or parent.suspend,
    )


def _change_of(node: JournalNode) -> journal_pb2.ApplyRequest.Change:
    change = journal_pb2.ApplyRequest.Change(expect_mod_revision=node.revision)
    if not node.delete:
        change.upsert.CopyFrom(_spec_of(node))
        return change
    if node.revision == 0:
        problem = "a deletion needs the journal's revision, or -1 to delete whatever is there"
        raise ValidationError(f"{node.name}.revision", problem)
    change.delete = node.name
    return change


def _spec_of(node: JournalNode) -> journal_pb2.JournalSpec:
    spec = journal_pb2.JournalSpec(
        name=node.name,
        replication=node.replication,
        labels=label_set(*((label.name, label.value) for label in node.labels)),
        max_append_rate=node.max_append_rate,
    )
    if node.flags:
        spec.flags = _number(journal_pb2.JournalSpec.Flag, node.flags, f"{node.name}.flags")
    if node.suspend is not None:
        spec.suspend.offset = node.suspend.offset
        spec.suspend.level = journal_pb2.JournalSpec.Suspend.Level.ValueType(
            _number(
                journal_pb2.JournalSpec.Suspend.Level,
                node.suspend.level or "NONE",
                f"{node.name}.suspend.level",
            )
        )
    _fill_fragment(spec.fragment, node)
    return spec


def _fill_fragment(fragment: journal_pb2.JournalSpec.Fragment, node: JournalNode) -> None:
    path = f"{node.name}.fragment"
    fragment.length = node.fragment.length
    if node.fragment.compression_codec:
        number = _number(
            journal_pb2.CompressionCodec,
            node.fragment.compression_codec,
            f"{path}.compression_codec",
        )
        fragment.compression_codec = journal_pb2.CompressionCodec.ValueType(number)
    fragment.stores.extend(node.fragment.stores)
    fragment.path_postfix_template = node.fragment.path_postfix_template
    for name in _DURATIONS:
        text = getattr(node.fragment, name)
        if text:
            getattr(fragment, name).CopyFrom(parse_duration(text, f"{path}.{name}"))


def _number(
    enum: Any, name: str, path: str
) -> int:  # protobuf's enum wrappers share no public type
    try:
        return int(enum.Value(name))
    except ValueError as error:
        raise ValidationError(
            path, f"expected one of {', '.join(enum.keys())}, got {name!r}"
        ) from error


def _node_of(listed: journal_pb2.ListResponse.Journal) -> JournalNode:
    spec = listed.spec
    fragment = spec.fragment
    suspended = spec.suspend.level != journal_pb2.JournalSpec.Suspend.NONE or spec.suspend.offset
    return JournalNode(
        name=spec.name,
        revision=listed.mod_revision,
        replication=spec.replication,
        labels=label_nodes(spec.labels),
        fragment=FragmentNode(
            length=fragment.length,
            compression_codec=journal_pb2.CompressionCodec.Name(fragment.compression_codec),
            stores=tuple(fragment.stores),
            path_postfix_template=fragment.path_postfix_template,
            **{name: format_duration(getattr(fragment, name)) for name in _DURATIONS},
        ),
        flags=journal_pb2.JournalSpec.Flag.Name(journal_pb2.JournalSpec.Flag.ValueType(spec.flags))
        if spec.flags
        else "",
        max_append_rate=spec.max_append_rate,
        suspend=SuspendNode(
            level=journal_pb2.JournalSpec.Suspend.Level.Name(spec.suspend.level),
            offset=spec.suspend.offset,
        )
        if suspended
        else None,
    )


def read_journal_changes(text: str, source: str) -> list[journal_pb2.ApplyRequest.Change]:
    """Return a file's changes, checked as far as possible without a server.

    Args:
        text: The file's.
        source: Its name, for error messages.

    Raises:
        ValidationError: the file is wrong; the message names the journal and the field.
    """
    changes = changes_of(parse_journal_space(text, source))
    names = [change.delete or change.upsert.name for change in changes]
    require_distinct(source, names, names)
    with errors_name_places(source, names):
        validate_apply_request(journal_pb2.ApplyRequest(changes=changes))
    return changes
