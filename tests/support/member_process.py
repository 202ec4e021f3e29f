"""A member of a `Cluster` as a process of its own, for tests that kill and stop processes.

It prints `ready ADDRESS` when it serves, and ends with `LOST_STATUS` if its lease or key was lost.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import msgspec

from broadsheet.allocator.errors import LeaseLostError, MemberKeyLostError
from broadsheet.consumer.member.service import STOP_SIGNALS, Service, stop_on_signals
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.embedded.child_process import ChildProcess
from tests.support.members import Cluster
from tests.support.tally import Tally

LOST_STATUS = 3
REPOSITORY = Path(__file__).parents[2]


class MemberProcess:
    """Starts one member; it ends with the block, if not before."""

    MODULE = "tests.support.member_process"
    """Is run."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        **overrides: Any,
    ) -> None:
        """Start the process. `Any`: overrides are the fields of its configuration."""
        self.suffix = f"member-{name}"
        # Beside its databases: the directory is the test's own.
        self._log_file = cluster.directory / f"{self.suffix}.log"
        settings = cluster.settings | overrides
        arguments = msgspec.json.encode(
            {
                "name": name,
                "etcd_endpoint": cluster.etcd_endpoint,
                "broker_address": cluster.broker_address,
                "root": cluster.root,
                "directory": str(cluster.directory),
                "output": cluster.output,
                "json_store": cluster.json_store,
                "settings": settings,
            }
        )
        self._child = ChildProcess(
            [sys.executable, "-m", self.MODULE, arguments.decode()],
            directory=REPOSITORY,
            log_file=self._log_file,
            environment=os.environ | environment | {"PYTHONPATH": str(REPOSITORY)},
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._child.exit_code

    def address_or_none(self) -> str | None:
        """Where it serves, once it is ready."""
        ready = [line for line in self.log().splitlines() if line.startswith("ready ")]
        if not ready and self.exit_code is not None:
            raise RuntimeError(f"{self.suffix} ended with {self.exit_code}: {self.log()}")
        return ready[0].removeprefix("ready ") if ready else None

    def log(self) -> str:
        """What it has printed so far."""
        return self._log_file.read_text(errors="replace")

    def freeze(self) -> None:
        """Stop it as a long pause of the machine would."""
        self._child.send_signal(signal.SIGSTOP)

    @property
    def is_frozen(self) -> bool:
        """Whether all of its threads have stopped: that takes a moment, and a write to the disk is finished first."""
        stopped = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        return stopped is not None

    def thaw(self) -> None:
        """Let it go on."""
        self._child.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill -9."""
        self._child.kill()

    def terminate(self) -> None:
        """Ask it to leave."""
        self._child.send_signal(signal.SIGTERM)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print(f"--- {self.suffix}\n{self.log()}", file=sys.stderr)
        self.kill()


async def _serve(cluster: Cluster, name: str, application: Tally) -> int:
    service = Service(application, cluster.config(name))

    def tell(ready: asyncio.Future[None]) -> None:
        if not ready.cancelled() and ready.exception() is None:
            print(f"ready {service.address}", flush=True)

    service.ready.add_done_callback(tell)
    try:
        with stop_on_signals(service, STOP_SIGNALS):
            await service.run()
    except (LeaseLostError, MemberKeyLostError) as error:
        print(f"lost: {error}", flush=True)
        return LOST_STATUS
    finally:
        application.close()
    return 0


def main(text: str, new_application: Callable[[Cluster], Tally] = Cluster.tally) -> int:
    """Be a member until signalled.

    Args:
        text: The arguments, as JSON.
        new_application: Makes its application.
    """
    arguments: dict[str, Any] = msgspec.json.decode(text)
    name = arguments.pop("name")
    directory = Path(arguments.pop("directory"))
    settings = arguments["settings"]
    if "shards" in settings:
        settings["shards"] = ShardConfig(**settings["shards"])
    cluster = Cluster(directory=directory, **arguments)
    return asyncio.run(_serve(cluster, name, new_application(cluster)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
