"""What a shard of the enrich example knows of an account, and in which order it says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.examples.enrich.look_up import mean_cents
from broadsheet.examples.enrich.messages import Payment
from broadsheet.examples.enrich.store import ProfileStore
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.fixed_shard import FixedShard


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ProfileStore]:
    """An open store with two accounts."""
    shard = FixedShard(local_state=LocalState(tmp_path / "state"))
    opened = ProfileStore(shard)
    opened.restore_checkpoint(shard)
    opened.add(
        [
            Payment(account="a", cents=300, country="DE"),
            Payment(account="b", cents=50, country="FR"),
            Payment(account="a", cents=100, country="JP"),
        ]
    )
    opened.start_commit(shard, Checkpoint(), ()).result(10)
    yield opened
    opened.destroy()


def test_look_up_answers_in_the_order_asked_and_once_for_each(store: ProfileStore) -> None:
    """Columns go back row by row: an account that never paid, or is named twice, must not shift the others."""
    found = store.look_up(["b", "never", "a", "b"])

    b = (1, 50, 50, "FR")
    assert found == [b, (0, 0, 0, ""), (2, 400, 300, "JP"), b]
    assert store.look_up([]) == []


def test_look_up_sees_committed_payments_only(store: ProfileStore) -> None:
    """What a transaction has not committed yet may still be taken back."""
    store.add([Payment(account="a", cents=1)])

    assert store.look_up(["a"]) == [(2, 400, 300, "JP")]


def test_mean_of_an_account_that_never_paid_is_none() -> None:
    """And not an error, nor zero, which would make every order unusual."""
    assert mean_cents((0, 0, 0, "")) is None
    assert mean_cents((3, 100, 90, "DE")) == 33
