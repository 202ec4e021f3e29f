"""Azure's event processors on etcd, which knows at once that one of them died."""

from __future__ import annotations

from typing import Any

import pytest

from broadsheet.allocator.ops import LeaseId
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.leases.errors import DependencyError, ShutdownError
from broadsheet.leases.facades.event_hubs import RecordCheckpointStore
from tests.support.lease_stores import EtcdSubject, etcd_subject

pytestmark = pytest.mark.etcd

HUB = ("ns.servicebus.windows.net", "clicks", "$default")
PARTITION: dict[str, Any] = {
    "fully_qualified_namespace": HUB[0],
    "eventhub_name": HUB[1],
    "consumer_group": HUB[2],
    "partition_id": "0",
}
PLACE = PARTITION | {"sequence_number": 1, "offset": "1"}


async def _end_etcd_lease_of(subject: EtcdSubject, worker: str) -> None:
    """Let etcd forget a worker's process, as it does when that is not heard of."""
    found = await subject.etcd.get_range(f"{subject.root}/workers/{worker}".encode())
    await subject.etcd.lease_revoke(LeaseId(found.kvs[0].lease))


async def test_partition_of_a_dead_process_is_free_at_once(
    etcd_server: EmbeddedEtcdProcess,
) -> None:
    """Its ownership is as old as can be, so that nobody waits for it to expire; and it cannot checkpoint any more."""
    async with etcd_subject(etcd_server.endpoint) as subject:
        await subject.store.create_store()
        mine, theirs = RecordCheckpointStore(subject.store), RecordCheckpointStore(subject.rival)
        await mine.claim_ownership([PARTITION | {"owner_id": "w1"}])
        await mine.update_checkpoint(PLACE)
        [alive] = await theirs.list_ownership(*HUB)
        assert alive["last_modified_time"] > 0

        await _end_etcd_lease_of(subject, "w1")

        [dead] = await theirs.list_ownership(*HUB)
        assert dead == alive | {"last_modified_time": 0.0}
        with pytest.raises(ShutdownError):
            await mine.update_checkpoint(PLACE | {"sequence_number": 2})
        [claimed] = await theirs.claim_ownership([dead | {"owner_id": "w2"}])
        assert claimed["last_modified_time"] > 0


async def test_process_that_etcd_forgot_claims_anew(etcd_server: EmbeddedEtcdProcess) -> None:
    """Renewing would keep the name and not the fence: it takes the partition again, and may checkpoint then."""
    async with etcd_subject(etcd_server.endpoint) as subject:
        await subject.store.create_store()
        mine = RecordCheckpointStore(subject.store)
        [claimed] = await mine.claim_ownership([PARTITION | {"owner_id": "w1"}])
        await _end_etcd_lease_of(subject, "w1")

        with pytest.raises(DependencyError):  # It learns so that its etcd lease has ended.
            await mine.claim_ownership([claimed])
        [again] = await mine.claim_ownership([dict(claimed)])

        assert again["etag"] != claimed["etag"]
        await mine.update_checkpoint(PLACE)
        assert list(await mine.list_checkpoints(*HUB)) == [PLACE]
