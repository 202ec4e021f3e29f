"""YAML files of journals and shards that a driver applies: those of `shardctl journals apply` and `shards apply`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broadsheet.cli.journals.space import read_journal_changes
from broadsheet.cli.shards.space import places_of, read_shard_changes
from broadsheet.cli.specs.changes import ANY_REVISION
from broadsheet.cli.specs.files import errors_name_places
from broadsheet.cli.text_files import read_text
from broadsheet.wire.journal_pb2 import ApplyRequest as JournalApply
from broadsheet.wire.shard_pb2 import ApplyRequest


@dataclass(frozen=True, slots=True)
class ShardFile:
    """The shards of a file."""

    source: str
    changes: Sequence[ApplyRequest.Change]

    @contextmanager
    def errors_named(self) -> Iterator[None]:
        """Have errors of changes name their places in the file."""
        with errors_name_places(self.source, places_of(self.changes)):
            yield


def read_journals(path: Path) -> Sequence[JournalApply.Change]:
    """Return the changes of a file of journals, of any revision.

    Raises:
        ValidationError: the file cannot be read, or is wrong.
    """
    changes = read_journal_changes(*read_text(path, option="journals"))
    for change in changes:
        change.expect_mod_revision = ANY_REVISION
    return changes


def read_shards(path: Path) -> ShardFile:
    """Return the shards of a file, of any revision.

    Raises:
        ValidationError: the file cannot be read, or is wrong.
    """
    text, source = read_text(path, option="specs")
    return ShardFile(source, read_shard_changes(text, source))
