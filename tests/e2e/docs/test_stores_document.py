"""docs/stores.md: the stores that it shows do what it says."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.testing import TestCluster
from broadsheet.testing.stores.subject import FixedShard, reading, wait
from tests.support.documents import REPOSITORY, blocks_of
from tests.support.message_batches import WrittenJournal, ack, cont

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_sqlite_store_of_the_document_counts_as_copied(tmp_path: Path) -> None:
    """The first example of the page is what everybody copies: it runs without a line more."""
    block, *_ = blocks_of(REPOSITORY / "docs" / "stores.md")
    source = tmp_path / "clicks.py"
    source.write_text(block.code)
    clicks = runpy.run_path(str(source))["Clicks"]

    with TestCluster(clicks) as cluster:
        cluster.publish("clicks", {"user": "ann"}, {"user": "bob"}, {"user": "ann"})
        cluster.read_through()
        rows = cluster.query(
            lambda store: store.read(
                lambda connection: connection.execute("SELECT * FROM clicks ORDER BY 1").fetchall()
            )
        )

    assert rows == [("ann", 2), ("bob", 1)]


def test_aggregates_of_the_document_take_a_batch(tmp_path: Path) -> None:
    """The declaration, and the run as it comes from a shard."""
    _, block, _ = blocks_of(REPOSITORY / "docs" / "stores.md")
    source = tmp_path / "purchases.py"
    source.write_text(block.code)
    purchases = runpy.run_path(str(source))["Purchases"]()
    shard = FixedShard(local_state=LocalState(tmp_path / "state"))
    rows = [("ann", 5.0, "Rome", "pen"), ("bob", 2.0, "Oslo", "ink"), ("ann", 3.0, None, "pen")]
    messages = [
        msgspec.json.encode({"user": user, "amount": amount, "city": city, "product": product})
        for user, amount, city, product in rows
    ]
    batch = WrittenJournal().batch(
        *(cont(clock, payload=text) for clock, text in enumerate(messages, 1)), ack(9)
    )

    store = purchases.new_store(shard)
    store.restore_checkpoint(shard)
    purchases.consume_batch(shard, store, batch, None)
    purchases.finalize_txn(shard, store, None)
    wait(store.start_commit(shard, reading(1), ()))
    ann = store.get("ann")
    store.destroy()

    assert ann == {
        "purchases": 2,
        "spent": 8.0,
        "dearest": 5.0,
        "city": "Rome",
        "products": 1,
        "amounts": [3.0, 5.0],
    }


def test_store_of_the_document_passes_the_suite(tmp_path: Path) -> None:
    """Somebody copies it: it must work as it stands."""
    *_, block = blocks_of(REPOSITORY / "docs" / "stores.md")
    test = tmp_path / "test_count_store.py"
    test.write_text(block.code)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
