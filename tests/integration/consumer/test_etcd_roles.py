"""A member whose user of etcd may use the keys of its own root alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcd
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import ServiceError, ValidationError
from tests.integration.consumer.conftest import SOURCE
from tests.support.etcd_users import add_user, enable_users
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import TALLIES, counts_of, create_logs, recorded

pytestmark = pytest.mark.etcd
ROOT = "/apps/counter"
ID = "counter-0"


@pytest.fixture
async def restricted(
    broker: EmbeddedBroker, journals: JournalClient, tmp_path: Path
) -> AsyncIterator[Cluster]:
    """A cluster whose members log in to etcd with the role that docs/operations.md names."""
    await create_journals(journals, SOURCE)
    directory = tmp_path / "databases"
    directory.mkdir()
    async with EmbeddedEtcd(listen="tcp") as etcd:
        prefixes = (f"{ROOT}/", f"/broadsheet.v1{ROOT}/", f"/hints{ROOT}/")
        add_user(etcd.endpoint, "counter", "its password", prefixes)
        enable_users(etcd.endpoint)
        login = EtcdConfig(endpoints=(etcd.endpoint,), username="counter", password="its password")
        yield Cluster(
            etcd_endpoint=etcd.endpoint,
            broker_address=broker.address,
            root=ROOT,
            directory=directory,
            settings={"etcd": login},
        )


async def test_member_needs_three_prefixes_of_etcd_and_takes_hints_nowhere_else(
    restricted: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """An operator gives each application a role, so that it cannot reach the keys of others. The prefixes that the docs
    name must be enough, and a spec that leads elsewhere is an error of that spec, not an internal one.
    """
    await create_logs(journals, ID)
    producer = Producer(journals)
    tally = TALLIES["sqlite"][0](restricted.directory, output="")
    async with (
        restricted.member("a", application=tally, state_dir=str(tmp_path / "a")) as member,
        client_of(member) as client,
    ):
        spec = recorded(shard(ID, SOURCE), ROOT)
        await client.apply(upserts(spec))
        await wait_for_primaries(client, ID)
        end = await producer.publish(SOURCE, ["a", "b"])

        counts = await counts_of(member.resolver, ID, "sqlite", read_through={SOURCE: end})

        assert counts == {"a": 1, "b": 1}
        spec.hint_prefix = f"{ROOT}/items"
        with pytest.raises(ValidationError, match="hint_prefix"):
            await client.apply(upserts(spec, expect=-1))
        spec.hint_prefix = "/hints/of-others"
        with pytest.raises(ServiceError, match="permission denied"):
            await client.apply(upserts(spec, expect=-1))
