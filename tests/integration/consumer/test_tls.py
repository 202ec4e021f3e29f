"""TLS of members, peers, brokers, clients and commands, with certificates of a real authority."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog.testing
from cryptography import x509

from broadsheet.broker.config import BrokerConfig
from broadsheet.consumer.client import (
    AllocationClient,
    RecoveryClient,
    ShardClient,
    SyncShardClient,
)
from broadsheet.consumer.member.accrual import SUSPICION_PHI
from broadsheet.consumer.member.silence_watch import HeartbeatListener
from broadsheet.consumer.resolver.hearing import Hearing
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import JournalError
from broadsheet.journals.transport import TransportPolicy
from broadsheet.runtime.clock import SystemClock
from broadsheet.runtime.errors import EndpointError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import NoAuth
from broadsheet.security.certificates import peer_identity
from broadsheet.security.endpoints import open_channel
from broadsheet.security.tls import TlsConfig, add_port, secure_channel
from broadsheet.spark_bridge.brokers import open_client
from broadsheet.spark_bridge.journal_source.options import read_options
from broadsheet.spark_bridge.task_resolver import close_connections, token_of_heads
from broadsheet.wire.journal_pb2 import ReadRequest
from broadsheet.wire.journal_pb2_grpc import JournalStub
from tests.support.broker import next_message
from tests.support.certificates import CertificateAuthority, yesterday
from tests.support.eventually import eventually
from tests.support.key_space_values import member
from tests.support.members import Cluster, create_journals, shard, upserts, wait_for_primaries
from tests.support.shardctl_runs import Ran, shardctl

SECONDS_MAX = 300.0
HOST = "127.0.0.1"
SOURCE = "test/source"


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    """The authority of the cluster."""
    return CertificateAuthority(tmp_path)


@pytest.fixture
def tls(authority: CertificateAuthority) -> TlsConfig:
    """Files of a server on this machine that asks its clients for certificates; of such a client, too."""
    return authority.tls("server", HOST, "localhost", mutual=True)


@asynccontextmanager
async def _broker(directory: Path, tls: TlsConfig | None) -> AsyncIterator[EmbeddedBroker]:
    config = BrokerConfig(data_dir=directory / "tls-broker", tls=tls)
    async with EmbeddedBroker(config.data_dir, config=config) as running:
        yield running


def _journals(address: str, tls: TlsConfig | None) -> JournalClient:
    return JournalClient(address, policy=TransportPolicy(tls=tls, patience_seconds=0))


def _expiry_of(tls: TlsConfig) -> float:
    assert tls.cert_file is not None
    certificate = x509.load_pem_x509_certificate(tls.cert_file.read_bytes())
    return certificate.not_valid_after_utc.timestamp()


async def _refusal(address: str, tls: TlsConfig | None) -> str:
    """Return how a broker's client says that it cannot connect."""
    async with _journals(address, tls) as journals:
        with pytest.raises(EndpointError) as refused:
            await journals.list()
    return str(refused.value)


async def test_broker_and_client_speak_tls_and_know_each_other(
    tls: TlsConfig, tmp_path: Path
) -> None:
    """Appends and reads go over TLS, both sides show certificates, and routes say so: their address is https.

    Comments in the file of authorities, in any letters, do not matter: bundles have names there.
    """
    assert tls.ca_file is not None
    tls.ca_file.write_bytes("# Főtanúsítvány\n".encode() + tls.ca_file.read_bytes())
    async with _broker(tmp_path, tls) as broker, _journals(broker.address, tls) as journals:
        await create_journals(journals, SOURCE)
        await journals.append(SOURCE, b'{"key":"a"}\n')
        reader = journals.reader(SOURCE, block=False)
        address = broker.address
        expiry = broker.broker.registry.get_sample_value(
            "broadsheet_broker_certificate_expiry_timestamp_seconds"
        )
        content = b"".join([span.content async for span in reader])
        listed = await journals.list()

    assert address.startswith("https://")
    assert expiry == _expiry_of(tls)
    assert content == b'{"key":"a"}\n'
    assert [*listed.journals[0].route.endpoints] == [address]


async def test_tasks_read_journals_and_their_ends_over_tls(tls: TlsConfig, tmp_path: Path) -> None:
    """Spark's formats and tasks take files by their names in options, because contents would be shown in plans."""
    files = {"caFile": tls.ca_file, "certFile": tls.cert_file, "keyFile": tls.key_file}
    async with _broker(tmp_path, tls) as broker, _journals(broker.address, tls) as journals:
        await create_journals(journals, SOURCE)
        end = (await journals.append(SOURCE, b'{"key":"a"}\n')).commit.end
        heads = await asyncio.to_thread(token_of_heads, broker.address, [SOURCE], tls=tls)
        close_connections()
        options = read_options(
            {"address": broker.address, "selector": f"name={SOURCE}"}
            | {name: str(path) for name, path in files.items()}
        )
        async with open_client(options.access) as client:
            listed = await client.list()

    assert heads == {SOURCE: end}
    assert [each.spec.name for each in listed.journals] == [SOURCE]


async def test_connections_that_tls_must_refuse_say_what_is_missing(
    authority: CertificateAuthority, tls: TlsConfig, tmp_path: Path
) -> None:
    """No certificate, a stranger's, an unknown authority, no TLS at all: each is refused, in words that help."""
    (tmp_path / "other").mkdir()
    stranger = CertificateAuthority(tmp_path / "other", "stranger")
    own = stranger.certificate("client", "client.test")
    async with _broker(tmp_path, tls) as broker:
        address = broker.address
        without = await _refusal(address, TlsConfig(ca_file=authority.ca_file))
        foreign = TlsConfig(
            ca_file=authority.ca_file, cert_file=own.cert_file, key_file=own.key_file
        )
        strange = await _refusal(address, foreign)
        unknown = await _refusal(address, replace(tls, ca_file=stranger.ca_file))
        public = await _refusal(address, None)
        clear = await _refusal(address.replace("https://", "http://"), tls)

    assert "--tls-cert" in without
    assert "--tls-cert" in strange
    assert "--tls-ca" in unknown
    assert "--tls-ca" in public
    assert "use https://" in clear


@pytest.mark.parametrize(
    ("names", "expired", "said"),
    [(("other.test",), False, "for another name"), ((HOST,), True, "renew it")],
)
async def test_server_with_a_wrong_certificate_is_not_spoken_to(
    authority: CertificateAuthority,
    tmp_path: Path,
    names: tuple[str, ...],
    expired: bool,
    said: str,
) -> None:
    """A certificate for another host, or one that has expired, proves nothing about this server."""
    made = authority.certificate("server", *names, expires_at=yesterday() if expired else None)
    tls = TlsConfig(ca_file=authority.ca_file, cert_file=made.cert_file, key_file=made.key_file)
    async with _broker(tmp_path, tls) as broker:
        assert said in await _refusal(broker.address, tls)


async def test_server_is_known_by_the_name_that_is_expected(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    """Executors get their addresses when they start. One name in all certificates stands for all of them, and no other
    will do.
    """
    tls = replace(authority.tls("server", "members.test"), server_name="members.test")
    async with _broker(tmp_path, tls) as broker:
        async with _journals(broker.address, tls) as journals:
            assert not (await journals.list()).journals
        heads = await asyncio.to_thread(token_of_heads, broker.address, [], tls=tls)
        said = await _refusal(broker.address, replace(tls, server_name="others.test"))
    assert heads == {}
    assert "for another name" in said


async def test_clear_text_is_not_taken_for_tls(tls: TlsConfig, tmp_path: Path) -> None:
    """A client of https does not fall back to clear text."""
    async with _broker(tmp_path, None) as broker:
        said = await _refusal(broker.address.replace("http://", "https://"), tls)
    assert "it does not speak TLS" in said


async def test_files_that_cannot_be_used_end_the_start(tmp_path: Path, tls: TlsConfig) -> None:
    """A broker that started without its certificate would serve nobody, or in clear text."""
    with pytest.raises(Exception, match=r"tls\.ca_file: cannot read .*missing"):
        async with _broker(tmp_path, replace(tls, ca_file=tmp_path / "missing")):
            pass


async def test_renewed_certificate_is_served_and_an_open_read_goes_on(
    authority: CertificateAuthority, tls: TlsConfig, tmp_path: Path
) -> None:
    """Certificates change every day, and reads last for ever: a renewal, even by another authority, ends none."""
    (tmp_path / "next").mkdir()
    following = CertificateAuthority(tmp_path / "next", "following")
    trusts_following = replace(tls, ca_file=following.ca_file)
    assert tls.cert_file is not None
    assert tls.key_file is not None
    async with (
        _broker(tmp_path, tls) as broker,
        _journals(broker.address, tls) as journals,
        open_channel(broker.address, tls) as channel,
    ):
        await create_journals(journals, SOURCE)
        await journals.append(SOURCE, b"before\n")
        call = JournalStub(channel).Read(
            ReadRequest(journal=SOURCE, block=True), timeout=SECONDS_MAX
        )
        content = b""
        while content != b"before\n":
            content += (await next_message(call)).content

        own = authority.certificate("client", "client.test")
        trusts_following = replace(trusts_following, cert_file=own.cert_file, key_file=own.key_file)
        renewed = following.certificate("server", HOST)
        tls.key_file.write_bytes(renewed.key_file.read_bytes())
        tls.cert_file.write_bytes(renewed.cert_file.read_bytes())

        async def appended() -> bool:
            async with _journals(broker.address, trusts_following) as later:
                try:
                    await later.append(SOURCE, b"after\n")
                except (EndpointError, JournalError):
                    return False
            return True

        await eventually(appended, timeout_seconds=SECONDS_MAX)
        while content != b"before\nafter\n":
            content += (await next_message(call)).content
        call.cancel()


async def test_a_client_shows_its_renewed_certificate_and_old_streams_end_by_themselves(
    authority: CertificateAuthority, tls: TlsConfig, tmp_path: Path
) -> None:
    """A client outlives its certificate. Its next call is made under the new name; a call in progress is not cut off,
    until the channel is closed.
    """
    named = authority.certificate("client", uris=("spiffe://test/one",))
    own = TlsConfig(ca_file=authority.ca_file, cert_file=named.cert_file, key_file=named.key_file)
    go_on = asyncio.Event()

    # `Any`: gRPC's own types of a handler that is not generated.
    async def who(_: bytes, context: Any) -> bytes:
        return (peer_identity(context.auth_context()) or "").encode()

    async def whose(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield await who(request, context)
        await go_on.wait()
        yield await who(request, context)
        await asyncio.Event().wait()

    server = grpc.aio.server()
    handlers: dict[str, Any] = {
        "who": grpc.unary_unary_rpc_method_handler(who),
        "whose": grpc.unary_stream_rpc_method_handler(whose),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    port = add_port(server, f"{HOST}:0", tls)
    await server.start()
    try:
        channel = secure_channel(f"{HOST}:{port}", own)
        ask: Any = channel.unary_unary("/test/who")
        assert await ask(b"") == b"spiffe://test/one"
        begin: Any = channel.unary_stream("/test/whose")
        stream = begin(b"")
        assert await stream.read() == b"spiffe://test/one"

        authority.certificate("client", uris=("spiffe://test/two",))

        async def renewed() -> bool:
            return bool(await ask(b"") == b"spiffe://test/two")

        await eventually(renewed, timeout_seconds=SECONDS_MAX)
        go_on.set()
        assert await stream.read() == b"spiffe://test/one"
        await channel.close()
        with pytest.raises(asyncio.CancelledError):
            await stream.read()
    finally:
        await server.stop(None)


@pytest.fixture
async def secured(
    etcd_server: EmbeddedEtcdProcess, etcd_root: str, tls: TlsConfig, tmp_path: Path
) -> AsyncIterator[Cluster]:
    """A cluster without members yet, all of whose parts require certificates."""
    async with _broker(tmp_path, tls) as broker, _journals(broker.address, tls) as journals:
        await create_journals(journals, SOURCE)
        directory = tmp_path / "databases"
        directory.mkdir()
        yield Cluster(
            etcd_endpoint=etcd_server.endpoint,
            broker_address=broker.address,
            root=etcd_root,
            directory=directory,
            settings={"tls": tls},
        )


@pytest.mark.etcd
async def test_members_serve_and_forward_over_tls(secured: Cluster, tls: TlsConfig) -> None:
    """A Stat that another member forwards, a plan that the leader makes, a log's prune, and a shard that reads a
    journal: each crosses TLS with certificates of both sides.
    """
    async with (
        secured.member("a") as first,
        secured.member("b", zone="zone-b") as second,
        ShardClient(first.address, tls=tls) as client,
    ):
        await client.apply(upserts(shard("shard-1", SOURCE)))
        async with asyncio.timeout(SECONDS_MAX), aclosing(client.watch()) as tables:
            async for table in tables:
                if "shard-1" in table:
                    break
        primary = (await wait_for_primaries(client, "shard-1", timeout_seconds=SECONDS_MAX))[
            "shard-1"
        ]
        other = second if primary == "member-a" else first
        async with (
            ShardClient(other.address, tls=tls) as asks_other,
            AllocationClient(other.address, tls=tls) as allocation,
            RecoveryClient(other.address, tls=tls) as recovery,
            _journals(secured.broker_address, tls) as journals,
        ):
            end = (await journals.append(SOURCE, b"")).commit.end
            forwarded = await asks_other.stat("shard-1", read_through={SOURCE: end})
            planned = await allocation.plan()
            pruned = [log async for log in recovery.plan_prune()]
        expiry = first.registry.get_sample_value(
            "broadsheet_member_certificate_expiry_timestamp_seconds"
        )

    assert first.address.startswith("https://")
    assert {each[:8] for each in forwarded.header.route.endpoints} == {"https://"}
    assert forwarded.header.process_id.suffix == primary
    assert planned.plan_id
    assert pruned == []
    assert expiry == _expiry_of(tls)


@pytest.mark.etcd
async def test_members_forward_to_each_other_while_the_cluster_changes_to_tls(
    cluster: Cluster, authority: CertificateAuthority
) -> None:
    """A member that serves clear text, and knows the authority, forwards to one that has a certificate already, and is
    forwarded to: nobody need stop the cluster.
    """
    trusts = TlsConfig(ca_file=authority.ca_file)
    ids = ("shard-1", "shard-2")
    async with (
        cluster.member("a", tls=trusts) as clear,
        cluster.member("b", tls=authority.tls("server", HOST)) as secure,
        ShardClient(clear.address) as asks_clear,
        ShardClient(secure.address, tls=trusts) as asks_secure,
    ):
        await asks_clear.apply(upserts(*(shard(shard_id, SOURCE) for shard_id in ids)))
        primaries = await wait_for_primaries(asks_clear, *ids, timeout_seconds=SECONDS_MAX)
        for client in (asks_clear, asks_secure):
            for shard_id in ids:
                stat = await client.stat(shard_id)
                assert stat.header.process_id.suffix == primaries[shard_id]

    assert {clear.address[:5], secure.address[:5]} == {"http:", "https"}
    assert {*primaries.values()} == {"member-a", "member-b"}


@pytest.mark.etcd
async def test_client_without_a_loop_speaks_tls_to_members_and_brokers(
    secured: Cluster, tls: TlsConfig
) -> None:
    """Drivers and notebooks have no event loop; they ask members, and check journals at the broker."""
    changes = upserts(shard("shard-1", SOURCE))
    async with secured.member("a") as service:

        def applied() -> int:
            with SyncShardClient(service.address, tls=tls) as client:
                client.verify_referenced_journals(changes, broker_address=secured.broker_address)
                client.apply(changes)
                return len(client.list().shards)

        assert await asyncio.to_thread(applied) == 1


@pytest.mark.etcd
async def test_members_hear_each_other_over_tls_and_judge_no_certificate(
    secured: Cluster, tls: TlsConfig, authority: CertificateAuthority
) -> None:
    """Heartbeats cross TLS. A certificate that has expired must not make its member look dead: it answers, so it lives,
    and its lease must not be ended.
    """
    hearing = Hearing(NoAuth(), tls)
    distrusts = Hearing(NoAuth(), TlsConfig())
    async with secured.member("a") as service:
        async with asyncio.timeout(SECONDS_MAX), hearing.beats(service.address) as beats:
            await anext(beats)
        # A busy machine may take longer than a witness waits.
        await eventually(lambda: distrusts.hears(service.address), timeout_seconds=SECONDS_MAX)
        listener = HeartbeatListener(
            member("a", service.address), distrusts, threshold=SUSPICION_PHI, clock=SystemClock()
        )
        with structlog.testing.capture_logs() as logs:
            async with TaskGroup() as group:
                group.start_soon(listener.run(), name="listen")
                # The member logs here as well.
                told = await eventually(
                    lambda: [line for line in logs if line["event"] == "peer.untrusted"],
                    timeout_seconds=SECONDS_MAX,
                )
                group.stop()
    assert "--tls-ca" in told[0]["cause"]
    assert not listener.suspected.is_set()
    assert not await distrusts.hears(service.address)


@pytest.mark.etcd
async def test_commands_connect_with_tls_options_and_say_what_is_missing(
    secured: Cluster, tls: TlsConfig, authority: CertificateAuthority
) -> None:
    """The options of `shardctl` reach members and brokers; without them it says which are missing."""
    ca = f"--tls-ca {authority.ca_file}"
    files = f"{ca} --tls-cert {tls.cert_file} --tls-key {tls.key_file}"

    async def ran(line: str) -> Ran:
        return await asyncio.to_thread(shardctl, line)

    async with secured.member("a") as service:
        at = f"--address {service.address} --broker {secured.broker_address}"
        listed = await ran(f"shardctl shards list {at} {files}")
        journals = await ran(f"shardctl journals list {at} {files}")
        unknown = await ran(f"shardctl shards list {at}")
        unnamed = await ran(f"shardctl shards list {at} {ca}")
        misnamed = await ran(f"shardctl shards list {at} {files} --tls-server-name others.test")
        halved = await ran(f"shardctl shards list {at} --tls-cert {tls.cert_file}")

    assert listed.status == 0, listed.stderr
    assert SOURCE in journals.stdout, journals.stderr
    assert "--tls-ca" in unknown.stderr
    assert "--tls-cert" in unnamed.stderr
    assert "for another name" in misnamed.stderr
    assert "Error: --tls-key: expected a file" in halved.stderr
    assert (unknown.status, unnamed.status, halved.status) == (1, 1, 2)
    assert unknown.stderr.count("\n") == 1
