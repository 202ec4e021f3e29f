"""State of another system on members: a shard begins with it and with its positions, and moves with both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broadsheet.consumer.keyed import EventTime, StateImport, StateOptions
from broadsheet.journals.client import JournalClient
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.integration.consumer.test_keyed_shards import (
    KEYS,
    SHARD,
    SOURCE,
    MemberApplication,
    Sessions,
    application_of,
    count_of,
)
from tests.support.eventually import eventually
from tests.support.import_runs import Content, write_import
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    shard,
    statuses,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import create_logs, recorded

pytestmark = pytest.mark.etcd

NUMBERS = pa.schema([pa.field("value", pa.int64(), nullable=False)])
PARITIES = pa.schema([("value", pa.bool_())])


def importing(place: Path) -> Any:
    """Return the application of sessions, which begins with an import."""
    application: MemberApplication = application_of(
        Sessions,
        time="event",
        event_time=EventTime(column="n"),
        state=StateOptions(index="memory"),
    )
    application.imported = StateImport(place=str(place), shard=SHARD)
    return application


def contents() -> list[Content]:
    """Return what the processor had made of KEYS, whose timers are far away."""
    by_key = {"a": [1, 3, 6], "b": [2, 5], "c": [4]}
    singles = {
        "count": {key: len(found) for key, found in by_key.items()},
        "end": {key: found[-1] + 10_000 for key, found in by_key.items()},
    }
    values = [
        Content(
            name,
            "ValueState",
            NUMBERS,
            [(key, None, {"value": value}, None) for key, value in single.items()],
        )
        for name, single in singles.items()
    ]
    numbers = [(k, None, {"value": each}, None) for k, found in by_key.items() for each in found]
    parities = [
        (k, {"value": bool(even)}, {"value": count}, None)
        for k, found in by_key.items()
        for even in (0, 1)
        if (count := sum(each % 2 != even for each in found))
    ]
    timers = [(k, None, None, found[-1] + 10_000) for k, found in by_key.items()]
    return [
        *values,
        Content("numbers", "ListState", NUMBERS, numbers),
        Content("by_parity", "MapState", NUMBERS, parities, PARITIES),
        Content("", None, pa.schema([]), timers),
    ]


async def test_shard_begins_with_imported_state_where_the_query_had_read_to(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """Messages that the query counted are not read again, later ones are added to its counts; a standby that is
    promoted goes on with all of it, and without the files of the import.
    """
    await create_logs(journals, SHARD)
    producer = Producer(journals)
    end = await producer.publish(SOURCE, KEYS)
    position = Checkpoint.Source(read_through=end)
    place = tmp_path / "import"
    manifest = write_import(
        place,
        {"": contents()},
        time_mode="event",
        shard=SHARD,
        positions={SOURCE: position.SerializeToString()},
    )
    async with (
        cluster.member(
            "one", application=importing(place), zone="zone-a", state_dir=str(tmp_path / "one")
        ) as one,
        client_of(one) as client,
    ):
        await client.apply(upserts(recorded(shard(SHARD, SOURCE, hot_standbys=1), cluster.root)))
        await wait_for_primaries(client, SHARD)
        assert await count_of(one.resolver, "a", read_through={SOURCE: end}) == 3
        end = await producer.publish(SOURCE, KEYS)
        assert await count_of(one.resolver, "a", read_through={SOURCE: end}) == 6
        for file in manifest.files:
            (place / file.path).unlink()
        async with cluster.member(
            "two", application=importing(place), zone="zone-b", state_dir=str(tmp_path / "two")
        ) as two:

            async def standing() -> bool:
                return (await statuses(client))[SHARD] == [
                    ("member-one", "PRIMARY"),
                    ("member-two", "STANDBY"),
                ]

            await eventually(standing)
            one.force_stop()
            async with client_of(two) as its_client:

                async def taken_over() -> bool:
                    return (await statuses(its_client))[SHARD][0] == ("member-two", "PRIMARY")

                await eventually(taken_over)
            end = await producer.publish(SOURCE, KEYS)
            assert await count_of(two.resolver, "a", read_through={SOURCE: end}) == 9


async def test_shard_whose_import_is_not_there_fails_and_serves_once_it_is(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """Its status says what to do; it never begins with nothing in the meantime."""
    await create_logs(journals, SHARD)
    end = await Producer(journals).publish(SOURCE, KEYS)
    place = tmp_path / "import"
    async with (
        cluster.member("one", application=importing(place), state_dir=str(tmp_path / "one")) as one,
        client_of(one) as client,
    ):
        await client.apply(upserts(recorded(shard(SHARD, SOURCE), cluster.root)))

        async def failed() -> bool:
            listed = (await client.list()).shards
            return any(
                "there is no complete import" in error
                for each in listed
                for status in each.status
                for error in status.errors
            )

        await eventually(failed)
        write_import(place, {"": contents()}, time_mode="event", shard=SHARD)
        await client.unassign([SHARD], only_failed=True)
        await wait_for_primaries(client, SHARD)
        assert await count_of(one.resolver, "a", read_through={SOURCE: end}) == 6
