"""Examination of a cluster: each check asks a part of it; one that cannot be made is a finding, too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.cli.connection import Connection
from broadsheet.cli.doctor.certificates import CONNECT_SECONDS_MAX, served_certificate
from broadsheet.cli.doctor.findings import (
    Finding,
    ProcessAnswer,
    bad,
    doubtful,
    good,
    judge_answers,
    judge_certificate,
    judge_etcd,
    judge_formats,
    judge_kafka,
    judge_members,
    judge_shards,
)
from broadsheet.cli.output.messages import counted
from broadsheet.consumer.stores.kafka.settings import TRANSACTION_SECONDS
from broadsheet.runtime.errors import BroadsheetError
from broadsheet.runtime.libraries import needing
from broadsheet.security.endpoints import parse_endpoints
from broadsheet.security.tls import TlsConfig, TlsFiles
from broadsheet.wire.labels import ID, label_set, selector


class Examination:
    """One run of all checks."""

    def __init__(
        self,
        connection: Connection,
        etcd: EtcdConfig | None,
        *,
        kafka: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._connection = connection
        self._kafka = kafka
        self._etcd = etcd
        self._answers: list[ProcessAnswer] = []
        self.findings: list[Finding] = []

    async def run(self) -> None:
        """Make every check."""
        if self._etcd is None:
            skipped = "not examined; name it with --etcd"
            self.findings.append(good("etcd", skipped))
        else:
            for endpoint in self._etcd.endpoints:
                await self._check(f"etcd {endpoint}", self._examine_etcd, endpoint)
        await self._check("members", self._examine_members)
        for endpoint in parse_endpoints(self._connection.broker, may_be_tls=True):
            await self._check(f"broker {endpoint}", self._examine_broker, endpoint)
        if self._kafka:
            await self._check("kafka", self._examine_kafka)
        self.findings += judge_answers(self._answers)
        await self._check("certificates", self._examine_certificates)

    async def _check(
        self, what: str, examine: Callable[..., Awaitable[list[Finding]]], *args: str
    ) -> None:
        try:
            self.findings += await examine(*args)
        except (BroadsheetError, TimeoutError) as error:
            text = " ".join(str(error).split())
            self.findings.append(bad(what, text, _REMEDY[what.partition(" ")[0]]))

    async def _examine_etcd(self, endpoint: str) -> list[Finding]:
        assert self._etcd is not None, "asked before"
        async with EtcdClient(replace(self._etcd, endpoints=(endpoint,))) as client:
            return judge_etcd(endpoint, await client.status())

    async def _examine_members(self) -> list[Finding]:
        async with self._connection.shards() as client:
            shards = (await client.list()).shards
        async with self._connection.allocation() as allocation:
            listed = await allocation.members()
        members = listed.members
        found = judge_members(members, shards) + judge_shards(shards)
        found += judge_formats(listed.format_level, members)
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
                make = bad if endpoint in known else doubtful
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
                    found.append(bad(what, f"it cannot write {store}: {problem}", remedy))
        return found or [good(what, f"{counted(len(journals), 'journal')}, its store takes writes")]

    async def _examine_kafka(self) -> list[Finding]:
        with needing("shardctl doctor --kafka", extra="kafka"):
            from broadsheet.cli.doctor.kafka import facts_of
        async with self._connection.shards() as client:
            shards = [each.spec for each in (await client.list()).shards]
        facts = await asyncio.to_thread(facts_of, self._kafka, shards)
        return judge_kafka(facts, TRANSACTION_SECONDS)

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
            found.append(await served_certificate(endpoint, tls, name or "", remedy))
        if self._etcd is not None:
            files = _etcd_files(self._etcd)
            for endpoint in _https(self._etcd.endpoints):
                remedy = "renew it, or name its authority with --etcd-ca-file"
                found.append(await served_certificate(endpoint, files, "", remedy))
        return found


_REMEDY = {
    "etcd": "is it started, and reachable from here? compare --etcd",
    "members": "is a member started, and reachable from here? compare --address",
    "member": "is that process well, and reachable from here? look at its log",
    "broker": "is it started, and reachable from here? compare --broker",
    "kafka": "is it started, and reachable from here? compare --kafka",
    "certificates": "compare --tls-ca, --tls-cert and --tls-key",
}


def _https(endpoints: Sequence[str]) -> list[str]:
    return [*dict.fromkeys(each for each in endpoints if each.startswith("https://"))]


def _etcd_files(etcd: EtcdConfig) -> TlsConfig | None:
    if etcd.ca_file is None and etcd.cert_file is None:
        return None
    return TlsConfig(ca_file=etcd.ca_file, cert_file=etcd.cert_file, key_file=etcd.key_file)
