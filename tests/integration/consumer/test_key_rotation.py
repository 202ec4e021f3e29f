"""Keys of a running cluster are replaced in their file, and nobody restarts or loses a stream."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest
from click.testing import CliRunner

from broadsheet.broker.__main__ import main as broker_main
from broadsheet.broker.config import BrokerConfig
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.security.auth import KeyedAuth, keys_from
from broadsheet.security.errors import UnauthenticatedError
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.shardctl_runs import shardctl

pytestmark = pytest.mark.etcd

SOURCE, OUTPUT = "test/source", "test/output"
SHARD = "shard-1"
COUNTER = "broadsheet.examples.counter.app:Counter"
OLD, NEW = (
    b64encode(f"the {name} key of all, 32 bytes or more".encode()).decode()
    for name in ("old", "new")
)
DEADLINE_SECONDS = 300.0


async def _passes(address: str, keys: str) -> bool:
    """Tell whether a broker lets a client with these keys in."""
    async with JournalClient(address, auth=KeyedAuth(keys)) as client:
        try:
            await client.list()
        except UnauthenticatedError:
            return False
    return True


async def test_keys_are_rotated_under_work(
    etcd_server: EmbeddedEtcdProcess,
    etcd_root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plan: a broker, a member and a client share a file with the old key; a shard reads and writes. The file gets the
    new key as its second, as its first, and alone: what is published at each step is counted once by the same primary,
    and clients with the old key are refused at the end.
    """
    # Each use looks: a step need not wait until all have looked.
    monkeypatch.setattr("broadsheet.security.token_keys.LOOK_SECONDS", 0.0)
    path = tmp_path / "keys"
    path.write_text(OLD)
    keys = keys_from("", path)
    config = BrokerConfig(data_dir=tmp_path / "broker", auth_keys=keys)
    async with (
        EmbeddedBroker(tmp_path, config=config) as broker,
        JournalClient(broker.address, auth=KeyedAuth(keys)) as journals,
    ):
        await create_journals(journals, SOURCE, OUTPUT)
        cluster = Cluster(
            etcd_endpoint=etcd_server.endpoint,
            broker_address=broker.address,
            root=etcd_root,
            directory=tmp_path,
            output=OUTPUT,
            settings={"auth_keys": keys, "broker_auth_keys": keys},
        )
        producer = Producer(journals)
        async with cluster.member("a") as service, client_of(service, KeyedAuth(keys)) as client:
            await client.apply(upserts(shard(SHARD, SOURCE)))
            await wait_for_primaries(client, SHARD, timeout_seconds=DEADLINE_SECONDS)

            async def publish() -> None:
                end = await producer.publish(SOURCE, ["key"])
                await client.wait_read_through(
                    SHARD, {SOURCE: end}, timeout_seconds=DEADLINE_SECONDS
                )

            for content in (OLD, f"{OLD} {NEW}", f"{NEW} {OLD}", NEW):
                path.write_text(content)
                await publish()
                assert await _passes(broker.address, NEW) is (NEW in content)
                assert await _passes(broker.address, OLD) is (OLD in content)
            async with client_of(service, KeyedAuth(OLD)) as late:
                with pytest.raises(UnauthenticatedError):
                    await late.list()
        assert cluster.counts(SHARD) == {"key": 4}


def test_commands_take_keys_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is missing is told in one line, whichever way it was named; a variable with keys gives way to it."""
    monkeypatch.setenv("AUTH_KEYS", OLD)
    by_option = shardctl(f"shardctl shards list --auth-keys-file {tmp_path}/none")
    monkeypatch.setenv("AUTH_KEYS_FILE", f"{tmp_path}/absent")
    by_variable = shardctl("shardctl shards list")
    monkeypatch.setenv("AUTH_TOKEN_FILE", f"{tmp_path}/token")
    by_token = shardctl("shardctl journals list")

    for ran, name in ((by_option, "none"), (by_variable, "absent"), (by_token, "token")):
        assert ran.status == 2
        assert f"cannot read {tmp_path}/{name}: No such file" in ran.stderr
        assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize("variable", ["AUTH_KEYS_FILE", "BROKER_AUTH_KEYS_FILE"])
def test_servers_do_not_start_without_the_file_of_their_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Starting without keys instead would open them to everyone."""
    monkeypatch.setenv(variable, f"{tmp_path}/none")
    command = ["--data-dir", str(tmp_path / "broker")]
    if variable == "AUTH_KEYS_FILE":
        ran = shardctl(f"shardctl serve {COUNTER} --port 0 --state-dir {tmp_path}/state")
        error, status = ran.stderr, ran.status
    else:
        done = CliRunner().invoke(broker_main, command)
        error, status = done.stderr, done.exit_code

    assert status == 1
    assert error.splitlines()[-1].startswith("Error: auth_keys: cannot read")
