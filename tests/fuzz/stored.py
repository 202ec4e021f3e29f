"""Decoders of what etcd, stores, brokers, lease tables and Spark's checkpoints keep."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError, Message

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.leader import move_records, stored_plan
from broadsheet.allocator.leader.election import (
    CandidateRecord,
    EpochRecord,
    LeaderRecord,
    decoded_or_none,
)
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.broker import commit_log
from broadsheet.consumer.errors import (
    ForeignLogError,
    LogDataLossError,
    SourceDataLossError,
    StoreError,
)
from broadsheet.consumer.member.load_report import decode_report
from broadsheet.consumer.recoverylog.foreign_bytes import OwnOperations, examined
from broadsheet.consumer.recoverylog.hints import decode_hints, encode_hints
from broadsheet.consumer.recoverylog.operation import OperationDecoder, framed
from broadsheet.consumer.recoverylog.ownership import (
    OWNER_PATH,
    LogClaim,
    LogOwner,
    check_claim,
    encode_owner,
)
from broadsheet.consumer.recoverylog.prune_plan import decode_quarantine
from broadsheet.consumer.registry.key_space import ShardDecoder
from broadsheet.consumer.sources.kafka.places import begun_again, topic_entry
from broadsheet.consumer.sources.kinesis.places import decode_resume, decode_stream_entry
from broadsheet.consumer.stores.json_file import decode_documents, encode_documents
from broadsheet.consumer.stores.store_record import StoreRecord, decode_record, encode_record
from broadsheet.consumer.stores.stored_checkpoint import stored_checkpoint, whole_checkpoint
from broadsheet.journals.append_wire import (
    PLAIN_BYTES_MAX,
    WholeAppend,
    decode_appends,
    encode_appends,
)
from broadsheet.journals.message.checkpoint import packed_segment, segment_id, unpacked_segment
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.journals.wire import decode_read, parse_append
from broadsheet.leases import codec
from broadsheet.leases.errors import InvalidStateError
from broadsheet.leases.migration.export_file import export_lines, read_export
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.stores.azure.container import Blob
from broadsheet.leases.stores.azure.eph import body_of, read_body
from broadsheet.leases.stores.azure.event_hubs_blobs import merged
from broadsheet.leases.stores.dynamodb.kcl_java import KclJavaLayout
from broadsheet.leases.stores.dynamodb.layout import Layout, NativeLayout
from broadsheet.leases.stores.dynamodb.vmware_go import VmwareGoLayout
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.journal_sink import commit_record as sink_record
from broadsheet.spark_bridge.journal_source.offsets import parse_offset
from broadsheet.spark_bridge.member.identity import Host, decode_host, encode_host
from broadsheet.wire import shard_pb2
from broadsheet.wire.appends_pb2 import AppendStreamRequest
from broadsheet.wire.journal_pb2 import AppendRequest, JournalSpec, ProcessSpec, ReadResponse
from broadsheet.wire.load_pb2 import MemberLoad
from broadsheet.wire.recorded_op_pb2 import FSMHints, RecordedOp
from broadsheet.wire.shard_metadata import READ_THROUGH, token_in
from tests.fuzz.decoder import FuzzedDecoder

_MEMBER: Final = MemberId("zone-a", "member-1")
_LEASE: Final = LeaseRecord(
    key="shard-1",
    epoch=3,
    counter=17,
    owner="worker-a",
    checkpoint=Position("495900", sub=2),
    parents=frozenset({"shard-0"}),
    attrs={"note": '{"a":[1,2]}'},
)
_NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)


def _seeds(*values: bytes) -> Callable[[], Sequence[bytes]]:
    return lambda: values


def _messages(*messages: Message) -> Callable[[], Sequence[bytes]]:
    return lambda: [message.SerializeToString() for message in messages]


def _text(data: bytes) -> str:
    """Return bytes as a store of texts hands them out."""
    return data.decode("utf-8", errors="surrogateescape")


def _kv(key: bytes, value: bytes) -> KeyValue:
    return KeyValue(key=key, value=value, create_revision=1, mod_revision=2, version=1, lease=0)


# -- etcd: the key space


def _checkpoint() -> shard_pb2.Checkpoint:
    checkpoint = shard_pb2.Checkpoint()
    source = checkpoint.sources["in/a"]
    source.read_through = 4096
    source.producers.add(id=b"\x01\x02\x03\x04\x05\x06").state.last_ack = 1 << 40
    source.producers.add(id=b"\x01\x02\x03\x04\x05\x07").state.begin = 512
    content = packed_segment([(9, 8)], [5])
    source.segments.add(id=segment_id(content), content=content)
    source.forgotten = b"\0\0\0\0\0\7"
    checkpoint.ack_intents["out/a"] = b'{"_meta":{"uuid":""}}\n'
    return checkpoint


def _shard_spec() -> shard_pb2.ShardSpec:
    spec = shard_pb2.ShardSpec(id="shard-1", hot_standbys=1, hint_backups=2)
    spec.sources.add(journal="in/a", min_offset=7)
    spec.max_txn_duration.seconds = 1
    spec.labels.labels.add(name="app", value="x")
    return spec


def _member_spec() -> shard_pb2.ConsumerSpec:
    spec = shard_pb2.ConsumerSpec(shard_limit=10)
    spec.process_spec.id.CopyFrom(ProcessSpec.ID(zone=_MEMBER.zone, suffix=_MEMBER.suffix))
    spec.process_spec.endpoint = "http://127.0.0.1:8080"
    return spec


def _load() -> MemberLoad:
    load = MemberLoad(capacity=2)
    load.shards.add(shard_id="shard-1", bytes_per_second=100.0, cpu_seconds_per_second=0.5)
    load.standbys.add(shard_id="shard-2", behind_bytes=4096, behind_seconds=0.5)
    return load


_KEYS: Final = Keys("/root")
_DECODER: Final = ShardDecoder(hot_standbys_max=2)


def _item(data: bytes) -> None:
    _DECODER.decode_item(ItemId("shard-1"), _kv(_KEYS.item(ItemId("shard-1")), data))


def _member(data: bytes) -> None:
    _DECODER.decode_member(_MEMBER, _kv(_KEYS.member(_MEMBER), data))


def _assignment(data: bytes) -> None:
    key = _KEYS.assignment(ItemId("shard-1"), _MEMBER, 0)
    _DECODER.decode_assignment(ItemId("shard-1"), _MEMBER, 0, _kv(key, data))


_ETCD: Final = (
    FuzzedDecoder("etcd.item", _messages(_shard_spec()), _item, (KeyDecodeError, ValidationError)),
    FuzzedDecoder(
        "etcd.member", _messages(_member_spec()), _member, (KeyDecodeError, ValidationError)
    ),
    FuzzedDecoder(
        "etcd.assignment",
        _messages(
            shard_pb2.ReplicaStatus(code=shard_pb2.ReplicaStatus.FAILED, errors=["broken", "next"])
        ),
        _assignment,
        (KeyDecodeError, ValidationError),
    ),
    FuzzedDecoder(
        "etcd.key",
        lambda: [
            _KEYS.item(ItemId("shard-1")),
            _KEYS.member(_MEMBER),
            _KEYS.assignment(ItemId("shard-1"), _MEMBER, 0),
        ],
        _KEYS.parse,
        (KeyDecodeError,),
    ),
    FuzzedDecoder(
        "etcd.load",
        _messages(_load()),
        decode_report,
        (ValidationError,),
    ),
    FuzzedDecoder(
        "etcd.move",
        lambda: [
            move_records.encoded(
                move_records.MoveLogEntry(
                    at_milliseconds=1_700_000_000_000,
                    writer="zone-a#member-1",
                    epoch=4,
                    actor="operator",
                    moves=(
                        move_records.Move(
                            "shard-1", move_records.MoveKind.ASSIGN, "z#m", 0, -1, "why"
                        ),
                    ),
                )
            )
        ],
        lambda data: move_records.decoded_or_none(_kv(b"/moves/1", data)),
        (),
    ),
    FuzzedDecoder(
        "etcd.plan",
        lambda: [
            stored_plan.pack(
                stored_plan.StoredPlan(
                    demand="d",
                    members=[("zone-a", "member-1"), ("zone-b", "member-2")],
                    pending={"shard-1": [0, 1]},
                    primaries={"shard-1": 1},
                )
            )
        ],
        stored_plan.unpack_or_none,
        (),
    ),
    FuzzedDecoder(
        "etcd.leadership",
        lambda: [
            msgspec.json.encode(LeaderRecord(member="z#m", epoch=3, beat=9)),
            msgspec.json.encode(EpochRecord(member="z#m", epoch=3)),
            msgspec.json.encode(CandidateRecord()),
        ],
        lambda data: (
            decoded_or_none(data, LeaderRecord),
            decoded_or_none(data, EpochRecord),
            decoded_or_none(data, CandidateRecord),
        ),
        (),
    ),
    FuzzedDecoder(
        "etcd.hints",
        lambda: [_hints().SerializeToString(), encode_hints(_hints())],
        decode_hints,
        (ValueError,),
    ),
    FuzzedDecoder(
        "etcd.quarantine",
        _seeds(b'{"create_revision":4,"spans":[[0,100,1700000000],[100,200,1700000001]]}'),
        lambda data: decode_quarantine(data).dead_since(0, 150),
        (),
    ),
    FuzzedDecoder(
        "etcd.host",
        lambda: [encode_host(Host(1, 2, "7", "http://127.0.0.1:1/log"))],
        decode_host,
        (DocumentError,),
    ),
    FuzzedDecoder(
        "etcd.publication",
        lambda: [
            msgspec.json.encode(
                sink_record.Publication(7, [b"ack-a", b"ack-b"], {"out/a": "3"}, 1.7e9, 4)
            )
        ],
        lambda data: sink_record.decoded(data, b"/root.publications/x"),
        (PublishError,),
    ),
)


def _hints() -> FSMHints:
    hints = FSMHints(log="recovery/shard-1")
    node = hints.live_nodes.add(fnode=1)
    node.segments.add(author=7, first_seq_no=1, last_seq_no=9, first_checksum=5, log="recovery/x")
    hints.properties.add(path="/a", content="b")
    return hints


# -- stores and recovery logs


def _sequenced(data: bytes) -> None:
    checkpoint = stored_checkpoint("/items/shard-1", data)
    whole = whole_checkpoint("/items/shard-1", checkpoint, {})
    Sequencer(whole.sources).take_checkpoint()


def _operations(data: bytes) -> None:
    decoder = OperationDecoder(0)
    for cut in range(0, len(data), 50):
        for _ in decoder.feed(data[cut : cut + 50]):
            pass


def _operation_seeds() -> list[bytes]:
    created = RecordedOp(seq_no=1, author=7, checksum=3)
    created.create.path = "/db/CURRENT"
    written = RecordedOp(seq_no=2, author=7, checksum=4)
    written.write.fnode, written.write.length = 1, 5
    return [
        framed(created.SerializeToString()) + framed(written.SerializeToString()) + b"bytes",
    ]


def _claimed(data: bytes) -> None:
    claim = LogClaim(LogOwner("/root", "shard-1"))
    check_claim("recovery/shard-1", {OWNER_PATH: _text(data)}, claim)


_STORES: Final = (
    FuzzedDecoder(
        "store.segment",
        lambda: [
            packed_segment([(1, 2), (3, 2**64 - 1)], [5]),
            packed_segment([(1, 2), (3, 4)], [5], [(3, 2**63 - 1)]),
        ],
        unpacked_segment,
        (ValueError,),
    ),
    FuzzedDecoder("store.checkpoint", _messages(_checkpoint()), _sequenced, (StoreError,)),
    FuzzedDecoder(
        "store.json_file",
        lambda: [encode_documents(b'{"a":1,"b":[2]}', _checkpoint()), b'{"in/a":7}\n{"a":1}\n'],
        decode_documents,
        (ValueError,),
    ),
    FuzzedDecoder("recoverylog.operations", _operation_seeds, _operations, ()),
    FuzzedDecoder(
        "recoverylog.foreign_bytes",
        _operation_seeds,
        lambda data: examined(
            "recovery/shard-1",
            0,
            [data],
            OwnOperations(author=7, first_seq=1, first_checksum=3, next_seq=3),
        ),
        (LogDataLossError,),
    ),
    FuzzedDecoder(
        "recoverylog.owner",
        lambda: [encode_owner(LogOwner("/root", "shard-1")).encode()],
        _claimed,
        (ForeignLogError,),
    ),
    FuzzedDecoder(
        "store.record",
        lambda: [encode_record(StoreRecord("sqlite", 1, "/root/items/shard-1")).encode()],
        decode_record,
        (ValueError,),
    ),
)


# -- brokers


def _records() -> list[bytes]:
    return [
        commit_log.encode_record(
            commit_log.Checkpoint(1, 100, b"", False, ((0, 10),), 100, True, "boot")
        ),
        commit_log.encode_record(
            commit_log.Commit(2, 100, 150, ((50, b"s" * 16),), 1_700_000_000_000, b"", True, None)
        ),
    ]


_BROKER: Final = (
    FuzzedDecoder("broker.record", _records, commit_log.decode_record, (msgspec.DecodeError,)),
    FuzzedDecoder(
        "broker.spec",
        _messages(JournalSpec(name="a/b", replication=1)),
        JournalSpec.FromString,
        (DecodeError,),
    ),
    FuzzedDecoder(
        "wire.append",
        _messages(AppendRequest(journal="a/b", offset=4)),
        parse_append,
        (ValueError,),
    ),
    FuzzedDecoder(
        "wire.appends",
        lambda: [
            encode_appends([WholeAppend(AppendStreamRequest.Append(), [b"content"])]),
            encode_appends([WholeAppend(AppendStreamRequest.Append(), [b"x" * PLAIN_BYTES_MAX])]),
        ],
        decode_appends,
        (DecodeError, ValueError),
    ),
    FuzzedDecoder(
        "wire.read",
        _messages(ReadResponse(offset=4, content=b"content"), ReadResponse(write_head=7)),
        decode_read,
        (DecodeError, ValueError),
    ),
    FuzzedDecoder(
        "wire.token",
        _seeds(b'{"in/a":4096,"in/b":7}'),
        lambda data: token_in(((READ_THROUGH, data),)),
        (ValidationError,),
    ),
)


# -- leases


def _rows(layout: Layout) -> Callable[[], Sequence[bytes]]:
    def seeds() -> list[bytes]:
        row = {**layout.row(_LEASE), **layout.own(_LEASE), layout.key_name: {"S": _LEASE.key}}
        return [json.dumps(row).encode()]

    return seeds


def _row(layout: Layout) -> Callable[[bytes], object]:
    def decode(data: bytes) -> object:
        try:
            item = json.loads(data)
        except (ValueError, RecursionError):
            return None
        if not isinstance(item, dict) or not all(map(_is_value, item.values())):
            return None  # DynamoDB answers values only
        item[layout.key_name] = {"S": _LEASE.key}
        return layout.read(item, None)

    return decode


_TYPES: Final = {"S": str, "N": str, "BOOL": bool, "NULL": bool, "SS": list, "L": list, "M": dict}


def _is_value(value: Any) -> bool:
    if not isinstance(value, dict) or len(value) != 1:
        return False
    ((kind, content),) = value.items()
    return isinstance(content, _TYPES.get(kind, ()))


def _ownership(data: bytes) -> object:
    blob = Blob(
        name="ns/hub/group/ownership/0",
        etag="e",
        metadata={"ownerid": "w"},
        body=data,
        is_leased=False,
        modified_at=_NOW,
    )
    return merged("0", blob, None)


_LEASES: Final = (
    FuzzedDecoder(
        "lease.record",
        lambda: [codec.encode(_LEASE).encode(), codec.encode(LeaseRecord(key="shard-1")).encode()],
        lambda data: codec.decode(data, key="shard-1"),
        (InvalidStateError,),
    ),
    FuzzedDecoder(
        "lease.record_text",
        lambda: [codec.encode(_LEASE).encode()],
        lambda data: codec.decode(_text(data), key="shard-1"),
        (InvalidStateError,),
    ),
    *(
        FuzzedDecoder(f"lease.dynamodb.{name}", _rows(layout), _row(layout), (InvalidStateError,))
        for name, layout in (
            ("native", NativeLayout()),
            ("kcl", KclJavaLayout()),
            ("vmware_go", VmwareGoLayout()),
        )
    ),
    FuzzedDecoder(
        "lease.eph",
        lambda: [
            body_of(replace(_LEASE, attrs={}), "token"),
            b'{"partitionId":"0","owner":"h","epoch":3,"offset":"44","sequenceNumber":5,"token":"t"}',
        ],
        lambda data: read_body(data, key="shard-1", name="blob"),
        (InvalidStateError,),
    ),
    FuzzedDecoder(
        "lease.event_hubs",
        lambda: [codec.encode(replace(_LEASE, key="0")).encode()],
        _ownership,
        (InvalidStateError,),
    ),
    FuzzedDecoder(
        "lease.export",
        lambda: ["".join(export_lines([_LEASE], origin="etcd")).encode()],
        lambda data: read_export(_text(data), "leases.jsonl"),
        (ValidationError,),
    ),
)


# -- sources


def _spark_offset(data: bytes) -> object:
    """Decode what Spark keeps: Spark itself has parsed it as JSON."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return parse_offset(value)


def _kafka_entries(data: bytes) -> object:
    """Decode a checkpoint's entries of a topic and of its partitions."""
    checkpoint = shard_pb2.Checkpoint()
    for name in ("kafka/t", "kafka/t/0"):
        checkpoint.sources[name].resume = data
    return topic_entry(checkpoint, "t"), begun_again(checkpoint, "t")


_SOURCES: Final = (
    FuzzedDecoder(
        "source.kinesis",
        _seeds(b'{"begin":5,"end":9,"first":"495","last":"497","ended":true}'),
        lambda data: decode_resume("stream/shard", data),
        (SourceDataLossError,),
    ),
    FuzzedDecoder(
        "source.kinesis_stream",
        _seeds(
            b'{"started_ms":3,"arn":"arn:aws:kinesis:a:1:stream/s","created_ms":5,"again":true}'
        ),
        lambda data: decode_stream_entry("stream", data),
        (SourceDataLossError,),
    ),
    FuzzedDecoder(
        "source.kafka",
        _seeds(b'{"begin":5,"shift":12,"id":"BXt8+79JSXimZBzUIpew/w"}'),
        _kafka_entries,
        (SourceDataLossError,),
    ),
    FuzzedDecoder(
        "source.spark_offset",
        _seeds(
            b'{"journals":{"in/a":{"offset":9,"producers":{"010203040506":[77,5,80]}}},'
            b'"began":{"in/a":{"offset":0,"producers":{}}}}',
            b'{"start":"latest"}',
        ),
        _spark_offset,
        (ValueError,),
    ),
)

STORED_DECODERS: Final = (*_ETCD, *_STORES, *_BROKER, *_LEASES, *_SOURCES)
