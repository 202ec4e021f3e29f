"""`label` of shards and journals, as kubectl writes labels."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Final

import click

from broadsheet.cli.connection import Connection
from broadsheet.cli.options import (
    DryRun,
    Parameter,
    PerKind,
    SelectorInPlace,
    command_options,
    flag,
)
from broadsheet.cli.specs.changes import apply_changes
from broadsheet.cli.specs.kind import Change, Kind, SpecT
from broadsheet.cli.specs.verb import AnyKind, Selection, SpecVerb
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire import journal_pb2
from broadsheet.wire.labels import label_set, values_of


def _words(kind: AnyKind) -> Parameter:
    return click.argument(
        "words",
        nargs=-1,
        required=True,
        metavar=f"[{kind.noun.upper()}] NAME=VALUE|NAME-...",
        shell_complete=kind.complete,
    )


@command_options
class _LabelOptions:
    words: Annotated[tuple[str, ...], PerKind(_words)]
    """The name, unless there is a selector, and the edits."""
    selector: SelectorInPlace
    overwrite: bool = flag("Also replace values that labels have already.")
    dry_run: DryRun


@dataclass(frozen=True, slots=True)
class LabelEdits:
    """Labels to set, and to take away."""

    wanted: dict[str, str]
    unwanted: frozenset[str]

    def applied(
        self, name: str, labels: journal_pb2.LabelSet, *, overwrite: bool
    ) -> journal_pb2.LabelSet:
        """Return a set of labels with the edits.

        Raises:
            ValidationError: a label has another value, and may not be overwritten.
        """
        for label, value in self.wanted.items():
            present = values_of(labels, label)
            if present and present != [value] and not overwrite:
                said = ",".join(present)
                raise ValidationError(
                    f"label {label}",
                    f"{name} has it with the value {said!r}; --overwrite replaces that",
                )
        edited = self.unwanted | self.wanted.keys()
        kept = [(each.name, each.value) for each in labels.labels if each.name not in edited]
        return label_set(*kept, *self.wanted.items())


def parse_label_edits(words: Sequence[str]) -> LabelEdits:
    """Return the edits that words such as `app=flights` and `stage-` ask for.

    Raises:
        ValidationError: a word is neither, or two are about one label.
    """
    wanted: dict[str, str] = {}
    unwanted: set[str] = set()
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and word.endswith("-"):
            name = word[:-1]
        elif not equals:
            raise ValidationError("LABEL", f"expected NAME=VALUE or NAME-, got {word!r}")
        if not name or name in wanted or name in unwanted:
            raise ValidationError("LABEL", f"expected each label once, and named, got {word!r}")
        if equals:
            wanted[name] = value
        else:
            unwanted.add(name)
    if not wanted and not unwanted:
        raise ValidationError("LABEL", "expected at least one NAME=VALUE or NAME-")
    return LabelEdits(wanted, frozenset(unwanted))


async def _label(kind: Kind[SpecT], connection: Connection, options: _LabelOptions) -> None:
    named = 0 if options.selector else 1
    wanted = parse_label_edits(options.words[named:])
    async with kind.over(connection) as client:
        listed = await Selection(names=options.words[:named], selector=options.selector).of(client)
        changes = []
        for each in listed:
            labels = wanted.applied(each.name, each.spec.labels, overwrite=options.overwrite)
            if labels != each.spec.labels:
                spec = deepcopy(each.spec)
                spec.labels.CopyFrom(labels)
                changes.append(Change(each.name, spec, each.revision))
        if not options.dry_run and changes:
            await apply_changes(client, changes)
    suffix = " (dry run)" if options.dry_run else ""
    changed = {change.name for change in changes}
    for each in listed:
        click.echo(f"{each.name} {'labelled' if each.name in changed else 'unchanged'}{suffix}")


LABEL: Final = SpecVerb("label", _LabelOptions, _label)
