"""The processes behind `shardctl dev`: etcd, a broker and members, each started again when it ends."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import FrameType

from broadsheet.cli.output.messages import say
from broadsheet.cli.serve.options import default_root
from broadsheet.cli.shards.space import places_of
from broadsheet.cli.specs.files import errors_name_places
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.client.log_journals import create_log_journals, missing_log_journals
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import EmbeddedServerError, ValidationError
from broadsheet.security.auth import KeyedAuth, keys_from
from broadsheet.wire import journal_pb2, shard_pb2

SECOND_MEMBER_PORT_STEP = 2
"""From the first member's port to the second's; the broker's is between them."""
WATCH_SECONDS = 0.5
"""Pause between two looks at whether every member still runs."""
PRIMARIES_SECONDS_MAX = 30.0
PRIMARIES_LOOK_SECONDS = 0.05
LISTEN_HOST = "127.0.0.1"


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
        self._broker = EmbeddedBrokerProcess(
            directory / "broker",
            port=broker_port,
            arguments=[
                *("--admin-port", "0"),
                *(() if file_root is None else ("--file-root", str(file_root))),
                *self._key_arguments("--auth-keys-file"),
            ],
        )
        stack.callback(self._broker.stop)
        # Etcd elects itself while the broker imports: neither waits for the other.
        self._broker.launch()
        self._etcd = stack.enter_context(EmbeddedEtcdProcess(directory / "etcd", listen="tcp"))
        self._broker.wait_until_ready()
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


def _member_ports(count: int, first: int) -> list[int]:
    """Return the ports of members, 0 for any; the second is where `shardctl` looks if the first is gone."""
    ports = [first, *([0] * (count - 1))]
    if count > 1 and first:
        with suppress(ValidationError):
            require_free(first + SECOND_MEMBER_PORT_STEP, "--port")
            ports[1] = first + SECOND_MEMBER_PORT_STEP
    return ports


def require_free(port: int, option: str) -> None:
    """Refuse a port that is in use, because the children would fail later, with less clear errors."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LISTEN_HOST, port))
        except OSError as error:
            raise ValidationError(
                option, f"port {port} cannot be used ({error.strerror}); 0 lets the system choose"
            ) from error
