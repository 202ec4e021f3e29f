"""KCL-style record processors as shards whose database is a server: what a life left undone is rolled back there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.errors import ShardStoppedError
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.leases.codec import decode
from broadsheet.leases.record import LeaseRecord
from tests.support.counting_processors import Lives, counting_member
from tests.support.eventually import DEADLINE_SECONDS, eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)

pytestmark = [pytest.mark.etcd, pytest.mark.postgresql]

SOURCE = "kinesis/orders"
SHARD = "orders"
LEASE = f"{SHARD}:{SOURCE}"


class Database:
    """A schema of the test's own, as members and onlookers open it."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._schema = schema

    def open(self) -> sa.Engine:
        """Open it, as a process of its own would."""
        return sa.create_engine(
            self._url, connect_args={"options": f"-csearch_path={self._schema}"}
        )

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """Return what is committed."""
        engine = self.open()
        try:
            with engine.connect() as connection:
                return [tuple(row) for row in connection.execute(sa.text(query))]
        finally:
            engine.dispose()

    def record(self) -> LeaseRecord:
        """Return the lease."""
        ((text,),) = self.rows("SELECT record FROM broadsheet_processor_leases")
        return decode(str(text), key=LEASE)


@pytest.fixture
def database(postgresql_url: str) -> Iterator[Database]:
    """It is there, and empty."""
    schema = f"processors_{uuid4().hex}"
    engine = sa.create_engine(postgresql_url)
    try:
        with engine.begin() as connection:
            connection.execute(sa.schema.CreateSchema(schema))
        yield Database(postgresql_url, schema)
        with engine.begin() as connection:
            connection.execute(sa.schema.DropSchema(schema, cascade=True))
    finally:
        engine.dispose()


async def _is_read(client: ShardClient, end: int) -> bool:
    """Tell whether all is committed; a life that fails meanwhile knows nothing."""
    try:
        await client.stat(SHARD, read_through={SOURCE: end}, timeout_seconds=DEADLINE_SECONDS)
    except ShardStoppedError:
        return False
    return True


async def test_checkpoints_rows_and_offsets_are_in_one_transaction_through_failures_and_a_kill(
    etcd_server: EmbeddedEtcdProcess,
    broker: EmbeddedBroker,
    journals: JournalClient,
    etcd_root: str,
    tmp_path: Path,
    database: Database,
) -> None:
    """Transactions fail after rows and checkpoint are written, then the member is killed: nothing counts twice, and
    nothing is left out. Each life is another epoch of the lease.
    """
    await create_journals(journals, SOURCE)
    cluster = Cluster(
        etcd_endpoint=etcd_server.endpoint,
        broker_address=broker.address,
        root=etcd_root,
        directory=tmp_path,
    )
    producer, lives = Producer(journals), Lives()
    lives.fails_after = {7, 21}
    member = partial(
        counting_member, cluster, lives=lives, checkpoint_every=7, open_engine=database.open
    )
    async with member(name="a") as first, client_of(first) as client:
        await client.apply(upserts(shard(SHARD, SOURCE)))
        await wait_for_primaries(client, SHARD)
        end = await producer.publish(SOURCE, ["k"] * 52)
        await eventually(lambda: _is_read(client, end))
    assert not lives.fails_after
    assert database.rows("SELECT key, count FROM counts") == [("k", 49)]
    killed = database.record()
    assert killed.checkpoint is not None
    assert killed.checkpoint.seq == "49"

    async with (
        member(name="b") as second,
        client_of(second) as client,
    ):
        await wait_for_primaries(client, SHARD)
        end = await producer.publish(SOURCE, ["k"] * 4)
        await client.stat(SHARD, read_through={SOURCE: end}, timeout_seconds=DEADLINE_SECONDS)

    assert database.rows("SELECT key, count FROM counts") == [("k", 56)]
    assert database.rows("SELECT COUNT(*) FROM broadsheet_retained_records") == [(0,)]
    record = database.record()
    assert record.checkpoint is not None
    assert record.checkpoint.seq == "56"
    epochs = [life.epoch for life in lives.initialized]
    assert epochs == sorted(set(epochs))
    assert len(epochs) == 4  # Two failures, a kill.
    assert killed.epoch < record.epoch == epochs[-1]
