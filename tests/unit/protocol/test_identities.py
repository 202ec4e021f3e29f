"""What certificates permit: whom an entry means, and whom it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broadsheet.broker.config import BrokerConfig
from broadsheet.consumer.member.config import MemberConfig
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.auth import (
    Capability,
    Claims,
    KeyedAuth,
    TrustConfig,
    parse_identities,
    server_auth,
)
from broadsheet.security.certificates import peer_identity
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.security.tls import TlsConfig
from tests.support.certificates import self_signed

KEYS = "YSBrZXkgb2YgdGhlIG1lbWJlcnMsIDMyIGJ5dGVzIG9yIG1vcmU="
FILE = b"""
identities:
  - identity: billing.test
    capabilities: [LIST, READ]
    selector: app=billing
  - identity: spiffe://td.test/ns/ops/*
    capabilities: [ALL]
  - identity: spiffe://td.test/*
    capabilities: [LIST, 65536]
  - identity: spiffe://td.test/ns/ops/intern
    capabilities: [READ]
"""


@pytest.mark.parametrize(
    ("identity", "capability"),
    [
        ("billing.test", Capability.LIST | Capability.READ),
        ("other.billing.test", None),
        ("billing.test.evil", None),
        ("billing", None),
        ("", None),
        ("spiffe://td.test/ns/ops/a", Capability.ALL),
        ("spiffe://td.test/ns/ops/a/b", Capability.ALL),
        ("spiffe://td.test/ns/ops/intern", Capability.READ),
        ("spiffe://td.test/ns/ops/intern/b", Capability.ALL),
        ("spiffe://td.test/ns/opsevil", Capability.LIST | Capability(65536)),
        ("spiffe://td.test/ns/ops", Capability.LIST | Capability(65536)),
        ("spiffe://td.test/", None),
        ("spiffe://td.test", None),
        ("spiffe://td.test.evil/ns/ops/a", None),
        ("spiffe://evil/td.test/ns/ops/a", None),
        ("xspiffe://td.test/a", None),
    ],
)
def test_an_identity_has_the_nearest_entry(identity: str, capability: Capability | None) -> None:
    """An entry of its own, else the longest prefix; a prefix ends at a slash, so that no neighbour is meant."""
    found = parse_identities(FILE).of(identity)

    assert (None if found is None else found.capability) == capability


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "identities"),
        ("identities: 7", "identities"),
        ("identities: [{identity: a}]", "capabilities"),
        ("identities: [{identity: a, capabilities: []}]", "expected one at least"),
        ("identities: [{identity: a, capabilities: [WRITE]}]", "LIST, APPLY, READ"),
        ("identities: [{identity: a, capabilities: [2]}]", "number from 65536"),
        ("identities: [{identity: a, capabilities: [99999999999]}]", "number from 65536"),
        ("identities: [{identity: a, capability: LIST}]", "capabilit"),
        ("identities: [{identity: a, capabilities: [LIST], selector: '=x'}]", "selector"),
        ("identities: [{identity: '*', capabilities: [LIST]}]", "spiffe://DOMAIN"),
        ("identities: [{identity: '', capabilities: [LIST]}]", "expected a name"),
        ("identities: [{identity: 'spiffe://*', capabilities: [LIST]}]", "spiffe://DOMAIN"),
        ("identities: [{identity: 'spiffe:///*', capabilities: [LIST]}]", "spiffe://DOMAIN"),
        ("identities: [{identity: 'spiffe://td/a*', capabilities: [LIST]}]", "spiffe://DOMAIN"),
        ("identities: [{identity: 'spiffe://*/a', capabilities: [LIST]}]", "spiffe://DOMAIN"),
        ("identities: [{identity: '*.test', capabilities: [LIST]}]", "spiffe://DOMAIN"),
        (
            "identities: [{identity: a, capabilities: [LIST]}, {identity: a, capabilities: [ALL]}]",
            r"identities\[1\].*already",
        ),
        ("identities: !!python/object/apply:os.system [id]", "identities"),
        ("identities: [", "identities"),
        (
            "identities:\n- {identity: a, capabilities: [READ], selector: a=1, selector: a=2}",
            "line 2, column 54: the key 'selector' is there already",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_the_place(text: str, told: str) -> None:
    """What was meant to restrict must not silently permit more, or nothing."""
    with pytest.raises(ValidationError, match=told):
        parse_identities(text.encode())


async def test_a_certificate_permits_what_its_entry_says(tmp_path: Path) -> None:
    """Read from the context as gRPC gives it: capability, selector and subject, until the file may have changed."""
    server = server_auth("", _trust(tmp_path))
    pem = self_signed(hosts=["billing.test"])
    context = {"transport_security_type": [b"ssl"], "x509_pem_cert": [pem]}

    claims = await server.verify_call((), Capability.READ, identity=lambda: peer_identity(context))

    assert claims.capability == Capability.LIST | Capability.READ
    assert [(each.name, each.value) for each in claims.selector.include.labels] == [
        ("app", "billing")
    ]
    assert claims.subject == "billing.test"
    assert claims.expires_at is not None
    with pytest.raises(NotAuthorizedError):
        await server.verify_call((), Capability.APPLY, identity=lambda: peer_identity(context))


async def test_unknown_certificates_permit_nothing(tmp_path: Path) -> None:
    """An authority may have signed certificates for others than our clients; a connection without TLS names nobody."""
    for keys in ("", KEYS):
        server = server_auth(keys, _trust(tmp_path))
        for connection in (lambda: "stranger.test", lambda: None):
            with pytest.raises(UnauthenticatedError, match="missing metadata"):
                await server.verify_call((), Capability(0), identity=connection)


async def test_a_token_counts_before_a_certificate(tmp_path: Path) -> None:
    """A member that passes a call on has a certificate that may do everything; its token says what the call may. A
    token that is wrong is refused, whatever the certificate permits.
    """
    server = server_auth(KEYS, _trust(tmp_path))
    narrow = KeyedAuth(KEYS).metadata(Claims(capability=Capability.LIST))

    claims = await server.verify_call(
        narrow, Capability.LIST, identity=lambda: "spiffe://td.test/ns/ops/a"
    )

    assert claims.capability == Capability.LIST
    for header in ("Bearer x.y.z", "Basic abc", "Bearer "):
        with pytest.raises(UnauthenticatedError):
            await server.verify_call(
                (("authorization", header),),
                Capability.LIST,
                identity=lambda: "spiffe://td.test/ns/ops/a",
            )


def _trust(tmp_path: Path) -> TrustConfig:
    path = tmp_path / "identities.yaml"
    path.write_bytes(FILE)
    return TrustConfig(identities_file=str(path))


def test_settings_that_would_do_nothing_are_refused(tmp_path: Path) -> None:
    """Identities without certificates name nobody; members without keys could not sign each other's calls."""
    trust = _trust(tmp_path)
    mutual = TlsConfig(
        cert_file=tmp_path / "c", key_file=tmp_path / "k", client_ca_file=tmp_path / "ca"
    )
    member: dict[str, Any] = {"root": "/test", "suffix": "member-a", "broker_address": "http://b:1"}

    with pytest.raises(ValidationError, match=r"identities_file.*--tls-client-ca"):
        BrokerConfig(data_dir=tmp_path, trust=trust)
    with pytest.raises(ValidationError, match="auth_keys: expected keys beside trust"):
        MemberConfig(**member, trust=trust, tls=mutual)
    with pytest.raises(ValidationError, match=r"identities_file.*--tls-client-ca"):
        MemberConfig(**member, trust=trust, auth_keys=KEYS)
    with pytest.raises(ValidationError, match="issuer: expected jwks"):
        TrustConfig(issuer="https://issuer.test")
    assert BrokerConfig(data_dir=tmp_path, host="0.0.0.0", trust=trust, tls=mutual).is_guarded  # noqa: S104 - the point
    assert MemberConfig(**member, trust=trust, auth_keys=KEYS, tls=mutual).trust.is_any
