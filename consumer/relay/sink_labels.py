"""Labels of a shard that say where a relay carries its messages.

    broadsheet.dev/sink            kafka, delta or iceberg
    broadsheet.dev/sink-to         the topic, or the table
    broadsheet.dev/sink-from       the topic that is read in place of journals
    broadsheet.dev/sink-key        field of JSON messages that is the record's key, with dots between nested names
    broadsheet.dev/sink-set/NAME   a setting of the client

Labels hold few symbols, so values are percent-encoded. Everyone who may list shards reads them: secrets are files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final
from urllib.parse import quote, unquote

from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import LabelSet
from broadsheet.wire.labels import label_set, values_of

SINK: Final = "broadsheet.dev/sink"
SINK_TO: Final = "broadsheet.dev/sink-to"
SINK_FROM: Final = "broadsheet.dev/sink-from"
SINK_KEY: Final = "broadsheet.dev/sink-key"
SINK_SET: Final = "broadsheet.dev/sink-set/"
_SYMBOLS: Final = "-_+/.="
"""Of a label's value, beside letters, digits and the percent sign."""


class SinkKind(Enum):
    """A system that a relay carries messages to."""

    KAFKA = "kafka"
    DELTA = "delta"
    ICEBERG = "iceberg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """The destination of a shard's messages."""

    kind: SinkKind
    to: str
    """The topic; the table's address; the table's name, with its namespace."""
    from_topic: str = ""
    """Read in place of journals; empty: the shard's sources are."""
    key: str = ""
    """Field of JSON messages that is the record's key; empty: none, and a journal goes into one partition."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the client, by name. `@/path` is the content of a file on the member."""


def labels_of_sink(sink: Sink) -> LabelSet:
    """Return the labels of a shard for a sink. Inverse of `sink_of`.

    Raises:
        ValidationError: a part is empty that must not be.
    """
    if not sink.to:
        raise ValidationError(SINK_TO, "expected the topic or table")
    pairs = [(SINK, sink.kind.value), (SINK_TO, _escaped(sink.to))]
    pairs += [(SINK_FROM, _escaped(sink.from_topic))] if sink.from_topic else []
    pairs += [(SINK_KEY, _escaped(sink.key))] if sink.key else []
    pairs += [(SINK_SET + name, _escaped(value)) for name, value in sink.settings.items()]
    return label_set(*pairs)


def sink_of(labels: LabelSet) -> Sink:
    """Return the sink that a shard's labels name.

    Raises:
        ValidationError: a label is missing, or has a value that is none; the label is named.
    """
    kind = _one(labels, SINK)
    if kind not in {each.value for each in SinkKind}:
        expected = ", ".join(each.value for each in SinkKind)
        raise ValidationError(f"labels[{SINK}]", f"expected one of {expected}, got {kind!r}")
    to = _one(labels, SINK_TO)
    if not to:
        raise ValidationError(f"labels[{SINK_TO}]", "expected the topic or table")
    names = {each.name for each in labels.labels if each.name.startswith(SINK_SET)}
    return Sink(
        kind=SinkKind(kind),
        to=to,
        from_topic=_one(labels, SINK_FROM),
        key=_one(labels, SINK_KEY),
        settings={name.removeprefix(SINK_SET): _one(labels, name) for name in sorted(names)},
    )


def _one(labels: LabelSet, name: str) -> str:
    found = values_of(labels, name)
    if len(found) > 1:
        raise ValidationError(f"labels[{name}]", f"expected one value, got {len(found)}")
    return unquote(found[0]) if found else ""


def _escaped(value: str) -> str:
    return quote(value, safe=_SYMBOLS).replace("~", "%7E")
