"""Judgements of `shardctl doctor`: what is wrong with what was examined, and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from rich.filesize import decimal

from broadsheet.allocator.etcd.client import EtcdStatus
from broadsheet.cli.output.messages import counted
from broadsheet.cli.shards.state import status_of
from broadsheet.wire.allocation_pb2 import ClusterMember
from broadsheet.wire.shard_pb2 import ListResponse

SKEW_SECONDS_MAX = 1.0
"""Difference of clocks that is worth a word: leases and restarts bear it, timestamps of messages show it."""
EXPIRY_DAYS_MIN = 14
"""Certificates that end sooner are named."""
ETCD_BYTES_MAX = 2 * 1024**3 * 3 // 4
"""Three quarters of etcd's default quota (`--quota-backend-bytes`), above which it takes no writes."""
RETENTION_SECONDS_MIN = 86_400.0
"""Shorter retention of Kafka's offsets is worth a word: a shard renews its marker daily."""
NAMED_MAX = 3
"""Shards and members named in one finding; the rest are counted."""


class Severity(Enum):
    """The severity of a finding."""

    GOOD = "ok"
    DOUBTFUL = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined."""

    level: Severity
    what: str
    """The part of the cluster."""
    detail: str
    remedy: str = ""


def good(what: str, detail: str) -> Finding:
    """Return that all is well."""
    return Finding(Severity.GOOD, what, detail)


def doubtful(what: str, detail: str, remedy: str) -> Finding:
    """Return something that is worth a look."""
    return Finding(Severity.DOUBTFUL, what, detail, remedy)


def bad(what: str, detail: str, remedy: str) -> Finding:
    """Return something that is wrong."""
    return Finding(Severity.BAD, what, detail, remedy)


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def judge_etcd(endpoint: str, status: EtcdStatus) -> list[Finding]:
    """Judge what an endpoint of etcd says of itself."""
    what = f"etcd {endpoint}"
    found = [
        bad(what, f"it says: {error}", "a full database: compact, defragment, disarm the alarm")
        for error in status.errors
    ]
    if not status.leader_id:
        found.append(bad(what, "it knows no leader", "start a majority of etcd's members"))
    size = decimal(status.db_bytes)
    if status.db_bytes > ETCD_BYTES_MAX:
        problem = f"its database has {size}; etcd stops writing at its quota, 2 GiB by default"
        found.append(doubtful(what, problem, "compact and defragment it, or raise its quota"))
    return found or [good(what, f"version {status.version}, database of {size}")]


@dataclass(frozen=True, slots=True)
class ProcessAnswer:
    """The version and the clock of a member or a broker, and when it told them by our clock."""

    kind: str
    """member or broker."""
    endpoint: str
    version: str
    """Empty: it does not say."""
    wall_seconds: float | None
    """Its clock; None: it does not say, because it is Gazette's or of an earlier version."""
    asked_wall_seconds: float
    answered_wall_seconds: float

    @property
    def skew_seconds(self) -> float:
        """Seconds by which its clock is ahead of ours at least; negative: behind."""
        if self.wall_seconds is None:
            return 0.0
        # It was read at some time in between: only what is outside is certain.
        return max(self.wall_seconds - self.answered_wall_seconds, 0.0) + min(
            self.wall_seconds - self.asked_wall_seconds, 0.0
        )

    @property
    def round_trip_seconds(self) -> float:
        """Uncertainty of the skew."""
        return max(self.answered_wall_seconds - self.asked_wall_seconds, 0.0)


def judge_answers(answers: Sequence[ProcessAnswer]) -> list[Finding]:
    """Judge clocks and versions of members and brokers."""
    told = [each for each in answers if each.wall_seconds is not None]
    found = [
        doubtful(
            "clocks",
            f"{each.kind} {each.endpoint} is at least {abs(each.skew_seconds):.1f} s "
            f"{'ahead' if each.skew_seconds > 0 else 'behind'}, and {each.round_trip_seconds:.3f} s more at most",
            "synchronise the clocks of that machine and this one (NTP)",
        )
        for each in told
        if abs(each.skew_seconds) > SKEW_SECONDS_MAX
    ]
    if told and not found:
        slowest = max(each.round_trip_seconds for each in told)
        detail = f"{counted(len(told), 'clock')} within {SKEW_SECONDS_MAX:g} s of this machine's"
        found.append(good("clocks", f"{detail}, answers took {slowest:.3f} s at most"))
    # Gazette's brokers do not tell theirs, and need not have ours.
    versions = Counter(
        (each.version or "unknown", each.kind)
        for each in answers
        if each.version or each.kind == "member"
    )
    texts = [f"{version} ({counted(n, kind)})" for (version, kind), n in versions.items()]
    if len({version for version, _ in versions}) > 1:
        detail = f"processes differ: {', '.join(texts)}"
        found.append(doubtful("versions", detail, "finish the rollout"))
    elif versions:
        found.append(good("versions", ", ".join(texts)))
    return found


def judge_members(
    members: Sequence[ClusterMember], shards: Sequence[ListResponse.Shard]
) -> list[Finding]:
    """Judge whether members lead, and have room for what shards want."""
    found = []
    if not members:
        return [bad("members", "there are none", "start some: shardctl serve")]
    leaders = [member.id for member in members if member.leads]
    if not leaders:
        detail = "none leads, so nothing is assigned or moved"
        found.append(bad("members", detail, "wait a lease (20 s); else look at their logs"))
    for state, marked in (
        ("cordoned", [member.id for member in members if member.cordoned]),
        ("leaving", [member.id for member in members if member.exiting]),
    ):
        if marked:
            remedy = "shardctl members uncordon" if state == "cordoned" else "wait until they left"
            found.append(doubtful("members", f"{_named(marked)} {state}", remedy))
    room = sum(member.shard_limit for member in members if not member.exiting)
    wanted = sum(1 + shard.spec.hot_standbys for shard in shards if not shard.spec.disable)
    if room < wanted:
        detail = f"they take {room} replicas, and shards want {wanted}"
        found.append(bad("members", detail, "start more members, or raise their --limit"))
    zones = {member.id.partition("#")[0] for member in members}
    if len(zones) == 1 and any(shard.spec.hot_standbys for shard in shards):
        detail = f"all are in zone {zones.pop()}, so standbys fall with their primaries"
        found.append(doubtful("members", detail, "start members in another zone"))
    room_text = f"room for {room} replicas, {wanted} wanted"
    return found or [good("members", f"{counted(len(members), 'member')}, {room_text}")]


def judge_formats(level: int, members: Sequence[ClusterMember]) -> list[Finding]:
    """Judge whether all members read what the cluster has stored.

    Args:
        level: Of the cluster's stored formats; 0: a member of an earlier release answered, which does not know it.
        members: All.
    """
    if not level or not members:
        return []
    if outdated := [each.id for each in members if each.format_level < level]:
        detail = (
            f"stored formats are at level {level}, which {_named(outdated)} cannot read: no shards"
        )
        return [bad("formats", detail, "replace them by members of the release of the others")]
    least = min(each.format_level for each in members)
    text = f"level {level}" + (f", may rise to {least}" if least > level else "")
    return [good("formats", text)]


def judge_shards(shards: Sequence[ListResponse.Shard]) -> list[Finding]:
    """Judge the states of shards."""
    by_state: dict[str, list[str]] = {}
    for shard in shards:
        by_state.setdefault(status_of(shard), []).append(shard.spec.id)
    found = []
    for state in ("FAILED", "UNAVAILABLE", "UNASSIGNED"):
        if ids := by_state.get(state):
            detail = f"{counted(len(ids), 'shard')} {state}: {_named(ids)}"
            found.append(bad("shards", detail, f"shardctl explain {ids[0]}"))
    if slow := by_state.get("IDLE", []) + by_state.get("BACKFILL", []):
        detail = f"{counted(len(slow), 'shard')} still starting: {_named(slow)}"
        found.append(doubtful("shards", detail, f"wait; shardctl explain {slow[0]}"))
    counts = ", ".join(f"{len(ids)} {state}" for state, ids in sorted(by_state.items()))
    return found or [good("shards", counts or "there are none")]


def judge_certificate(what: str, not_after: datetime, now: datetime) -> Finding:
    """Judge how long a certificate is still valid."""
    left = not_after - now
    until = f"{not_after:%Y-%m-%d %H:%M}Z"
    if left <= timedelta():
        return bad(what, f"its certificate ended {until}", "renew it")
    if left < timedelta(days=EXPIRY_DAYS_MIN):
        return doubtful(what, f"its certificate ends {until}, in {left.days} days", "renew it")
    return good(what, f"certificate valid until {until}")


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic into which shards send."""

    name: str
    partitions: int | None
    """None: there is none."""
    cleanup: str = ""
    """Its cleanup.policy."""
    record_bytes_max: int | None = None
    """Its max.message.bytes; None: it is not told."""


@dataclass(frozen=True, slots=True)
class KafkaFacts:
    """Facts that brokers of Kafka tell about shards which send into them."""

    servers: str
    checkpoints: KafkaTopic
    topics: Sequence[KafkaTopic]
    markers: Mapping[str, int]
    """Number of the last transaction by group, of those groups that are named like a shard."""
    without_marker: Sequence[str]
    """Shards that send there, by their labels, and have no group."""
    retention_seconds: float | None
    """Of offsets; None: it is not told."""
    transaction_ms_max: int | None
    """transaction.max.timeout.ms of the brokers; None: it is not told."""


def judge_kafka(facts: KafkaFacts, transaction_seconds: float) -> list[Finding]:
    """Judge a Kafka cluster as a way out.

    Args:
        facts: What its brokers say.
        transaction_seconds: Longest that a transaction of a shard may be open.
    """
    what = f"kafka {facts.servers}"
    found = _judge_checkpoints(what, facts)
    for topic in facts.topics:
        if topic.partitions is None:
            remedy = "create it, or correct the shard's label broadsheet.dev/sink-to"
            found.append(bad(what, f"there is no topic {topic.name}", remedy))
        elif topic.record_bytes_max is None:
            remedy = "give us DESCRIBE_CONFIGS on it: records that are too long fail only when they are sent"
            found.append(doubtful(what, f"the limits of topic {topic.name} are not told", remedy))
    retention = facts.retention_seconds
    if retention is not None and retention < RETENTION_SECONDS_MIN:
        detail = f"offsets of idle shards are forgotten after {timedelta(seconds=retention)}"
        remedy = "raise offsets.retention.minutes to a day at least; 7 days are the default"
        found.append(doubtful(what, detail, remedy))
    ms_max = facts.transaction_ms_max
    if ms_max is not None and ms_max < transaction_seconds * 1000:
        detail = f"transactions may be open for {ms_max} ms at most"
        remedy = f"raise transaction.max.timeout.ms to {transaction_seconds * 1000:.0f}, or lower transaction_seconds"
        found.append(bad(what, detail, remedy))
    if facts.without_marker:
        detail = (
            f"shards that have sent nothing yet, or were forgotten: {_some(facts.without_marker)}"
        )
        found.append(doubtful(what, detail, "look at their state: shardctl shards list"))
    if any(finding.level is not Severity.GOOD for finding in found):
        return found
    sending = counted(len(facts.markers), "shard")
    return [
        good(what, f"{counted(len(facts.topics), 'topic')}, {sending} with a marker, limits known")
    ]


def _judge_checkpoints(what: str, facts: KafkaFacts) -> list[Finding]:
    topic = facts.checkpoints
    if topic.partitions is None:
        if not facts.without_marker and not facts.topics:
            return []
        detail = f"there is no topic {topic.name}; the first shard that sends creates it"
        remedy = "if shards may not create topics: create it, with cleanup.policy=compact"
        return [doubtful(what, detail, remedy)]
    if topic.cleanup not in ("", "compact"):
        detail = f"topic {topic.name} has cleanup.policy={topic.cleanup}: checkpoints would be deleted by age"
        return [bad(what, detail, "set cleanup.policy=compact")]
    return []


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
