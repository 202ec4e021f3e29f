"""What every member of a chaos run is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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

    @property
    def states(self) -> Path:
        """Where shards keep their files."""
        return self.directory / "states"

    @property
    def options(self) -> str:
        """How to ask for such a cluster on the command line."""
        return f"--store {self.store} --{'recorded' if self.recorded else 'unrecorded'}"
