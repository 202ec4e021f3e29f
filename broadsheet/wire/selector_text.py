"""Text form of selectors, for terminals and configuration: parser and formatter.

    term  =  name "=" value | name "==" value | name "!=" value
          |  name "in" "(" value, ... ")"  |  name "notin" "(" ... ")"  |  name "not in" "(" ... ")"
          |  name  |  "!" name
    text  =  terms separated by commas; a name may end in ":prefix", which makes its values prefixes

A repeated included name widens the selector: `a=x,a=y` means "a is x or y". Blanks between tokens are ignored.

Source: gazette/core broker/protocol/label_selector_extensions.go (ParseLabelSelector, String).
"""

from __future__ import annotations

import re

from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.alphabet import shown
from broadsheet.wire.journal_pb2 import Label, LabelSelector, LabelSet
from broadsheet.wire.validation_terms import validate_selector

# `\w` is letters, numbers and underscore, as in the alphabet of tokens; lengths are checked by validation.
_TERM = re.compile(
    r"""\s*
    (?P<absent>!\s*)?
    (?P<name>[\w\-+/.]{2,})(?P<prefix>:prefix)?
    (?:
        \s+(?P<set_operator>not\s*in|in)\s*\((?P<values>[^()]*)\)
      | \s*(?P<operator>!=|==|=)\s*(?P<value>[\w\-+/.=%]*)
    )?
    \s*(?P<end>,|$)""",
    re.VERBOSE,
)
_GRAMMAR = "a=b, a!=b, a in (x,y), a notin (x,y), a or !a"


def parse_selector(text: str) -> LabelSelector:
    """Return the selector that `text` describes; empty text selects everything.

    Raises:
        ValidationError: the text is outside the grammar, or the selector breaks a rule of label sets.
    """
    include: list[Label] = []
    exclude: list[Label] = []
    position = 0
    if text.strip():
        while True:
            term = _TERM.match(text, position)
            if term is None or (term["absent"] and (term["operator"] or term["set_operator"])):
                raise ValidationError(
                    "selector",
                    f"expected terms such as {_GRAMMAR}, got {shown(text[position:].strip())} "
                    f"at character {position}",
                )
            negated = bool(term["absent"]) or term["operator"] == "!="
            negated = negated or (term["set_operator"] or "").startswith("not")
            (exclude if negated else include).extend(_labels_of(term))
            position = term.end()
            if not term["end"]:
                break
    parsed = LabelSelector(
        include=LabelSet(labels=_sorted(include)) if include else None,
        exclude=LabelSet(labels=_sorted(exclude)) if exclude else None,
    )
    validate_selector(parsed, "selector")
    return parsed


def format_selector(selector: LabelSelector) -> str:
    """Return the text that `parse_selector` reads back to an equal selector."""
    terms: list[str] = []
    for labels, is_, in_, alone in (
        (selector.include, "=", "in", ""),
        (selector.exclude, "!=", "notin", "!"),
    ):
        for (name, prefix), values in _grouped(labels).items():
            shown_name = f"{name}:prefix" if prefix else name
            if values == [""]:
                terms.append(f"{alone}{shown_name}")
            elif len(values) == 1:
                terms.append(f"{shown_name}{is_}{values[0]}")
            else:
                terms.append(f"{shown_name} {in_} ({','.join(values)})")
    return ",".join(terms)


def _labels_of(term: re.Match[str]) -> list[Label]:
    values = [""]
    if term["set_operator"]:
        values = [value.strip() for value in term["values"].split(",")]
    elif term["operator"]:
        values = [term["value"]]
    return [Label(name=term["name"], value=value, prefix=bool(term["prefix"])) for value in values]


def _sorted(labels: list[Label]) -> list[Label]:
    return sorted(labels, key=lambda label: (label.name, label.value))


def _grouped(labels: LabelSet) -> dict[tuple[str, bool], list[str]]:
    grouped: dict[tuple[str, bool], list[str]] = {}
    for label in labels.labels:
        grouped.setdefault((label.name, label.prefix), []).append(label.value)
    return grouped
