"""What every member of a chaos run is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from broadsheet.allocator.etcd.config import EtcdConfig
from tests.chaos.schedule import OF_LOGS, FaultKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """Where members find everything, and how long their leases live."""

    etcd_endpoint: str
    broker_address: str
    directory: Path
    """Holds logs, and the states that no recovery log has; members share it."""
    root: str = "/chaos"
    store: str = "sqlite"
    """See `broadsheet.examples.stream_sum.app`."""
    recorded: bool = True
    """Whether shards have a recovery log and a standby; else their state stays in `states`, or in the database."""
    members: int = 2
    lease_seconds: float = 5.0
    etcd_user: str | None = None
    etcd_password: str | None = None
    fragment_store: str = ""
    """URL of the store of all journals that are never deleted; empty: they have none."""
    ends_on_empty_disk: bool = False
    """Whether the sums are read once more when the broker has lost its disk, and has its store alone."""

    def etcd_config(self, endpoint: str = "") -> EtcdConfig:
        """Return how to reach etcd, perhaps by another way than the straight one."""
        return EtcdConfig(
            endpoints=(endpoint or self.etcd_endpoint,),
            username=self.etcd_user,
            password=self.etcd_password,
        )

    def may_suffer(self, kind: FaultKind) -> bool:
        """Report whether a fault can be done to such a cluster."""
        if kind in OF_LOGS:
            return self.recorded and self.store in ("sqlite", "json")
        return bool(self.fragment_store) or kind is not FaultKind.BROKER_DISK

    @property
    def states(self) -> Path:
        """Where shards keep their files."""
        return self.directory / "states"

    @property
    def options(self) -> str:
        """How to ask for such a cluster on the command line."""
        return f"--store {self.store} --{'recorded' if self.recorded else 'unrecorded'}"
