"""The checkpoint manager without an event loop."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import sqlalchemy as sa

from broadsheet.leases.errors import InvalidPositionError
from broadsheet.leases.facades.eph import SyncCheckpointManager
from broadsheet.leases.facades.kcl import SyncLeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.stores.sql.store import SqlRecordStore


def test_sync_checkpoint_manager(tmp_path: Path) -> None:
    """Every operation once, with a lease of the sync lease manager."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/leases.db")
    place = Position("7", offset="4096")

    def opened() -> nullcontext[SqlRecordStore]:
        return nullcontext(SqlRecordStore(engine))

    with (
        SyncCheckpointManager(opened, refuse_repeated=True) as checkpoints,
        SyncLeaseManager(opened) as leases,
    ):
        assert not checkpoints.checkpoint_store_exists()
        checkpoints.create_checkpoint_store_if_not_exists()
        assert checkpoints.checkpoint_store_exists()
        checkpoints.create_all_checkpoints_if_not_exists(["0", "1"])
        assert checkpoints.get_checkpoint("0") is None
        seen = leases.get_lease("0")
        assert seen is not None
        held = leases.take(seen, "w1")
        assert held is not None
        held = checkpoints.update_checkpoint(held, place)
        assert checkpoints.get_checkpoint("0") == place
        with pytest.raises(InvalidPositionError):
            checkpoints.update_checkpoint(held, place)
        checkpoints.delete_checkpoint("0")
        assert checkpoints.get_checkpoint("0") is None
        checkpoints.delete_checkpoint_store()
        assert not checkpoints.checkpoint_store_exists()

    with pytest.raises(RuntimeError, match="closed"):
        checkpoints.checkpoint_store_exists()
    engine.dispose()
