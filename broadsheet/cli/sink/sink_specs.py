"""Shards of a relay: what `shardctl sink` applies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import click

from broadsheet.cli.connection import Connection
from broadsheet.cli.durations import parse_duration
from broadsheet.cli.journals.selection import selected_names
from broadsheet.cli.names import JournalNames
from broadsheet.cli.options import SelectorInPlace, command_options, flag, option
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.shards.space import format_shard_space, space_of_listing
from broadsheet.consumer.relay import Sink, SinkKind, labels_of_sink
from broadsheet.consumer.relay.sink_labels import sink_of
from broadsheet.consumer.sources.part import SOURCE_PART
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.labels import label_set, union
from broadsheet.wire.shard_pb2 import ApplyRequest, ListResponse, ShardSpec
from broadsheet.wire.validation_shard import validate_shard_spec

RELAY: Final = "broadsheet.consumer.relay:Relay"
TOPIC_RELAY: Final = "broadsheet.consumer.relay:TopicRelay"
_NOT_IN_IDS: Final = re.compile(r"[^\w\-+/.]")


@command_options
class SinkOptions:
    """Options of every verb of `sink`."""

    settings: tuple[str, ...] = option(
        "A setting NAME=VALUE of the client; NAME=@/PATH reads a file on each member. May be repeated.",
        "--set",
        multiple=True,
    )
    prefix: str = option(
        "Begins the ids of the shards; the verb and the target if absent.",
        default="",
        show_default=False,
    )
    min_txn: str = option("Least duration of a transaction, such as 10s.", default="0s")
    max_txn: str = option("Longest duration of a transaction.", default="1s")
    hot_standbys: int = option("Standbys of each shard.", type=click.IntRange(0), default=1)
    disabled: bool = flag("Apply the shards, and start none yet.")
    print_only: bool = flag(
        "Print the specs as YAML, for `shardctl shards apply -f -`; apply nothing.", "--print"
    )


@command_options
class SourceOptions:
    """The sources of a sink's shards."""

    journals: JournalNames
    selector: SelectorInPlace
    from_topic: str = option(
        "Read this topic of Kafka in place of journals.", default="", show_default=False
    )
    parts: int = option(
        "Shards that share the topic that is read.", type=click.IntRange(1), default=1
    )


@dataclass(frozen=True, slots=True)
class SinkPart:
    """The sources of one shard."""

    name: str
    """Behind the prefix, in the shard's id."""
    journal: str = ""
    part: str = ""
    """Of a topic, as `i/n`."""


def settings_of(texts: Sequence[str], field: str = "--set") -> dict[str, str]:
    """Return settings by name.

    Raises:
        ValidationError: a text is no NAME=VALUE, or names one that another has named.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ValidationError(field, f"expected NAME=VALUE, got {text!r}")
        if name in found:
            raise ValidationError(field, f"expected {name} once")
        found[name] = value
    return found


def parts_of_topic(count: int) -> list[SinkPart]:
    """Return the parts of a topic that so many shards read."""
    return [SinkPart(f"part-{index:03}", part=f"{index}/{count}") for index in range(count)]


def specs_of(sink: Sink, parts: Sequence[SinkPart], options: SinkOptions) -> list[ShardSpec]:
    """Return a shard for each part.

    Raises:
        ValidationError: an option or a setting is not possible, or two parts would have one id.
    """
    prefix = options.prefix or f"{sink.kind.value}/{sink.to}"
    specs: dict[str, ShardSpec] = {}
    for part in parts:
        shard_id = _NOT_IN_IDS.sub("_", f"{prefix}/{part.name}".strip("/"))
        if shard_id in specs:
            raise ValidationError("--prefix", f"two shards would have the id {shard_id}")
        spec = specs[shard_id] = ShardSpec(
            id=shard_id,
            sources=[ShardSpec.Source(journal=part.journal)] if part.journal else [],
            hot_standbys=options.hot_standbys,
            disable=options.disabled,
            labels=labels_of_sink(sink),
        )
        if part.part:
            spec.labels.CopyFrom(union(spec.labels, label_set((SOURCE_PART, part.part))))
        spec.min_txn_duration.CopyFrom(parse_duration(options.min_txn, "--min-txn"))
        spec.max_txn_duration.CopyFrom(parse_duration(options.max_txn, "--max-txn"))
        validate_shard_spec(spec)
    return list(specs.values())


def require_carried_once(specs: Sequence[ShardSpec], present: Sequence[ShardSpec]) -> None:
    """Refuse shards that would send again what another shard sends to the same place.

    Args:
        specs: New shards of a sink.
        present: All shards.

    Raises:
        ValidationError: a shard of another id carries one of the journals, or the topic, there; it is named.
    """
    ours = {spec.id for spec in specs}
    carried = {each: spec.id for spec in present if spec.id not in ours for each in _carried(spec)}
    for spec in specs:
        for each in _carried(spec):
            if each in carried:
                raise ValidationError(
                    "--prefix",
                    f"shard {carried[each]} carries {each.what} to {each.to} already, so each record would be there "
                    "twice: delete that shard first; or, if twice is meant, apply what --print shows",
                )


class _Carried(NamedTuple):
    """Something that a shard carries out."""

    what: str
    """The journal, or the topic."""
    kind: SinkKind
    to: str
    at: str
    """Address of the other system, as the setting has it."""


def _carried(spec: ShardSpec) -> list[_Carried]:
    try:
        sink = sink_of(spec.labels)
    except ValidationError:
        return []  # Another application's.
    carried = [sink.from_topic] if sink.from_topic else [each.journal for each in spec.sources]
    at = sink.settings.get("bootstrap.servers", sink.settings.get("uri", ""))
    return [_Carried(what, sink.kind, sink.to, at) for what in carried]


async def apply_sink(
    connection: Connection, sink: Sink, source: SourceOptions, options: SinkOptions
) -> None:
    """Apply a shard for each journal, or each part of the topic, or print them.

    Raises:
        ValidationError: an option or a setting is not possible, or another shard carries the same to the same place.
        ApplyConflictError: one of the ids is taken.
    """
    if sink.kind is SinkKind.KAFKA:
        from broadsheet.consumer.relay.kafka_outlet import check_settings

        check_settings(sink.settings)
    else:
        from broadsheet.consumer.relay.table_outlet import refuse_table_secrets

        refuse_table_secrets(sink.settings)
    if sink.from_topic:
        if source.journals or source.selector:
            raise ValidationError("--from-topic", "expected either a topic or journals")
        parts, relay = parts_of_topic(source.parts), TOPIC_RELAY
    else:
        async with connection.journals() as journals:
            names = await selected_names(journals, source.journals, source.selector)
        parts, relay = [SinkPart(name, name) for name in names], RELAY
    await _apply(connection, specs_of(sink, parts, options), options, relay=relay)


async def _apply(
    connection: Connection, specs: Sequence[ShardSpec], options: SinkOptions, *, relay: str
) -> None:
    """Apply new shards, or print them."""
    if options.print_only:
        listed = [ListResponse.Shard(spec=spec) for spec in specs]
        click.echo(format_shard_space(space_of_listing(listed)), nl=False)
        return
    async with connection.shards() as shards:
        require_carried_once(specs, [each.spec for each in (await shards.list()).shards])
        await shards.apply([ApplyRequest.Change(upsert=spec) for spec in specs])
    for spec in specs:
        click.echo(spec.id)
    say(f"applied {counted(len(specs), 'shard')}; members of `shardctl serve {relay}` serve them")
