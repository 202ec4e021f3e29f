"""The commands against a running `shardctl dev`, as a person at a terminal uses them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from base64 import b64encode
from functools import partial
from pathlib import Path

import psutil
import pytest
import yaml
from click.shell_completion import ShellComplete

from broadsheet.cli.main import main
from tests.support.counter_cluster import CounterCluster
from tests.support.dev_cluster import running_dev
from tests.support.eventually import eventually_sync

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

COUNT_SECONDS = 300.0
"""Longest wait for a count: it passes through processes that share the machine with other tests."""


def test_appended_lines_are_counted_and_shown(cluster: CounterCluster) -> None:
    """The way of a first evening: append lines, see the lag go to zero, read the journal back."""
    lines = "".join(json.dumps({"key": key}) + "\n" for key in "aabac")

    appended = cluster.shardctl(
        "journals", "append", "counter/events/part-000", "--lines", stdin=lines
    )
    assert appended.exit_code == 0, appended.stderr
    eventually_sync(
        lambda: cluster.counts("part-000").items() >= {"a": 3, "b": 1, "c": 1}.items(),
        timeout_seconds=COUNT_SECONDS,
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


def test_published_transaction_is_counted_by_the_shards_of_its_keys(
    cluster: CounterCluster,
) -> None:
    """All or nothing, over both journals: their shards pass over the acknowledgements, which have no key."""
    lines = "".join(json.dumps({"key": f"published-{number}"}) + "\n" for number in range(20))
    publish = ("journals", "publish", "counter/events/", "--key", "key", "--atomic", "-o", "json")

    published = cluster.shardctl(*publish, stdin=lines)
    assert published.exit_code == 0, published.stderr
    ranges = json.loads(published.stdout)["journals"]
    for each in ranges:
        shard = each["journal"].replace("events/", "")
        through = f"{each['journal']}={each['end']}"
        waited = cluster.shardctl("shards", "stat", shard, "--read-through", through)
        assert waited.exit_code == 0, waited.stderr

    assert [each["messages"] > 0 for each in ranges] == [True, True]
    counts = cluster.counts("part-000") | cluster.counts("part-001")
    assert [counts.get(f"published-{number}") for number in range(20)] == [1] * 20


def test_stat_waits_for_the_offsets_asked_for(cluster: CounterCluster) -> None:
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


def test_listing_applied_again_is_accepted_and_changes_only_revisions(
    cluster: CounterCluster,
) -> None:
    """`list -o yaml`, edit, `apply -` is the way to change a spec; a stale file is refused by name."""
    listed = cluster.shardctl("shards", "list", "-o", "yaml").stdout
    edited = listed.replace("max_txn_duration: 1s", "max_txn_duration: 500ms")
    assert edited != listed

    applied = cluster.shardctl("shards", "apply", "--specs", "-", stdin=edited)
    again = cluster.shardctl("shards", "apply", "--specs", "-", stdin=edited)

    assert applied.exit_code == 0, applied.stderr
    assert again.exit_code == 5
    assert "counter/part-000 is at revision" in again.stderr
    common = yaml.safe_load(cluster.shardctl("shards", "list", "-o", "yaml").stdout)["common"]
    assert common["max_txn_duration"] == "500ms"


def test_list_and_explain_name_the_cap_on_standbys(cluster: CounterCluster) -> None:
    """Who asks for five hot standbys and gets three is told so where shards are looked at."""
    specs = {
        "common": {"max_txn_duration": "1s"},
        "shards": [{"id": "capped/part-000", "hot_standbys": 5}],
    }

    applied = cluster.shardctl("shards", "apply", "--specs", "-", stdin=yaml.safe_dump(specs))
    listed = cluster.shardctl("shards", "list", "-l", "id=capped/part-000")
    explained = cluster.shardctl("explain", "capped/part-000")
    deletion = {"shards": [{"id": "capped/part-000", "delete": True, "revision": -1}]}
    deleted = cluster.shardctl("shards", "apply", "--specs", "-", stdin=yaml.safe_dump(deletion))

    assert applied.exit_code == 0, applied.stderr
    assert "capped/part-000: hot_standbys: 5 are wanted, capped to 3" in listed.stderr
    assert "hot_standbys: 5 are wanted, capped to 3" in explained.stdout
    assert deleted.exit_code == 0, deleted.stderr


def test_many_shards_are_applied_in_batches_and_deleted_again(cluster: CounterCluster) -> None:
    """300 specs exceed etcd's 128 operations: batches go through, and one transaction is refused if asked for."""
    specs = {
        "common": {"max_txn_duration": "1s", "disable": True},
        "shards": [{"id": f"many/part-{number:03}"} for number in range(300)],
    }

    whole = cluster.shardctl(
        "shards", "apply", "--specs", "-", "--max-txn-size", "0", stdin=yaml.safe_dump(specs)
    )
    batched = cluster.shardctl("shards", "apply", "--specs", "-", stdin=yaml.safe_dump(specs))
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
    cluster: CounterCluster, arguments: tuple[str, ...], stdin: str, problem: str
) -> None:
    """One line that says what is wrong and where, on stderr, with an exit status and nothing on stdout."""
    result = cluster.shardctl(*arguments, stdin=stdin)

    assert result.exit_code in {1, 2, 3, 4}
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_addresses_taken_for_each_other_are_recognised(cluster: CounterCluster) -> None:
    """A member's address given for the broker's, or the other way round: the answer says what to look at."""
    broker = cluster.shardctl("shards", "list", "--address", cluster.broker)
    member = cluster.shardctl("journals", "list", "--broker", cluster.addresses[1])

    assert "--address is a member's, --broker a broker's" in broker.stderr
    assert "--address is a member's, --broker a broker's" in member.stderr


def test_listing_of_nothing_says_so(cluster: CounterCluster) -> None:
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
    cluster: CounterCluster, arguments: tuple[str, ...]
) -> None:
    """Programs read what people read: each result parses in both formats."""
    as_json = cluster.shardctl(*arguments, "-o", "json")
    as_yaml = cluster.shardctl(*arguments, "-o", "yaml")

    assert (as_json.exit_code, as_yaml.exit_code) == (0, 0), as_json.stderr + as_yaml.stderr
    assert isinstance(json.loads(as_json.stdout), dict)
    assert isinstance(yaml.safe_load(as_yaml.stdout), dict)


def test_lists_are_there_in_the_formats_of_kubectl(cluster: CounterCluster) -> None:
    """Names for a pipe, a path for a variable, a wide table for a person, and only those that were named."""
    ids = ["counter/part-000", "counter/part-001"]
    names = cluster.shardctl("shards", "list", "-o", "name", "-l", "app=counter")
    path = cluster.shardctl("shards", "list", *ids, "-o", "jsonpath={.shards[*].spec.id}")
    wide = cluster.shardctl("shards", "list", ids[0], "-o", "wide")
    journals = cluster.shardctl("journals", "list", "counter/events/part-000", "-o", "wide")
    first = cluster.shardctl("journals", "list", "-o", "jsonpath={.journals[0].spec.name}")

    assert names.stdout.splitlines() == path.stdout.splitlines() == ids
    header, row = (line.split() for line in wide.stdout.splitlines())
    assert header == [
        *("ID", "STATUS", "RF", "PRIMARY", "REPLICAS"),
        *("SOURCES", "RECOVERY-LOG", "REVISION"),
    ]
    assert row[5:7] == ["counter/events/part-000", "<none>"]
    assert len(journals.stdout.splitlines()) == 2
    assert "NONE" in journals.stdout
    assert first.stdout == "counter/events/part-000\n"


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        (("shards", "list", "counter/part-000", "none"), 3, "there is no shard none"),
        (("journals", "list", "none"), 3, "there is no journal none"),
        (("shards", "list", "none", "-l", "a=b"), 2, "either SHARD or --selector"),
        (("shards", "list", "-o", "xml"), 2, "expected one of table, wide"),
        (("shards", "list", "-o", "jsonpath={.a[?(@.b)]}"), 2, "-o json | jq"),
        (("shards", "list", "-o", "json", "--watch"), 2, "expected -o table, wide or name"),
        (("shards", "stat", "none"), 3, "does not exist"),
        (("journals", "read", "none"), 3, "does not exist"),
    ],
)
def test_exit_status_of_a_list_tells_what_is_wrong(
    cluster: CounterCluster, arguments: tuple[str, ...], status: int, problem: str
) -> None:
    """What is not there, and what is typed wrongly, are told apart without reading the text."""
    result = cluster.shardctl(*arguments)

    assert (result.exit_code, result.stdout) == (status, "")
    assert problem in result.stderr


def test_watch_shows_a_shard_come_and_go(cluster: CounterCluster) -> None:
    """Somebody watches a rollout in one terminal while another changes things; a pipe gets each row as it changes."""
    spec = "shards: [{id: watched/part-000, max_txn_duration: 1s, disable: true, revision: %s}]"
    command = [sys.executable, "-P", "-m", "broadsheet.cli.main", "shards", "list"]
    command += ["-l", "id:prefix=watched/", "--watch", "--interval", "0.05"]
    where = {"CONSUMER_ADDRESS": cluster.addresses[1], "BROKER_ADDRESS": cluster.broker}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | where,
        # Who runs the tests in the background of a shell has SIGINT ignored, and so has each process it starts.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as watching:
        try:
            assert watching.stdout is not None
            assert watching.stdout.readline().split() == ["ID", "STATUS", "RF", "PRIMARY"]
            cluster.shardctl("shards", "apply", "--specs", "-", stdin=spec % 0)
            assert watching.stdout.readline().split() == [
                "watched/part-000",
                "DISABLED",
                "0",
                "<none>",
            ]
            deletion = spec.replace("disable: true", "delete: true") % -1
            cluster.shardctl("shards", "apply", "--specs", "-", stdin=deletion)
            assert watching.stdout.readline().split()[:2] == ["watched/part-000", "DELETED"]
            # Ctrl-C is how a watch ends, and no error.
            watching.send_signal(signal.SIGINT)
            assert watching.wait(timeout=300) == 0
        finally:
            watching.kill()


def test_wait_ends_when_the_condition_holds_or_the_time_is_over(cluster: CounterCluster) -> None:
    """A deployment waits for its shards, and a script tells a slow one from a missing one by the status."""
    events = "counter/events/part-000"
    cluster.shardctl("journals", "append", events, "--lines", stdin='{"key":"w"}\n')
    served = cluster.shardctl("shards", "wait", "-l", "app=counter", "--for=primary")
    read = cluster.shardctl("shards", "wait", "counter/part-000", "--for=lag<1")
    late = cluster.shardctl("shards", "wait", "counter/part-000", "--for=deleted", "--timeout", "0")
    gone = cluster.shardctl("shards", "wait", "no/such/shard", "--for=deleted")
    missing = cluster.shardctl("shards", "wait", "no/such/shard", "--for=primary")
    never = cluster.shardctl("shards", "wait", "counter/part-000", "--for=standby")
    all_of_them = cluster.shardctl("shards", "wait", "-l", "", "--for=primary")
    none = cluster.shardctl("shards", "wait", "--for=primary")

    assert served.exit_code == 0, served.output
    assert served.stdout == "counter/part-000 condition met\ncounter/part-001 condition met\n"
    assert all_of_them.stdout == served.stdout
    assert (none.exit_code, all_of_them.exit_code) == (2, 0)
    assert "expected names of shards, or --selector" in none.stderr
    assert read.exit_code == 0, read.output
    assert late.exit_code == 4
    assert "not within 0 s: counter/part-000 is there" in late.stderr
    assert (gone.exit_code, missing.exit_code, never.exit_code) == (0, 3, 2)
    assert "hot_standbys: 0" in never.stderr


def test_journals_are_listed_with_their_content_type(cluster: CounterCluster) -> None:
    """The content type decides how a journal is read: it is the first thing one looks for."""
    listed = cluster.shardctl("journals", "list").stdout.splitlines()

    assert listed[0].split() == ["NAME", "CONTENT-TYPE", "RF", "PRIMARY"]
    assert listed[1].split()[:3] == ["counter/events/part-000", "application/x-ndjson", "1"]


def test_dry_run_prints_the_changes_and_applies_nothing(cluster: CounterCluster) -> None:
    """A dry run checks all that apply checks, and leaves everything as it is."""
    specs = "shards: [{id: dry/part-000, max_txn_duration: 1s}]"

    result = cluster.shardctl("shards", "apply", "--specs", "-", "--dry-run", stdin=specs)

    assert result.exit_code == 0, result.stderr
    assert 'id: "dry/part-000"' in result.stdout
    assert "dry/part" not in cluster.shardctl("shards", "list").stdout


def test_hints_of_a_shard_without_recovery_log_are_empty(cluster: CounterCluster) -> None:
    """GetHints answers for every shard; one with a remote store has none."""
    result = cluster.shardctl("shards", "hints", "counter/part-000")

    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["status"] == "OK"


def test_unassigned_shard_restarts_and_keeps_its_count(cluster: CounterCluster) -> None:
    """Unassign is a restart: the state is what was committed, and counting goes on."""
    before = cluster.counts("part-001")

    unassigned = cluster.shardctl("shards", "unassign", "-l", "id=counter/part-001")
    cluster.shardctl(
        "journals", "append", "counter/events/part-001", "--lines", stdin='{"key":"after"}\n'
    )

    assert unassigned.stdout == "counter/part-001\n", unassigned.stderr
    eventually_sync(
        lambda: cluster.counts("part-001") == {**before, "after": 1}, timeout_seconds=COUNT_SECONDS
    )


def test_killed_member_is_replaced_and_its_shard_goes_on(cluster: CounterCluster) -> None:
    """After kill -9 of a member, its next life revokes the lease, and every message is still counted once."""
    os.kill(cluster.pid_of(0), signal.SIGKILL)
    for part in ("part-000", "part-001"):
        cluster.shardctl(
            "journals", "append", f"counter/events/{part}", "--lines", stdin='{"key":"k"}\n'
        )

    eventually_sync(
        lambda: (
            cluster.counts("part-000").get("k") == 1 and cluster.counts("part-001").get("k") == 1
        ),
        timeout_seconds=COUNT_SECONDS,
    )


def test_servers_that_end_are_started_again_where_they_were(cluster: CounterCluster) -> None:
    """A broker or an etcd that crashes would leave a cluster that only looks alive: each is started again on its data,
    a line says so, and what is appended then is counted.
    """
    etcd = re.search(r"^etcd +(\S+)$", cluster.log.read_text(), re.MULTILINE)
    assert etcd is not None
    for name, address in (("broker", cluster.broker), ("etcd", etcd[1])):
        before = cluster.log.read_text().count(f"{name} serves again")
        os.kill(_pid_listening_at(address), signal.SIGKILL)
        eventually_sync(
            lambda: cluster.log.read_text().count(f"{name} serves again") == before + 1,  # noqa: B023 - called at once
            timeout_seconds=COUNT_SECONDS,
        )
        assert f"{name} ended; starting it again" in cluster.log.read_text()
    counted = cluster.counts("part-000").get("revived", 0)

    def appended() -> bool:
        line = cluster.shardctl(
            *("journals", "append", "counter/events/part-000", "--lines"),
            stdin='{"key":"revived"}\n',
        )
        return line.exit_code == 0

    eventually_sync(appended, timeout_seconds=COUNT_SECONDS)
    eventually_sync(
        lambda: cluster.counts("part-000").get("revived", 0) > counted,
        timeout_seconds=COUNT_SECONDS,
    )


def _pid_listening_at(address: str) -> int:
    port = int(address.rpartition(":")[2])
    (pid,) = {
        each.pid
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid
    }
    return int(pid)


def test_ids_are_completed_as_the_cluster_has_them(
    cluster: CounterCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody types half an id and TAB: shards, journals and members are asked for where the environment says."""
    monkeypatch.setenv("CONSUMER_ADDRESS", cluster.addresses[1])
    monkeypatch.setenv("BROKER_ADDRESS", cluster.broker)
    completer = ShellComplete(main, {}, "shardctl", "_SHARDCTL_COMPLETE")

    def completions(*words: str, incomplete: str) -> list[str]:
        return [each.value for each in completer.get_completions(list(words), incomplete)]

    assert completions("shards", "stat", incomplete="counter/part-001") == ["counter/part-001"]
    assert completions("shards", "delete", "counter/part-000", incomplete="counter/") == [
        "counter/part-000",
        "counter/part-001",
    ]
    assert completions("journals", "read", incomplete="counter/events/part-000") == [
        "counter/events/part-000"
    ]
    assert all("#dev-" in each for each in completions("members", "cordon", incomplete="zone"))
    assert completions("members", "cordon", incomplete="zone")


def test_dev_with_keys_serves_those_who_have_them(tmp_path: Path) -> None:
    """One file is for members, broker, the specs that dev applies itself, and the line that it tells to try."""
    (tmp_path / "keys").write_text(b64encode(b"the keys of a try, 32 bytes or more").decode())
    command = (
        "shardctl dev broadsheet.examples.counter.app:Counter --members 1 --auth-keys-file keys "
        "--journals examples/counter/journals.yaml --specs examples/counter/shards.yaml"
    )
    with running_dev(command, tmp_path) as dev:
        tried = re.search(r"^try +(shardctl .*)$", dev.output, re.MULTILINE)
        assert tried, dev.output
        with_keys = dev.shell(tried[1])
        without = dev.shell("shardctl shards list")

    assert "part-000" in with_keys.stdout
    assert without.returncode == 1
    assert "missing metadata" in without.stderr
