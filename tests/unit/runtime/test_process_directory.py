"""Directories of processes: removed with them, or by the next process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.runtime.process_directory import HELD, ProcessDirectory
from broadsheet.spark_bridge.java import shims_dir_of
from broadsheet.testing import TestCluster
from tests.support.documents import REPOSITORY

_HOLDER = """
import sys
from pathlib import Path
from broadsheet.runtime.process_directory import ProcessDirectory
held = ProcessDirectory("kind-", parent=Path(sys.argv[1]))
(held.path / "file").write_text("content")
print(held.path, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_directory_of_an_ended_process_is_removed_by_the_next_of_its_kind(
    end: signal.Signals, tmp_path: Path
) -> None:
    """A living process keeps its own, also beside others; directories of other kinds stay as they are."""
    (tmp_path / "other-1").mkdir()
    (tmp_path / "kind-of-a-user").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        with ProcessDirectory("kind-", parent=tmp_path):
            assert (left / "file").exists()
        process.send_signal(end)
    assert left.exists()

    with ProcessDirectory("kind-", parent=tmp_path) as own:
        assert own.path.exists()
        assert not left.exists()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["kind-of-a-user", "other-1"]


def test_directory_closed_twice_leaves_its_successor_alone(tmp_path: Path) -> None:
    """The first close gives the descriptor back; a second one must not close another file of that number."""
    first = ProcessDirectory(parent=tmp_path)
    first.close()
    with ProcessDirectory(parent=tmp_path) as second:
        first.close()
        with ProcessDirectory(parent=tmp_path):
            assert second.path.exists()


def test_directory_written_to_while_it_is_removed_is_left_to_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor of a standalone Spark ends after its worker: what it writes last must not stay for ever."""
    directory = ProcessDirectory(parent=tmp_path)
    late = directory.path / "late"

    def removed(path: Path, **_: object) -> None:
        (path / HELD).unlink()
        late.touch()

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", removed)
        directory.close()
    assert late.exists()

    with ProcessDirectory(parent=tmp_path):
        assert not late.exists()


def _etcd() -> None:
    server = EmbeddedEtcdProcess(arguments=("--no-such-flag",))
    with pytest.raises(Exception, match="no-such-flag"), server:
        pass


def _broker() -> None:
    server = EmbeddedBrokerProcess(arguments=("--no-such-flag",))
    with pytest.raises(Exception, match="no-such-flag"), server:
        pass


def _test_cluster() -> None:
    from broadsheet.examples.counter.app import Counter

    with TestCluster(Counter) as cluster:
        cluster.publish("counted", {"key": "a"})


def _java_shims_without_a_home() -> None:
    first, second = (shims_dir_of({"XDG_CACHE_HOME": "/dev/null"}) for _ in range(2))
    assert first == second
    first.rmdir()


@pytest.mark.parametrize("use", [_etcd, _broker, _test_cluster, _java_shims_without_a_home])
def test_servers_that_ended_leave_nothing_among_temporary_files(
    use: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that fails is an end as well: each used to leave up to 128 MB in /tmp, or a directory for each call."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    use()

    assert list(tmp_path.iterdir()) == []
