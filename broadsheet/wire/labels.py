"""Label sets and selectors: construction, algebra and matching.

A label set is sorted by (name, value) and holds each pair once; a name may have several values. A selector picks the
sets in which every included name has one of its listed values and no excluded name has any. An empty listed value means
any value; a `prefix` label means every value that starts with it.

Source: gazette/core broker/protocol/label_extensions.go, label_selector_extensions.go, labels/labels.go.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.alphabet import shown
from broadsheet.wire.journal_pb2 import Label, LabelSelector, LabelSet
from broadsheet.wire.selector_text import (
    format_selector as format_selector,
    parse_selector as parse_selector,
)

CONTENT_TYPE = "content-type"
"""Framing of messages in a journal."""
MESSAGE_TYPE = "app.gazette.dev/message-type"
"""Name of the messages' type; needs a content type."""
MESSAGE_SUBTYPE = "app.gazette.dev/message-subtype"
"""Refines the message type."""
MANAGED_BY = "app.gazette.dev/managed-by"
"""The tool that owns the spec."""
INSTANCE = "app.gazette.dev/instance"
"""The application instance that a journal or shard belongs to."""
REGION = "app.gazette.dev/region"
"""Region where the journal or shard is served."""
TAG = "app.gazette.dev/tag"
"""Free tags; may have many values."""
NAME = "name"
"""Meta-label of a journal: its name. Not allowed in specs."""
PREFIX = "prefix"
"""Meta-label of a journal: a path that its name starts with. Not allowed in specs."""
ID = "id"
"""Meta-label of a shard: its id. Not allowed in specs."""
DEAD_LETTER_JOURNAL = "broadsheet.dev/dead-letter-journal"
"""Journal that takes messages at which a shard's application fails repeatedly, as JSON lines."""
RECOVERY_LOG_OF = "broadsheet.dev/recovery-log-of"
"""Former owner of a shard's recovery log, `/root` or `/root=id`, if its root or id was renamed."""
WEIGHT = "broadsheet.dev/weight"
"""Weight of one replica of a shard relative to those of other shards, a positive decimal; 1 if absent."""
FAMILY = "broadsheet.dev/family"
"""Name of the shards that divide the keys of their sources among them; the id of the first of them, if absent."""
KEY_BEGIN = "broadsheet.dev/key-begin"
"""First group of keys that a shard owns, four hexadecimal digits; 0000 if absent."""
KEY_END = "broadsheet.dev/key-end"
"""Group behind the last one that a shard owns, four hexadecimal digits; 1000 (all) if absent."""
FORK_OF = "broadsheet.dev/fork-of"
"""The shard from whose log a shard is being made by a split; it serves nothing until the label is gone."""
ABSORBS = "broadsheet.dev/absorbs"
"""The shard of the same family whose keys a shard is taking over by a merge."""
PUBLISHERS = "broadsheet.dev/publishers"
"""Set by an operator to `checked`: all that publish into a journal look whether it is divided."""
PUBLISHERS_CHECKED = "checked"
SPLIT_OF = "broadsheet.dev/split-of"
"""The journal of which another one takes a part of the keys, with the bounds `KEY_BEGIN` and `KEY_END`."""
SPLIT_EPOCH = "broadsheet.dev/split-epoch"
"""1 of a journal that is divided: publishers choose one of its parts. Also the name of its register."""
SPLIT_EPOCH_DIVIDED = "1"
SEALED_AT = "broadsheet.dev/sealed-at"
"""Offset behind the seal of a divided journal, decimal: its parts are read by who has read through it."""
ROLLED_BACK = "broadsheet.dev/rolled-back-"
"""Begins the name of a journal's register, before a producer's 12 hexadecimal digits: an operator has rolled its
transaction back, and it can append no more."""
SINGLE_VALUED = (
    ABSORBS,
    CONTENT_TYPE,
    DEAD_LETTER_JOURNAL,
    FAMILY,
    FORK_OF,
    INSTANCE,
    KEY_BEGIN,
    KEY_END,
    MANAGED_BY,
    MESSAGE_SUBTYPE,
    MESSAGE_TYPE,
    PUBLISHERS,
    RECOVERY_LOG_OF,
    REGION,
    SEALED_AT,
    SPLIT_EPOCH,
    SPLIT_OF,
    WEIGHT,
)
"""Names that may have one value at most."""
CONTENT_TYPE_RECOVERY_LOG = "application/x-gazette-recoverylog"
"""Operations of a recovery log."""
Pair = tuple[str, str]


def label_set(*pairs: Pair | Mapping[str, str]) -> LabelSet:
    """Build a label set, sorted and free of duplicates.

    Args:
        pairs: (name, value) pairs and mappings of values by name, in any order.
    """
    found: set[Pair] = set()
    for pair in pairs:
        if isinstance(pair, Mapping):
            found.update(pair.items())
        else:
            found.add(pair)
    return LabelSet(labels=[Label(name=name, value=value) for name, value in sorted(found)])


def selector(include: LabelSet | None = None, exclude: LabelSet | None = None) -> LabelSelector:
    """Build a selector from its two halves."""
    return LabelSelector(include=include, exclude=exclude)


def values_of(labels: LabelSet, name: str) -> list[str]:
    """Return the values of one name, in order; none if the set lacks it."""
    return [label.value for label in labels.labels if label.name == name]


def value_of(labels: LabelSet, name: str, default: str = "") -> str:
    """Return the first value of one name, or `default` if the set lacks it."""
    return next((label.value for label in labels.labels if label.name == name), default)


def union(labels: LabelSet, added: LabelSet) -> LabelSet:
    """Return `labels` in which each name of `added` has exactly the values of `added`."""
    by_name = _by_name(labels.labels) | _by_name(added.labels)
    return _from_lists(by_name)


def subtract(labels: LabelSet, removed: LabelSet) -> LabelSet:
    """Return `labels` without each name whose list of values equals the one in `removed`."""
    removed_by_name = _by_name(removed.labels)
    kept = {
        name: values
        for name, values in _by_name(labels.labels).items()
        if _pairs(removed_by_name.get(name, [])) != _pairs(values)
    }
    return _from_lists(kept)


def matches(
    wanted: LabelSelector, labels: LabelSet, *, meta: Mapping[str, str] | None = None
) -> bool:
    """Tell whether a selector picks a label set.

    Args:
        wanted: The selector. An empty one picks everything.
        labels: The set.
        meta: Meta-labels that count as part of the set, e.g. `{"name": journal}`.
    """
    included = wanted.include.labels
    # A fence's register, or the name of one journal: prepared for one set, a selector costs several times this.
    if len(included) == 1 and not wanted.exclude.labels:
        return _has_wanted(included[0], labels, meta)
    return LabelMatcher(wanted).picks(labels, meta=meta)


def _has_wanted(wanted: Label, labels: LabelSet, meta: Mapping[str, str] | None) -> bool:
    """Tell whether a label set has the one label that a selector includes."""
    name, value = wanted.name, wanted.value
    held = [label.value for label in labels.labels if label.name == name]
    if meta is not None and name in meta:
        held.append(meta[name])
    if wanted.prefix or not value:
        return any(each.startswith(value) for each in held)
    return value in held


class LabelMatcher:
    """A selector, prepared for many label sets: what one set costs grows with the set, not with the selector."""

    __slots__ = ("_excluded", "_included", "is_all")

    def __init__(self, wanted: LabelSelector) -> None:
        """Prepare a selector; it may be changed afterwards."""
        self.is_all = not wanted.include.labels and not wanted.exclude.labels
        """Whether it picks everything."""
        self._included = _Half(wanted.include.labels)
        self._excluded = _Half(wanted.exclude.labels)

    def picks(self, labels: LabelSet, *, meta: Mapping[str, str] | None = None) -> bool:
        """Tell whether the selector picks a label set; see `matches`."""
        if self.is_all:
            return True
        values: dict[str, list[str]] = {}
        for label in labels.labels:
            values.setdefault(label.name, []).append(label.value)
        for name, value in (meta or {}).items():
            values.setdefault(name, []).append(value)
        included, excluded = self._included, self._excluded
        # A set with fewer names than must be there lacks one of them.
        if len(included.names) > len(values):
            return False
        return not any(
            name in excluded.names and excluded.agree(name, held) for name, held in values.items()
        ) and all(name in values and included.agree(name, values[name]) for name in included.names)


class _Half:
    """A half of a selector. A name is prepared when a label set has it, because most sets have few of many names."""

    __slots__ = ("_prepared", "names")

    def __init__(self, labels: Iterable[Label]) -> None:
        self.names: dict[str, list[tuple[str, bool]]] = {}
        """What is said of each name: a value, and whether it is a prefix."""
        for label in labels:
            self.names.setdefault(label.name, []).append((label.value, label.prefix))
        self._prepared: dict[str, _WantedValues] = {}

    def agree(self, name: str, values: Iterable[str]) -> bool:
        """Tell whether one of the values that a set has for one of the names is wanted."""
        wanted = self._prepared.get(name)
        if wanted is None:
            wanted = self._prepared[name] = _WantedValues(self.names[name])
        return wanted.agree(values)


class _WantedValues:
    """The rule of a half of a selector for one name."""

    __slots__ = ("_exact", "_is_any", "_prefixes")

    def __init__(self, given: Sequence[tuple[str, bool]]) -> None:
        self._is_any = any(not value for value, _ in given)
        self._exact = frozenset(value for value, is_prefix in given if not is_prefix)
        self._prefixes = _shortest(value for value, is_prefix in given if is_prefix)

    def agree(self, values: Iterable[str]) -> bool:
        """Tell whether one of the values is wanted."""
        return self._is_any or any(value in self._exact or self._begins(value) for value in values)

    def _begins(self, value: str) -> bool:
        # None of the prefixes begins another one, so a prefix of the value is the last that does not come after it.
        place = bisect_right(self._prefixes, value)
        return place > 0 and value.startswith(self._prefixes[place - 1])


def _shortest(prefixes: Iterable[str]) -> list[str]:
    """Return prefixes in order, without those that begin with another one of them."""
    kept: list[str] = []
    for prefix in sorted(prefixes):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return kept


def registers_match(wanted: LabelSelector, registers: LabelSet) -> bool:
    """Tell whether a check of a journal's registers passes: an empty register set satisfies any check."""
    return not registers.labels or matches(wanted, registers)


def expand_prefix(wanted: LabelSelector) -> LabelSelector:
    """Return the selector with the meta-label `prefix` rewritten to a prefix match on `name`.

    Including both `name=a` and `prefix=b/` therefore means "is a, or starts with b/".
    """
    return LabelSelector(
        include=_expand_set(wanted.include) if wanted.HasField("include") else None,
        exclude=_expand_set(wanted.exclude) if wanted.HasField("exclude") else None,
    )


def _expand_set(labels: LabelSet) -> LabelSet:
    rewritten = [
        Label(name=NAME, value=label.value, prefix=True) if label.name == PREFIX else label
        for label in labels.labels
    ]
    return LabelSet(labels=sorted(rewritten, key=_key))


def _by_name(labels: Iterable[Label]) -> dict[str, list[Label]]:
    by_name: dict[str, list[Label]] = {}
    for label in labels:
        by_name.setdefault(label.name, []).append(label)
    return by_name


def _from_lists(by_name: Mapping[str, Iterable[Label]]) -> LabelSet:
    return LabelSet(
        labels=sorted((label for labels in by_name.values() for label in labels), key=_key)
    )


def _key(label: Label) -> Pair:
    return label.name, label.value


def _pairs(labels: Iterable[Label]) -> list[Pair]:
    return [_key(label) for label in labels]


# Weight label of a shard, counted in thousandths so that sums are exact.

WEIGHT_THOUSANDTHS_MAX = 1_000_000_000
"""A million: sums over a million shards are still exact in every representation."""
_DECIMAL = re.compile(r"([0-9]{1,7})(?:\.([0-9]{1,3}))?")


def weight_thousandths(labels: LabelSet) -> int | None:
    """Return the declared weight in thousandths, from 1; None if there is no such label.

    Raises:
        ValidationError: the label's value is no weight.
    """
    values = values_of(labels, WEIGHT)
    if not values:
        return None
    match = _DECIMAL.fullmatch(values[0])
    thousandths = int(match[1]) * 1000 + int((match[2] or "").ljust(3, "0")) if match else 0
    if not 0 < thousandths <= WEIGHT_THOUSANDTHS_MAX:
        raise ValidationError(
            f"labels[{WEIGHT}]",
            "expected a decimal above 0, up to 1000000, with at most three places, such as 2 or 0.25; "
            f"got {shown(values[0])}",
        )
    return thousandths


def is_scoped(selector: LabelSelector) -> bool:
    """Report whether claims restrict their holder to some shards."""
    return bool(selector.include.labels or selector.exclude.labels)
