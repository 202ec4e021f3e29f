"""`shardctl token` and `shardctl can-i` against a real member and broker with keys."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from broadsheet.broker.config import BrokerConfig
from broadsheet.consumer.client import ShardClient
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.logs import log_to_stderr
from broadsheet.security.auth import Capability, KeyedAuth
from broadsheet.wire.journal_pb2 import ApplyRequest as JournalApply
from broadsheet.wire.labels import label_set, parse_selector
from tests.support.broker import journal_spec
from tests.support.members import Cluster, shard, upserts
from tests.support.shardctl_runs import Ran, shardctl

pytestmark = pytest.mark.etcd

KEYS = b64encode(b"a key of members and brokers, 32 bytes or more").decode()
MINE, THEIRS = "a/mine", "a/theirs"


@dataclass(frozen=True, slots=True)
class _Place:
    """A member and a broker, each with something of two teams."""

    address: str
    broker: str
    directory: Path

    async def run(self, line: str) -> Ran:
        """Run a command beside the servers' loop."""
        return await asyncio.to_thread(shardctl, f"shardctl {line}")

    async def can_i(self, question: str, credentials: str) -> tuple[bool, str, str]:
        """Return the answer, its reason, and what was said on stderr."""
        options = f"--address {self.address} --broker {self.broker} {credentials}"
        ran = await self.run(f"can-i {question} -o json {options}")
        if not ran.stdout:
            return False, "", ran.stderr
        answer = json.loads(ran.stdout)
        assert ran.status == (0 if answer["allowed"] else 1)
        return answer["allowed"], answer["reason"], ran.stderr


@pytest.fixture
async def place(
    etcd_server: EmbeddedEtcdProcess, etcd_root: str, tmp_path: Path
) -> AsyncIterator[_Place]:
    """Yield the servers; the file `keys` has their keys."""
    (tmp_path / "keys").write_text(KEYS)
    auth = KeyedAuth(KEYS)
    # A command takes this process's standard output, into which the servers must not log meanwhile.
    log_to_stderr("error")
    config = BrokerConfig(data_dir=tmp_path / "broker", auth_keys=KEYS)
    async with EmbeddedBroker(tmp_path, config=config) as broker:
        teams = {MINE: label_set({"team": "a"}), THEIRS: label_set({"team": "b"})}
        async with JournalClient(broker.address, auth=auth) as journals:
            await journals.apply(
                [
                    JournalApply.Change(upsert=journal_spec(name, labels=labels))
                    for name, labels in teams.items()
                ]
            )
        cluster = Cluster(
            etcd_endpoint=etcd_server.endpoint,
            broker_address=broker.address,
            root=etcd_root,
            directory=tmp_path,
            settings={"auth_keys": KEYS, "broker_auth_keys": KEYS},
        )
        async with cluster.member("a") as service:
            async with ShardClient(service.address, auth=auth) as client:
                await client.apply(
                    upserts(shard(MINE, MINE, team="a"), shard(THEIRS, THEIRS, team="b"))
                )
            yield _Place(service.address, broker.address, tmp_path)


def _token(place: _Place, *options: str) -> str:
    """Make a token with the command, and return the options that show it."""
    # Not beside the servers, whose logs would get into what it prints.
    made = shardctl(f"shardctl token {' '.join(options)} --auth-keys-file {place.directory}/keys")
    assert made.status == 0, made.stderr
    (place.directory / "token").write_text(made.stdout)
    return f"--token-file {place.directory}/token"


QUESTIONS = {
    "list shards": True,
    f"list shards {MINE}": True,
    f"list shards {THEIRS}": False,
    "read shards": False,
    "apply shards": True,
    f"apply shards {MINE}": True,
    f"apply shards {THEIRS}": False,
    "list journals": True,
    f"list journals {THEIRS}": False,
    f"read journals {MINE}": False,
    f"append journals {MINE}": False,
    "apply journals": True,
    f"apply journals {MINE}": True,
    f"apply journals {THEIRS}": False,
    "list members": False,
    "apply members": False,
}
"""Answers for a token with LIST and APPLY on team a."""


async def _judged(place: _Place, kind: str, text: str, credentials: str) -> Ran:
    (place.directory / "asked.yaml").write_text(text)
    options = f"--address {place.address} --broker {place.broker} {credentials}"
    return await place.run(
        f"{kind} apply -f {place.directory}/asked.yaml --dry-run=server {options}"
    )


async def test_server_judges_a_dry_run_and_writes_nothing(place: _Place) -> None:
    """Changes that the caller may make, may not make, and may not make all of: revisions stay in each case."""
    _token(place, "-c", "LIST", "-c", "READ", "-c", "APPLY", "-l", "team=a")
    (place.directory / "token").rename(place.directory / "team-a")
    may_change_a = f"--token-file {place.directory}/team-a"
    may_list = _token(place, "-c", "LIST", "-c", "READ")
    spec = "{id: %s, max_txn_duration: 2s, labels: [{name: team, value: %s}]}"
    new_of_a, new_of_b = spec % ("a/new", "a"), spec % ("a/other", "b")
    async with ShardClient(place.address, auth=KeyedAuth(KEYS)) as client:
        before = [(each.spec.id, each.mod_revision) for each in (await client.list()).shards]

        accepted = await _judged(place, "shards", f"shards: [{new_of_a}]", may_change_a)
        refused = await _judged(place, "shards", f"shards: [{new_of_a}]", may_list)
        mixed = await _judged(place, "shards", f"shards: [{new_of_a}, {new_of_b}]", may_change_a)
        deletion = f"name: {MINE}\ndelete: true\nrevision: -1\n"
        journals = await _judged(place, "journals", deletion, f"{may_change_a} --force")
        unchanged = [(each.spec.id, each.mod_revision) for each in (await client.list()).shards]

    assert accepted.status == 0, accepted.stderr
    assert accepted.stdout == "a/new created (server dry run)\n"
    assert "1 change accepted by the server; nothing was applied" in accepted.stderr
    assert refused.status == 1
    assert "lacks the capability APPLY" in refused.stderr
    assert mixed.status == 1
    assert "shard a/other: the token's selector does not cover" in mixed.stderr
    assert journals.status == 0, journals.stderr
    assert journals.stdout == f"{MINE} deleted (server dry run)\n"
    assert unchanged == before
    async with JournalClient(place.broker, auth=KeyedAuth(KEYS)) as client_of_broker:
        assert len((await client_of_broker.list()).journals) == 2


async def test_can_i_asks_the_servers(place: _Place) -> None:
    """Plan: a token made by the command for one team; each question, and then what changed: nothing."""
    scoped = _token(place, "-c", "LIST", "-c", "apply", "-l", "team=a")

    wrong = {
        question: await place.can_i(question, scoped)
        for question, expected in QUESTIONS.items()
        if (await place.can_i(question, scoped))[0] is not expected
    }

    assert wrong == {}
    assert "lacks the capability READ" in (await place.can_i("read shards", scoped))[1]
    assert "does not cover" in (await place.can_i(f"apply shards {THEIRS}", scoped))[1]
    assert "must not be restricted" in (await place.can_i("list members", scoped))[1]
    async with ShardClient(place.address, auth=KeyedAuth(KEYS)) as client:
        assert len((await client.list()).shards) == 2
    async with JournalClient(place.broker, auth=KeyedAuth(KEYS)) as journals:
        assert len((await journals.list()).journals) == 2
        assert await journals.write_head(MINE) == 0


async def test_can_i_tells_who_may_everything_and_who_nothing(place: _Place) -> None:
    """Whoever has the keys may all; without credentials nothing is permitted, which is no error."""
    for question in QUESTIONS:
        assert await place.can_i(question, f"--auth-keys-file {place.directory}/keys") == (
            True,
            "",
            "",
        ), question
        answer = await place.can_i(question, "")
        assert (answer[0], "missing metadata" in answer[1]) == (False, True), (question, answer)


@pytest.mark.parametrize(
    ("line", "status", "told"),
    [
        ("can-i append shards --address x", 2, "expected one of list, read, apply"),
        ("can-i list members zone-a#a", 2, "expected no ID"),
        ("can-i list shards --address http://127.0.0.1:1", 1, "cannot reach"),
        ("token -c LIST", 2, "--auth-keys-file: expected the file"),
        ("token -c WRITE --auth-keys eA==", 2, "--capability: expected one of LIST"),
        ("token -c LIST --life 0s --auth-keys eA==", 2, "--life: expected more than nothing"),
        ("token -c LIST --life -1h --auth-keys eA==", 2, "--life: expected more than nothing"),
        ("token -c LIST -l '=' --auth-keys eA==", 2, "selector"),
        ("token --auth-keys eA==", 2, "--capability"),
    ],
)
def test_mistakes_are_told_in_one_line(line: str, status: int, told: str) -> None:
    """A question that was not asked has no answer, neither yes nor no."""
    ran = shardctl(f"shardctl {line}")

    assert (ran.status, ran.stdout) == (status, "")
    assert told in ran.stderr.splitlines()[-1]


def test_token_says_what_it_is() -> None:
    """What was asked for is in the token, and what is printed beside it is what it says."""
    ran = shardctl(
        f"shardctl token -c LIST -c 65536 -l team=a --life 15m --subject maria --auth-keys {KEYS} -o json"
    )
    table = shardctl(f"shardctl token -c ALL --auth-keys {KEYS} -o table")

    shown = json.loads(ran.stdout)
    metadata = (("authorization", f"Bearer {shown['token']}"),)
    claims = KeyedAuth(KEYS).verify(metadata, Capability.LIST)
    assert claims.capability == Capability.LIST | Capability(65536)
    assert claims.selector.include == parse_selector("team=a").include
    assert claims.subject == shown["subject"] == "maria"
    assert claims.expires_at is not None
    assert claims.expires_at.isoformat(timespec="seconds") == shown["expires_at"]
    assert (shown["capabilities"], shown["selector"]) == ("LIST+0x10000", "team=a")
    assert table.stdout.splitlines()[1].split() == ["capabilities", "ALL"]
