"""The image, built and run as the chart's pods run it. Too slow for CI: `make nightly-image`, on Debian as root."""

from __future__ import annotations

import json
import os
import signal
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from broadsheet.consumer.client import ShardClient
from broadsheet.embedded.child_process import ChildProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.examples.counter.app import STATE_DIRECTORY_VARIABLE
from broadsheet.journals.client import JournalClient
from broadsheet.security.auth import KeyedAuth
from tests.deploy.charts import LEAST, render
from tests.deploy.image_root import BUILD_SECONDS_MAX, ImageRoot, build_image
from tests.support.eventually import eventually
from tests.support.members import Producer, create_journals, shard, upserts, wait_for_primaries

pytestmark = pytest.mark.timeout(2 * BUILD_SECONDS_MAX)

KEYS = b64encode(b"a key of the test, thirty-two bytes").decode()
APPLICATION = "broadsheet.examples.counter.app:Counter"
SOURCE = "test/source"
_SEEN_IN_IMAGE = """
import os, sys
try:
    open("/opt/broadsheet/x", "w")
except OSError as error:
    print(os.getuid(), error.strerror, open("/proc/self/status").read().split("CapEff:")[1].split()[0])
open("/tmp/x", "w")
"""


@pytest.fixture(scope="module")
def image() -> ImageRoot:
    """The image of this checkout."""
    return build_image()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends processes after the test, the last first."""
    with ExitStack() as made:
        yield made


def test_process_of_the_image_has_a_user_a_read_only_root_and_no_rights(image: ImageRoot) -> None:
    """What the chart demands of its pods is possible with this image."""
    seen = image.run("python", "-c", _SEEN_IN_IMAGE)
    assert seen.stdout.split(maxsplit=1)[0] == str(image.user), seen.stderr
    assert "Read-only file system 0000000000000000" in seen.stdout
    told = image.run("shardctl", "--version")
    assert told.returncode == 0, told.stderr
    # Nothing in the image installs packages, and it says what is in it.
    assert image.run("pip", "--version").returncode != 0
    parts = json.loads((image.path / "opt/broadsheet/sbom.cdx.json").read_text())
    assert {"grpcio", "protobuf"} <= {part["name"] for part in parts["components"]}


async def test_member_and_broker_run_from_the_image_as_the_chart_runs_them(
    image: ImageRoot, stack: ExitStack, tmp_path: Path
) -> None:
    """A message is counted, the health check agrees with what happens, and SIGTERM ends the processes in order."""
    etcd = stack.enter_context(EmbeddedEtcdProcess(data_dir=tmp_path / "etcd", listen="tcp"))
    broker_port, member_port, *admin_ports = _free_ports(4)
    secret = tmp_path / "auth"
    secret.mkdir()
    (secret / "keys").write_text(KEYS)
    auth = KeyedAuth(KEYS)
    broker_address = f"http://127.0.0.1:{broker_port}"
    replaced = {
        "--listen": f"127.0.0.1:{broker_port}",
        "--broker": broker_address,
        "--etcd": etcd.endpoint,
        "--host": "127.0.0.1",
        "--bind-host": "127.0.0.1",
        "--port": str(member_port),
    }

    def start(name: str, volume: str, admin_port: int) -> ChildProcess:
        """Run a container of the chart, with addresses of this machine."""
        (container,) = [each for each in render(LEAST).containers if each["name"] == name]
        # As Kubernetes gives a volume to the group of its pods.
        directory = tmp_path / f"{name}-volume"
        directory.mkdir()
        directory.chmod(0o2775)
        words = [
            _replaced(word, {**replaced, "--admin-port": str(admin_port)})
            for word in container["args"]
        ]
        words = [APPLICATION if word == LEAST["members"]["application"] else word for word in words]
        mounts = {volume: directory, "/etc/broadsheet/auth": secret}
        return stack.enter_context(
            image.running(
                *words,
                mounts=mounts,
                environment={"CONSUMER_ID": "orders-0", STATE_DIRECTORY_VARIABLE: "/state/counts"},
                directory=tmp_path / name,
            )
        )

    broker = start("broker", "/data", admin_ports[0])
    await eventually(lambda: _is_healthy(image, admin_ports[0]), timeout_seconds=60.0)
    async with JournalClient(broker_address, auth=auth) as journals:
        await create_journals(journals, SOURCE)
        member = start("member", "/state", admin_ports[1])
        await eventually(lambda: _is_healthy(image, admin_ports[1]), timeout_seconds=60.0)
        async with ShardClient(f"http://127.0.0.1:{member_port}", auth=auth) as client:
            await client.apply(upserts(shard("counts", SOURCE)))
            await wait_for_primaries(client, "counts")
            await Producer(journals).publish(SOURCE, ["a", "b", "a"])
            await eventually(lambda: _has_read(client), timeout_seconds=60.0)

    # The first process of a container gets its signals.
    for process in (member, broker):
        _signal_inner(process, signal.SIGTERM)
        await eventually(partial(_has_ended, process), timeout_seconds=60.0)
        assert process.exit_code == 0
    assert not _is_healthy(image, admin_ports[0])


async def _has_read(client: ShardClient) -> bool:
    told = await client.stat("counts")
    return told.read_through.get(SOURCE, 0) > 0


def _replaced(word: str, values: dict[str, str]) -> str:
    option, separator, _ = word.partition("=")
    word = f"{option}={values[option]}" if separator and option in values else word
    return word.replace("$(CONSUMER_ID)", "orders-0")  # as Kubernetes does


def _is_healthy(image: ImageRoot, port: int) -> bool:
    return image.run(*image.healthcheck, str(port)).returncode == 0


def _has_ended(process: ChildProcess) -> bool:
    return process.exit_code is not None


def _signal_inner(process: ChildProcess, number: signal.Signals) -> None:
    """Signal what bubblewrap runs, as an engine signals a container's first process."""
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    inner = Path(f"/proc/{child}/task/{child}/children").read_text().split()
    os.kill(int(inner[0] if inner else child), number)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
