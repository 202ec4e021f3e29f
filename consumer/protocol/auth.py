"""Bearer tokens: capabilities of a caller on journals and shards.

A token is a JWT whose `cap` is a bit mask of capabilities and whose `sel` is a selector of the journals or shards that
it covers. Servers verify (`TokenVerifier`), clients present (`ClientAuth`); both hold the same keys.

There are two kinds of failure: a token that is missing, malformed, expired or signed with an unknown key
(`UnauthenticatedError`), and a valid one that lacks a capability (`NotAuthorizedError`).

Source: gazette/core auth/auth.go, broker/protocol/auth.go (claims, capability bits, key text, the AA== flag).
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntFlag
from pathlib import Path
from typing import Any, Protocol

from broadsheet.allocator.errors import ValidationError
from broadsheet.consumer.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.consumer.protocol.journal_pb2 import Label, LabelSelector, LabelSet
from broadsheet.consumer.protocol.token_keys import FILE_PREFIX, WatchedFile

AUTHORIZATION = "authorization"
"""Metadata key of the token."""
ALGORITHM = "HS256"
"""Signing algorithm; HS384 is accepted too."""
ALLOW_MISSING = "AA=="
"""Key text that lets requests without a token through, for a gradual introduction of authorization."""
LEEWAY_SECONDS = 5
"""Tolerated difference between clocks."""
TOKEN_LIFE_SECONDS = 3600.0
"""Life of a token, unless the caller sets another."""
APPLY_TOKEN_LIFE_SECONDS = 60.0
"""Life of a token that can change specs."""
_PADDED_KEY_BYTES = 48
"""Length of an HS384 digest, which is below the block of either hash (64 and 128 bytes)."""

Metadata = Iterable[tuple[str, str | bytes]]


class Capability(IntFlag):
    """Permissions in a token. Applications may use bits from 65,536 up."""

    LIST = 2
    APPLY = 4
    READ = 8
    APPEND = 16
    REPLICATE = 32
    ALL = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Statements of a token about its bearer."""

    capability: Capability
    selector: LabelSelector = field(default_factory=LabelSelector)
    """Journals (by labels and `name`) or shards (by labels and `id`) that it covers; empty is all."""
    expires_at: datetime | None = None
    """None: `TOKEN_LIFE_SECONDS` after it is signed; in verified claims, never."""

    @classmethod
    def process(cls) -> Claims:
        """Return the claims of the process itself: everything, without expiry.

        They are for work outside any caller's request: the member's own tasks, a console, a test. Work on behalf of a
        caller uses the caller's claims, also after the call has ended.
        """
        return cls(capability=Capability.ALL)

    def has_expired(self, now: datetime) -> bool:
        """Tell whether the claims have expired, with the same leeway as `TokenVerifier`s."""
        if self.expires_at is None:
            return False
        # The leeway is not added to the expiry, because a token without real expiry may use the
        # last possible date.
        return now - timedelta(seconds=LEEWAY_SECONDS) > self.expires_at


class ClientAuth(Protocol):
    """Client side of authorization: the metadata of requests."""

    def metadata(self, claims: Claims) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a request that needs no more than `claims`."""
        ...


class TokenVerifier(Protocol):
    """Server side of authorization: the check of requests."""

    def verify(self, metadata: Metadata | None, require: Capability) -> Claims:
        """Return the claims of a request.

        Args:
            metadata: The request's metadata, e.g. `context.invocation_metadata()`.
            require: Capabilities of which none may be missing.

        Raises:
            UnauthenticatedError: the token is missing, malformed, expired or signed with an unknown key.
            NotAuthorizedError: it lacks a capability.
        """
        ...


class NoAuth:
    """No authorization: attaches nothing, and accepts everything."""

    def metadata(self, claims: Claims) -> tuple[tuple[str, str], ...]:
        """Return no metadata."""
        del claims
        return ()

    def verify(self, metadata: Metadata | None, require: Capability) -> Claims:
        """Return claims with `require`, on everything, without expiry."""
        del metadata
        return Claims(capability=require)


class BearerAuth:
    """Attaches one fixed token, for clients without keys."""

    def __init__(self, token: str) -> None:
        self._metadata = ((AUTHORIZATION, f"Bearer {token}"),)

    def metadata(self, claims: Claims) -> tuple[tuple[str, str], ...]:
        """Return the token, whatever the request needs."""
        del claims
        return self._metadata


class KeyedAuth:
    """Signs and verifies with shared keys: the first signs, any verifies.

    The JWT library is imported only here: with its cryptography it takes a third of a client's import time, and each
    Python process that Spark starts imports a client.
    """

    def __init__(self, keys_text: str) -> None:
        """Parse the keys, or read their file.

        Args:
            keys_text: Base64 keys separated by blanks or commas, or `file:PATH` of a file with such a text, which is
                read again when it changes. `AA==` among the keys lets requests without a token through.

        Raises:
            ValidationError: a key is no base64, or there is none; or the file cannot be read.
        """
        self._keys_in_use: Callable[[], _Keys]
        if is_keys_file(keys_text):
            path = Path(keys_text.removeprefix(FILE_PREFIX))
            self._keys_in_use = WatchedFile(path, _keys_in_file, name="auth_keys").present
        else:
            keys = _keys_in(keys_text)
            self._keys_in_use = lambda: keys

    def sign(self, claims: Claims) -> str:
        """Return a token for `claims`."""
        import jwt

        now = datetime.now(UTC)
        payload = {
            "cap": int(claims.capability),
            "sel": _selector_to_json(claims.selector),
            "iat": now,
            "exp": claims.expires_at or now + timedelta(seconds=TOKEN_LIFE_SECONDS),
        }
        return jwt.encode(payload, self._keys_in_use().keys[0], algorithm=ALGORITHM)

    def metadata(self, claims: Claims) -> tuple[tuple[str, str], ...]:
        """Return a freshly signed token."""
        return ((AUTHORIZATION, f"Bearer {self.sign(claims)}"),)

    def verify(self, metadata: Metadata | None, require: Capability) -> Claims:
        """Return the claims of a request; see `TokenVerifier`."""
        header = _authorization_of(metadata)
        if header is None:
            if self._keys_in_use().allow_missing:
                expires_at = datetime.now(UTC) + timedelta(seconds=TOKEN_LIFE_SECONDS)
                return Claims(capability=require, expires_at=expires_at)
            raise UnauthenticatedError("missing metadata `authorization: Bearer TOKEN`")
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise UnauthenticatedError("malformed metadata `authorization`: expected Bearer TOKEN")
        claims = _claims_of(self._decode(token.strip()))
        lacking = require & ~claims.capability
        if lacking:
            raise NotAuthorizedError(
                f"the token lacks the capability {_names(lacking)}; it has {_names(claims.capability)}"
            )
        return claims

    def _decode(self, token: str) -> dict[str, Any]:
        import jwt

        for key in self._keys_in_use().keys:
            try:
                # `Any`, because this is the JSON of a token, which `_claims_of` checks.
                decoded: dict[str, Any] = jwt.decode(
                    token,
                    key,
                    algorithms=[ALGORITHM, "HS384"],
                    leeway=LEEWAY_SECONDS,
                    options={"require": ["exp"], "verify_aud": False},
                )
                return decoded
            except jwt.InvalidSignatureError:
                continue
            except jwt.InvalidTokenError as error:
                raise UnauthenticatedError(f"bad token: {error}") from error
        raise UnauthenticatedError("bad token: signed with an unknown key")


@dataclass(frozen=True, slots=True)
class _Keys:
    """Shared keys."""

    keys: tuple[bytes, ...] = field(repr=False)
    allow_missing: bool
    """Whether requests without a token pass."""


def read_token(path: Path) -> str:
    """Read a file with one token.

    Raises:
        ValidationError: the file cannot be read, or holds none.
    """

    def parse(content: bytes) -> str:
        token = content.decode("ascii", errors="replace").strip()
        # A line break would end the header; the token is a secret, so it is not shown.
        if not token or not all("!" <= each <= "~" for each in token):
            raise ValidationError("token_file", "expected one token, base64 with dots")
        return token

    return WatchedFile(path, parse, name="token_file").present()


def is_keys_file(keys_text: str) -> bool:
    """Tell whether a text names a file with keys, in place of the keys."""
    return keys_text.startswith(FILE_PREFIX)


def keys_from(text: str, file: Path | None) -> str:
    """Return the keys of settings that may name a file: those of the file, if there is one."""
    return text if file is None else f"{FILE_PREFIX}{file.absolute()}"


def _keys_in_file(content: bytes) -> _Keys:
    try:
        return _keys_in(content.decode("ascii"))
    except UnicodeDecodeError as error:
        raise ValidationError("auth_keys", "expected base64") from error


def _keys_in(text: str) -> _Keys:
    texts = text.replace(",", " ").split()
    keys = tuple(_decoded(each, index) for index, each in enumerate(texts) if each != ALLOW_MISSING)
    if not keys:
        raise ValidationError(
            "auth_keys", "expected at least one base64 key beside the flag AA==, got none"
        )
    return _Keys(keys, allow_missing=ALLOW_MISSING in texts)


def expiring(
    capability: Capability,
    selector: LabelSelector | None = None,
    *,
    life_seconds: float = TOKEN_LIFE_SECONDS,
) -> Claims:
    """Return claims that expire `life_seconds` from now."""
    return Claims(
        capability=capability,
        selector=selector or LabelSelector(),
        expires_at=datetime.now(UTC) + timedelta(seconds=life_seconds),
    )


def _decoded(text: str, index: int) -> bytes:
    try:
        key = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        # The text is a secret, so only its position is named.
        raise ValidationError(f"auth_keys[{index}]", "expected base64") from error
    if not key:
        raise ValidationError(f"auth_keys[{index}]", "expected a key, got none")
    # HMAC itself pads keys with zeros up to its hash's block. Padding here changes no signature,
    # and stops the JWT library from warning of keys shorter than a digest, which running clusters
    # may have.
    return key.ljust(_PADDED_KEY_BYTES, b"\0")


def _authorization_of(metadata: Metadata | None) -> str | None:
    for key, value in metadata or ():
        if key.lower() == AUTHORIZATION:
            return value.decode(errors="replace") if isinstance(value, bytes) else value
    return None


def _claims_of(decoded: dict[str, Any]) -> Claims:
    capability, selector = decoded.get("cap", 0), decoded.get("sel") or {}
    if not isinstance(capability, int) or not 0 <= capability <= Capability.ALL:
        raise UnauthenticatedError("bad token: expected `cap` to be a 32-bit mask")
    try:
        return Claims(
            capability=Capability(capability),
            selector=_selector_from_json(selector),
            expires_at=datetime.fromtimestamp(decoded["exp"], UTC),
        )
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise UnauthenticatedError(f"bad token: malformed claims: {error}") from error


def _selector_to_json(selector: LabelSelector) -> dict[str, object]:
    return {
        half: {
            "labels": [
                {"name": label.name, "value": label.value}
                | ({"prefix": True} if label.prefix else {})
                for label in labels.labels
            ]
        }
        for half, labels in (("include", selector.include), ("exclude", selector.exclude))
    }


def _selector_from_json(selector: dict[str, Any]) -> LabelSelector:
    def half(name: str) -> LabelSet:
        labels = (selector.get(name) or {}).get("labels") or []
        return LabelSet(
            labels=[
                Label(
                    name=label.get("name", ""),
                    value=label.get("value", ""),
                    prefix=label.get("prefix", False),
                )
                for label in labels
            ]
        )

    return LabelSelector(include=half("include"), exclude=half("exclude"))


def _names(capability: Capability) -> str:
    if capability == Capability.ALL:
        return "ALL"
    # Bit by bit, because the enumeration of a flag has no members for the bits of applications.
    bits = (1 << place for place in range(capability.bit_length()) if capability >> place & 1)
    return "+".join(Capability(bit).name or hex(bit) for bit in bits) or "none"
