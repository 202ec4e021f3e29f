"""`shardctl dev` and the commands, as a person at a terminal uses them: real processes, real addresses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from consumer.cli.main import main

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

REPOSITORY = Path(__file__).resolve().parents[3]
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class DevCluster:
    """A running `shardctl dev`."""

    addresses: tuple[str, ...]
    pids: tuple[int, ...]
    broker: str
    state: Path

    def shardctl(self, *arguments: str, stdin: str = "") -> Result:
        """Run a command against the second member, which the tests never kill."""
        environment = {"CONSUMER_ADDRESS": self.addresses[1], "BROKER_ADDRESS": self.broker}
        return CliRunner().invoke(main, arguments, input=stdin, env=environment)

    def counts(self, part: str) -> dict[str, int]:
        """Return a counter shard's committed state."""
        file = self.state / f"counter%2F{part}" / "state.json"
        if not file.exists():
            return {}
        _, state, _ = file.read_text().splitlines()
        counts: dict[str, int] = json.loads(state)
        return counts


def _wait(condition: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.05)


def _all_primary(cluster: DevCluster) -> bool:
    rows = cluster.shardctl("shards", "list").stdout.splitlines()[1:]
    return bool(rows) and all(row.split()[1] == "PRIMARY" for row in rows)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """One cluster for this file: etcd, broker, two members of the counter example."""
    directory = tmp_path_factory.mktemp("dev")
    output = directory / "output"
    command = [sys.executable, "-m", "consumer.cli.main", "dev", "examples.counter.app:Counter"]
    command += ["--port", "0", "--broker-port", "0", "--data-dir", str(directory / "data")]
    command += ["--journals", "examples/counter/journals.yaml"]
    command += ["--specs", "examples/counter/shards.yaml"]
    with output.open("w") as stream:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=os.environ | {"BROADSHEET_STATE_DIR": str(directory / "state")},
            stdout=stream,
            stderr=stream,
        )
    try:
        _wait(lambda: "\ntry " in output.read_text() or process.poll() is not None, "the start")
        text = output.read_text()
        assert process.poll() is None, text
        members = re.findall(r"^dev-\d +(\S+) \(pid (\d+)\)$", text, re.MULTILINE)
        broker = re.search(r"^broker +(\S+)$", text, re.MULTILINE)
        assert broker is not None, text
        started = DevCluster(
            addresses=tuple(address for address, _ in members),
            pids=tuple(int(pid) for _, pid in members),
            broker=broker[1],
            state=directory / "state",
        )
        _wait(lambda: _all_primary(started), "a primary of each shard")
        yield started
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=START_SECONDS) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()


def test_appended_lines_are_counted_and_shown(cluster: DevCluster) -> None:
    """The way of a first evening: append lines, see the lag go to zero, read the journal back."""
    lines = "".join(json.dumps({"key": key}) + "\n" for key in "aabac")

    appended = cluster.shardctl(
        "journals", "append", "counter/events/part-000", "--lines", stdin=lines
    )
    assert appended.exit_code == 0, appended.stderr
    _wait(
        lambda: cluster.counts("part-000").items() >= {"a": 3, "b": 1, "c": 1}.items(),
        "the count",
        20,
    )
    listed = cluster.shardctl("shards", "list", "--lag", "-r", "-L", "app")
    read = cluster.shardctl("journals", "read", "counter/events/part-000")

    assert listed.stdout.splitlines()[0].split() == [
        "ID",
        "STATUS",
        "RF",
        "PRIMARY",
        "REPLICAS",
        "APP",
        "LAG",
    ]
    assert "counter/events/part-000:0" in listed.stdout
    assert lines in read.stdout


def test_stat_waits_for_the_offsets_asked_for(cluster: DevCluster) -> None:
    """Read-your-writes from a terminal: Stat through whichever member answers only when the offset was read."""
    appended = cluster.shardctl(
        "journals", "append", "counter/events/part-001", "--lines", stdin='{"key":"x"}\n'
    )
    end = int(re.findall(r"(\d+)\)", appended.stderr)[0])

    stat = cluster.shardctl(
        "shards",
        "stat",
        "counter/part-001",
        "--read-through",
        f"counter/events/part-001={end}",
        "-o",
        "json",
    )

    assert stat.exit_code == 0, stat.stderr
    assert json.loads(stat.stdout)["read_through"] == {"counter/events/part-001": str(end)}


def test_listing_applied_again_is_accepted_and_changes_only_revisions(cluster: DevCluster) -> None:
    """`list -o yaml`, edit, `apply -` is the way to change a spec; a stale file is refused by name."""
    listed = cluster.shardctl("shards", "list", "-o", "yaml").stdout
    edited = listed.replace("max_txn_duration: 1s", "max_txn_duration: 500ms")
    assert edited != listed

    applied = cluster.shardctl("shards", "apply", "--specs", "-", stdin=edited)
    again = cluster.shardctl("shards", "apply", "--specs", "-", stdin=edited)

    assert applied.exit_code == 0, applied.stderr
    assert again.exit_code == 1
    assert "counter/part-000 is at revision" in again.stderr
    common = yaml.safe_load(cluster.shardctl("shards", "list", "-o", "yaml").stdout)["common"]
    assert common["max_txn_duration"] == "500ms"


def test_many_shards_are_applied_in_batches_and_deleted_again(cluster: DevCluster) -> None:
    """300 specs exceed etcd's 128 operations: one transaction is refused with the way out, batches go through."""
    specs = {
        "common": {"max_txn_duration": "1s", "disable": True},
        "shards": [{"id": f"many/part-{number:03}"} for number in range(300)],
    }

    whole = cluster.shardctl("shards", "apply", "--specs", "-", stdin=yaml.safe_dump(specs))
    batched = cluster.shardctl(
        "shards", "apply", "--specs", "-", "--max-txn-size", "100", stdin=yaml.safe_dump(specs)
    )
    listed = cluster.shardctl("shards", "list", "-l", "id:prefix=many/", "-o", "json")
    deletion = {"shards": [{**shard, "delete": True, "revision": -1} for shard in specs["shards"]]}  # type: ignore[dict-item]  # a literal of mixed values
    deleted = cluster.shardctl(
        "shards", "apply", "--specs", "-", "--max-txn-size", "120", stdin=yaml.safe_dump(deletion)
    )

    assert whole.exit_code == 1
    assert "128" in whole.stderr
    assert "--max-txn-size" in whole.stderr
    assert batched.exit_code == 0, batched.stderr
    assert len(json.loads(listed.stdout)["shards"]) == 300
    assert deleted.exit_code == 0, deleted.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "problem"),
    [
        (
            ("shards", "apply", "--specs", "-"),
            "shards: [{id: abcd, colour: red}]",
            "unknown field `colour`",
        ),
        (("shards", "apply", "--specs", "-"), "shards: [{id: abcd}]", "max_txn_duration"),
        (
            ("shards", "apply", "--specs", "-"),
            "shards: [{id: abcd, max_txn_duration: 1s, sources: [{journal: no/such/journal}]}]",
            "no/such/journal",
        ),
        (("shards", "apply", "--specs", "/no/such/file"), "", "cannot read /no/such/file"),
        (("shards", "stat", "no/such/shard"), "", "shard no/such/shard does not exist"),
        (
            ("shards", "stat", "counter/part-000", "--read-through", "x"),
            "",
            "expected JOURNAL=OFFSET",
        ),
        (
            (
                *("shards", "stat", "counter/part-000", "--timeout", "0.3"),
                *("--read-through", "counter/events/part-000=999999999"),
            ),
            "",
            "did not answer in time",
        ),
        (("shards", "unassign", "-l", "id=no/such/shard"), "", "no shard matches"),
        (("shards", "apply", "--specs", "-"), "", "standard input: is empty"),
        (("shards", "apply", "--specs", "-"), "shards: []", "standard input: declares nothing"),
        (("journals", "apply", "--specs", "-"), "{}", "standard input: declares nothing"),
        (("shards", "apply", "--specs", "-"), "a: [b", "is not YAML: line 1, column 6"),
        (
            ("shards", "apply", "--specs", "-"),
            "shards: [{id: twice, max_txn_duration: 1s}, {id: twice, max_txn_duration: 1s}]",
            "standard input: shards[1]: 'twice' is declared already, by shards[0]",
        ),
        (("shards", "list", "-l", "a in ("), "", "a in ("),
        (
            ("shards", "list", "--address", "http://127.0.0.1:1"),
            "",
            "cannot reach http://127.0.0.1:1",
        ),
        (
            ("journals", "list", "--broker", "http://127.0.0.1:1"),
            "",
            "cannot reach http://127.0.0.1:1",
        ),
        (("journals", "read", "no/such/journal"), "", "journal no/such/journal does not exist"),
        (("journals", "apply", "--specs", "-"), "name: a/journal", "replication"),
    ],
)
def test_mistakes_are_answered_with_the_field_or_the_address(
    cluster: DevCluster, arguments: tuple[str, ...], stdin: str, problem: str
) -> None:
    """One line that says what is wrong and where, on stderr, with exit status 1 and nothing on stdout."""
    result = cluster.shardctl(*arguments, stdin=stdin)

    assert result.exit_code == 1
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_addresses_taken_for_each_other_are_recognised(cluster: DevCluster) -> None:
    """A member's address given for the broker's, or the other way round: the answer says what to look at."""
    broker = cluster.shardctl("shards", "list", "--address", cluster.broker)
    member = cluster.shardctl("journals", "list", "--broker", cluster.addresses[1])

    assert "--address is a member's, --broker a broker's" in broker.stderr
    assert "--address is a member's, --broker a broker's" in member.stderr


def test_listing_of_nothing_says_so(cluster: DevCluster) -> None:
    """An empty result is a result: the columns on stdout, a word for people on stderr, exit status 0."""
    shards = cluster.shardctl("shards", "list", "-l", "id=none")
    journals = cluster.shardctl("journals", "list", "-l", "name=none")

    assert (shards.exit_code, journals.exit_code) == (0, 0)
    assert shards.stdout == "ID  STATUS  RF  PRIMARY\n"
    assert shards.stderr == "no shard matches 'id=none'\n"
    assert journals.stdout == "NAME  CONTENT-TYPE  RF  PRIMARY\n"
    assert journals.stderr == "no journal matches 'name=none'\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("shards", "list"),
        ("shards", "stat", "counter/part-000"),
        ("shards", "hints", "counter/part-000"),
        ("journals", "list"),
    ],
)
def test_every_listing_is_there_as_json_and_as_yaml(
    cluster: DevCluster, arguments: tuple[str, ...]
) -> None:
    """Programs read what people read: each result parses in both formats."""
    # A test before this one may have taken the shard's primary away.
    _wait(lambda: cluster.shardctl(*arguments).exit_code == 0, "an answer")
    as_json = cluster.shardctl(*arguments, "-o", "json")
    as_yaml = cluster.shardctl(*arguments, "-o", "yaml")

    assert (as_json.exit_code, as_yaml.exit_code) == (0, 0), as_json.stderr + as_yaml.stderr
    assert isinstance(json.loads(as_json.stdout), dict)
    assert isinstance(yaml.safe_load(as_yaml.stdout), dict)


def test_journals_are_listed_with_their_content_type(cluster: DevCluster) -> None:
    """The content type decides how a journal is read: it is the first thing one looks for."""
    listed = cluster.shardctl("journals", "list").stdout.splitlines()

    assert listed[0].split() == ["NAME", "CONTENT-TYPE", "RF", "PRIMARY"]
    assert listed[1].split()[:3] == ["counter/events/part-000", "application/x-ndjson", "1"]


def test_dry_run_prints_the_changes_and_applies_nothing(cluster: DevCluster) -> None:
    """A dry run checks all that apply checks, and leaves everything as it is."""
    specs = "shards: [{id: dry/part-000, max_txn_duration: 1s}]"

    result = cluster.shardctl("shards", "apply", "--specs", "-", "--dry-run", stdin=specs)

    assert result.exit_code == 0, result.stderr
    assert 'id: "dry/part-000"' in result.stdout
    assert "dry/part" not in cluster.shardctl("shards", "list").stdout


def test_hints_of_a_shard_without_recovery_log_are_empty(cluster: DevCluster) -> None:
    """GetHints answers for every shard; one with a remote store has none."""
    result = cluster.shardctl("shards", "hints", "counter/part-000")

    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["status"] == "OK"


def test_unassigned_shard_restarts_and_keeps_its_count(cluster: DevCluster) -> None:
    """Unassign is a restart: the state is what was committed, and counting goes on."""
    before = cluster.counts("part-001")

    unassigned = cluster.shardctl("shards", "unassign", "-l", "id=counter/part-001")
    cluster.shardctl(
        "journals", "append", "counter/events/part-001", "--lines", stdin='{"key":"after"}\n'
    )

    assert unassigned.stdout == "counter/part-001\n", unassigned.stderr
    _wait(lambda: cluster.counts("part-001") == {**before, "after": 1}, "the count", 20)


def test_killed_member_is_replaced_and_its_shard_goes_on(cluster: DevCluster) -> None:
    """After kill -9 of a member, its next life revokes the lease, and every message is still counted once."""
    os.kill(cluster.pids[0], signal.SIGKILL)
    for part in ("part-000", "part-001"):
        cluster.shardctl(
            "journals", "append", f"counter/events/{part}", "--lines", stdin='{"key":"k"}\n'
        )

    _wait(
        lambda: (
            cluster.counts("part-000").get("k") == 1 and cluster.counts("part-001").get("k") == 1
        ),
        "the count after the kill",
        30,
    )


def test_plan_of_a_drain_says_what_would_move_and_moves_nothing(cluster: DevCluster) -> None:
    """A table for people, and the same as JSON: what the leaving member holds goes to others; nothing has moved."""
    before = cluster.shardctl("shards", "list", "-o", "json").output
    present = cluster.shardctl("plan")
    leader = json.loads(cluster.shardctl("plan", "-o", "json").output)["leader"]
    change = ("plan", "--drain", leader, "--add", "local:1")

    table = cluster.shardctl(*change)
    as_json = json.loads(cluster.shardctl(*change, "-o", "json").output)

    assert "to carry it out: shardctl plan --apply" in present.output
    assert table.exit_code == 0, table.output
    removed = [c for c in as_json["changes"] if c["kind"] == "CHANGE_KIND_REMOVE"]
    assert {change["member"] for change in removed} == {leader}
    assert all(change["shard"] in table.output for change in removed)
    after = cluster.shardctl("shards", "list", "-o", "json").output
    assert json.loads(after)["shards"] == json.loads(before)["shards"]


def test_plan_with_members_to_come_cannot_be_applied(cluster: DevCluster) -> None:
    """Looking ahead is allowed; carrying it out is refused with what to do."""
    made = json.loads(cluster.shardctl("plan", "--add", "local:2", "-o", "json").output)
    assert not made["can_be_applied"]

    refused = cluster.shardctl("plan", "--apply", made["plan_id"])

    assert refused.exit_code == 1
    assert "start them, then plan again" in refused.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--drain", "nobody"), "drain[0]: expected zone#suffix"),
        (("--drain", "local#nobody"), "drain[0]: expected a member"),
        (("--add", "local"), "--add: expected ZONE:N"),
        (("--apply", "0123456789abcdef"), "plan again"),
        (("--apply", "0123456789abcdef", "--drain", "local#x"), "--apply: expected no other"),
    ],
)
def test_mistakes_in_plans_name_their_field(
    cluster: DevCluster, arguments: tuple[str, ...], message: str
) -> None:
    """One line, the field, and what was expected."""
    result = cluster.shardctl("plan", *arguments)

    assert result.exit_code == 1
    assert message in result.output


def test_explanation_tells_where_a_shard_is_and_why(cluster: DevCluster) -> None:
    """A shard at rest: its replica, that it stays, that nothing waits; the same as JSON; an unknown one is an error."""
    listed = json.loads(cluster.shardctl("shards", "list", "-o", "json").output)["shards"]
    shard_id = listed[0]["spec"]["id"]

    table = cluster.shardctl("explain", shard_id)
    as_json = json.loads(cluster.shardctl("explain", shard_id, "-o", "json").output)
    unknown = cluster.shardctl("explain", "no-such-shard")

    assert "nothing waits" in table.output
    assert [replica["slot"] for replica in as_json["replicas"]] == [0]
    assert as_json["replicas"][0]["member"] in table.output
    assert unknown.exit_code == 1
    assert "no-such-shard does not exist" in unknown.output
