"""Tokens: who gets through, who does not, and that the two refusals are told apart."""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest

from broadsheet.runtime.errors import ValidationError
from broadsheet.security.actor import FORWARDED, is_forwarded
from broadsheet.security.auth import (
    LEEWAY_SECONDS,
    BearerAuth,
    Capability,
    Claims,
    KeyedAuth,
    NoAuth,
    TrustConfig,
    expiring,
    server_auth,
)
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.wire.labels import parse_selector
from tests.support.token_signers import key_set, signer

OLD, NEW = (
    b64encode(b"old-secret, 32 bytes or more....").decode(),
    b64encode(b"new-secret, 32 bytes or more....").decode(),
)


def _forged(payload: dict[str, Any], key: bytes = b64decode(OLD), algorithm: str = "HS256") -> str:
    return jwt.encode(payload, key.ljust(48, b"\0"), algorithm=algorithm)


def _verify(token: str, require: Capability = Capability.READ) -> Claims:
    return KeyedAuth(OLD).verify((("authorization", f"Bearer {token}"),), require)


def _in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


def test_signed_claims_come_back_as_they_were() -> None:
    """Capability, selector and expiry survive the trip."""
    auth = KeyedAuth(OLD)
    claims = expiring(
        Capability.READ | Capability.LIST,
        parse_selector("name:prefix=a/,!secret"),
        life_seconds=60,
    )

    seen = auth.verify(auth.metadata(claims), Capability.READ)

    assert seen.capability == claims.capability
    assert seen.selector == claims.selector
    assert seen.expires_at is not None
    assert claims.expires_at is not None
    assert abs(seen.expires_at - claims.expires_at) <= timedelta(seconds=1)


def test_claims_expire_when_their_token_would() -> None:
    """Who holds verified claims and a verifier that sees the token again decide alike, the tolerance included; the
    process's own claims are for ever, and a token may expire at the last date that there is.
    """
    last = datetime.max.replace(tzinfo=UTC)
    expires_at = _in_an_hour()
    claims = Claims(capability=Capability.READ, expires_at=expires_at)
    tolerated = expires_at + timedelta(seconds=LEEWAY_SECONDS)

    assert not claims.has_expired(tolerated)
    assert claims.has_expired(tolerated + timedelta(microseconds=1))
    assert not Claims.process().has_expired(last)
    assert not Claims(capability=Capability.READ, expires_at=last).has_expired(_in_an_hour())


def test_first_key_signs_and_any_verifies() -> None:
    """Keys are rotated by putting the new one in front everywhere, then dropping the old one."""
    token = KeyedAuth(OLD).metadata(Claims(capability=Capability.READ))

    assert KeyedAuth(f"{NEW}, {OLD}").verify(token, Capability.READ).capability == Capability.READ
    with pytest.raises(UnauthenticatedError, match="unknown key"):
        KeyedAuth(NEW).verify(token, Capability.READ)


def test_token_of_the_stronger_hash_is_accepted() -> None:
    """Other signers of the same cluster may use HS384, with the plain key."""
    token = _forged({"cap": 8, "exp": _in_an_hour()}, algorithm="HS384")

    assert _verify(token).capability == Capability.READ


def test_padded_key_signs_like_the_plain_one() -> None:
    """A long key, which needs no padding, and its signature by another implementation of HMAC agree."""
    key = b"k" * 64
    token = jwt.encode({"cap": 8, "exp": _in_an_hour()}, key, algorithm="HS256")

    claims = KeyedAuth(b64encode(key).decode()).verify(
        (("authorization", f"Bearer {token}"),), Capability.READ
    )

    assert claims.capability == Capability.READ


def test_missing_token_passes_only_under_the_flag() -> None:
    """AA== rolls authorization out; a token that is present must be good all the same."""
    with pytest.raises(UnauthenticatedError, match="missing"):
        KeyedAuth(OLD).verify((), Capability.READ)
    lenient = KeyedAuth(f"{OLD} AA==")

    claims = lenient.verify(None, Capability.APPEND)

    assert claims.capability == Capability.APPEND
    assert claims.expires_at is not None
    with pytest.raises(UnauthenticatedError):
        lenient.verify((("authorization", "Bearer nonsense"),), Capability.READ)


def test_sound_token_without_the_capability_is_not_authorized() -> None:
    """Good credentials for something else are another failure than bad ones."""
    token = KeyedAuth(OLD).sign(Claims(capability=Capability.READ))

    with pytest.raises(NotAuthorizedError, match=r"lacks the capability APPEND; it has READ"):
        _verify(token, Capability.READ | Capability.APPEND)


def test_bits_of_applications_are_named_by_their_numbers() -> None:
    """They have no names here; a refusal that cannot say what the token has would be an internal error."""
    token = KeyedAuth(OLD).sign(Claims(capability=Capability.LIST | Capability(1 << 16)))

    with pytest.raises(
        NotAuthorizedError, match=r"lacks the capability READ; it has LIST\+0x10000"
    ):
        _verify(token)


@pytest.mark.parametrize(
    ("token", "told"),
    [
        ("not.a.token", "bad token"),
        (_forged({"cap": 8}), "exp"),
        (_forged({"cap": 8, "exp": datetime(2020, 1, 1, tzinfo=UTC)}), "expired"),
        (_forged({"cap": "8", "exp": _in_an_hour()}), "32-bit mask"),
        (_forged({"cap": -1, "exp": _in_an_hour()}), "32-bit mask"),
        (_forged({"cap": True, "exp": _in_an_hour()}), "32-bit mask"),
        (_forged({"cap": 8, "exp": _in_an_hour()}, key=b"elsewhere"), "unknown key"),
    ],
)
def test_bad_token_is_unauthenticated_and_says_why(token: str, told: str) -> None:
    """Malformed, expired, forged: never authorized, never a crash."""
    with pytest.raises(UnauthenticatedError, match=told):
        _verify(token)


def test_token_with_null_labels_selects_everything() -> None:
    """Other implementations write null for an empty list of labels."""
    token = _forged(
        {"cap": 8, "exp": _in_an_hour(), "sel": {"include": {"labels": None}, "exclude": None}}
    )

    assert not _verify(token).selector.include.labels


def test_token_of_gazette_with_a_label_of_any_value_is_understood() -> None:
    """Gazette leaves an empty value out of the JSON, so a Go client that lists by a label's name alone was refused."""
    labels = [{"name": "app.gazette.dev/message-type"}, {"name": "name", "prefix": True}]
    selector = {"include": {"labels": labels}, "exclude": {"labels": None}}

    seen = _verify(_forged({"cap": 8, "exp": _in_an_hour(), "sel": selector}))

    assert [(each.name, each.value, each.prefix) for each in seen.selector.include.labels] == [
        ("app.gazette.dev/message-type", "", False),
        ("name", "", True),
    ]


@pytest.mark.parametrize(
    "selector",
    [
        "",
        "all",
        [],
        0,
        False,
        {"Include": {"labels": [{"name": "team", "value": "a"}]}},
        {"include": []},
        {"include": "team=a"},
        {"include": {"labels": {}}},
        {"include": {"labels": [], "prefix": "a/"}},
        {"include": {"labels": [{"name": "team", "value": None}]}},
        {"include": {"labels": [{"name": "team", "Value": "a"}]}},
        {"include": {"labels": [{"value": "a"}]}},
        {"include": {"labels": [{"name": "", "value": "a"}]}},
        {"include": {"labels": [{"name": "team", "value": 7}]}},
        {"include": {"labels": [{"name": "team", "value": "a", "Prefix": True}]}},
        {"include": {"labels": [{"name": "team", "value": "a", "prefix": 1}]}},
        {"exclude": [{"name": "team", "value": "a"}]},
    ],
)
def test_token_with_a_selector_that_is_not_understood_is_refused(selector: object) -> None:
    """A restriction that is misspelt, or of a later version, must not be read as none: such a token covered all."""
    token = _forged({"cap": 8, "exp": _in_an_hour(), "sel": selector})

    with pytest.raises(UnauthenticatedError, match="bad token: malformed claim `sel`"):
        _verify(token)


@pytest.mark.parametrize(
    "value", ["Bearer \xff", "Bearer \udcff", "Bearer \u2603.a.b", b"Bearer \xff"]
)
def test_token_that_is_no_ascii_is_malformed(value: str | bytes) -> None:
    """The library's own error of such a token was an internal one, with a stack in the log for each call."""
    for verifier in (KeyedAuth(OLD), server_auth(OLD, TrustConfig())):
        with pytest.raises(UnauthenticatedError, match="expected Bearer TOKEN"):
            verifier.verify((("authorization", value),), Capability.READ)  # type: ignore[attr-defined]


def test_hop_is_believed_of_members_alone() -> None:
    """A caller that claims to be a hop of a member would have its changes logged as forwarded, and not be passed on.
    The claim counts in a token of the shared keys; the metadata alone is anybody's.
    """
    metadata = ((FORWARDED, "1"),)
    hop = _verify(KeyedAuth(OLD).sign(Claims(capability=Capability.READ, is_hop=True)))
    plain = _verify(KeyedAuth(OLD).sign(Claims(capability=Capability.READ)))
    forged = _verify(_forged({"cap": 8, "exp": _in_an_hour(), "hop": 1}))

    assert is_forwarded(metadata, is_hop=hop.is_hop)
    assert not is_forwarded((), is_hop=hop.is_hop)
    assert not is_forwarded(metadata, is_hop=plain.is_hop)
    assert not is_forwarded(metadata, is_hop=forged.is_hop)


async def test_hop_of_another_signer_is_none(tmp_path: Path) -> None:
    """Who signs with a key of its own is no member, whatever it writes into its tokens."""
    issuer = signer("ES256")
    (tmp_path / "jwks.json").write_bytes(key_set(issuer))
    verifier = server_auth(OLD, TrustConfig(jwks=str(tmp_path / "jwks.json")))
    metadata = (("authorization", f"Bearer {issuer.token(cap=8, hop=True)}"),)

    claims = await verifier.verify_call(metadata, Capability.READ, identity=lambda: None)

    assert not claims.is_hop


@pytest.mark.parametrize("length", [0, 1, 16, 31])
def test_short_key_is_refused_and_the_error_says_how_to_make_one(length: int) -> None:
    """A key that is shorter than the digest can be found from one token, by trying."""
    short = b64encode(b"k" * length).decode() or "===="
    with pytest.raises(ValidationError, match=r"auth_keys\[1\]"):
        KeyedAuth(f"{OLD} {short}")
    with pytest.raises(ValidationError, match="openssl rand -base64 32"):
        KeyedAuth(b64encode(b"k" * 31).decode())
    KeyedAuth(b64encode(b"k" * 32).decode())


@pytest.mark.parametrize("text", ["", "AA==", "%%%", f"{OLD},%%%"])
def test_unusable_keys_are_refused_without_showing_them(text: str) -> None:
    """A wrong configuration fails at the start, and no secret reaches a log."""
    with pytest.raises(ValidationError, match="auth_keys") as raised:
        KeyedAuth(text)

    assert "%%%" not in str(raised.value)


def test_no_auth_attaches_nothing_and_lets_through() -> None:
    """Without keys there is no header and no check."""
    assert NoAuth().metadata(Claims(capability=Capability.READ)) == ()
    assert NoAuth().verify((), Capability.APPLY).capability == Capability.APPLY


def test_bearer_attaches_its_token_to_everything() -> None:
    """A client without keys presents what it was given."""
    token = KeyedAuth(OLD).sign(Claims(capability=Capability.ALL))

    metadata = BearerAuth(token).metadata(Claims(capability=Capability.READ))

    assert KeyedAuth(OLD).verify(metadata, Capability.APPLY).capability == Capability.ALL
