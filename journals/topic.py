"""A topic: journals of one content type, among which each message's journal is chosen.

A topic is named by a journal, by a prefix of journals' names that ends in a slash, or by a label selector. Programs
that publish from outside of a shard open one, and give its mapping to a `MessageWriter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal, TypeAlias

from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.content_type import ContentType
from broadsheet.journals.content.message_type import MessageType
from broadsheet.journals.content.registry import content_of
from broadsheet.journals.errors import JournalNotFoundError, NoPartitionsError
from broadsheet.journals.message.partitioning import (
    RULES,
    MappedJournal,
    Mapping,
    field_key,
    random_mapping,
)
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import JournalSpec, Label, LabelSelector, LabelSet
from broadsheet.wire.labels import CONTENT_TYPE, NAME, SPLIT_OF, parse_selector, value_of, values_of

Rule: TypeAlias = Literal["modulo", "rendezvous", "random"]
RANDOM: Final = "random"
"""The rule that looks at no key."""
RULE_NAMES: Final = (*RULES, RANDOM)


@dataclass(frozen=True, slots=True)
class Topic:
    """Journals of one content type, in the order of their names."""

    partitions: tuple[MappedJournal, ...]
    """One or more."""
    content: ContentType
    message_type: MessageType
    """Of their messages, as tools have them: dicts for JSON, lists for CSV."""

    def mapping(self, key: str | None = None, rule: Rule = "modulo") -> Mapping:
        """Return the mapping of messages to the topic's journals.

        Args:
            key: The field of a message whose value is its key; see `field_key`.
            rule: `modulo` and `rendezvous` choose by the key, as `modulo_mapping` and `rendezvous_mapping` do;
                `random` chooses any journal.

        Raises:
            ValidationError: there are several journals and no key to choose by, or a key that nothing looks at.
        """
        if rule not in RULE_NAMES:
            raise ValidationError("rule", f"expected one of {', '.join(RULE_NAMES)}, got {rule!r}")
        if rule == RANDOM:
            if key is not None:
                raise ValidationError("key", "a random mapping looks at no key; leave it out")
            return random_mapping(lambda: self.partitions, Random())
        if key is not None:
            return RULES[rule].mapping(field_key(key), lambda: self.partitions)
        if len(self.partitions) > 1:
            raise ValidationError(
                "key",
                f"{len(self.partitions)} journals match, {self.partitions[0].journal} is the first: expected the "
                "field to choose among them by, or the rule random",
            )
        only = self.partitions[0]
        return lambda _: only


async def open_topic(
    journals: JournalClient,
    name: str = "",
    *,
    selector: str | LabelSelector = "",
    message_class: type[Any] | None = None,
) -> Topic:
    """Return the topic of a journal, of all journals below a prefix, or of those that match a selector.

    The journals are those that there are now: open the topic again to notice new ones.

    Args:
        journals: Lists them.
        name: A journal, or the beginning of journals' names, up to and with a slash.
        selector: Label selector, in place of the name.
        message_class: Class of the messages; protobuf needs one.

    Raises:
        ValidationError: both are given, or neither; the journals are of several content types; or the class does not
            fit them.
        NoPartitionsError: nothing matches.
        JournalNotFoundError: there is no such journal.
        ContentTypeError: a journal holds no messages of a known content type.
        EndpointError: no broker could be reached.
    """
    specs = await _listed(journals, name, selector)
    content = content_of(value_of(specs[0].labels, CONTENT_TYPE), journal=specs[0].name)
    _require_alike(specs, content)
    await journals.learn_divided()
    specs = undivided_roots(specs)
    return Topic(
        tuple(MappedJournal(spec.name, content.name) for spec in specs),
        content,
        message_type_of(content, specs[0], message_class),
    )


def message_type_of(
    content: ContentType, spec: JournalSpec, message_class: type[Any] | None
) -> MessageType:
    """Return the type of a journal's messages, for a tool.

    Raises:
        ValidationError: the class is missing, or no class of such messages; or a library is not installed.
    """
    try:
        return content.message_type(spec.labels, message_class)
    except (TypeError, ValueError) as error:
        raise ValidationError("--message-type", f"{spec.name}: {error}") from error
    except ImportError as error:
        raise ValidationError("journal", f"{spec.name}: {error}") from error


async def _listed(
    journals: JournalClient, name: str, selector: str | LabelSelector
) -> Sequence[JournalSpec]:
    if bool(name) == bool(selector):
        raise ValidationError("name", "expected either a journal or prefix, or a selector")
    if name and not name.endswith("/"):
        return [(await journals.get(name)).spec]
    if name:
        wanted = LabelSelector(include=LabelSet(labels=[Label(name=NAME, value=name, prefix=True)]))
    else:
        wanted = parse_selector(selector) if isinstance(selector, str) else selector
    found = sorted((each.spec for each in (await journals.list(wanted)).journals), key=_name)
    if not found:
        if name:
            raise JournalNotFoundError(name, "no journal's name begins so")
        raise NoPartitionsError
    return found


def undivided_roots(specs: Sequence[JournalSpec]) -> list[JournalSpec]:
    """Return journals without the parts of others among them: publishers reach those by the key, behind the mapping.

    So no key changes its journal but for those of a journal that is divided.
    """
    names = {spec.name for spec in specs}
    return [spec for spec in specs if value_of(spec.labels, SPLIT_OF) not in names]


def _name(spec: JournalSpec) -> str:
    return spec.name


def _require_alike(specs: Sequence[JournalSpec], content: ContentType) -> None:
    """Refuse journals whose messages are encoded in different ways: a message must fit wherever it is mapped."""
    first = specs[0]
    for spec in specs:
        for label in (CONTENT_TYPE, *content.labels):
            here, there = values_of(spec.labels, label), values_of(first.labels, label)
            if here != there:
                raise ValidationError(
                    "name",
                    f"the journals' messages differ: {first.name} has {label}={','.join(there)}, {spec.name} has "
                    f"{','.join(here) or 'none'}; name a part of them by a selector",
                )
