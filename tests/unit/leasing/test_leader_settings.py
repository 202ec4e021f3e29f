"""What a worker with a leader may be told, and what it refuses."""

from __future__ import annotations

import pytest

from broadsheet.leases.worker.settings import Balancing, WorkerSettings
from broadsheet.leases.worker.worker import LeaseWorker
from broadsheet.runtime.errors import ValidationError
from tests.support.memory_records import MemoryRecords, MemoryRecordStore
from tests.support.memory_stream import MemoryStream
from tests.support.scripted_processor import BlockingProcessor, Script

LEASES = MemoryRecordStore(MemoryRecords())
FLEET = MemoryRecordStore(MemoryRecords())


@pytest.mark.parametrize(
    ("balancing", "fleet"),
    [(Balancing.LEADER, None), (Balancing.LEADER, LEASES), (Balancing.TAKERS, FLEET)],
)
def test_fleet_has_a_store_of_its_own_if_there_is_one(
    balancing: Balancing, fleet: MemoryRecordStore | None
) -> None:
    """In that of the leases, its rows would be leases; without it, or beside takers, nobody would use it."""
    with pytest.raises(ValidationError, match="fleet"):
        LeaseWorker(
            "w1",
            store=LEASES,
            fleet=fleet,
            source=MemoryStream(),
            new_processor=lambda: BlockingProcessor(Script()),
            settings=WorkerSettings(balancing=balancing),
        )


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("leader_heartbeat_seconds", {"leader_heartbeat_seconds": 60.0}),
        ("leader_heartbeat_seconds", {"leader_heartbeat_seconds": 0.0}),
        ("rebalance_passes", {"rebalance_passes": 0}),
        ("failed_passes_max", {"failed_passes_max": 0}),
        ("discover_seconds", {"discover_seconds": 0.0}),
        ("discover_seconds", {"discover_seconds": 10.0}),
    ],
)
def test_numbers_that_cannot_work_are_refused(field: str, settings: dict[str, float]) -> None:
    """The field is named."""
    with pytest.raises(ValidationError, match=field):
        WorkerSettings(**settings)  # type: ignore[arg-type]


def test_defaults_are_those_of_version_3() -> None:
    """A pass every 20 s, a look every 10 s less 25 ms, a lock of 120 s that is kept every 30 s."""
    settings = WorkerSettings()

    assert settings.take_every_seconds(store_tells_who_lives=False) == 20.0
    assert settings.discover_every_seconds(store_tells_who_lives=False) == pytest.approx(9.975)
    assert settings.discover_every_seconds(store_tells_who_lives=True) == 1.0
    assert (settings.leader_lease_seconds, settings.leader_heartbeat_seconds) == (120.0, 30.0)
    assert (settings.rebalance_passes, settings.failed_passes_max) == (3, 3)
    assert settings.balancing is Balancing.TAKERS
