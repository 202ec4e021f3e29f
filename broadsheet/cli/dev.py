"""`shardctl dev`: a whole cluster on this machine, in seconds and without a JVM."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import FrameType

import click

from broadsheet.cli.application_name import load_application
from broadsheet.cli.errors import errors_in_one_line
from broadsheet.cli.journals.space import read_journal_changes
from broadsheet.cli.output.messages import say
from broadsheet.cli.project import FILE, TABLE, Project, read_project
from broadsheet.cli.serve import default_root
from broadsheet.cli.shards.space import places_of, read_shard_changes
from broadsheet.cli.specs.changes import ANY_REVISION
from broadsheet.cli.specs.files import errors_name_places, read_text
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.client.log_journals import create_log_journals, missing_log_journals
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import EmbeddedServerError, ValidationError
from broadsheet.runtime.log_output import guard_standard_streams
from broadsheet.runtime.logs import log_to_stderr
from broadsheet.runtime.open_files import raise_open_files_limit
from broadsheet.security.auth import KeyedAuth, keys_from
from broadsheet.security.tls_options import TLS_VARIABLES
from broadsheet.serving.tracing import TRACES_VARIABLE, traces_option
from broadsheet.wire import journal_pb2, shard_pb2

MEMBERS_DEFAULT = 2
SECOND_MEMBER_PORT_STEP = 2
"""From the first member's port to the second's; the broker's is between them."""
WATCH_SECONDS = 0.5
"""Pause between two looks at whether every member still runs."""
PRIMARIES_SECONDS_MAX = 30.0
PRIMARIES_LOOK_SECONDS = 0.05
LISTEN_HOST = "127.0.0.1"
STATE_DIRECTORY_VARIABLE = "BROADSHEET_STATE_DIR"
"""Tells members where local state may be: beside the journals, so that neither outlives the other."""
_ETCD_VARIABLES = ("ETCD_USER", "ETCD_PASSWORD")
"""Of members: credentials for another etcd."""

_specs = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command(short_help="Run a whole cluster on this machine until Ctrl-C.")
@click.argument("app", required=False)
@click.option("--journals", type=_specs, help="Journal specs to apply first.")
@click.option("--specs", type=_specs, help="Shard specs to apply once members serve.")
@click.option("--members", type=click.IntRange(1, 32), default=MEMBERS_DEFAULT, help="How many.")
@click.option(
    "--port",
    envvar="CONSUMER_PORT",
    show_envvar=True,
    default=8080,
    help="Of the first member; the second takes the one after the next, if it is free, the others any. 0: any.",
)
@click.option(
    "--broker-port",
    envvar="BROKER_PORT",
    show_envvar=True,
    default=8081,
    help="Of the broker. 0: any.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep journals and etcd's data here; otherwise they are removed at the end.",
)
@click.option(
    "--file-root",
    envvar="BROKER_FILE_ROOT",
    show_envvar=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Root of file:// stores: the broker publishes sealed fragments of journals with such a store below it.",
)
@click.option(
    "--auth-keys-file",
    envvar="AUTH_KEYS_FILE",
    show_envvar=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with the base64 keys of members and broker; without it, they serve everyone here.",
)
@traces_option
def dev(
    app: str | None,
    journals: Path | None,
    specs: Path | None,
    members: int,
    port: int,
    broker_port: int,
    data_dir: Path | None,
    file_root: Path | None,
    auth_keys_file: Path | None,
    traces: bool,
) -> None:
    """Run etcd, a broker and members of the application APP until Ctrl-C.

    Without APP, the application and the files of specs are those of the project in the current folder: see
    [tool.broadsheet] in its pyproject.toml, as `shardctl init` writes it.

    Kill a member (`kill -9`) to watch its shards move: it is started again at once, as are etcd and the broker.

    Members find the path of a directory for local state, which lives as long as the journals, in BROADSHEET_STATE_DIR.

    \b
    Examples:
      shardctl dev
      shardctl dev broadsheet.examples.counter.app:Counter
      shardctl dev my.module:make_app --data-dir ./dev \\
          --journals journals.yaml --specs shards.yaml
    """
    guard_standard_streams()
    raise_open_files_limit()  # The processes that it starts inherit it.
    # The processes that it starts log for themselves.
    log_to_stderr("error", foreign_level=logging.WARNING)
    with errors_in_one_line(), ExitStack() as stack:
        # Mistakes are reported before anything starts.
        if app is None:
            project = _project_here()
            app = project.application
            journals, specs = journals or project.journals, specs or project.specs
        load_application(app)
        declared = _read(journals, specs)
        _require_free(port, "--port")
        _require_free(broker_port, "--broker-port")
        directory = data_dir or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="broadsheet-dev-"))
        )
        directory.mkdir(parents=True, exist_ok=True)
        stack.enter_context(_locked(directory))
        for name in (*TLS_VARIABLES, *_ETCD_VARIABLES):
            # The cluster is for this machine alone, and speaks clear text, whatever is set for other clusters.
            os.environ.pop(name, None)
        if traces:
            # The members and the broker export them, each for itself.
            os.environ[TRACES_VARIABLE] = "1"
        os.environ.setdefault(STATE_DIRECTORY_VARIABLE, str(directory.absolute() / "state"))
        cluster = DevCluster(
            app,
            directory.absolute(),
            stack,
            broker_port=broker_port,
            file_root=None if file_root is None else file_root.absolute(),
            auth_keys_file=None if auth_keys_file is None else auth_keys_file.absolute(),
        )
        cluster.start_members(members, port)
        cluster.apply(declared)
        cluster.describe()
        cluster.watch()


def _project_here() -> Project:
    found = read_project(Path())
    if found is None:
        raise ValidationError(
            "APP",
            f"expected package.module:attribute, or a {FILE} here that has the table {TABLE}; shardctl init NAME makes "
            "a folder with one",
        )
    return found


@dataclass(frozen=True, slots=True)
class Declared:
    """Contents of the spec files."""

    journals: Sequence[journal_pb2.ApplyRequest.Change]
    shards: Sequence[shard_pb2.ApplyRequest.Change]
    shards_source: str
    """Name of the shards' file, for error messages."""


class DevCluster:
    """The processes behind `shardctl dev`."""

    def __init__(
        self,
        app: str,
        directory: Path,
        stack: ExitStack,
        *,
        broker_port: int,
        file_root: Path | None = None,
        auth_keys_file: Path | None,
    ) -> None:
        """Start etcd and the broker; `stack` ends them.

        Args:
            app: `package.module:attribute`.
            directory: Of their data and everybody's logs.
            stack: Entered for each process.
            broker_port: 0 for any.
            file_root: Root of the broker's file:// stores; None: it publishes no fragments.
            auth_keys_file: Keys of members and broker; None: they serve without.
        """
        self._auth_keys_file = auth_keys_file
        self._file_root = file_root
        self._auth = None if auth_keys_file is None else KeyedAuth(keys_from("", auth_keys_file))
        self._app = app
        self._directory = directory
        self._stack = stack
        self._etcd = stack.enter_context(EmbeddedEtcdProcess(directory / "etcd", listen="tcp"))
        self._broker = stack.enter_context(
            EmbeddedBrokerProcess(
                directory / "broker",
                port=broker_port,
                arguments=[
                    *("--admin-port", "0"),
                    *(() if file_root is None else ("--file-root", str(file_root))),
                    *self._key_arguments("--auth-keys-file"),
                ],
            )
        )
        self._members: list[EmbeddedMemberProcess] = []
        self._ports: list[int] = []
        self._admin_ports: list[int] = []
        self._lives: list[int] = []
        self.address = ""
        """Of the first two members: either answers for all."""

    def start_members(self, count: int, port: int) -> None:
        """Start members and wait until all serve; the first listens on `port`."""
        for index, own_port in enumerate(_member_ports(count, port)):
            self._lives.append(0)
            self._ports.append(own_port)
            self._admin_ports.append(0)
            self._members.append(self._start_member(index))
        self._stack.callback(self._stop_members)
        addresses = [member.wait_until_ready() for member in self._members]
        self.address = ",".join(addresses[:2])
        # A restarted member keeps its addresses.
        self._ports = [_port_of(address) for address in addresses]
        self._admin_ports = [_port_of(_admin_address(each)) for each in self._members]

    def apply(self, declared: Declared) -> None:
        """Apply the contents of the spec files."""
        asyncio.run(self._apply(declared))

    def describe(self) -> None:
        """Describe how to use the cluster."""
        say(f"etcd     {self._etcd.endpoint}")
        say(f"broker   {self._broker.address}")
        for index, member in enumerate(self._members):
            say(f"dev-{index}    {member.wait_until_ready()} (pid {member.pid})")
        # The admin ports, as in production. Any member's page shows the whole cluster.
        for index, member in enumerate(self._members):
            say(f"page     {_admin_address(member)}/ (of dev-{index}; also /metrics, /readyz)")
        say(f"admin    {self._broker.admin_address} (of the broker: /metrics, /readyz)")
        say(f"logs     {self._directory}")
        keys = "".join(f" {each}" for each in self._key_arguments("--auth-keys-file"))
        say(
            f"try      shardctl shards list --address {self.address} --broker {self._broker.address}{keys}"
        )

    def watch(self) -> None:
        """Restart a process that ended, whether etcd, the broker or a member, until SIGINT or SIGTERM."""
        asked = Event()

        def ask(number: int, frame: FrameType | None) -> None:
            del number, frame
            asked.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, ask)
        while not asked.wait(WATCH_SECONDS):
            self._revive("etcd", self._etcd)
            self._revive("broker", self._broker)
            for index, member in enumerate(self._members):
                if member.exit_code is not None:
                    say(f"dev-{index} ended with {member.exit_code}; starting it again")
                    self._lives[index] += 1
                    self._members[index] = self._start_member(index)
        say("stopping")

    def _revive(self, name: str, server: EmbeddedEtcdProcess | EmbeddedBrokerProcess) -> None:
        """Restart a server that ended, on its data and at its address; if that fails, the next look tries again."""
        if server.is_running:
            return
        say(f"{name} ended; starting it again")
        try:
            server.restart()
        except EmbeddedServerError as error:
            say(f"{name} did not start: {error.detail.splitlines()[-1] if error.detail else error}")
        else:
            say(f"{name} serves again")

    def _start_member(self, index: int) -> EmbeddedMemberProcess:
        name = f"dev-{index}-"
        arguments = ["--etcd", self._etcd.endpoint, "--broker", self._broker.address]
        arguments += ["--root", default_root(self._app), "--zone", f"zone-{index % 2}"]
        arguments += ["--suffix", f"{name}{self._lives[index]}", "--replaces", name]
        arguments += ["--port", str(self._ports[index]), "--drain-alone-seconds", "0"]
        arguments += ["--settle", "0", "--admin-port", str(self._admin_ports[index])]
        if self._file_root is not None:
            arguments += ["--fragment-root", str(self._file_root)]
        arguments += self._key_arguments("--auth-keys-file", "--broker-auth-keys-file")
        return EmbeddedMemberProcess(
            self._app, arguments, log_file=self._directory / f"dev-{index}.log"
        )

    def _key_arguments(self, *options: str) -> list[str]:
        """Return the arguments that give each option the file of keys; none without one."""
        if self._auth_keys_file is None:
            return []
        return [part for option in options for part in (option, str(self._auth_keys_file))]

    def _stop_members(self) -> None:
        for member in self._members:
            member.send_signal(signal.SIGTERM)
        for member in self._members:
            member.stop()

    async def _apply(self, declared: Declared) -> None:
        async with JournalClient(self._broker.address, auth=self._auth) as journals:
            if declared.journals:
                await journals.apply(declared.journals)
            if declared.shards:
                async with ShardClient(self.address, auth=self._auth) as shards:
                    logs = await missing_log_journals(declared.shards, journals)
                    with errors_name_places(declared.shards_source, places_of(declared.shards)):
                        await shards.verify_referenced_journals(
                            declared.shards, journals, planned=logs
                        )
                    await create_log_journals(logs, journals)
                    await shards.apply(declared.shards)
                    await _wait_for_primaries(shards)


async def _wait_for_primaries(shards: ShardClient) -> None:
    """Wait for the shards' primaries before the user is told to try them; bounded, because one may fail."""
    begun = {shard_pb2.ReplicaStatus.PRIMARY, shard_pb2.ReplicaStatus.FAILED}
    with suppress(TimeoutError):
        async with asyncio.timeout(PRIMARIES_SECONDS_MAX):
            while True:
                listed = (await shards.list()).shards
                if all(begun & {status.code for status in shard.status} for shard in listed):
                    return
                await asyncio.sleep(PRIMARIES_LOOK_SECONDS)


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def _admin_address(member: EmbeddedMemberProcess) -> str:
    """Return the address of the admin port of a member that is, or was, ready."""
    address = member.admin_address_or_none()
    assert address is not None, (
        "a member says where its admin port is before it says that it serves"
    )
    return address


def _read(journals: Path | None, specs: Path | None) -> Declared:
    declared = Declared(
        journals=() if journals is None else read_journal_changes(*read_text(journals)),
        shards=() if specs is None else read_shard_changes(*read_text(specs)),
        shards_source=str(specs),
    )
    # A file without revisions declares what shall be, also where data of an earlier run are kept.
    for journal in declared.journals:
        journal.expect_mod_revision = journal.expect_mod_revision or ANY_REVISION
    for shard in declared.shards:
        shard.expect_mod_revision = shard.expect_mod_revision or ANY_REVISION
    return declared


def _member_ports(count: int, first: int) -> list[int]:
    """Return the ports of members, 0 for any; the second is where `shardctl` looks if the first is gone."""
    ports = [first, *([0] * (count - 1))]
    if count > 1 and first:
        with suppress(ValidationError):
            _require_free(first + SECOND_MEMBER_PORT_STEP, "--port")
            ports[1] = first + SECOND_MEMBER_PORT_STEP
    return ports


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep a directory to this process for the block.

    Raises:
        ValidationError: another one has it; the message names it.
    """
    # Opened without being cut: its content is the other's.
    with (directory / "dev.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            other = lock.read(20).strip() or "unknown"
            raise ValidationError(
                "--data-dir",
                f"another shardctl dev uses {directory} (process {other}); stop it, or choose another directory",
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _require_free(port: int, option: str) -> None:
    """Refuse a port that is in use, because the children would fail later, with less clear errors."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LISTEN_HOST, port))
        except OSError as error:
            raise ValidationError(
                option, f"port {port} cannot be used ({error.strerror}); 0 lets the system choose"
            ) from error
