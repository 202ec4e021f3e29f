"""Tokens that others sign: which pass, which tricks do not, and what a server of keys is asked."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from structlog.testing import capture_logs

from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import Capability, Claims, KeyedAuth, TrustConfig, server_auth
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.security.token_keys import (
    FETCH_EVERY_SECONDS,
    FETCH_PAUSE_SECONDS,
    FILE_BYTES_MAX,
    KEEP_SECONDS_MAX,
    PUBLIC_KEYS_MAX,
    PublicKeyServer,
    fetch_content,
    parse_public_keys,
)
from tests.support.stepping_clock import SteppingClock
from tests.support.token_signers import ALGORITHMS, SECRET, key_set, signer, unusable_keys

KEYS = b64encode(b"a key of the members, 32 bytes or more").decode()
ISSUER, AUDIENCE = "https://issuer.test/", "broadsheet"


def _trust(tmp_path: Path, *signers: Any, **options: str) -> TrustConfig:
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set(*signers))
    return TrustConfig(jwks=str(path), **options)


async def _claims(
    trust: TrustConfig, token: str, require: Capability = Capability.LIST, *, keys: str = ""
) -> Claims:
    return await server_auth(keys, trust).verify_call(
        (("authorization", f"Bearer {token}"),), require, identity=lambda: None
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_tokens_of_others_have_capabilities_and_a_selector(
    tmp_path: Path, algorithm: str
) -> None:
    """The same claims as in our own tokens, and the subject; a capability that is lacking is another failure."""
    one = signer(algorithm)
    trust = _trust(tmp_path, *(signer(each, each) for each in ALGORITHMS), one)
    labels = [{"name": "team", "value": "a"}]
    token = one.token(cap=10, sub="maria\n", sel={"include": {"labels": labels}})

    claims = await _claims(trust, token)

    assert claims.capability == Capability.LIST | Capability.READ
    assert [(each.name, each.value) for each in claims.selector.include.labels] == [("team", "a")]
    assert claims.subject == "maria?"
    assert claims.expires_at is not None
    with pytest.raises(NotAuthorizedError, match=r"lacks the capability APPLY; it has LIST\+READ"):
        await _claims(trust, token, Capability.APPLY)


async def test_own_tokens_pass_beside_those_of_others(tmp_path: Path) -> None:
    """Members sign for each other with shared keys, whoever signs for users."""
    trust = _trust(tmp_path, signer("ES256"))
    own = KeyedAuth(KEYS).sign(Claims(capability=Capability.LIST, subject="member"))

    claims = await _claims(trust, own, keys=KEYS)

    assert claims.subject == "member"
    with pytest.raises(UnauthenticatedError, match="unknown key"):
        await _claims(trust, own)


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({"iss": ISSUER, "aud": AUDIENCE}, None),
        ({"iss": ISSUER, "aud": ["others", AUDIENCE]}, None),
        ({"iss": "https://issuer.test", "aud": AUDIENCE}, "ssuer"),
        ({"iss": ISSUER, "aud": "others"}, "udience"),
        ({"iss": ISSUER}, "aud"),
        ({"aud": AUDIENCE}, "iss"),
        ({"iss": ISSUER, "aud": AUDIENCE, "exp": None}, "exp"),
        ({"iss": ISSUER, "aud": AUDIENCE, "exp": datetime(2020, 1, 1, tzinfo=UTC)}, "expired"),
        (
            {"iss": ISSUER, "aud": AUDIENCE, "nbf": datetime.now(UTC) + timedelta(hours=1)},
            "not yet valid",
        ),
        ({"iss": ISSUER, "aud": AUDIENCE, "cap": "2"}, "32-bit mask"),
        ({"iss": ISSUER, "aud": AUDIENCE, "sel": 7}, "malformed claim `sel`"),
    ],
)
async def test_issuer_audience_and_times_are_checked(
    tmp_path: Path, claims: dict[str, Any], told: str | None
) -> None:
    """A token that its issuer made for another service, or one that has ended, opens nothing here."""
    trust = _trust(tmp_path, signer("ES256"), issuer=ISSUER, audience=AUDIENCE)
    token = signer("ES256").token(**claims)

    if told is None:
        assert (await _claims(trust, token)).capability == Capability.LIST
    else:
        with pytest.raises(UnauthenticatedError, match=told):
            await _claims(trust, token)


def _unsigned(header: dict[str, Any], payload: dict[str, Any]) -> str:
    parts = (json.dumps(part).encode() for part in (header, payload))
    return ".".join(urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + "."


def _forgeries() -> Iterator[str]:
    one, rsa = signer("ES256"), signer("RS256", "key-2")
    payload = {"cap": 0xFFFFFFFF, "exp": 4102444800}
    for name in ("none", "None", "NONE", "nOnE", "", "HS256", "ES256", "RS256", 7, None):
        yield _unsigned({"alg": name, "kid": one.key_id}, payload)
    # The public key as a shared secret, in each form in which it can be had.
    public = rsa.key.public_key()
    for secret in (
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(rsa.public()).encode(),
    ):
        for algorithm in ("HS256", "HS384"):
            # Signed by hand, because the library refuses such a secret.
            yield _hmac_signed(secret, algorithm, rsa.key_id, payload)
    # Another's key under a known id, by the header's own key, by its address, or by a name that leads elsewhere.
    stranger = signer("ES256", "stranger")
    yield stranger.token(header={"kid": one.key_id})
    yield stranger.token(header={"kid": one.key_id, "jwk": stranger.public()})
    yield stranger.token(header={"kid": one.key_id, "jku": "http://127.0.0.1/keys"})
    yield stranger.token(header={"kid": "../../etc/passwd"})
    yield stranger.token(header={"kid": ""})
    # A known key under the id of another kind, and signatures of a kind that is not the key's.
    yield one.token(header={"kid": rsa.key_id})
    yield rsa.token(header={"kid": one.key_id})
    yield jwt.encode(payload, rsa.key, algorithm="PS256", headers={"kid": rsa.key_id})
    yield jwt.encode(payload, rsa.key, algorithm="RS512", headers={"kid": rsa.key_id})
    # A signature over another payload, cut off, or of nothing.
    head, _, signature = one.token().split(".")
    other = _unsigned({}, payload).split(".")[1]
    yield f"{head}.{other}.{signature}"
    yield f"{head}.{other}.{signature[:10]}"
    yield f"{head}.{other}."
    # Headers and payloads that are no objects, nest deep, or name things of another type.
    for content in (
        b"[" * 11_000,
        b'{"a":' * 2_500,
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"alg":"ES256","kid":[1]}',
        b'{"alg":["HS256"],"kid":"key-1"}',
        b'{"alg":"HS256","crit":["b64"],"b64":false}',
        b'{"alg":"HS256","kid":' + b"9" * 5_000 + b"}",
    ):
        part = urlsafe_b64encode(content).decode().rstrip("=")
        yield f"{part}.{other}.{signature}"
        yield f"{head}.{part}.{signature}"
    yield from ("", ".", "..", "a.b.c", "\x00", "é", "a" * 7000, one.token() + "x")


def _hmac_signed(secret: bytes, algorithm: str, key_id: str, payload: dict[str, Any]) -> str:
    import hmac

    digest = {"HS256": "sha256", "HS384": "sha384"}[algorithm]
    body = _unsigned({"alg": algorithm, "kid": key_id}, payload)[:-1]
    signature = hmac.digest(secret, body.encode(), digest)
    return f"{body}.{urlsafe_b64encode(signature).decode().rstrip('=')}"


@pytest.mark.parametrize("keys", ["", KEYS])
async def test_no_forgery_passes(tmp_path: Path, keys: str) -> None:
    """Each trick that has opened a server somewhere: none of them may pass, nor be anything but a refusal."""
    trust = _trust(tmp_path, signer("ES256"), signer("RS256", "key-2"))

    for token in _forgeries():
        with pytest.raises(UnauthenticatedError):
            await _claims(trust, token, keys=keys)


def test_keys_that_must_not_verify_are_left_out_and_named() -> None:
    """A weak, secret or foreign key must not count; one of a new kind must not make the others unusable."""
    good = signer("ES256", "good")
    for told, bad in unusable_keys():
        with pytest.raises(ValidationError, match=told):
            parse_public_keys(key_set(bad))
        with capture_logs() as events:
            assert [*parse_public_keys(key_set(bad, good))] == ["good"]
        assert events[0]["event"] == "auth.public_keys_left_out"
        assert SECRET not in str(events)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"keys": {}}', b"[" * 100_000, b"\xff", key_set()],
)
def test_what_is_no_set_of_keys_is_refused(content: bytes) -> None:
    """A server would otherwise start, and refuse everyone."""
    with pytest.raises(ValidationError, match="jwks"):
        parse_public_keys(content)


def test_a_set_of_too_many_keys_is_refused() -> None:
    """Its server, or who stands between, must not fill the memory."""
    keys = [signer("ES256").public(kid=str(number)) for number in range(PUBLIC_KEYS_MAX + 1)]
    assert len(parse_public_keys(key_set(*keys[1:]))) == PUBLIC_KEYS_MAX

    with pytest.raises(ValidationError, match="128 keys at most"):
        parse_public_keys(key_set(*keys))


class _Source:
    """A server's keys as a function, which counts how often it is asked."""

    def __init__(self, *keys: Any) -> None:
        self.keys = keys
        self.asked = 0
        self.fails = False
        self.released = threading.Event()
        self.released.set()

    def fetch(self, url: str) -> bytes:
        """Return the present keys."""
        del url
        self.asked += 1
        self.released.wait()
        if self.fails:
            raise ConnectionRefusedError("nobody listens")
        return key_set(*self.keys)


def _server(source: _Source, clock: SteppingClock) -> PublicKeyServer:
    return PublicKeyServer(
        "https://keys.test/", fetch=source.fetch, monotonic_seconds=clock.monotonic_seconds
    )


async def test_unknown_keys_are_fetched_once_in_a_while() -> None:
    """A signer's new key is found without a restart; a thousand tokens with invented keys make us ask but once."""
    old, new = signer("ES256", "old"), signer("ES256", "new")
    source, clock = _Source(old), SteppingClock()
    server = _server(source, clock)

    assert await server.sought("old") is not None
    assert source.asked == 1
    source.keys = (old, new)
    for number in range(1000):
        assert await server.sought(f"invented-{number}") is None
    assert source.asked == 1
    assert await server.sought("new") is None
    clock.now_seconds += FETCH_PAUSE_SECONDS
    found = await asyncio.gather(*(server.sought("new") for _ in range(100)))
    assert None not in found
    assert source.asked == 2


async def test_known_keys_do_not_wait_for_their_server() -> None:
    """While it is asked again, or does not answer, the keys that are known serve; a day later they do not."""
    source, clock = _Source(signer("ES256", "old")), SteppingClock()
    server = _server(source, clock)
    assert await server.sought("old") is not None

    source.released.clear()
    clock.now_seconds += FETCH_EVERY_SECONDS
    assert server.known("old") is not None
    assert server.known("old") is not None
    source.fails = True
    with capture_logs() as events:
        source.released.set()
        assert await server.sought("other") is None
    assert source.asked == 2
    assert [event["event"] for event in events] == ["auth.keys_not_fetched"]
    clock.now_seconds = KEEP_SECONDS_MAX - 1
    assert server.known("old") is not None
    await server.sought("old")
    clock.now_seconds = KEEP_SECONDS_MAX
    assert server.known("old") is None
    source.fails, source.keys = False, (signer("ES256", "new"),)
    clock.now_seconds += FETCH_PAUSE_SECONDS
    assert await server.sought("new") is not None
    assert server.known("old") is None, "a key that was withdrawn is still believed"


async def test_a_caller_that_goes_away_leaves_the_fetch_to_others() -> None:
    """A cancelled call must not end what others wait for."""
    source = _Source(signer("ES256", "old"))
    source.released.clear()
    server = _server(source, SteppingClock())
    async with TaskGroup() as group:
        first, second = (
            group.start_soon(server.sought("old"), name=f"caller {number}") for number in range(2)
        )
        await asyncio.sleep(0)
        first.cancel()
        source.released.set()
        assert await second is not None


@pytest.mark.parametrize(
    "url",
    [
        "http://keys.test/",
        "ftp://keys.test/",
        "file:///etc/keys",
        "https://",
        "https://user:secret@keys.test/",
        "http://127.0.0.1.keys.test/",
        "https://[::1",
    ],
)
def test_urls_that_others_could_replace_are_refused(url: str) -> None:
    """Whoever can change the keys on their way can sign anything."""
    with pytest.raises(ValidationError, match="jwks") as raised:
        TrustConfig(jwks=url)

    assert "secret" not in str(raised.value)


@contextmanager
def _http(content: bytes, *, status: int = 200, location: str = "") -> Iterator[str]:
    """Serve one content on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/keys"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_keys_come_from_a_real_server() -> None:
    """The whole way: a URL, its server, a token by its key."""
    with _http(key_set(signer("EdDSA"))) as url:
        assert (await _claims(TrustConfig(jwks=url), signer("EdDSA").token())).capability == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 404, 500])
def test_only_an_answer_from_the_url_itself_counts(status: int) -> None:
    """A redirection may lead to clear text, or to a server inside that only we can reach."""
    with (
        _http(key_set(signer("EdDSA"))) as other,
        _http(b"", status=status, location=other) as url,
        pytest.raises(OSError, match=str(status)),
    ):
        fetch_content(url)


def test_answers_are_bounded_in_length_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never ends must not take the memory, nor the thread that asks for keys."""
    with (
        _http(b" " * (FILE_BYTES_MAX + 1)) as url,
        pytest.raises(ValidationError, match="bytes at most"),
    ):
        fetch_content(url)


@pytest.mark.parametrize("trickled", [b"HTTP/1.1 200 OK\r\nX-Long: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_fetch_of_keys_that_are_trickled_ends_in_time(
    monkeypatch: pytest.MonkeyPatch, trickled: bytes
) -> None:
    """A byte now and then, in headers or content, renewed the time of each read for ever: keys were changed no more."""
    monkeypatch.setattr("broadsheet.security.token_keys.FETCH_SECONDS_MAX", 0.3)
    ended = threading.Event()

    def trickle(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.sendall(trickled)
            while not ended.wait(0.02):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=trickle, args=(listening,))
        thread.start()
        try:
            with pytest.raises(TimeoutError, match=r"within 0\.3 seconds"):
                fetch_content(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        finally:
            ended.set()
            thread.join()
