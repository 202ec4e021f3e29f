"""What a file of specs comes to, compared with what there is; labels as kubectl writes them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from broadsheet.cli.journals.specs import JOURNALS
from broadsheet.cli.main import main
from broadsheet.cli.shards.specs import SHARDS
from broadsheet.cli.specs.changes import ANY_REVISION, Outcome, compare, difference
from broadsheet.cli.specs.files import specs_files
from broadsheet.cli.specs.kind import Change, Stored
from broadsheet.cli.specs.label import parse_label_edits
from broadsheet.cli.text_files import read_text
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.labels import label_set
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.broker import journal_spec

REVISION = 7


def _spec(*, standbys: int = 0) -> ShardSpec:
    spec = ShardSpec(id="flights-000", hot_standbys=standbys)
    spec.max_txn_duration.FromSeconds(1)
    return spec


def _listed(spec: ShardSpec) -> Stored[ShardSpec]:
    return Stored(spec.id, spec, REVISION)


def _asked(spec: ShardSpec | None, revision: int = 0) -> Change[ShardSpec]:
    return Change("flights-000", spec, revision)


@pytest.mark.parametrize(
    ("revision", "standbys", "outcome", "is_stale"),
    [
        (0, 0, Outcome.UNCHANGED, False),
        (REVISION, 0, Outcome.UNCHANGED, False),
        (3, 0, Outcome.UNCHANGED, False),  # another revision, but nothing to write
        (0, 1, Outcome.CONFIGURED, False),
        (REVISION, 1, Outcome.CONFIGURED, False),
        (ANY_REVISION, 1, Outcome.CONFIGURED, False),
        (3, 1, Outcome.CONFIGURED, True),
    ],
)
def test_spec_that_is_there_is_written_only_if_it_differs(
    revision: int, standbys: int, outcome: Outcome, *, is_stale: bool
) -> None:
    """A file is applied again and again; what it says is written once, and never over somebody else's change."""
    asked = _asked(_spec(standbys=standbys), revision)

    (made,), conflicts = compare(SHARDS, [asked], [_listed(_spec())])

    assert made.outcome is outcome
    assert made.change.revision == REVISION
    assert bool(conflicts) is is_stale
    assert not is_stale or conflicts == "flights-000 is at revision 7, the file says 3"


@pytest.mark.parametrize("revision", [0, REVISION, ANY_REVISION])
def test_spec_that_is_not_there_is_created_whatever_its_revision(revision: int) -> None:
    """A backup has revisions of a cluster that is gone: it must restore into an empty one."""
    asked = _asked(_spec(), revision)

    (made,), conflicts = compare(SHARDS, [asked], [])

    assert (made.outcome, made.change.revision, conflicts) == (Outcome.CREATED, 0, "")


def test_deletion_is_done_once() -> None:
    """A file that deletes may be applied again: what is gone is as it says."""
    asked = _asked(None, ANY_REVISION)

    (first,), _ = compare(SHARDS, [asked], [_listed(_spec())])
    (second,), _ = compare(SHARDS, [asked], [])

    assert (first.outcome, first.change.revision) == (Outcome.DELETED, REVISION)
    assert second.outcome is Outcome.UNCHANGED


def test_durations_that_mean_the_same_are_no_difference() -> None:
    """A duration of zero and none are two messages and one spec: a file cannot say which."""
    with_zero = _spec()
    with_zero.min_txn_duration.FromSeconds(0)

    (made,), _ = compare(SHARDS, [_asked(_spec())], [_listed(with_zero)])

    assert made.outcome is Outcome.UNCHANGED


def test_difference_shows_the_fields_that_change() -> None:
    """Somebody who applies a file reads what it would do to each spec, in the file's own words."""
    asked = [_asked(_spec(standbys=1))]
    (changed,), _ = compare(SHARDS, asked, [_listed(_spec())])
    (created,), _ = compare(SHARDS, asked, [])
    gone = _asked(None, ANY_REVISION)
    (deleted,), _ = compare(SHARDS, [gone], [_listed(_spec())])

    text = difference(SHARDS, changed)
    assert text.startswith("--- stored/flights-000\n+++ asked/flights-000\n")
    assert "\n+  hot_standbys: 1\n" in text
    assert "revision" not in text
    assert "common" not in text
    assert "\n+- id: flights-000\n" in difference(SHARDS, created)
    assert "\n-- id: flights-000\n" in difference(SHARDS, deleted)


def test_journals_are_compared_alike() -> None:
    """Both kinds have one rule."""
    spec = journal_spec("flights/part-000")
    stored = Stored(spec.name, spec, REVISION)
    (asked,) = JOURNALS.read(JOURNALS.text([stored]).replace(f"revision: {REVISION}", ""), "file")
    assert asked.revision == 0

    (made,), _ = compare(JOURNALS, [asked], [stored])

    assert made.outcome is Outcome.UNCHANGED


def test_labels_are_set_replaced_and_removed() -> None:
    """As with kubectl: a value that is there is replaced only if asked for, and NAME- removes all values of a name."""
    labels = label_set(("app", "flights"), ("zone", "a"), ("zone", "b"))
    edits = parse_label_edits(["app=flights", "stage=test", "zone-", "none-"])

    edited = edits.applied("flights-000", labels, overwrite=False)

    assert edited == label_set(("app", "flights"), ("stage", "test"))
    with pytest.raises(ValidationError, match="zone: flights-000 has it with the value 'a,b'"):
        parse_label_edits(["zone=c"]).applied("flights-000", labels, overwrite=False)
    overwritten = parse_label_edits(["zone=c"]).applied("flights-000", labels, overwrite=True)
    assert overwritten == label_set(("app", "flights"), ("zone", "c"))


@pytest.mark.parametrize("words", [[], ["app"], ["=x"], ["-"], ["a=1", "a-"], ["a=1", "a=2"]])
def test_words_that_are_no_label_are_refused(words: list[str]) -> None:
    """A mistyped word must not be taken for a label that is then set on a thousand shards."""
    with pytest.raises(ValidationError, match="LABEL: expected"):
        parse_label_edits(words)


def test_directory_is_read_by_its_yaml_files(tmp_path: Path) -> None:
    """Files of a directory in the order of their names; other files, and directories below, are not specs."""
    for name in ("b.yaml", "a.yml", "readme.md"):
        (tmp_path / name).touch()
    (tmp_path / "below").mkdir()

    found = specs_files([tmp_path, Path("-")])

    assert found == [tmp_path / "a.yml", tmp_path / "b.yaml", Path("-")]
    with pytest.raises(ValidationError, match=r"below has no file \*\.yaml"):
        specs_files([tmp_path / "below"])
    with pytest.raises(ValidationError, match="--filename: cannot read"):
        read_text(tmp_path / "missing.yaml", option="--filename")


@pytest.mark.parametrize("verb", ["apply", "delete", "diff", "edit", "label", "list"])
def test_verb_that_both_kinds_have_takes_the_same_options(verb: str) -> None:
    """What somebody knows of shards holds for journals: one factory makes both commands."""
    shards, journals = (
        {
            option
            for param in _command(group, verb).params
            if isinstance(param, click.Option)
            for option in param.opts
        }
        for group in ("shards", "journals")
    )

    # Only shards refer to something that can be looked up or created, and have replicas and sources.
    of_shards = {
        "apply": {"--no-verify-journals", "-y", "--yes"},
        "list": {"-r", "--replicas", "--lag"},
    }
    # Only journals are referred to by what is not deleted with them.
    of_journals = {verb: {"--force"} for verb in ("apply", "delete", "edit")}
    assert shards - of_shards.get(verb, set()) == journals - of_journals.get(verb, set())


def _command(group: str, verb: str) -> click.Command:
    found = main.commands[group]
    assert isinstance(found, click.Group)
    command = found.get_command(click.Context(found), verb)
    assert command is not None
    return command
