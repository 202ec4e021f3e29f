"""Who may call the Shard RPCs, and what clients make of them: tokens, addresses, threads, journals that specs name."""

from __future__ import annotations

import asyncio
import socket
from base64 import b64encode

import pytest

from broadsheet.consumer.client import ShardClient, SyncShardClient, verify_referenced_journals
from broadsheet.consumer.errors import ShardNotFoundError
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.protobuf import PROTOBUF_FIXED
from broadsheet.journals.listing import ListResult
from broadsheet.runtime.errors import EndpointError, ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import BearerAuth, Capability, Claims, KeyedAuth
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.wire.errors import ApplyConflictError
from broadsheet.wire.journal_pb2 import ApplyRequest as JournalApply, LabelSelector
from broadsheet.wire.labels import CONTENT_TYPE, DEAD_LETTER_JOURNAL, label_set, selector
from broadsheet.wire.shard_pb2 import ApplyRequest, Status
from tests.support.broker import journal_spec
from tests.support.eventually import DEADLINE_SECONDS
from tests.support.members import (
    Cluster,
    client_of,
    create_journals,
    shard,
    statuses,
    upserts,
    wait_for_primaries,
)

pytestmark = pytest.mark.etcd


SOURCE = "test/source"

KEY = b64encode(b"a key of the test, thirty-two bytes").decode()


async def test_stat_through_non_primary_is_authorized_on_its_hop(
    cluster: Cluster, journals: JournalClient
) -> None:
    """With keys, a forwarded Stat carries a token for just this; the model's carries none and is refused."""
    cluster.settings["auth_keys"] = KEY
    auth = KeyedAuth(KEY)
    async with (
        cluster.member("a") as a,
        cluster.member("b") as b,
        client_of(a, auth) as client_a,
        client_of(b, auth) as client_b,
    ):
        await client_a.apply(upserts(shard("shard-1", SOURCE)))
        for client in (client_a, client_b):
            await wait_for_primaries(client, "shard-1")
            assert (await client.stat("shard-1")).status == Status.OK


async def test_label_scoped_tokens_see_and_change_their_own(cluster: Cluster) -> None:
    """A token for team a: others' shards do not exist for it, and it can neither take nor restart them."""
    cluster.settings["auth_keys"] = KEY
    keys = KeyedAuth(KEY)
    token = keys.sign(
        Claims(capability=Capability.ALL, selector=selector(label_set(("team", "a"))))
    )
    async with (
        cluster.member("a") as service,
        client_of(service, keys) as admin,
        client_of(service, BearerAuth(token)) as team_a,
    ):
        await admin.apply(upserts(shard("shard-b", SOURCE, team="b")))
        await team_a.apply(upserts(shard("shard-a", SOURCE, team="a")))
        await wait_for_primaries(admin, "shard-a", "shard-b")

        assert list(await statuses(team_a)) == ["shard-a"]
        assert (await team_a.stat("shard-a")).status == Status.OK
        with pytest.raises(ShardNotFoundError):
            await team_a.stat("shard-b")
        with pytest.raises(ShardNotFoundError):
            await team_a.get_hints("shard-b")
        # As of a shard that is not there.
        with pytest.raises(ApplyConflictError):
            await team_a.apply(upserts(shard("shard-b", SOURCE, team="a"), expect=-1))
        with pytest.raises(NotAuthorizedError, match="shard-a"):
            await team_a.apply(upserts(shard("shard-a", SOURCE, team="b"), expect=-1))
        assert await team_a.unassign(["shard-b"]) == ()
        assert await team_a.unassign(["shard-a"]) == ("shard-a",)
        await team_a.apply([ApplyRequest.Change(delete="shard-a", expect_mod_revision=-1)])


async def test_tokens_missing_bad_or_too_weak(cluster: Cluster) -> None:
    """No token, another key's token, and a token that may only list are three different answers."""
    cluster.settings["auth_keys"] = KEY
    other = KeyedAuth(b64encode(b"another key altogether, 32 bytes").decode())
    lister = BearerAuth(KeyedAuth(KEY).sign(Claims(capability=Capability.LIST)))
    async with cluster.member("a") as service:
        async with client_of(service) as client:
            with pytest.raises(UnauthenticatedError, match="missing"):
                await client.list()
        async with client_of(service, other) as client:
            with pytest.raises(UnauthenticatedError, match="unknown key"):
                await client.list()
        async with client_of(service, lister) as client:
            await client.list()
            with pytest.raises(NotAuthorizedError, match="lacks the capability APPLY"):
                await client.apply(upserts(shard("shard-1")))


async def test_refused_connection_names_the_address() -> None:
    """Nobody listens there: the client says so at once, and where."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
    async with ShardClient(address) as client:
        with pytest.raises(EndpointError, match=f"cannot reach {address}"):
            await client.list()


async def test_sync_client_from_a_thread_without_a_loop(cluster: Cluster) -> None:
    """A driver's thread calls the same methods and gets the same errors."""

    def work(address: str) -> list[str]:
        with SyncShardClient(address) as client:
            client.apply(upserts(shard("shard-1")))
            with pytest.raises(ShardNotFoundError):
                client.stat("shard-2")
            return [listed.spec.id for listed in client.list().shards]

    async with cluster.member("a") as service:
        assert await asyncio.to_thread(work, service.address) == ["shard-1"]


async def test_client_closed_under_a_call_names_the_address(cluster: Cluster) -> None:
    """One task closes the client while another waits for offsets: that is an error of the client's, no cancellation."""
    async with cluster.member("a") as service, TaskGroup() as group:
        async with client_of(service) as client:
            await client.apply(upserts(shard("shard-1", SOURCE)))
            await wait_for_primaries(client, "shard-1")

            async def wait_long() -> None:
                with pytest.raises(
                    EndpointError, match=rf"{service.address}: the client was closed"
                ):
                    await client.stat("shard-1", read_through={SOURCE: 1 << 40})

            waiting = group.start_soon(wait_long(), name="stat")
            # The client closes only once its own request is under way.
            await client.list()
        await asyncio.wait_for(waiting, DEADLINE_SECONDS)


async def test_verify_referenced_journals(journals: JournalClient) -> None:
    """Specs that name a missing journal, or a log that is none, are caught before they are applied."""
    await create_journals(journals, SOURCE, "logs/shard-1")
    logged = shard("shard-1", SOURCE)
    logged.recovery_log_prefix = "logs"

    await verify_referenced_journals(upserts(shard("shard-1", SOURCE)), journals)
    with pytest.raises(ValidationError, match=r"changes\[1\].*sources\[0\].*missing/one does not"):
        await verify_referenced_journals(
            upserts(shard("shard-1", SOURCE), shard("shard-2", "missing/one")), journals
        )
    with pytest.raises(ValidationError, match=r"logs/shard-1: expected label content-type"):
        await verify_referenced_journals(upserts(logged), journals)


class _CountingClient(JournalClient):
    """Counts listings."""

    listings = 0

    async def list(self, selector: LabelSelector | None = None) -> ListResult:
        """Count it."""
        self.listings += 1
        return await super().list(selector)


async def test_verify_referenced_journals_looks_many_up_at_once(
    journals: JournalClient, broker: EmbeddedBroker
) -> None:
    """Thousands of shards, each with a journal of its own, must not take a request each."""
    names = [f"many/part-{number:03d}" for number in range(300)]
    for begin in range(0, len(names), 100):
        await create_journals(journals, *names[begin : begin + 100])
    specs = [shard(f"shard-{number:03d}", name) for number, name in enumerate(names)]
    async with _CountingClient(broker.address) as counting:
        await verify_referenced_journals(upserts(*specs), counting)
        assert counting.listings == 3
        with pytest.raises(ValidationError, match=r"changes\[300\].*many/none does not exist"):
            await verify_referenced_journals(
                upserts(*specs, shard("shard-none", "many/none")), counting
            )


async def test_verify_referenced_journals_checks_where_dead_letters_go(
    journals: JournalClient,
) -> None:
    """A journal that is missing, or takes no JSON lines, would be found out only when the first message is poison."""
    protobuf = label_set((CONTENT_TYPE, PROTOBUF_FIXED))
    await create_journals(journals, SOURCE, "letters/good")
    change = JournalApply.Change(upsert=journal_spec("letters/protobuf", labels=protobuf))
    await journals.apply([change])

    def to(journal: str) -> list[ApplyRequest.Change]:
        spec = shard("shard-1", SOURCE)
        spec.labels.CopyFrom(label_set({DEAD_LETTER_JOURNAL: journal}))
        return upserts(spec)

    await verify_referenced_journals(to("letters/good"), journals)
    with pytest.raises(
        ValidationError, match=r"dead-letter-journal\].*letters/none does not exist"
    ):
        await verify_referenced_journals(to("letters/none"), journals)
    with pytest.raises(ValidationError, match=r"letters/protobuf: expected .*x-ndjson"):
        await verify_referenced_journals(to("letters/protobuf"), journals)
