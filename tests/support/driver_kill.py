"""A killed driver whose application had primaries: how long until each of its shards answers and has committed again.

The survivor is a cluster of this process; each victim is a program of its own (`joining_driver`). Specs are applied
once both are there, so that primaries are in both, each with its standby in the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broadsheet.allocator.model import MemberId
from broadsheet.examples.flights.client import list_aircraft
from broadsheet.examples.flights.messages import FLIGHTS, Flight
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import MessageClock, new_producer_id

if TYPE_CHECKING:
    from broadsheet.spark_bridge.cluster import ShardCluster
    from tests.support.joining_driver import JoiningDriver

SERVES_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class KilledDriver:
    """What the kill of a driver did."""

    seconds: Mapping[str, float]
    """By shard whose primary it had: from the kill until it has a primary in the surviving application, which answers
    with a row that was published after the kill.
    """
    flights: int
    """That these shards had counted before, and one each after."""


def replicas_by_zone(cluster: ShardCluster) -> dict[str, tuple[str, set[str]]]:
    """Return by shard the zone of its primary, if it has one, and the zones of all of its replicas."""
    found = {}
    for shard in cluster.client.list().shards:
        members, primary = shard.route.members, shard.route.primary
        zone = members[primary].zone if primary >= 0 else ""
        found[shard.spec.id] = zone, {member.zone for member in members}
    return found


def is_spread(cluster: ShardCluster, victim: JoiningDriver) -> bool:
    """Tell whether each shard is in both applications, and the victim has some primaries that serve."""
    found = replicas_by_zone(cluster)
    serving = {
        shard.spec.id
        for shard in cluster.client.list().shards
        if shard.status and all(status.code >= status.STANDBY for status in shard.status)
    }
    zone = MemberId(*victim.members[0].split("#")).zone
    return (
        all(len(zones) == 2 for _, zones in found.values())
        and serving == set(found)
        and any(primary == zone for primary, _ in found.values())
    )


def kill_and_measure(
    cluster: ShardCluster, victim: JoiningDriver, journals: Mapping[str, str]
) -> KilledDriver:
    """Kill a driver, and wait until all shards whose primaries it had serve in the surviving application.

    Args:
        cluster: The survivor.
        victim: Its members have primaries.
        journals: The source of each shard.
    """
    zone = MemberId(*victim.members[0].split("#")).zone
    lost = [shard for shard, (primary, _) in replicas_by_zone(cluster).items() if primary == zone]
    assert lost, "the killed application had no primary"
    before = sum(list_aircraft(cluster, shard).flights for shard in lost)
    broker = cluster.services.broker_address
    began = time.monotonic()
    victim.kill_all()
    ends = asyncio.run(publish_each(broker, [journals[shard] for shard in lost]))
    seconds, after = {}, 0
    gone = {MemberId(*member.split("#")) for member in victim.members}
    for shard in lost:
        journal = journals[shard]
        # The killed driver's members may commit once more before they notice, so who serves is asked first.
        cluster.wait_for_primary([shard], not_on=gone, timeout_seconds=SERVES_SECONDS_MAX)
        cluster.client.wait_read_through(
            shard, {journal: ends[journal]}, timeout_seconds=SERVES_SECONDS_MAX
        )
        after += list_aircraft(cluster, shard).flights
        seconds[shard] = time.monotonic() - began
    assert after == before + len(lost)
    return KilledDriver(seconds, after)


async def publish_each(broker_address: str, journals: Sequence[str]) -> dict[str, int]:
    """Publish a flight into each journal; return where it ends, bytes."""
    clock = MessageClock()
    clock.update(time.time())
    ends = {}
    async with JournalClient(broker_address) as client:
        for journal in journals:
            publisher = Publisher(clock, new_producer_id())
            flight = Flight(aircraft="N1", carrier="UA", late_minutes=0)
            publisher.publish_committed(MappedJournal(journal, NDJSON), flight, FLIGHTS)
            (pending,) = publisher.take_appends()
            response = await client.append(pending.journal, pending.content)
            ends[journal] = response.commit.end
    return ends
