"""Shards whose state is in a recovery log: it moves with them between members that share no disk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.consumer.recoverylog.hint_store import fetch_hints
from broadsheet.journals.client import JournalClient
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    committed,
    shard,
    statuses,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import (
    LOGS,
    TALLIES,
    counts_of,
    create_logs,
    files_below,
    recorded,
)
from tests.support.tally import Tally

pytestmark = pytest.mark.etcd

SOURCE = "test/source"
OUTPUT = "test/output"
SHARD = "shard-a"
KEYS = ["a", "b", "a", "c", "b", "a"]


@pytest.mark.parametrize("kind", sorted(TALLIES))
async def test_state_follows_the_shard_to_a_member_that_never_had_it(
    cluster: Cluster, journals: JournalClient, tmp_path: Path, kind: str
) -> None:
    """One member counts and leaves; another, with another disk, goes on counting where it ended. Nothing is left of
    the first one's files, and every message is echoed once.
    """
    await create_logs(journals, SHARD)
    application = TALLIES[kind][0]
    producer = Producer(journals)
    for round_, name in enumerate(("one", "two", "three"), start=1):
        directory = tmp_path / name
        tally = application(cluster.directory, output=OUTPUT)
        async with cluster.member(name, application=tally, state_dir=str(directory)) as member:
            async with client_of(member) as client:
                if round_ == 1:
                    await client.apply(upserts(recorded(shard(SHARD, SOURCE), cluster.root)))
                end = await producer.publish(SOURCE, KEYS)
                await wait_for_primaries(client, SHARD)
            counts = await counts_of(member.resolver, SHARD, kind, read_through={SOURCE: end})
            assert counts == {key: n * round_ for key, n in Counter(KEYS).items()}
        assert files_below(directory) == []
    echoed = [message["n"] for message in await committed(journals, OUTPUT)]
    assert sorted(echoed) == list(range(1, 3 * len(KEYS) + 1))


async def test_hot_standby_takes_over_what_it_has_played(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """A standby in another zone says STANDBY once it has played the log; the primary's member is gone at a stroke; the
    standby serves all that was committed.
    """
    await create_logs(journals, SHARD)
    producer = Producer(journals)
    application = TALLIES["sqlite"][0]

    def tally() -> Tally:
        return application(cluster.directory, output=OUTPUT)

    async with (
        cluster.member(
            "one", application=tally(), zone="zone-a", state_dir=str(tmp_path / "one")
        ) as one,
        client_of(one) as client,
    ):
        await client.apply(upserts(recorded(shard(SHARD, SOURCE, hot_standbys=1), cluster.root)))
        end = await producer.publish(SOURCE, KEYS)
        await wait_for_primaries(client, SHARD)
        async with cluster.member(
            "two", application=tally(), zone="zone-b", state_dir=str(tmp_path / "two")
        ) as two:

            async def standing() -> bool:
                found = await statuses(client)
                assert found[SHARD] == [("member-one", "PRIMARY"), ("member-two", "STANDBY")]
                return True

            await eventually(standing)
            end = await producer.publish(SOURCE, KEYS)
            await counts_of(one.resolver, SHARD, "sqlite", read_through={SOURCE: end})
            one.force_stop()
            async with client_of(two) as second:

                async def taken_over() -> bool:
                    return (await statuses(second))[SHARD][0] == ("member-two", "PRIMARY")

                await eventually(taken_over)
            end = await producer.publish(SOURCE, KEYS)
            counts = await counts_of(two.resolver, SHARD, "sqlite", read_through={SOURCE: end})
            assert counts == {key: n * 3 for key, n in Counter(KEYS).items()}
    echoed = [message["n"] for message in await committed(journals, OUTPUT)]
    assert sorted(echoed) == list(range(1, 3 * len(KEYS) + 1))


async def test_shard_without_its_log_says_what_is_missing_and_heals(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """A shard whose log does not exist fails with the journal's name; once the log is there, it serves."""
    tally = TALLIES["sqlite"][0](cluster.directory, output=OUTPUT)
    async with (
        cluster.member("one", application=tally, state_dir=str(tmp_path / "one")) as member,
        client_of(member) as client,
    ):
        await client.apply(upserts(recorded(shard(SHARD, SOURCE), cluster.root)))

        async def failed() -> bool:
            (listed,) = (await client.list()).shards
            assert f"{LOGS}/{SHARD}" in "".join(
                text for each in listed.status for text in each.errors
            ), listed
            return True

        await eventually(failed)
        await create_logs(journals, SHARD)
        await wait_for_primaries(client, SHARD, timeout_seconds=40.0)


async def test_hints_are_written_after_a_restore_and_rotated_by_the_next(
    cluster: Cluster, journals: JournalClient, etcd: EtcdClient, tmp_path: Path
) -> None:
    """A primary writes hints soon after it began, and again as it stops; its successor keeps as a backup what it
    recovered from.
    """
    await create_logs(journals, SHARD)
    spec = recorded(shard(SHARD, SOURCE), cluster.root)
    producer = Producer(journals)
    for name in ("one", "two"):
        tally = TALLIES["sqlite"][0](cluster.directory, output=OUTPUT)
        async with cluster.member(
            name, application=tally, state_dir=str(tmp_path / name)
        ) as member:
            async with client_of(member) as client:
                if name == "one":
                    await client.apply(upserts(spec))
                await wait_for_primaries(client, SHARD)
            end = await producer.publish(SOURCE, KEYS)
            await counts_of(member.resolver, SHARD, "sqlite", read_through={SOURCE: end})

            async def stored() -> bool:
                hints = await fetch_hints(etcd, spec)
                assert hints.primary is not None
                assert hints.primary.log == f"{LOGS}/{SHARD}"
                if name == "two":  # noqa: B023 - polled within the round
                    assert hints.backups[0] is not None
                    assert hints.backups[0].live_nodes
                    assert hints.backups[1] is None
                return True

            await eventually(stored)
