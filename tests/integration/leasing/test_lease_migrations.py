"""`shardctl leases`, between stores on real servers: what others left behind, moved into stores of ours and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import sqlalchemy as sa

from tests.support.foreign_leases import (
    ANNOUNCED,
    FIRST,
    SECOND,
    kcl_row,
    make_eph_container,
    make_table,
    vmware_row,
)
from tests.support.shardctl_runs import shardctl

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

    from broadsheet.embedded.etcd import EmbeddedEtcdProcess


@pytest.fixture
def etcd_store(
    etcd_server: EmbeddedEtcdProcess, etcd_root: str, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The address of a store that is not there yet."""
    monkeypatch.setenv("ETCD_ADDRESS", etcd_server.endpoint)
    return f"etcd:{etcd_root}"


@pytest.fixture
def aws(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Credentials in the environment; returns the options that lead to moto."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    return f"region=us-east-1&endpoint={moto_endpoint}"


@pytest.fixture
def azure(azurite: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The account in the environment; returns a name for a container."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite)
    return f"leases-{uuid4().hex}"


@pytest.fixture
def sql_store(tmp_path: Path) -> str:
    """The address of a store that is not there yet."""
    return f"sql:sqlite:///{tmp_path}/leases.db"


@pytest.mark.etcd
@pytest.mark.moto
def test_table_of_the_kinesis_client_library_moves_to_etcd_and_back(
    dynamodb_client: DynamoDBClient, aws: str, etcd_store: str
) -> None:
    """A dry run changes nothing; then all that outlives an owner is there, once; workers there are not disturbed."""
    name = f"kcl-{uuid4().hex}"
    make_table(
        dynamodb_client,
        name,
        "leaseKey",
        kcl_row(FIRST, "SHARD_END"),
        kcl_row(SECOND, "200", **ANNOUNCED),
        {"leaseKey": {"S": "stream-meta"}, "entityType": {"S": "STREAM"}},
    )
    table = f"'dynamodb:{name}?layout=kcl-java&{aws}'"

    looked = shardctl(f"shardctl leases import {table} {etcd_store}")
    assert looked.stderr.startswith("dry run: would create 2, update 0; 0 the same, 0 conflicts")
    assert "there is no such store" in shardctl(f"shardctl leases list {etcd_store}").stderr

    done = shardctl(f"shardctl leases import {table} {etcd_store} --yes")
    assert done.stderr.startswith("created 2, updated 0; 0 the same, 0 conflicts\n"), done.stderr
    assert "2 leases of FROM had an owner" in done.stderr
    again = shardctl(f"shardctl leases import {table} {etcd_store} --yes")
    assert again.stderr.startswith("created 0, updated 0; 2 the same, 0 conflicts")

    found = shardctl(f"shardctl leases list {etcd_store} -o json").leases
    assert {key: lease["state"] for key, lease in found.items()} == {
        FIRST: "finished",
        SECOND: "free",
    }
    second = found[SECOND]
    assert (second["checkpoint"], second["owner"]) == ({"seq": "200", "sub": 0}, None)
    assert (second["pending"], second["parents"]) == ({"seq": "250", "sub": 1}, [FIRST])
    assert second["pending_state"] == "YmF0Y2ggOQ=="
    assert second["attrs"] == {"throughputKBps": 1.5}

    back = f"'dynamodb:{name}-back?layout=kcl-java&{aws}'"
    assert shardctl(f"shardctl leases import {etcd_store} {back} --yes").status == 0
    row = dynamodb_client.get_item(TableName=f"{name}-back", Key={"leaseKey": {"S": SECOND}})
    kept = kcl_row(SECOND, "200", **ANNOUNCED, throughputKBps={"N": "1.5"})
    del kept["leaseOwner"]
    assert {key: row["Item"][key] for key in kept} == kept


@pytest.mark.moto
def test_table_of_vmware_go_kcl_moves_to_sql_by_a_file(
    dynamodb_client: DynamoDBClient, aws: str, sql_store: str, tmp_path: Path
) -> None:
    """The file is the move, and the backup; what the Go workers would not see is said on the way back."""
    name = f"go-{uuid4().hex}"
    make_table(
        dynamodb_client,
        name,
        "ShardID",
        vmware_row(FIRST, "100"),
        vmware_row(SECOND, "200", ParentShardId={"S": FIRST}, team={"S": "a"}),
    )
    table = f"'dynamodb:{name}?layout=vmware-go&{aws}'"

    listed = shardctl(f"shardctl leases list {table} -o json").leases
    assert [(lease["owner"], lease["free"]) for lease in listed.values()] == [("go-1", True)] * 2
    exported = shardctl(f"shardctl leases export {table} > go.jsonl", directory=tmp_path)
    assert exported.stderr == "exported 2 leases\n"
    move = f"shardctl leases import go.jsonl {sql_store}"
    assert "would create 2" in shardctl(move, directory=tmp_path).stderr
    assert not (tmp_path / "leases.db").exists()
    assert "created 2" in shardctl(f"{move} --yes", directory=tmp_path).stderr
    assert "2 the same" in shardctl(f"{move} --yes", directory=tmp_path).stderr

    second = shardctl(f"shardctl leases list {sql_store} -o json").leases[SECOND]
    assert (second["checkpoint"]["seq"], second["parents"]) == ("200", [FIRST])
    assert (second["free"], second["attrs"]) == (True, {"team": "a"})
    assert second["epoch"] == listed[SECOND]["epoch"]
    back = shardctl(f"shardctl leases import {sql_store} {table}")
    assert "0 conflicts" in back.stderr
    assert back.status == 0


@pytest.mark.etcd
@pytest.mark.azurite
def test_blobs_of_event_processor_host_move_to_etcd_and_to_event_processors(
    azurite: str, azure: str, etcd_store: str
) -> None:
    """Offsets too, under the keys that Azure's own processors have, if asked for."""
    make_eph_container(azurite, azure, p0=(17, "4096"), p1=(9, "512"))
    blobs = f"'azblob:{azure}?layout=eph'"
    prefix = "ns.servicebus.windows.net/clicks/$default/"

    done = shardctl(f"shardctl leases import {blobs} {etcd_store} --yes --key-prefix '{prefix}'")
    assert "created 2" in done.stderr, done.stderr
    found = shardctl(f"shardctl leases list {etcd_store} -o json").leases
    assert found[f"{prefix}0"]["checkpoint"] == {"seq": "17", "sub": 0, "offset": "4096"}
    assert found[f"{prefix}0"]["epoch"] == 5

    processors = f"'azblob:{azure}-new?layout=eventhubs'"
    assert "created 2" in shardctl(f"shardctl leases import {etcd_store} {processors} --yes").stderr
    assert "2 the same" in shardctl(f"shardctl leases import {etcd_store} {processors}").stderr
    rows = shardctl(f"shardctl leases list {processors}").stdout.splitlines()
    assert rows[1].split()[-3:] == ["17@4096", "-", "-"]


@pytest.mark.postgresql
def test_table_of_a_name_in_postgresql_is_a_store(postgresql_url: str, tmp_path: Path) -> None:
    """The address of a database as everybody writes it, with options of its own and one of ours."""
    table = f"leases_{uuid4().hex}"
    url = postgresql_url.replace("postgresql+psycopg:", "postgresql:")
    store = f"'sql:{url}&table={table}'"
    (tmp_path / "x.jsonl").write_text('{"broadsheet_leases":1,"count":1}\n{"record":{"key":"a"}}\n')

    assert "there is no such store" in shardctl(f"shardctl leases list {store}").stderr
    done = shardctl(f"shardctl leases import x.jsonl {store} --yes", directory=tmp_path)
    assert done.status == 0, done.stderr
    assert list(shardctl(f"shardctl leases list {store} -o json").leases) == ["a"]

    engine = sa.create_engine(postgresql_url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP TABLE {table}"))
    engine.dispose()


def test_import_refuses_to_go_back_and_tells_which(sql_store: str, tmp_path: Path) -> None:
    """The others are imported, the command fails; by force it is done."""
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    header = '{"broadsheet_leases":1,"from":"x","count":%d}\n'
    line = '{"record":{"key":"%s","checkpoint":["%d",0]}}\n'
    old.write_text(header % 2 + line % ("a", 5) + line % ("b", 5))
    new.write_text(header % 1 + line % ("a", 9))
    assert shardctl(f"shardctl leases import {new} {sql_store} --yes").status == 0

    refused = shardctl(f"shardctl leases import {old} {sql_store} --yes")

    assert refused.status == 1
    assert "conflict" in refused.stdout
    assert "its checkpoint is further: 9, this one is 5" in refused.stdout
    assert refused.stderr.endswith("Error: 1 of 2 leases not imported: see the conflicts\n")
    found = shardctl(f"shardctl leases list {sql_store} -o json").leases
    assert {key: lease["checkpoint"]["seq"] for key, lease in found.items()} == {"a": "9", "b": "5"}
    assert shardctl(f"shardctl leases import {old} {sql_store} --yes --force").status == 0
    forced = shardctl(f"shardctl leases list {sql_store} -o json").leases
    assert forced["a"]["checkpoint"]["seq"] == "5"


def test_leases_are_evicted_after_a_dry_run(sql_store: str, tmp_path: Path) -> None:
    """By key, by owner, and both; what somebody watches long enough is free without it."""
    lines = "".join(
        f'{{"record":{{"key":"{key}","owner":"{owner}","epoch":1}}}}\n'
        for key, owner in (("a", "w1"), ("b", "w1"), ("c", "w2"))
    )
    (tmp_path / "x.jsonl").write_text(f'{{"broadsheet_leases":1,"count":3}}\n{lines}')
    shardctl(f"shardctl leases import x.jsonl {sql_store} --owners --yes", directory=tmp_path)

    def states(options: str = "") -> list[str]:
        ran = shardctl(f"shardctl leases list {sql_store} {options} -o json")
        return [lease["state"] for lease in ran.leases.values()]

    assert states() == ["owned"] * 3
    assert states("--watch 0.05") == ["free"] * 3
    dry = shardctl(f"shardctl leases evict {sql_store} --owner w1")
    assert dry.stderr == "dry run: would evict 2 leases of 2; do it with --yes\n"
    assert states() == ["owned"] * 3
    assert shardctl(f"shardctl leases evict {sql_store} c --owner w1 --yes").stderr == (
        "evicted 0 leases of 0\n"
    )
    assert shardctl(f"shardctl leases evict {sql_store} --owner w1 --yes").stderr == (
        "evicted 2 leases of 2\n"
    )
    assert states() == ["free", "free", "owned"]
    twice = shardctl(f"shardctl leases evict {sql_store} a c --yes").stdout.splitlines()
    assert [row.split()[1:3] for row in twice[1:]] == [["-", "has"], ["w2", "evicted"]]


@pytest.mark.parametrize(
    ("line", "status", "problem"),
    [
        ("list {sql}", 3, "there is no file"),
        ("export {sql}", 3, "there is no file"),
        ("evict {sql}", 2, "KEY: expected KEYs, or --owner, or both"),
        ("import orders.jsonl {sql}", 2, "FROM: orders.jsonl is no file, and no store"),
        ("import {sql} {sql}", 2, "expected another store than FROM"),
        ("import {sql} orders", 2, "TO: expected e.g. etcd:/my-application"),
        ("list etcd:/a?endpoints=nowhere", 1, "etcd.endpoints[0]: expected host:port"),
    ],
)
def test_mistake_is_one_line(line: str, status: int, problem: str, sql_store: str) -> None:
    """On standard error, with the status of its kind, and no file made."""
    ran = shardctl(f"shardctl leases {line.format(sql=sql_store)}")

    assert ran.status == status
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 1
    assert problem in ran.stderr
    assert not Path(sql_store.removeprefix("sql:sqlite:///")).exists()


def test_record_that_cannot_be_read_is_told(sql_store: str, tmp_path: Path) -> None:
    """It is left out of what is moved: that must not pass in silence."""
    (tmp_path / "x.jsonl").write_text('{"broadsheet_leases":1,"count":1}\n{"record":{"key":"a"}}\n')
    shardctl(f"shardctl leases import x.jsonl {sql_store} --yes", directory=tmp_path)
    engine = sa.create_engine(sql_store.removeprefix("sql:"))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE broadsheet_leases SET record = '{'"))
    engine.dispose()

    ran = shardctl(f"shardctl leases export {sql_store}")

    assert "leasing.record_unreadable" in ran.stderr
    assert ran.stderr.endswith("exported 0 leases\n")
