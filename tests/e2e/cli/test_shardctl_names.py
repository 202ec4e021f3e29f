"""What `shardctl` prints is what it takes: ids, exit statuses, and the guard of journals in use."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import pytest
import yaml

from broadsheet.cli.lazy_group import ExitStatus
from tests.support.counter_cluster import CounterCluster
from tests.support.documents import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SHARD = "counter/part-000"
_STATUS_ROW = re.compile(r"^\| (\d) \| (\w+) \| .* \| `shardctl ([^`]+)`[^|]* \|$", re.MULTILINE)


def _rows(cluster: CounterCluster, *command: str) -> list[dict[str, str]]:
    """Return the rows of a table by its columns, which two blanks part."""
    listed = cluster.shardctl(*command)
    assert listed.exit_code == 0, listed.output
    columns, *rows = [
        re.split(r"\s{2,}|\s(?=\S+$)", line.strip()) for line in listed.stdout.splitlines()
    ]
    return [dict(zip(columns, row, strict=False)) for row in rows]


_SHARD_VERBS = (
    "shards list {}",
    "shards describe {}",
    "shards stat {}",
    "shards moves {}",
    "shards wait {} --for=primary",
    "shards label {} tried=yes --dry-run",
    "shards delete {} --dry-run",
    "shards unassign {} --dry-run",
    "shards resume {}",
    "explain {}",
    "can-i apply shards {}",
)
_JOURNAL_VERBS = (
    "journals list {}",
    "journals describe {}",
    "journals fragments {}",
    "journals read {}",
    "journals verify {}",
    "journals prune {} --dry-run",
    "journals label {} tried=yes --dry-run",
    "journals delete {} --dry-run --force",
    "can-i append journals {}",
)
_MEMBER_VERBS = (
    "members cordon {}",
    "members uncordon {}",
    "members drain {} --dry-run",
    "plan --drain {}",
    "shards moves --member {}",
)


def test_ids_that_lists_print_are_ids_that_verbs_take(cluster: CounterCluster) -> None:
    """What is seen in one table is pasted behind the next verb: also the member that a list of shards shows."""
    shard, *_ = _rows(cluster, "shards", "list", "--replicas")
    journal, *_ = _rows(cluster, "journals", "list")
    members = [each["MEMBER"] for each in _rows(cluster, "members", "list")]
    assert shard["PRIMARY"] in members

    for verbs, name in (
        (_SHARD_VERBS, shard["ID"]),
        (_JOURNAL_VERBS, journal["NAME"]),
        (_MEMBER_VERBS, shard["PRIMARY"]),
    ):
        for verb in verbs:
            done = cluster.shardctl(*shlex.split(verb.format(name)))
            assert done.exit_code == ExitStatus.DONE, f"{verb}: {done.output}"


def test_names_that_are_not_there_end_every_verb_alike(cluster: CounterCluster) -> None:
    """A script that creates what is missing looks at the status, whichever verb it tried."""
    verbs = [
        *(
            each
            for each in (*_SHARD_VERBS, *_JOURNAL_VERBS, *_MEMBER_VERBS)
            if "--member" not in each
        ),
        "shards hints {}",
        "shards dead-letters {}",
        "shards pause {}",
        "shards recover {} --dir /tmp/never-made",
        "shards rewind {} --whole-log --dry-run",
        "journals suspend {}",
        "journals reset-head {}",
        "journals append {}",
        "shards list --context {}",
    ]
    told = {}
    for verb in verbs:
        if not verb.startswith("can-i"):
            done = cluster.shardctl(*shlex.split(verb.format("no/body")), stdin="x\n")
            told[verb] = (done.exit_code, done.output)

    wrong = {verb: said for verb, said in told.items() if said[0] != ExitStatus.NOT_FOUND}
    assert wrong == {}


def test_exit_statuses_are_as_documented(
    cluster: CounterCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is what scripts are written by: it names every status, and its examples end with theirs."""
    monkeypatch.chdir(REPOSITORY)
    documented = _STATUS_ROW.findall((REPOSITORY / "docs" / "operations.md").read_text())

    ended = {command: cluster.shardctl(*shlex.split(command)) for _, _, command in documented}

    assert [(int(status), name) for status, name, _ in documented] == [
        (each.value, each.name.lower()) for each in ExitStatus
    ]
    assert {command: done.exit_code for command, done in ended.items()} == {
        command: int(status) for status, _, command in documented
    }, {command: done.output for command, done in ended.items()}


@pytest.fixture
def used_journals(cluster: CounterCluster) -> Iterator[tuple[str, str]]:
    """A source and a recovery log of a paused shard."""
    names = ("guard/in", "guard/logs/guard/shard")
    journals = {
        "name": "guard/",
        "replication": 1,
        "fragment": {"length": 65536, "compression_codec": "NONE", "refresh_interval": "1m"},
        "children": [
            {
                "name": names[0],
                "labels": [{"name": "content-type", "value": "application/x-ndjson"}],
            },
            {
                "name": names[1],
                "labels": [{"name": "content-type", "value": "application/x-gazette-recoverylog"}],
            },
        ],
    }
    shard = {
        "id": "guard/shard",
        "sources": [{"journal": names[0]}],
        "recovery_log_prefix": "guard/logs",
        "hint_prefix": "/guard",
        "max_txn_duration": "1s",
        "disable": True,
    }
    for kind, document in (("journals", journals), ("shards", {"shards": [shard]})):
        made = cluster.shardctl(kind, "apply", "-f", "-", stdin=yaml.safe_dump(document))
        assert made.exit_code == 0, made.output
    yield names
    cluster.shardctl("shards", "delete", "guard/shard", "--yes")
    cluster.shardctl("journals", "delete", "-l", "name:prefix=guard/", "--yes", "--force")


def test_journal_of_a_shard_is_deleted_by_force_only(
    cluster: CounterCluster, used_journals: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One word too much in a selector would take a shard's input or its state: by delete, apply and edit alike."""
    source, log = used_journals
    deletion = yaml.safe_dump({"name": source, "delete": True, "revision": -1})
    monkeypatch.setenv("VISUAL", "sed -i 's/^name:/delete: true\\nname:/'")

    refused = [
        cluster.shardctl("journals", "delete", source, "--yes"),
        cluster.shardctl("journals", "delete", "-l", "name:prefix=guard/", "--dry-run"),
        cluster.shardctl("journals", "apply", "-f", "-", stdin=deletion),
        cluster.shardctl("journals", "apply", "-f", "-", "--dry-run", stdin=deletion),
        cluster.shardctl("journals", "apply", "--specs", "-", stdin=deletion),
        cluster.shardctl("journals", "edit", source, "--yes"),
    ]
    recovery = cluster.shardctl("journals", "delete", log, "--yes")
    unknown = cluster.shardctl(
        "journals", "delete", source, "--yes", "--address", "http://127.0.0.1:1"
    )
    unused = cluster.shardctl("shards", "delete", "guard/shard", "--dry-run")
    assert len(_names(cluster)) == 2
    forced = cluster.shardctl("journals", "delete", log, "--yes", "--force")

    for each in refused:
        assert each.exit_code == ExitStatus.FAILED, each.output
        assert f"JOURNAL: {source} is in use: guard/shard reads it" in each.stderr
        assert "--force deletes" in each.stderr
    assert f"{log} is in use: guard/shard records into it" in recovery.stderr
    assert f"it cannot be told whether shards use {source}: cannot reach" in unknown.stderr
    assert unused.exit_code == 0
    assert forced.stdout == f"{log} deleted\n"


def _names(cluster: CounterCluster) -> list[str]:
    listed = cluster.shardctl("journals", "list", "-l", "name:prefix=guard/", "-o", "name")
    return listed.stdout.split()


def test_doctor_counts_a_member_once(cluster: CounterCluster) -> None:
    """A member that is called by another name than it announced was a member more, and a rollout half done."""
    other_names = ",".join(each.replace("127.0.0.1", "localhost") for each in cluster.addresses)

    told = cluster.shardctl("doctor", "-o", "json", "--address", other_names)

    found = {each["what"]: each["detail"] for each in json.loads(told.stdout)["findings"]}
    assert found["clocks"].startswith("3 clocks within")
    assert "(2 members)" in found["versions"]


def test_dev_says_what_each_address_is_for(cluster: CounterCluster) -> None:
    """Three bare addresses in a row do not say which is the page."""
    text = cluster.log.read_text()

    pages = re.findall(
        r"^page +(http://\S+/) \(of (dev-\d); also /metrics, /readyz\)$", text, re.MULTILINE
    )
    assert [name for _, name in pages] == ["dev-0", "dev-1"]
    assert re.search(
        r"^admin +http://\S+ \(of the broker: /metrics, /readyz\)$", text, re.MULTILINE
    )
