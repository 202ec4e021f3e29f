"""Lease records in every stored format, against recorded bytes: workers of two versions share a store.

`tests/data/stored_leases.json` was written when the formats were fixed. Never write it again with newer code: what is
written now must equal it, so that older workers can read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa

from broadsheet.leases.codec import decode, encode
from broadsheet.leases.migration.export_file import export_lines, read_export
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.stores.azure.container import Blob
from broadsheet.leases.stores.azure.eph import body_of, read_body
from broadsheet.leases.stores.azure.event_hubs_blobs import merged, ownership_content
from broadsheet.leases.stores.azure.native import record_in, record_metadata
from broadsheet.leases.stores.dynamodb.kcl_java import KclJavaLayout
from broadsheet.leases.stores.dynamodb.layout import Layout, NativeLayout
from broadsheet.leases.stores.dynamodb.values import from_plain, to_plain
from broadsheet.leases.stores.dynamodb.vmware_go import VmwareGoLayout
from broadsheet.leases.stores.sql.store import SqlRecordStore
from broadsheet.testing.leases.suite import full_record

FULL: Final = full_record(owner="w1")
HANDED_OFF: Final = LeaseRecord(
    key="shard-1",
    epoch=2**40,
    counter=1,
    owner="w\u00e92",
    handoff_from="w1",
    claim="w3",
    checkpoint=Position("4711"),
    pending=Position("4712"),
    pending_state=b"",
)
RECORDS: Final = {"full": FULL, "handed off": HANDED_OFF, "bare": LeaseRecord(key="shard-1")}
RECORDED: Final[dict[str, dict[str, str]]] = json.loads(
    (Path(__file__).parents[2] / "data" / "stored_leases.json").read_text("utf-8")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One way to store a record."""

    write: Callable[[LeaseRecord], str]
    read: Callable[[str], LeaseRecord | None]


def _item(layout: Layout) -> Format:
    def write(record: LeaseRecord) -> str:
        item = {**layout.row(record), **layout.own(record), layout.key_name: {"S": record.key}}
        return json.dumps({name: to_plain(value) for name, value in item.items()}, sort_keys=True)

    def read(stored: str) -> LeaseRecord | None:
        item = {name: from_plain(value) for name, value in json.loads(stored).items()}
        return layout.read(item, None)

    return Format(write=write, read=read)


def _blob(content: Mapping[str, object], *, body: str | None = None) -> Blob:
    return Blob(
        name="a/b",
        etag="e",
        metadata={name: str(value) for name, value in content.items()},
        body=None if body is None else body.encode(),
        is_leased=False,
        modified_at=datetime(2026, 1, 31, tzinfo=UTC),
    )


def _ownership(record: LeaseRecord) -> str:
    content = ownership_content(record, over="etag-1")
    return json.dumps({"body": content.body.decode(), "metadata": content.metadata})


def _read_ownership(stored: str) -> LeaseRecord | None:
    content = json.loads(stored)
    found = merged("shard-1", _blob(content["metadata"], body=content["body"]), None)
    return None if found is None else found.record


FORMATS: Final = {
    "text": Format(write=encode, read=lambda stored: decode(stored.encode(), key="shard-1")),
    "blob metadata": Format(
        write=lambda record: json.dumps(record_metadata(record)),
        read=lambda stored: decode(record_in(_blob(json.loads(stored))), key="shard-1"),
    ),
    "event processor host": Format(
        write=lambda record: body_of(record, token="t-1").decode(),
        read=lambda stored: read_body(stored.encode(), key="shard-1", name="b").record,
    ),
    "event hubs ownership": Format(write=_ownership, read=_read_ownership),
    "export": Format(
        write=lambda record: "".join(export_lines([record], origin="etcd")),
        read=lambda stored: read_export(stored, "leases.jsonl")[0],
    ),
    "dynamodb": _item(NativeLayout()),
    "kinesis client library": _item(KclJavaLayout()),
    "vmware-go-kcl": _item(VmwareGoLayout()),
}


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("format_name", FORMATS)
def test_recorded_bytes_are_read(format_name: str, name: str) -> None:
    """An older worker's record is read whole, field by field."""
    assert FORMATS[format_name].read(RECORDED[format_name][name]) == RECORDS[name]


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("format_name", FORMATS)
def test_written_bytes_are_the_recorded_ones(format_name: str, name: str) -> None:
    """An older worker reads what is written now, because it is what that worker writes."""
    assert FORMATS[format_name].write(RECORDS[name]) == RECORDED[format_name][name]


@pytest.mark.parametrize("name", RECORDS)
async def test_recorded_row_of_a_database_is_read_and_written(name: str, tmp_path: Path) -> None:
    """The row as another version left it: its record, and the columns that repeat two fields."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/leases.db")
    store, record = SqlRecordStore(engine), RECORDS[name]
    await store.create_store()
    insert = "INSERT INTO broadsheet_leases VALUES ('shard-1', 7, :owner, :epoch, :record)"
    row = {"owner": record.owner, "epoch": record.epoch, "record": RECORDED["text"][name]}
    with engine.begin() as connection:
        connection.execute(sa.text(insert), row)

    found = await store.get("shard-1")
    assert found is not None
    assert found.record == record
    await store.replace(record, found)

    with engine.begin() as connection:
        now = connection.execute(sa.text("SELECT owner, epoch, record FROM broadsheet_leases"))
        assert now.mappings().one() == row
    engine.dispose()
