"""The commands that change specs, against a running `shardctl dev`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.counter_cluster import CounterCluster
from tests.support.eventually import eventually_sync

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SHARDS = ["edits/part-000", "edits/part-001"]
JOURNALS = ["edits/in/part-000", "edits/in/part-001"]
SELECTED = ("-l", "id:prefix=edits/")


@pytest.fixture
def declared(cluster: CounterCluster, tmp_path: Path) -> Iterator[Path]:
    """A directory that declares two disabled shards, applied; they are gone afterwards."""
    directory = tmp_path / "declared"
    directory.mkdir()
    for shard_id in SHARDS:
        spec = {"id": shard_id, "max_txn_duration": "1s", "disable": True}
        document = yaml.safe_dump({"shards": [spec]})
        (directory / f"{shard_id.replace('/', '-')}.yaml").write_text(document)
    applied = cluster.shardctl("shards", "apply", "-f", str(directory))
    assert applied.stdout == f"{SHARDS[0]} created\n{SHARDS[1]} created\n", applied.output
    yield directory
    cluster.shardctl("shards", "delete", *SELECTED, "--yes")


def _specs(cluster: CounterCluster) -> dict[str, dict[str, object]]:
    listed = cluster.shardctl("shards", "list", *SELECTED, "-o", "json")
    return {each["spec"]["id"]: each for each in json.loads(listed.stdout)["shards"]}


def test_files_are_applied_where_they_differ(cluster: CounterCluster, declared: Path) -> None:
    """Applied again, nothing is written; one changed file changes one shard. diff says the same beforehand."""
    before = _specs(cluster)
    file = declared / "edits-part-001.yaml"
    again = cluster.shardctl("shards", "apply", "-f", str(declared))
    same = cluster.shardctl("shards", "diff", "-f", str(declared))
    file.write_text(file.read_text().replace("1s", "2s"))

    differs = cluster.shardctl("shards", "diff", "-f", str(declared))
    dry = cluster.shardctl("shards", "apply", "-f", str(declared), "--dry-run")
    assert _specs(cluster) == before
    changed = cluster.shardctl("shards", "apply", "-f", "-", stdin=file.read_text())

    assert again.stdout == f"{SHARDS[0]} unchanged\n{SHARDS[1]} unchanged\n"
    assert again.stderr == "nothing to change\n"
    assert (same.exit_code, same.stdout) == (0, "")
    assert differs.exit_code == 6
    assert "-  max_txn_duration: 1s\n+  max_txn_duration: 2s\n" in differs.stdout
    assert dry.stdout.splitlines()[1] == f"{SHARDS[1]} configured (dry run)"
    assert changed.stdout == f"{SHARDS[1]} configured\n"
    assert _specs(cluster)[SHARDS[0]] == before[SHARDS[0]]


def test_file_of_an_older_revision_is_refused(cluster: CounterCluster, declared: Path) -> None:
    """Two people edit a list at the same time: the second is told, and overwrites nothing."""
    first = cluster.shardctl("shards", "list", *SELECTED, "-o", "yaml").stdout
    cluster.shardctl("shards", "label", SHARDS[0], "who=other")

    refused = cluster.shardctl("shards", "apply", "-f", "-", stdin=first.replace("1s", "3s"))

    assert refused.exit_code == 5
    assert f"{SHARDS[0]} is at revision" in refused.stderr
    assert "the file says" in refused.stderr


def test_labels_come_and_go(cluster: CounterCluster, declared: Path) -> None:
    """One shard by name, many by selector; a value that is there is not replaced by accident."""
    one = cluster.shardctl("shards", "label", SHARDS[0], "stage=test")
    other = cluster.shardctl("shards", "label", SHARDS[0], "stage=live")
    many = cluster.shardctl("shards", "label", *SELECTED, "stage=live", "--overwrite")
    again = cluster.shardctl("shards", "label", *SELECTED, "stage=live")
    removed = cluster.shardctl("shards", "label", *SELECTED, "stage-", "--dry-run")

    assert one.stdout == f"{SHARDS[0]} labelled\n"
    assert other.exit_code == 1
    assert "--overwrite" in other.stderr
    assert many.stdout == f"{SHARDS[0]} labelled\n{SHARDS[1]} labelled\n"
    assert again.stdout == f"{SHARDS[0]} unchanged\n{SHARDS[1]} unchanged\n"
    assert removed.stdout.endswith("labelled (dry run)\n")
    named = cluster.shardctl("shards", "list", "-l", "stage=live", "-o", "name")
    assert named.stdout.split() == SHARDS


def _editor(program: str) -> str:
    return f'{sys.executable} -c "import sys, pathlib; p = pathlib.Path(sys.argv[1]); t = p.read_text(); {program}"'


def test_specs_are_edited_in_an_editor(
    cluster: CounterCluster, declared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is saved is shown as a difference and applied; a mistake is kept in a file; no change is none."""
    monkeypatch.setenv("VISUAL", _editor("p.write_text(t.replace('1s', '2s'))"))
    edited = cluster.shardctl("shards", "edit", SHARDS[0])
    monkeypatch.setenv("VISUAL", _editor("pass"))
    untouched = cluster.shardctl("shards", "edit", *SELECTED)
    monkeypatch.setenv("VISUAL", _editor("p.write_text(t.replace('max_txn', 'min_tnx'))"))
    mistaken = cluster.shardctl("shards", "edit", SHARDS[0])
    monkeypatch.setenv("VISUAL", _editor("p.write_text(t.replace('part-000', 'part-009'))"))
    renamed = cluster.shardctl("shards", "edit", SHARDS[0])

    assert edited.exit_code == 0, edited.output
    assert "+  max_txn_duration: 2s\n" in edited.stdout
    assert untouched.stderr == "nothing was edited\n"
    assert mistaken.exit_code == renamed.exit_code == 1
    assert "unknown field `min_tnx_duration`" in mistaken.stderr
    kept = Path(mistaken.stderr.split()[-1])
    assert "min_tnx_duration" in kept.read_text()
    kept.unlink()
    assert "'edits/part-009' is not among what is edited" in renamed.stderr
    Path(renamed.stderr.split()[-1]).unlink()
    assert {each["spec"]["max_txn_duration"] for each in _specs(cluster).values()} == {"1s", "2s"}  # type: ignore[index]  # JSON's values


def test_spec_changed_while_it_is_edited_is_not_overwritten(
    cluster: CounterCluster, declared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The editor is open for an hour, and somebody else labels the shard: the edit is refused, and kept."""
    label = [sys.executable, "-P", "-m", "broadsheet.cli.main", "shards", "label"]
    label += [SHARDS[0], "who=other", "--address", cluster.addresses[1]]
    program = f"p.write_text(t.replace('1s', '2s')); import subprocess; subprocess.run({label}, check=True)"
    monkeypatch.setenv("VISUAL", _editor(program))

    refused = cluster.shardctl("shards", "edit", SHARDS[0])

    assert refused.exit_code == 5, refused.output
    assert f"{SHARDS[0]} is at revision" in refused.stderr
    Path(refused.stderr.split()[-1]).unlink()
    assert _specs(cluster)[SHARDS[0]]["spec"]["max_txn_duration"] == "1s"  # type: ignore[index]  # JSON's values


def test_deletion_is_confirmed(cluster: CounterCluster, declared: Path) -> None:
    """A script must say --yes, because nobody answers it; what is not there, or not named, is not deleted."""
    unasked = cluster.shardctl("shards", "delete", SHARDS[0])
    dry = cluster.shardctl("shards", "delete", *SELECTED, "--dry-run")
    nothing = cluster.shardctl("shards", "delete", "--yes")
    missing = cluster.shardctl("shards", "delete", "edits/part-009", "--yes")
    assert [*_specs(cluster)] == SHARDS
    deleted = cluster.shardctl("shards", "delete", *SHARDS, "--yes")

    assert unasked.exit_code == nothing.exit_code == 2
    assert f"Delete 1 shard: {SHARDS[0]}?" in unasked.stderr
    assert dry.stdout == f"{SHARDS[0]} deleted (dry run)\n{SHARDS[1]} deleted (dry run)\n"
    assert missing.exit_code == 3
    assert deleted.stdout == f"{SHARDS[0]} deleted\n{SHARDS[1]} deleted\n"
    assert not _specs(cluster)


def test_journals_are_changed_alike(
    cluster: CounterCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same commands, for journals: create, label, edit, apply a backup, delete."""
    document = {
        "name": "edits/in/",
        "replication": 1,
        "fragment": {"length": 65536, "compression_codec": "NONE", "refresh_interval": "1m"},
        "children": [{"name": name} for name in JOURNALS],
    }
    selected = ("-l", "name:prefix=edits/in/")
    created = cluster.shardctl("journals", "apply", "-f", "-", stdin=yaml.safe_dump(document))
    again = cluster.shardctl("journals", "diff", "-f", "-", stdin=yaml.safe_dump(document))
    labelled = cluster.shardctl("journals", "label", JOURNALS[0], "stage=test")
    monkeypatch.setenv("VISUAL", _editor("p.write_text(t.replace('65536', '131072'))"))
    edited = cluster.shardctl("journals", "edit", *selected)
    backup = cluster.shardctl("journals", "list", *selected, "-o", "yaml").stdout
    deleted = cluster.shardctl("journals", "delete", *selected, "--yes")
    restored = cluster.shardctl("journals", "apply", "-f", "-", stdin=backup)
    differs = cluster.shardctl("journals", "diff", "-f", "-", stdin=backup)
    cluster.shardctl("journals", "delete", *JOURNALS, "--yes")

    assert created.stdout == f"{JOURNALS[0]} created\n{JOURNALS[1]} created\n", created.output
    assert again.exit_code == 0, again.output
    assert labelled.stdout == f"{JOURNALS[0]} labelled\n", labelled.output
    assert edited.stderr.endswith("2 journals changed\n"), edited.output
    assert deleted.stdout == f"{JOURNALS[0]} deleted\n{JOURNALS[1]} deleted\n", deleted.output
    assert restored.stdout == created.stdout, restored.output
    assert differs.exit_code == 0, differs.output


@pytest.mark.parametrize(
    ("arguments", "stdin", "problem"),
    [
        (("shards", "apply"), "", "expected either --filename or --specs"),
        (("shards", "apply", "-f", "-", "--specs", "-"), "", "expected either --filename or"),
        (("shards", "apply", "-f", "/no/such"), "", "--filename: cannot read /no/such"),
        (("shards", "apply", "-f", "-"), "shards: []", "declares nothing"),
        (
            ("shards", "apply", "-f", "-"),
            "shards: [{id: abcd, max_txn_duration: 1s, sources: [{journal: no/such/journal}]}]",
            "standard input: shards[0] (shard abcd).sources[0].journal: journal no/such/journal does not",
        ),
        (("shards", "label", "counter/part-000"), "", "expected at least one NAME=VALUE"),
        (("shards", "label", "-l", "app=none", "stage=x"), "", "no shard matches 'app=none'"),
        (("journals", "edit"), "", "expected names of journals, or --selector"),
        # As of a script whose variable is not set.
        (("shards", "delete", "-l", ""), "", "got an empty text; -l id selects all shards"),
        (("shards", "unassign", "-l", ""), "", "got an empty text; -l id selects all shards"),
        (("journals", "suspend", "-l", ""), "", "got an empty text; -l name selects all journals"),
    ],
)
def test_mistakes_in_changes_are_answered_in_one_line(
    cluster: CounterCluster, arguments: tuple[str, ...], stdin: str, problem: str
) -> None:
    """One line that says what is wrong, and where in which file."""
    result = cluster.shardctl(*arguments, stdin=stdin)

    assert result.exit_code in {1, 2, 3}
    assert problem in result.stderr.splitlines()[-1]
    assert result.stdout == ""


def test_paused_shard_keeps_its_state_and_goes_on_when_resumed(cluster: CounterCluster) -> None:
    """A shard is taken out for an hour, without a file of its spec: nothing is lost, and nothing counted twice."""
    before = cluster.counts("part-001").get("paused", 0)
    paused = cluster.shardctl("shards", "pause", "counter/part-001")
    again = cluster.shardctl("shards", "pause", "counter/part-001")

    def is_taken_away() -> bool:
        listed = cluster.shardctl("shards", "list", "counter/part-001", "-o", "json")
        (found,) = json.loads(listed.stdout)["shards"]
        return bool(found["spec"]["disable"]) and not found["status"]

    eventually_sync(is_taken_away, timeout_seconds=300.0)
    listed = cluster.shardctl("shards", "list", "counter/part-001")
    cluster.shardctl(
        *("journals", "append", "counter/events/part-001", "--lines"), stdin='{"key":"paused"}\n'
    )
    assert cluster.counts("part-001").get("paused", 0) == before
    resumed = cluster.shardctl("shards", "resume", "-l", "id=counter/part-001")

    eventually_sync(
        lambda: cluster.counts("part-001").get("paused", 0) == before + 1, timeout_seconds=300.0
    )
    assert paused.stdout == "counter/part-001 paused\n"
    assert again.stdout == "counter/part-001 unchanged\n"
    assert listed.stdout.splitlines()[1].split()[:3] == ["counter/part-001", "DISABLED", "0"]
    assert resumed.stdout == "counter/part-001 resumed\n"


def test_missing_recovery_log_is_created_once_it_is_agreed_to(
    cluster: CounterCluster, tmp_path: Path
) -> None:
    """A shard with a log needs a journal more: apply names it, a dry run shows it, --yes creates it, and it serves."""
    shard, log = "logged/part-000", "logged/logs/logged/part-000"
    spec = {
        "id": shard,
        "max_txn_duration": "1s",
        "sources": [{"journal": "counter/events/part-000"}],
    }
    logged = {
        "recovery_log_prefix": "logged/logs",
        "hint_prefix": "/logged/hints",
        "hint_backups": 1,
    }
    file = tmp_path / "logged.yaml"
    file.write_text(yaml.safe_dump({"shards": [spec | logged]}))
    apply = ("shards", "apply", "-f", str(file))

    unasked = cluster.shardctl(*apply)
    dry = cluster.shardctl(*apply, "--dry-run")
    absent = cluster.shardctl("journals", "list", log)
    agreed = cluster.shardctl(*apply, "--yes")
    again = cluster.shardctl(*apply)
    waited = cluster.shardctl("shards", "wait", shard, "--for=primary")
    cluster.shardctl("shards", "delete", shard, "--yes")
    cluster.shardctl("journals", "delete", log, "--yes")

    assert unasked.exit_code == 2
    assert f"1 recovery log does not exist: {log}. Create it? " in unasked.stderr
    assert "expected --yes" in unasked.stderr
    assert dry.stdout == f"{log} created (dry run)\n{shard} created (dry run)\n"
    assert absent.exit_code == 3
    assert agreed.stdout == f"{log} created\n{shard} created\n", agreed.output
    assert again.stdout == f"{shard} unchanged\n"
    assert waited.exit_code == 0, waited.output
