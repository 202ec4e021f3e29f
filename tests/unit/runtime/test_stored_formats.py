"""Every stored format names the reader that it needs, and a document of a later release is refused as that."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from broadsheet.allocator.format_levels import decode_level
from broadsheet.allocator.leader.election import ELECTION, EpochRecord, LeaderRecord
from broadsheet.allocator.leader.move_records import MOVES, MoveLogEntry
from broadsheet.allocator.leader.plan_store import PLAN, PlanHead
from broadsheet.allocator.ops import KeyValue
from broadsheet.broker.stored_lineage import decode_stored_lineage
from broadsheet.cli.backup.file import read_backup
from broadsheet.consumer.commands.commands import ANSWER
from broadsheet.consumer.direct.record_intents import parse_intent
from broadsheet.consumer.elastic.fork import decode_fork
from broadsheet.consumer.elastic.journal_split import decode_journal_split
from broadsheet.consumer.elastic.merge import decode_merge
from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.keyed.imports.manifest import decode_manifest
from broadsheet.consumer.keyed.recording import KeyedFiles
from broadsheet.consumer.recoverylog.hints import decode_hints
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.recoverylog.ownership import decode_owner
from broadsheet.consumer.recoverylog.prune_plan import decode_quarantine
from broadsheet.consumer.shard.crash_loop import DEATHS, DeathRecord
from broadsheet.consumer.shard.rollback.records import check_reader as check_rollback
from broadsheet.consumer.shard.source_resets import SOURCE_RESET
from broadsheet.consumer.sources.kafka.places import offset_of, topic_entry
from broadsheet.consumer.sources.kinesis.places import decode_resume, decode_stream_entry
from broadsheet.consumer.stores.aggregate.recording import AggregateFiles
from broadsheet.consumer.stores.change_files import ChangeFiles, RecordedFrame, RecordedLayout
from broadsheet.consumer.stores.store_record import (
    AGGREGATE,
    JSON,
    KEYED,
    StoreKind,
    StoreRecord,
    check_files,
    decode_record,
)
from broadsheet.journals.message.checkpoint import CHECKPOINT, unpacked_segment
from broadsheet.leases.codec import decode as decode_lease
from broadsheet.leases.migration.export_file import read_export
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.errors import BroadsheetError
from broadsheet.runtime.formats import Format
from broadsheet.spark_bridge.cluster.joining import DRIVER, DriverRecord
from broadsheet.spark_bridge.journal_sink.commit_record import decoded as decode_publication
from broadsheet.spark_bridge.journal_source.offsets import parse_offset
from broadsheet.wire.outputs_pb2 import RecordIntent
from broadsheet.wire.recovery_pb2 import SourceResetRecord
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.documents import REPOSITORY

LATER = b'{"min_reader":2,"of":["a","later","release"]}'


def _checkpoint(source: str) -> Checkpoint:
    found = Checkpoint()
    found.sources[source].resume = LATER
    return found


JSON_DOCUMENTS: dict[str, Callable[[], object]] = {
    "the head of a leader's plan": lambda: PLAN.decode_json(LATER, PlanHead),
    "the leader": lambda: ELECTION.decode_json(LATER, LeaderRecord),
    "the epoch": lambda: ELECTION.decode_json(LATER, EpochRecord),
    "an entry of the log of moves": lambda: MOVES.decode_json(LATER, MoveLogEntry),
    "the record of a shard's dead primaries": lambda: DEATHS.decode_json(LATER, DeathRecord),
    "the record of a log's dead bytes": lambda: decode_quarantine(LATER),
    "the record of a log's owner": lambda: decode_owner(LATER.decode()),
    "these hints": lambda: decode_hints(b'{"log":{"a":1},"min_reader":2}'),
    "the record of a driver": lambda: DRIVER.decode_json(LATER, DriverRecord),
    "the record of a store": lambda: decode_record(LATER),
    "a place in a topic of Kafka": lambda: topic_entry(_checkpoint("kafka/t"), "t"),
    "a place in a partition of Kafka": lambda: offset_of(_checkpoint("kafka/t/3"), ("t", 3)),
    "a place in a shard of Kinesis": lambda: decode_resume("kinesis:s/1", LATER),
    "a place in a stream of Kinesis": lambda: decode_stream_entry("kinesis:s", LATER),
    "the lease": lambda: decode_lease(LATER, key="shard-1"),
    "a publication": lambda: decode_publication(LATER, b"/key"),
    "offsets of journals in a checkpoint of Spark": lambda: parse_offset(json.loads(LATER)),
    "the checkpoint": lambda: CHECKPOINT.check(Checkpoint(min_reader=2).min_reader),
    "a reset of a source": lambda: SOURCE_RESET.check(SourceResetRecord(min_reader=2).min_reader),
    "the records that a checkpoint holds": lambda: parse_intent(
        RecordIntent(min_reader=2).SerializeToString(), "intent"
    ),
    "the record of a split": lambda: decode_fork(LATER),
    "the record of a merge": lambda: decode_merge(LATER),
    "the record of a divided journal": lambda: decode_journal_split(LATER),
    "the record of a rollback": lambda: check_rollback(LATER),
    "the answer of a command": lambda: ANSWER.decode_json(LATER, dict),
    "the manifest of an import": lambda: decode_manifest(LATER),
    "the cluster's level of formats": lambda: decode_level(
        KeyValue(
            key=b"/formats", value=LATER, create_revision=1, mod_revision=1, version=1, lease=0
        )
    ),
}
_OF_ONE_NAME = {
    "a record of the election": ("the leader", "the epoch"),
    "a place in a topic of Kafka": (
        "a place in a topic of Kafka",
        "a place in a partition of Kafka",
    ),
    "a place in a stream of Kinesis": (
        "a place in a shard of Kinesis",
        "a place in a stream of Kinesis",
    ),
}
"""Formats whose rows have other names."""
_DECLARED = re.compile(r'\bFormat\(\s*"([^"]+)"')


def test_every_format_that_the_code_declares_has_a_row() -> None:
    """A format that is added without a row would be refused in a way that no test has seen."""
    declared = {
        name
        for room in (REPOSITORY / "broadsheet").iterdir()
        for source in room.resolve().rglob("*.py")
        for name in _DECLARED.findall(source.read_text())
    }
    rows = {row for name in declared for row in _OF_ONE_NAME.get(name, (name,))}
    assert rows == set(JSON_DOCUMENTS)


@pytest.mark.parametrize("document", JSON_DOCUMENTS)
def test_document_that_needs_a_later_reader_is_refused_as_that(document: str) -> None:
    """The message names the format and the next step, and never blames damage: an operator would restore a backup."""
    with pytest.raises((BroadsheetError, DocumentError)) as refused:
        JSON_DOCUMENTS[document]()
    told = str(refused.value)
    assert re.search(r"a later release wrote .*, for readers from number 2 on, .* is 1: \w+", told)
    assert not re.search("damaged|restore|delete|expected", told)


@pytest.mark.parametrize("needed", [0, 1])
def test_document_that_any_reader_may_take_is_taken(needed: int) -> None:
    """Protobuf tells 0 from absent no more than JSON's writers of today do."""
    CHECKPOINT.check(needed)


@pytest.mark.parametrize("needed", ["2", None, 1.5, []])
def test_number_of_a_reader_that_is_none_is_refused(needed: object) -> None:
    """A later release may write a form of the number that this one does not know: it is later all the same."""
    with pytest.raises(DocumentError, match="a later release wrote x"):
        Format("x", "wait").check(needed)


NUMBERED: dict[str, Callable[[], object]] = {
    "lineage": lambda: decode_stored_lineage(
        b'{"version":2,"incarnation":"01","epochs":[],"newest":[]}'
    ),
    "backup": lambda: read_backup(['{"kind":"backup","version":2,"by":"b 3"}\n'], source="file"),
    "export of leases": lambda: read_export('{"broadsheet_leases":2}\n', "file"),
    "segment of producers": lambda: unpacked_segment(bytes((3, 0, 0, 0, 0))),
}


@pytest.mark.parametrize("document", NUMBERED)
def test_document_of_a_later_version_is_refused_with_both_numbers(document: str) -> None:
    """A version that is not ours is told with ours, and with what to start instead."""
    with pytest.raises((BroadsheetError, ValueError), match=r"expected .*(release|with 'b 3')"):
        NUMBERED[document]()


def test_store_of_a_later_format_is_left_to_the_release_that_wrote_it() -> None:
    """A store that opened as empty would apply all messages again; one that is new is not damaged."""
    told = check_files(JSON, ["state.json"], StoreRecord("json", 2))
    assert told.endswith("this one knows up to 1: let a member of that release serve the shard")


def _load_keyed(state: LocalState) -> None:
    list(KeyedFiles("s", state).load())


def _load_aggregate(state: LocalState) -> None:
    list(AggregateFiles("s", state, snapshot_bytes_min=1).load())


@pytest.mark.parametrize(("kind", "load"), [(KEYED, _load_keyed), (AGGREGATE, _load_aggregate)])
def test_change_file_of_a_later_version_is_refused_and_not_called_damaged(
    kind: StoreKind, load: Callable[[LocalState], None], tmp_path: Path
) -> None:
    """Its first frame says the version; whatever else a later release put there is not decoded."""
    state = LocalState(tmp_path)
    written = ChangeFiles(
        "s", state, kind, layout_type=RecordedLayout, frame_type=RecordedFrame, version=2
    )
    written.append(RecordedLayout(2), RecordedFrame(1))
    written.close()
    with pytest.raises(StoreError, match=r"version 2, expected 1: a later release wrote it; let a"):
        load(state)
