"""Each change of members and brokers leaves one event: who, what, which revision, and how it ended."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from broadsheet.broker.config import BrokerConfig
from broadsheet.consumer.client import AllocationClient, RecoveryClient, ShardClient
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import EndpointError, ServiceError
from broadsheet.security.actor import local_actor
from broadsheet.security.audit import AUDIT_CHARACTERS_MAX, AUDIT_ENTRIES_MAX
from broadsheet.security.auth import Capability, Claims, KeyedAuth
from broadsheet.security.errors import NotAuthorizedError
from broadsheet.wire.errors import ApplyConflictError
from broadsheet.wire.journal_pb2 import ApplyRequest as JournalApply
from broadsheet.wire.labels import parse_selector
from broadsheet.wire.shard_pb2 import ApplyRequest, UnassignRequest
from tests.support.broker import journal_spec
from tests.support.eventually import eventually
from tests.support.members import Cluster, shard, upserts

pytestmark = pytest.mark.etcd

KEYS = b64encode(b"a key of members and brokers, 32 bytes or more").decode()
SOURCE, SHARD = "test/source", "shard-1"
Events = list[dict[str, Any]]


class _As:
    """Signs everything with the claims of one person."""

    def __init__(self, subject: str, selector: str = "") -> None:
        self._auth = KeyedAuth(KEYS)
        self._claims = Claims(
            capability=Capability.ALL, selector=parse_selector(selector), subject=subject
        )

    def metadata(self, claims: Claims) -> tuple[tuple[str, str], ...]:
        """Return the person's token."""
        return tuple(self._auth.metadata(replace(self._claims, expires_at=claims.expires_at)))


MARIA = _As("maria")


@dataclass(frozen=True, slots=True)
class _Place:
    """A leader, another member, and a broker."""

    leader: str
    other: str
    broker: str


@pytest.fixture
async def place(
    etcd_server: EmbeddedEtcdProcess, etcd_root: str, tmp_path: Path
) -> AsyncIterator[_Place]:
    """Yield the servers, all with keys."""
    config = BrokerConfig(data_dir=tmp_path / "broker", auth_keys=KEYS)
    async with EmbeddedBroker(tmp_path, config=config) as broker:
        cluster = Cluster(
            etcd_endpoint=etcd_server.endpoint,
            broker_address=broker.address,
            root=etcd_root,
            directory=tmp_path,
            settings={"auth_keys": KEYS, "broker_auth_keys": KEYS},
        )
        async with cluster.member("a") as leader, cluster.member("b") as other:
            yield _Place(leader.address, other.address, broker.address)


def _audits(events: list[Any]) -> Events:
    return [dict(event) for event in events if event["event"].startswith("audit.")]


async def test_changes_of_members_are_logged(place: _Place) -> None:
    """Plan: apply, apply again in vain, unassign, a dry run, cordon, and a plan by way of the member that does not
    lead. The subject is the token's on both members; what changes nothing is not there.
    """
    async with (
        ShardClient(place.leader, auth=MARIA) as shards,
        AllocationClient(place.other, auth=MARIA) as allocation,
    ):

        async def planned() -> str:
            try:
                return (await allocation.plan()).plan_id
            except EndpointError:
                return ""  # Nobody leads yet.

        await eventually(planned, timeout_seconds=300)
        with capture_logs() as events:
            revision = (await shards.apply(upserts(shard(SHARD, SOURCE)))).header.etcd.revision
            with pytest.raises(ApplyConflictError):
                await shards.apply(upserts(shard(SHARD, SOURCE)))
            await shards.unassign([SHARD])
            await shards.unassign([SHARD], dry_run=True)
            await allocation.cordon(["zone-a#member-b"])
            await allocation.plan()
            with suppress(ServiceError):
                await allocation.apply_plan("no-such-plan")

    found = _audits(events)
    assert [event["event"].removeprefix("audit.") for event in found] == [
        "apply_shards",
        "apply_shards",
        "unassign_shards",
        "cordon_members",
        "apply_plan",
        "apply_plan",
    ]
    assert {event["subject"] for event in found} == {"maria"}
    assert {event["actor"] for event in found} == {local_actor()}
    assert all(event["peer"].startswith("ipv4:127.0.0.1:") for event in found)
    applied, again, unassigned, cordoned, led, passed_on = found
    assert (applied["upserted"], applied["deleted"]) == ([SHARD], [])
    assert (applied["outcome"], applied["revision"]) == ("OK", revision)
    assert again["outcome"] == "ETCD_TRANSACTION_FAILED"
    assert (unassigned["shards"], unassigned["outcome"]) == ([SHARD], "OK")
    assert (cordoned["members"], cordoned["cordoned"]) == (["zone-a#member-b"], True)
    assert (led["forwarded"], passed_on["forwarded"]) == (True, False)
    assert led["plan"] == passed_on["plan"] == "no-such-plan"
    assert led["outcome"] == passed_on["outcome"] == "ALLOCATION_STATUS_PLAN_NOT_FOUND"


async def test_changes_of_recovery_and_journals_are_logged(place: _Place) -> None:
    """What was tried and refused is there too: who tried, and the code of the refusal."""
    spec = journal_spec(SOURCE)
    own = _As("eve", "team=eve")
    async with (
        RecoveryClient(place.leader, auth=MARIA) as recovery,
        JournalClient(place.broker, auth=MARIA) as journals,
        JournalClient(place.broker, auth=own) as others,
    ):
        with capture_logs() as events:
            await journals.apply([JournalApply.Change(upsert=spec)])
            with pytest.raises(NotAuthorizedError):
                await others.apply([JournalApply.Change(delete=SOURCE, expect_mod_revision=-1)])
            [entry async for entry in journals.verify(SOURCE, discard_damaged=True)]
            [entry async for entry in journals.verify(SOURCE)]
            with suppress(ServiceError):
                await journals.purge_quarantine("none")
            [log async for log in recovery.prune(delay_seconds=60)]
            with suppress(ServiceError):
                await recovery.rewind(SHARD, backup=0)
            with suppress(ServiceError):
                await recovery.reset_source(SHARD, journal=SOURCE, offset=0)

    found = {event["event"].removeprefix("audit."): event for event in _audits(events)}
    refused = next(event for event in _audits(events) if event["subject"] == "eve")
    assert [*found] == [
        "apply_journals",
        "discard_damaged",
        "purge_quarantine",
        "prune",
        "rewind",
        "reset_source",
    ]
    assert (refused["deleted"], refused["outcome"]) == ([SOURCE], "PERMISSION_DENIED")
    assert refused["actor"] == local_actor()
    assert found["discard_damaged"]["journal"] == SOURCE
    assert found["purge_quarantine"]["entry"] == "none"
    assert found["prune"]["delay_seconds"] == 60
    assert found["rewind"]["outcome"] == "REWIND_STATUS_SHARD_NOT_FOUND"
    assert found["reset_source"]["outcome"] == "RESET_SOURCE_STATUS_SHARD_NOT_FOUND"


async def test_hostile_names_do_not_spoil_the_log(place: _Place) -> None:
    """A request is logged even if it is malformed: its texts must not begin a line of their own, nor fill the disk."""
    names = ["a\nforged=1", "\x1b[2J", "x" * 100_000]
    requests: dict[str, Any] = {
        "/consumer.Shard/Unassign": UnassignRequest(shards=names + ["s"] * 10_000),
        "/consumer.Shard/Apply": ApplyRequest(
            changes=[ApplyRequest.Change(delete=name) for name in names]
        ),
    }
    metadata = (
        *MARIA.metadata(Claims(capability=Capability.ALL)),
        ("broadsheet-actor", "m" * 4000),
    )
    async with grpc.aio.insecure_channel(place.leader.removeprefix("http://")) as channel:
        with capture_logs() as events:
            for method, request in requests.items():
                call: Any = channel.unary_unary(method)
                with pytest.raises(grpc.aio.AioRpcError):
                    await call(request.SerializeToString(), metadata=metadata)

    unassigned, applied = _audits(events)
    assert unassigned["shards"][:3] == ["a?forged=1", "?[2J", "x" * AUDIT_CHARACTERS_MAX]
    assert len(unassigned["shards"]) == AUDIT_ENTRIES_MAX
    assert applied["deleted"] == unassigned["shards"][:3]
    assert unassigned["outcome"] == applied["outcome"] == "INVALID_ARGUMENT"
    assert len(unassigned["actor"]) == 128
