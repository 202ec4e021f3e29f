"""Who hosts the members: what the harness asks of it, whether they are processes or tasks of Spark executors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tests.chaos.schedule import FaultKind


class Hosts(Protocol):
    """Keeps a number of members alive, and hurts them when asked. Entered and left as an async context manager."""

    name: str
    """What the command line calls it."""
    kinds: tuple[FaultKind, ...]
    """What can be done to it, and to the services beside it."""

    async def address(self) -> str:
        """Return where a member serves that is alive now; wait for one."""
        ...

    def suffix(self, member: int) -> str:
        """Return the suffix of the member's present life."""
        ...

    def pids(self) -> list[int]:
        """Return the processes of the members' present lives."""
        ...

    async def hurt(self, kind: FaultKind, member: int) -> object:
        """Do to a member what `kind` begins with; return what `heal` needs to undo it."""
        ...

    async def heal(self, victim: object) -> None:
        """Undo it, if that can be."""
        ...

    def delay_etcd(self, round_trip_seconds: float) -> None:
        """Let what members send to etcd, and are answered, take so long from now on."""
        ...

    async def check_alive(self) -> None:
        """Return once every member is there and serves."""
        ...

    async def stop(self) -> None:
        """Let every member leave by itself."""
        ...

    def logs(self) -> Mapping[str, str]:
        """What each life of each member has written so far, by its name."""
        ...
