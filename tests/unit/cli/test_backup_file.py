"""The file of a backup: it returns as it was written, and what is not whole is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from broadsheet.cli.backup.file import Backup, SavedShard, backup_lines, read_backup
from broadsheet.cli.backup.restore import difference
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.labels import label_set
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ShardSpec

NOW = datetime(2026, 11, 27, tzinfo=UTC)


def saved() -> Backup:
    """Return a backup with one of each, and with what is hard to write."""
    spec = ShardSpec(id="orders-00", labels=label_set({"note": "line\u2028end ü"}))
    spec.max_txn_duration.FromMilliseconds(1500)
    hints = FSMHints(log="logs/orders-00")
    hints.live_nodes.add(fnode=2**60 + 1).segments.add(
        author=1, first_seq_no=2**62, last_seq_no=2**62 + 1
    )
    lease = LeaseRecord(key="shardId-0", checkpoint=Position("4711"), attrs={"zone": '"eu"'})
    return Backup(
        journals=[JournalSpec(name="orders", replication=3)],
        shards=[SavedShard(spec, hints), SavedShard(ShardSpec(id="plain"))],
        leases={"etcd:/orders": [lease]},
    )


def lines() -> list[str]:
    """Return its lines."""
    return list(backup_lines(saved(), written_at=NOW))


def test_backup_returns_as_it_was_written() -> None:
    """Numbers of 64 bits, line ends inside labels, and attributes of other systems among it."""
    assert read_backup(lines(), source="file") == saved()
    assert read_backup(backup_lines(Backup(), written_at=NOW), source="file") == Backup()


@pytest.mark.parametrize("kept", range(len(lines())))
def test_backup_that_was_cut_off_is_refused(kept: int) -> None:
    """A disk that was full at night must be found when the file is read, not when a shard is missing."""
    with pytest.raises(ValidationError, match="cut off"):
        read_backup(lines()[:kept], source="file")


@pytest.mark.parametrize("number", range(1, len(lines()) - 1))
def test_line_that_was_changed_or_left_out_is_refused(number: int) -> None:
    """What was edited by hand is applied by hand."""
    changed = lines()
    record = json.loads(changed[number])
    record["note"] = "changed"
    changed[number] = json.dumps(record) + "\n"
    with pytest.raises(ValidationError, match="sha256"):
        read_backup(changed, source="file")
    left_out = lines()
    del left_out[number]
    with pytest.raises(ValidationError, match="records"):
        read_backup(left_out, source="file")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nonsense\n", "file:1: expected a line of JSON"),
        ("[]\n", "file:1: expected an object"),
        ('{"kind":"journal","spec":{}}\n', "file:1: expected a line of kind 'backup'"),
        (
            '{"kind":"backup","version":2,"by":"broadsheet 3"}\n',
            "file:1.version: expected 1, got 2",
        ),
    ],
)
def test_other_files_are_refused_by_their_first_line(line: str, told: str) -> None:
    """A list of specs is easily taken for a backup, and a later release's form is not guessed."""
    with pytest.raises(ValidationError) as refused:
        read_backup([line], source="file")
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "shard"},
        {"kind": "shard", "spec": {"idd": "x"}},
        {"kind": "shard", "spec": {"id": "x"}, "hints": {"nonsense": 1}},
        {"kind": "journal", "spec": 7},
        {"kind": "lease", "store": "etcd:/x"},
        {"kind": "plan"},
        {},
    ],
)
def test_record_that_is_no_record_is_refused_with_its_line(record: object) -> None:
    """The error names the line, and nothing is restored of the rest."""
    with pytest.raises(ValidationError, match="file:2"):
        read_backup([lines()[0], json.dumps(record) + "\n"], source="file")


def test_cluster_that_differs_is_left_as_it_is() -> None:
    """A restore makes what is missing; what was changed since the backup is no business of its."""
    one, two = JournalSpec(name="a"), JournalSpec(name="b", replication=2)
    found = difference({"a": one, "b": two}, {"b": two, "c": one}, what="journal")
    assert (found.missing, found.same) == ([one], ["b"])
    with pytest.raises(ValidationError, match=r"1 journal of the cluster differ.*: b\. A restore"):
        difference({"b": two}, {"b": JournalSpec(name="b")}, what="journal")
