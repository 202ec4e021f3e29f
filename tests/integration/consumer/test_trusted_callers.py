"""Callers whom members and brokers believe by public keys and by certificates, over real connections."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broadsheet.broker.config import BrokerConfig
from broadsheet.consumer.client import ShardClient
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.transport import TransportPolicy
from broadsheet.security.auth import BearerAuth, Capability, KeyedAuth, TrustConfig
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.security.tls import TlsConfig
from tests.support.certificates import CertificateAuthority
from tests.support.members import Cluster, create_journals, shard, upserts
from tests.support.token_signers import key_set, signer

pytestmark = pytest.mark.etcd

KEYS = b64encode(b"a key of members and brokers, 32 bytes or more").decode()
SOURCE = "test/source"
HOST = "127.0.0.1"
TEAM_A = {"include": {"labels": [{"name": "team", "value": "a"}]}}


async def test_tokens_of_others_open_what_they_say(
    etcd_server: EmbeddedEtcdProcess, etcd_root: str, tmp_path: Path
) -> None:
    """Plan: a broker and a member with shared keys among themselves, and an issuer's public keys. Tokens of the issuer
    list, read and append as far as their capability and selector go; those of another signer do nothing.
    """
    issuer, stranger = signer("ES256"), signer("ES256", "stranger")
    (tmp_path / "jwks.json").write_bytes(key_set(issuer))
    trust = TrustConfig(jwks=str(tmp_path / "jwks.json"), issuer="https://issuer.test")

    def bearer(capability: Capability, **claims: Any) -> BearerAuth:
        return BearerAuth(issuer.token(cap=int(capability), iss="https://issuer.test", **claims))

    config = BrokerConfig(data_dir=tmp_path / "broker", auth_keys=KEYS, trust=trust)
    async with EmbeddedBroker(tmp_path, config=config) as broker:
        async with JournalClient(broker.address, auth=KeyedAuth(KEYS)) as journals:
            await create_journals(journals, SOURCE)
        appends = bearer(Capability.APPEND | Capability.READ)
        async with JournalClient(broker.address, auth=appends) as journals:
            await journals.append(SOURCE, b"x\n")
            reader = journals.reader(SOURCE, block=False)
            assert b"".join([span.content async for span in reader]) == b"x\n"
            with pytest.raises(NotAuthorizedError, match="LIST"):
                await journals.list()
        for token in (stranger.token(cap=31, iss="https://issuer.test"), issuer.token(cap=31)):
            async with JournalClient(broker.address, auth=BearerAuth(token)) as journals:
                with pytest.raises(UnauthenticatedError):
                    await journals.list()
                with pytest.raises(UnauthenticatedError):
                    await journals.append(SOURCE, b"x\n")
        cluster = Cluster(
            etcd_endpoint=etcd_server.endpoint,
            broker_address=broker.address,
            root=etcd_root,
            directory=tmp_path,
            settings={"auth_keys": KEYS, "broker_auth_keys": KEYS, "trust": trust},
        )
        async with cluster.member("a") as service:
            async with ShardClient(service.address, auth=bearer(Capability.APPLY)) as client:
                await client.apply(
                    upserts(shard("shard-a", SOURCE, team="a"), shard("shard-b", SOURCE, team="b"))
                )
            scoped = bearer(Capability.LIST | Capability.APPLY, sel=TEAM_A)
            async with ShardClient(service.address, auth=scoped) as client:
                assert [each.spec.id for each in (await client.list()).shards] == ["shard-a"]
                assert await client.unassign(["shard-b"]) == ()
            async with ShardClient(service.address, auth=BearerAuth(stranger.token())) as client:
                with pytest.raises(UnauthenticatedError):
                    await client.list()


async def test_certificates_open_what_their_identities_may(
    etcd_server: EmbeddedEtcdProcess,
    etcd_root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plan: a broker and a member ask for certificates. A client of a known name, and one of a known SPIFFE path, may
    what the file says, without a token; one that the authority signed for others may nothing, until the file says so.
    """
    monkeypatch.setattr("broadsheet.security.token_keys.LOOK_SECONDS", 0.0)
    authority = CertificateAuthority(tmp_path)
    server = authority.tls("server", HOST, mutual=True)
    identities = tmp_path / "identities.yaml"
    entries = """
identities:
  - {identity: team-a.test, capabilities: [LIST, READ], selector: team=a}
  - {identity: "spiffe://td.test/ops/*", capabilities: [ALL]}
"""
    identities.write_text(entries)
    trust = TrustConfig(identities_file=str(identities))

    def client_tls(name: str, *names: str, uris: tuple[str, ...] = ()) -> TlsConfig:
        made = authority.certificate(name, *names, uris=uris)
        return TlsConfig(
            ca_file=authority.ca_file, cert_file=made.cert_file, key_file=made.key_file
        )

    team_a = client_tls("team-a", "team-a.test")
    operator = client_tls("ops", uris=("spiffe://td.test/ops/maria",))
    stranger = client_tls("stranger", "stranger.test")
    config = BrokerConfig(data_dir=tmp_path / "broker", trust=trust, tls=server, auth_keys=KEYS)
    async with EmbeddedBroker(tmp_path, config=config) as broker:

        def journals(tls: TlsConfig) -> JournalClient:
            return JournalClient(broker.address, policy=TransportPolicy(tls=tls))

        async with journals(operator) as client:
            await create_journals(client, SOURCE)
            await client.append(SOURCE, b"x\n")
        async with journals(team_a) as client:
            assert not (await client.list()).journals
            with pytest.raises(NotAuthorizedError):
                await client.append(SOURCE, b"x\n")
        async with journals(stranger) as client:
            with pytest.raises(UnauthenticatedError, match=r"stranger\.test has no entry"):
                await client.list()
        cluster = Cluster(
            etcd_endpoint=etcd_server.endpoint,
            broker_address=broker.address,
            root=etcd_root,
            directory=tmp_path,
            settings={
                "auth_keys": KEYS,
                "broker_auth_keys": KEYS,
                "trust": trust,
                "tls": replace(server, client_ca_file=authority.ca_file),
            },
        )
        async with cluster.member("a") as service:
            async with ShardClient(service.address, tls=operator) as shards:
                await shards.apply(
                    upserts(shard("shard-a", SOURCE, team="a"), shard("shard-b", SOURCE, team="b"))
                )
            async with ShardClient(service.address, tls=team_a) as shards:
                assert [each.spec.id for each in (await shards.list()).shards] == ["shard-a"]
                with pytest.raises(NotAuthorizedError):
                    await shards.unassign(["shard-a"])
            async with ShardClient(service.address, tls=stranger) as shards:
                with pytest.raises(UnauthenticatedError):
                    await shards.list()
                identities.write_text(
                    entries + "  - {identity: stranger.test, capabilities: [LIST]}\n"
                )
                assert len((await shards.list()).shards) == 2
                identities.write_text(entries)
                with pytest.raises(UnauthenticatedError):
                    await shards.list()
