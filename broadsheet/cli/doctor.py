"""`shardctl doctor`: examines etcd, brokers, members, clocks, versions, certificates and shards.

Checks return findings, and a check that cannot be made is a finding, too. What is examined is judged by pure functions.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from rich.filesize import decimal

from broadsheet.allocator.etcd.client import EtcdClient, EtcdStatus
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.cli.command import run_command
from broadsheet.cli.connection import Connection, connection_options
from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.cli.output.documents import OutputFormat, format_option, print_fields
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.output.tables import print_table
from broadsheet.cli.shards.state import status_of
from broadsheet.runtime.errors import BroadsheetError, ValidationError
from broadsheet.security.endpoints import parse_endpoints
from broadsheet.security.tls import TlsConfig, TlsFiles
from broadsheet.wire.allocation_pb2 import ClusterMember
from broadsheet.wire.labels import ID, label_set, selector
from broadsheet.wire.shard_pb2 import ListResponse

SKEW_SECONDS_MAX = 1.0
"""Difference of clocks that is worth a word: leases and restarts bear it, timestamps of messages show it."""
EXPIRY_DAYS_MIN = 14
"""Certificates that end sooner are named."""
ETCD_BYTES_MAX = 2 * 1024**3 * 3 // 4
"""Three quarters of etcd's default quota (`--quota-backend-bytes`), above which it takes no writes."""
CONNECT_SECONDS_MAX = 5.0
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


def _good(what: str, detail: str) -> Finding:
    return Finding(Severity.GOOD, what, detail)


def _doubtful(what: str, detail: str, remedy: str) -> Finding:
    return Finding(Severity.DOUBTFUL, what, detail, remedy)


def _bad(what: str, detail: str, remedy: str) -> Finding:
    return Finding(Severity.BAD, what, detail, remedy)


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


# Judgements: pure.


def judge_etcd(endpoint: str, status: EtcdStatus) -> list[Finding]:
    """Judge what an endpoint of etcd says of itself."""
    what = f"etcd {endpoint}"
    found = [
        _bad(what, f"it says: {error}", "a full database: compact, defragment, disarm the alarm")
        for error in status.errors
    ]
    if not status.leader_id:
        found.append(_bad(what, "it knows no leader", "start a majority of etcd's members"))
    size = decimal(status.db_bytes)
    if status.db_bytes > ETCD_BYTES_MAX:
        problem = f"its database has {size}; etcd stops writing at its quota, 2 GiB by default"
        found.append(_doubtful(what, problem, "compact and defragment it, or raise its quota"))
    return found or [_good(what, f"version {status.version}, database of {size}")]


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
        _doubtful(
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
        found.append(_good("clocks", f"{detail}, answers took {slowest:.3f} s at most"))
    # Gazette's brokers do not tell theirs, and need not have ours.
    versions = Counter(
        (each.version or "unknown", each.kind)
        for each in answers
        if each.version or each.kind == "member"
    )
    texts = [f"{version} ({counted(n, kind)})" for (version, kind), n in versions.items()]
    if len({version for version, _ in versions}) > 1:
        detail = f"processes differ: {', '.join(texts)}"
        found.append(_doubtful("versions", detail, "finish the rollout"))
    elif versions:
        found.append(_good("versions", ", ".join(texts)))
    return found


def judge_members(
    members: Sequence[ClusterMember], shards: Sequence[ListResponse.Shard]
) -> list[Finding]:
    """Judge whether members lead, and have room for what shards want."""
    found = []
    if not members:
        return [_bad("members", "there are none", "start some: shardctl serve")]
    leaders = [member.id for member in members if member.leads]
    if not leaders:
        detail = "none leads, so nothing is assigned or moved"
        found.append(_bad("members", detail, "wait a lease (20 s); else look at their logs"))
    for state, marked in (
        ("cordoned", [member.id for member in members if member.cordoned]),
        ("leaving", [member.id for member in members if member.exiting]),
    ):
        if marked:
            remedy = "shardctl members uncordon" if state == "cordoned" else "wait until they left"
            found.append(_doubtful("members", f"{_named(marked)} {state}", remedy))
    room = sum(member.shard_limit for member in members if not member.exiting)
    wanted = sum(1 + shard.spec.hot_standbys for shard in shards if not shard.spec.disable)
    if room < wanted:
        detail = f"they take {room} replicas, and shards want {wanted}"
        found.append(_bad("members", detail, "start more members, or raise their --limit"))
    zones = {member.id.partition("#")[0] for member in members}
    if len(zones) == 1 and any(shard.spec.hot_standbys for shard in shards):
        detail = f"all are in zone {zones.pop()}, so standbys fall with their primaries"
        found.append(_doubtful("members", detail, "start members in another zone"))
    room_text = f"room for {room} replicas, {wanted} wanted"
    return found or [_good("members", f"{counted(len(members), 'member')}, {room_text}")]


def judge_shards(shards: Sequence[ListResponse.Shard]) -> list[Finding]:
    """Judge the states of shards."""
    by_state: dict[str, list[str]] = {}
    for shard in shards:
        by_state.setdefault(status_of(shard), []).append(shard.spec.id)
    found = []
    for state in ("FAILED", "UNAVAILABLE", "UNASSIGNED"):
        if ids := by_state.get(state):
            detail = f"{counted(len(ids), 'shard')} {state}: {_named(ids)}"
            found.append(_bad("shards", detail, f"shardctl explain {ids[0]}"))
    if slow := by_state.get("IDLE", []) + by_state.get("BACKFILL", []):
        detail = f"{counted(len(slow), 'shard')} still starting: {_named(slow)}"
        found.append(_doubtful("shards", detail, f"wait; shardctl explain {slow[0]}"))
    counts = ", ".join(f"{len(ids)} {state}" for state, ids in sorted(by_state.items()))
    return found or [_good("shards", counts or "there are none")]


def judge_certificate(what: str, not_after: datetime, now: datetime) -> Finding:
    """Judge how long a certificate is still valid."""
    left = not_after - now
    until = f"{not_after:%Y-%m-%d %H:%M}Z"
    if left <= timedelta():
        return _bad(what, f"its certificate ended {until}", "renew it")
    if left < timedelta(days=EXPIRY_DAYS_MIN):
        return _doubtful(what, f"its certificate ends {until}, in {left.days} days", "renew it")
    return _good(what, f"certificate valid until {until}")


# Examinations.


class _Examination:
    """One run of all checks."""

    def __init__(self, connection: Connection, etcd: EtcdConfig | None) -> None:
        self._connection = connection
        self._etcd = etcd
        self._answers: list[ProcessAnswer] = []
        self.findings: list[Finding] = []

    async def run(self) -> None:
        """Make every check."""
        if self._etcd is None:
            skipped = "not examined; name it with --etcd"
            self.findings.append(_good("etcd", skipped))
        else:
            for endpoint in self._etcd.endpoints:
                await self._check(f"etcd {endpoint}", self._examine_etcd, endpoint)
        await self._check("members", self._examine_members)
        for endpoint in parse_endpoints(self._connection.broker, may_be_tls=True):
            await self._check(f"broker {endpoint}", self._examine_broker, endpoint)
        self.findings += judge_answers(self._answers)
        await self._check("certificates", self._examine_certificates)

    async def _check(
        self, what: str, examine: Callable[..., Awaitable[list[Finding]]], *args: str
    ) -> None:
        try:
            self.findings += await examine(*args)
        except (BroadsheetError, TimeoutError) as error:
            text = " ".join(str(error).split())
            self.findings.append(_bad(what, text, _REMEDY[what.partition(" ")[0]]))

    async def _examine_etcd(self, endpoint: str) -> list[Finding]:
        assert self._etcd is not None, "asked before"
        async with EtcdClient(replace(self._etcd, endpoints=(endpoint,))) as client:
            return judge_etcd(endpoint, await client.status())

    async def _examine_members(self) -> list[Finding]:
        async with self._connection.shards() as client:
            shards = (await client.list()).shards
        async with self._connection.allocation() as allocation:
            members = (await allocation.members()).members
        found = judge_members(members, shards) + judge_shards(shards)
        given = parse_endpoints(self._connection.address, may_be_tls=True)
        known = {member.endpoint: member.id for member in members}
        for endpoint in dict.fromkeys([*known, *given]):
            try:
                # `localhost` of --address and the address that a member announced are one process.
                if endpoint not in known and await self._member_at(endpoint) in known.values():
                    continue
                self._answers.append(await self._ask(endpoint))
            except (BroadsheetError, TimeoutError) as error:
                detail = " ".join(str(error).split())
                # An address that was only given may be another name of a member, or of none.
                make = _bad if endpoint in known else _doubtful
                found.append(make(f"member {endpoint}", detail, _REMEDY["member"]))
        return found

    async def _member_at(self, endpoint: str) -> str:
        """Return the id of the member that answers at an address."""
        async with replace(self._connection, address=endpoint).shards() as client:
            # The header of any answer names the process: no shard has an empty id.
            header = (await client.list(selector(label_set((ID, ""))))).header
        return f"{header.process_id.zone}#{header.process_id.suffix}"

    async def _ask(self, endpoint: str) -> ProcessAnswer:
        alone = replace(self._connection, address=endpoint)
        async with alone.allocation() as allocation:
            asked = time.time()
            members = await allocation.members()
            answered = time.time()
        told = members.time.ToNanoseconds() / 1e9 if members.HasField("time") else None
        return ProcessAnswer("member", endpoint, members.version, told, asked, answered)

    async def _examine_broker(self, endpoint: str) -> list[Finding]:
        what = f"broker {endpoint}"
        async with replace(self._connection, broker=endpoint).journals() as client:
            # Connects, so that the next answer's way is one round trip.
            await client.ask_once(timeout_seconds=CONNECT_SECONDS_MAX)
            asked = time.time()
            told = await client.ask_once(timeout_seconds=CONNECT_SECONDS_MAX)
            answer = ProcessAnswer(
                "broker", endpoint, told.version, told.wall_seconds, asked, time.time()
            )
            self._answers.append(answer)
            journals = (await client.list()).journals
            stores = {store for each in journals for store in each.spec.fragment.stores}
            found = []
            for store in sorted(stores) or ["file:///"]:
                if problem := await client.probe_store(store):
                    remedy = "look at its disk: is it full, read-only, or gone?"
                    found.append(_bad(what, f"it cannot write {store}: {problem}", remedy))
        return found or [
            _good(what, f"{counted(len(journals), 'journal')}, its store takes writes")
        ]

    async def _examine_certificates(self) -> list[Finding]:
        texts = [*parse_endpoints(self._connection.address, may_be_tls=True)]
        texts += parse_endpoints(self._connection.broker, may_be_tls=True)
        # Also members that no address names: clients are sent to them.
        texts += [each.endpoint for each in self._answers]
        tls = self._connection.tls
        found = []
        if tls is not None and tls.cert_file is not None:
            pems = await asyncio.to_thread(lambda: TlsFiles(tls).present())
            if pems.expires_at is not None:
                what = f"certificate {tls.cert_file}"
                found.append(judge_certificate(what, pems.expires_at, datetime.now(UTC)))
        name = tls.server_name if tls is not None else None
        for endpoint in _https(texts):
            remedy = "renew it, or name its authority with --tls-ca"
            found.append(await _served_certificate(endpoint, tls, name or "", remedy))
        if self._etcd is not None:
            files = _etcd_files(self._etcd)
            for endpoint in _https(self._etcd.endpoints):
                remedy = "renew it, or name its authority with --etcd-ca-file"
                found.append(await _served_certificate(endpoint, files, "", remedy))
        return found


_REMEDY = {
    "etcd": "is it started, and reachable from here? compare --etcd",
    "members": "is a member started, and reachable from here? compare --address",
    "member": "is that process well, and reachable from here? look at its log",
    "broker": "is it started, and reachable from here? compare --broker",
    "certificates": "compare --tls-ca, --tls-cert and --tls-key",
}


def _https(endpoints: Sequence[str]) -> list[str]:
    return [*dict.fromkeys(each for each in endpoints if each.startswith("https://"))]


def _etcd_files(etcd: EtcdConfig) -> TlsConfig | None:
    if etcd.ca_file is None and etcd.cert_file is None:
        return None
    return TlsConfig(ca_file=etcd.ca_file, cert_file=etcd.cert_file, key_file=etcd.key_file)


async def _served_certificate(
    endpoint: str, tls: TlsConfig | None, server_name: str, remedy: str
) -> Finding:
    """Judge the certificate that a server shows.

    Raises:
        ValidationError: one of our files cannot be used.
    """
    what = f"certificate {endpoint}"
    context = await asyncio.to_thread(_tls_context, tls)
    try:
        until = await asyncio.to_thread(_certificate_end, endpoint, context, server_name)
    except OSError as error:
        reason = getattr(error, "verify_message", "") or error.strerror or str(error)
        return _bad(what, reason, remedy)
    return judge_certificate(what, until, datetime.now(UTC))


def _tls_context(tls: TlsConfig | None) -> ssl.SSLContext:
    """Return what trusts the authorities of our files. Blocking.

    Raises:
        ValidationError: a file cannot be used.
    """
    try:
        ca_file = tls.ca_file if tls is not None else None
        context = ssl.create_default_context(cafile=ca_file)
        if tls is not None and tls.cert_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as error:
        raise ValidationError("--tls-ca", f"cannot be used: {error.strerror or error}") from error
    return context


def _certificate_end(endpoint: str, context: ssl.SSLContext, server_name: str) -> datetime:
    """Return when the certificate of a server ends. Blocking.

    Args:
        endpoint: `https://host:port`.
        context: Whom we trust.
        server_name: The name to expect; empty: the host.

    Raises:
        OSError: the server cannot be reached, or its certificate is not valid.
    """
    url = urlsplit(endpoint)
    address = (url.hostname or "", url.port or 443)
    with (
        socket.create_connection(address, timeout=CONNECT_SECONDS_MAX) as raw,
        context.wrap_socket(raw, server_hostname=server_name or url.hostname) as connected,
    ):
        shown = connected.getpeercert()
        assert shown is not None, "the context demands one"
        return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown["notAfter"])), UTC)


@click.command("doctor")
@click.option(
    "--etcd",
    "endpoints",
    envvar="ETCD_ADDRESS",
    default="",
    show_default=False,
    show_envvar=True,
    help="Comma-separated endpoints of etcd, to examine that, too.",
)
@click.option(
    "--etcd-ca-file",
    type=click.Path(path_type=Path, exists=True),
    help="Authority of etcd's certificates.",
)
@click.option(
    "--etcd-cert-file",
    type=click.Path(path_type=Path, exists=True),
    help="Our certificate for etcd.",
)
@click.option("--etcd-key-file", type=click.Path(path_type=Path, exists=True), help="Its key.")
@click.option("--etcd-user", envvar="ETCD_USER", help="User of etcd, where it asks for one.")
@click.option("--etcd-password", envvar="ETCD_PASSWORD", help="The user's password.")
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
@connection_options
def doctor(connection: Connection, endpoints: str, output: OutputFormat, **options: Any) -> None:
    """Examine the cluster: what is wrong, and what to do about it.

    Etcd, members, shards, brokers and their disks, clocks, versions, certificates. Ends with status 1 if
    anything is bad; changes nothing but a small file that a broker writes to its store and removes.

    \b
    Examples:
      shardctl doctor
      shardctl doctor --etcd etcd-1:2379,etcd-2:2379 -o json
    """

    async def work() -> None:
        etcd = None
        if endpoints:
            etcd = EtcdConfig(
                endpoints=tuple(endpoints.split(",")),
                ca_file=options["etcd_ca_file"],
                cert_file=options["etcd_cert_file"],
                key_file=options["etcd_key_file"],
                username=options["etcd_user"],
                password=options["etcd_password"],
            )
        examination = _Examination(connection, etcd)
        await examination.run()
        found.extend(examination.findings)

    found: list[Finding] = []
    run_command(work())
    _print_findings(found, output)
    bad = sum(each.level is Severity.BAD for each in found)
    if bad:
        say(f"{counted(bad, 'thing')} wrong")
        raise SystemExit(ExitStatus.FAILED)


def _print_findings(found: Sequence[Finding], output: OutputFormat) -> None:
    if output is not OutputFormat.TABLE:
        rows = [
            {
                "state": each.level.value,
                "what": each.what,
                "detail": each.detail,
                "remedy": each.remedy,
            }
            for each in found
        ]
        print_fields({"findings": rows}, output)
        return
    columns = ["STATE", "WHAT", "FOUND", "DO"]
    print_table(
        columns, [[each.level.value, each.what, each.detail, each.remedy] for each in found]
    )
