"""Bearer tokens: capabilities of a caller on journals and shards.

A token is a JWT whose `cap` is a bit mask of capabilities and whose `sel` is a selector of the journals or shards that
it covers. Servers verify (`TokenVerifier`), clients present (`ClientAuth`); both hold the same keys.

There are two kinds of failure: a token that is missing, malformed, expired or signed with an unknown key
(`UnauthenticatedError`), and a valid one that lacks a capability (`NotAuthorizedError`).

Source: gazette/core auth/auth.go, broker/protocol/auth.go (claims, capability bits, key text, the AA== flag).
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import IntFlag
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

import msgspec

from broadsheet.runtime.errors import ValidationError
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.security.secret_url import SecretUrl
from broadsheet.security.tls import TlsConfig
from broadsheet.security.token_keys import (
    FILE_PREFIX,
    PublicKey,
    PublicKeyFile,
    PublicKeyServer,
    WatchedFile,
    check_keys_url,
    public_keys_of,
)
from broadsheet.wire.journal_pb2 import Label, LabelSelector, LabelSet
from broadsheet.wire.selector_text import parse_selector

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
APPLICATION_CAPABILITY = 1 << 16
"""Lowest capability that applications may use as they like."""
SUBJECT_CHARACTERS_MAX = 256
KEY_BYTES_MIN = 32
"""Length of an HS256 digest: a shorter key can be guessed from one token (RFC 7518 §3.2)."""
_PADDED_KEY_BYTES = 48
"""Length of an HS384 digest, which is below the block of either hash (64 and 128 bytes)."""

_MISSING = "missing metadata `authorization: Bearer TOKEN`"

Metadata = Iterable[tuple[str, str | bytes]]


class Capability(IntFlag):
    """Permissions in a token. Applications may use bits from `APPLICATION_CAPABILITY` up."""

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
    subject: str = ""
    """The caller, as its token or certificate names it; for the audit log. Empty: not named."""
    is_hop: bool = False
    """Whether a member passes the call on: signed with the keys of the members, or nothing is asked of callers."""

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


Identity = Callable[[], str | None]
"""Returns the identity of a connection's certificate (`peer_identity`); called only if it matters."""


class TokenVerifier(Protocol):
    """Server side of authorization: the check of requests."""

    @property
    def allows_missing(self) -> bool:
        """Report whether callers without any credential pass, so that other things must guard a port."""
        ...

    async def verify_call(
        self, metadata: Metadata | None, require: Capability, *, identity: Identity
    ) -> Claims:
        """Return the claims of a request.

        Args:
            metadata: The request's metadata, e.g. `context.invocation_metadata()`.
            require: Capabilities of which none may be missing.
            identity: Of the caller's certificate.

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

    allows_missing = True

    def verify(self, metadata: Metadata | None, require: Capability) -> Claims:
        """Return claims with `require`, on everything, without expiry."""
        del metadata
        return Claims(capability=require, is_hop=True)

    async def verify_call(
        self, metadata: Metadata | None, require: Capability, *, identity: Identity
    ) -> Claims:
        """Return the same."""
        del identity
        return self.verify(metadata, require)


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
        if claims.subject:
            payload["sub"] = claims.subject
        if claims.is_hop:
            payload["hop"] = True
        return jwt.encode(payload, self._keys_in_use().keys[0], algorithm=ALGORITHM)

    def metadata(self, claims: Claims) -> tuple[tuple[str, str], ...]:
        """Return a freshly signed token."""
        return ((AUTHORIZATION, f"Bearer {self.sign(claims)}"),)

    def verify(self, metadata: Metadata | None, require: Capability) -> Claims:
        """Return the claims of a request; see `TokenVerifier`."""
        token = _token_of(metadata)
        if token is None:
            if self.allows_missing:
                return expiring(require)
            raise UnauthenticatedError(_MISSING)
        return require_capability(self.claims_in(token), require)

    async def verify_call(
        self, metadata: Metadata | None, require: Capability, *, identity: Identity
    ) -> Claims:
        """Return the same."""
        del identity
        return self.verify(metadata, require)

    @property
    def allows_missing(self) -> bool:
        """Report whether the keys let requests without a token through."""
        return self._keys_in_use().allow_missing

    def claims_in(self, token: str) -> Claims:
        """Return the claims of a token.

        Raises:
            UnauthenticatedError: it is malformed, expired or signed with an unknown key.
        """
        decoded = self._decode(token)
        # Only here: those who sign with keys of their own are no members.
        return replace(_claims_of(decoded), is_hop=decoded.get("hop") is True)

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
            except (jwt.InvalidTokenError, RecursionError) as error:
                raise UnauthenticatedError(f"bad token: {error}") from error
        raise UnauthenticatedError("bad token: signed with an unknown key")


# Callers whom a server believes without a key of its own.

_HMAC: Final = ("HS256", "HS384")
_SPIFFE: Final = "spiffe://"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustConfig:
    """Callers whom a server believes beside those that have its keys. Files are read where the server runs."""

    jwks: str | SecretUrl = ""
    """Public keys of those who sign tokens: a file, or `https://…`; a set of JSON Web Keys. Kept as `SecretUrl`."""
    issuer: str = ""
    """Their tokens' `iss` must be this; empty: anything."""
    audience: str = ""
    """Their tokens' `aud` must have this; empty: anything."""
    identities_file: str = ""
    """What the certificates of clients permit, see `parse_identities`."""

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ValidationError: a field is given without the one that it needs, or the URL is not safe.
        """
        for name in ("issuer", "audience"):
            if getattr(self, name) and not self.jwks:
                raise ValidationError(name, "expected jwks beside it, whose tokens it restricts")
        jwks = SecretUrl.of(self.jwks)
        object.__setattr__(self, "jwks", jwks)
        if "://" in jwks.reveal():
            check_keys_url(jwks.reveal())

    @property
    def is_any(self) -> bool:
        """Report whether anybody is believed."""
        return bool(self.jwks or self.identities_file)


def require_certificates(trust: TrustConfig, tls: TlsConfig | None) -> None:
    """Refuse identities for a server that does not ask clients for certificates.

    Raises:
        ValidationError: no caller would have an identity.
    """
    if trust.identities_file and not (tls and tls.requires_client_certificates):
        raise ValidationError(
            "trust.identities_file",
            "expected the authorities of clients' certificates beside it (--tls-client-ca)",
        )


def server_auth(keys_text: str, trust: TrustConfig) -> TokenVerifier:
    """Return what verifies the calls of a server.

    Args:
        keys_text: As for `KeyedAuth`; empty: there are none.
        trust: Who is believed beside those with keys.

    Raises:
        ValidationError: keys or a file cannot be used.
    """
    keyed = KeyedAuth(keys_text) if keys_text else None
    if not trust.is_any:
        return keyed or NoAuth()
    return ServerAuth(
        keyed,
        trust,
        public_keys=public_keys_of(SecretUrl.of(trust.jwks)) if trust.jwks else None,
        identities=WatchedFile(
            Path(trust.identities_file), parse_identities, name="identities_file"
        )
        if trust.identities_file
        else None,
    )


class ServerAuth:
    """Verifies callers by shared keys, public keys, or certificates. A token counts before a certificate."""

    def __init__(
        self,
        keyed: KeyedAuth | None,
        trust: TrustConfig,
        *,
        public_keys: PublicKeyFile | PublicKeyServer | None,
        identities: WatchedFile[Identities] | None,
    ) -> None:
        self._keyed = keyed
        self._trust = trust
        self._public_keys = public_keys
        self._identities = identities

    @property
    def allows_missing(self) -> bool:
        """Report whether the shared keys let requests without a token through."""
        return self._keyed is not None and self._keyed.allows_missing

    async def verify_call(
        self, metadata: Metadata | None, require: Capability, *, identity: Identity
    ) -> Claims:
        """Return the claims of a request; see `TokenVerifier`."""
        token = _token_of(metadata)
        # A token that is wrong is refused, also of a caller whose certificate would do: it is a mistake, or an attempt.
        claims = await self._claims_in(token) if token else self._claims_of(identity(), require)
        return require_capability(claims, require)

    def _claims_of(self, identity: str | None, require: Capability) -> Claims:
        """Return the claims of a caller without a token."""
        if identity is not None and self._identities is not None:
            granted = self._identities.present().of(identity)
            if granted is not None:
                return replace(
                    granted,
                    subject=identity[:SUBJECT_CHARACTERS_MAX],
                    # So that a long stream does not outlive a change of the file by more.
                    expires_at=datetime.now(UTC) + timedelta(seconds=TOKEN_LIFE_SECONDS),
                )
        if self._keyed is not None and self._keyed.allows_missing:
            return expiring(require)
        entry = f": {identity} has no entry" if identity and self._identities is not None else ""
        raise UnauthenticatedError(f"{_MISSING}{entry}")

    async def _claims_in(self, token: str) -> Claims:
        import jwt

        try:
            # Some versions of the library let the error of JSON that is nested too deep through, here and below.
            header = jwt.get_unverified_header(token)
        except (jwt.InvalidTokenError, RecursionError) as error:
            raise UnauthenticatedError(f"bad token: {error}") from error
        # The header says only which kind of key to look for; a key has one algorithm, whatever the header says.
        if header.get("alg") in _HMAC and self._keyed is not None:
            return self._keyed.claims_in(token)
        if self._public_keys is None:
            raise UnauthenticatedError("bad token: signed with an unknown key")
        key_id = header.get("kid", "")
        key = self._public_keys.known(key_id) or await self._public_keys.sought(key_id)
        if key is None:
            raise UnauthenticatedError("bad token: signed with an unknown key")
        return self._claims_by(key, token)

    def _claims_by(self, key: PublicKey, token: str) -> Claims:
        import jwt

        issuer, audience = self._trust.issuer, self._trust.audience
        required = ["exp", *(["iss"] if issuer else []), *(["aud"] if audience else [])]
        try:
            return _claims_of(
                jwt.decode(
                    token,
                    key.key,
                    algorithms=[key.algorithm],
                    leeway=LEEWAY_SECONDS,
                    issuer=issuer or None,
                    audience=audience or None,
                    options={"require": required, "verify_aud": bool(audience)},
                )
            )
        except (jwt.InvalidTokenError, RecursionError) as error:
            raise UnauthenticatedError(f"bad token: {error}") from error


class _Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of an identities' file."""

    identity: str
    capabilities: list[str | int]
    selector: str = ""


class _Grants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    identities: list[_Grant]


@dataclass(frozen=True, slots=True)
class Identities:
    """Permissions of the certificates of clients."""

    exact: Mapping[str, Claims]
    prefixes: Mapping[str, Claims]
    """By what an identity begins with, a slash at its end; the longest first."""

    def of(self, identity: str) -> Claims | None:
        """Return what an identity may do; None if it is not known."""
        found = self.exact.get(identity)
        if found is not None:
            return found
        return next(
            (
                claims
                for prefix, claims in self.prefixes.items()
                if identity.startswith(prefix) and identity != prefix
            ),
            None,
        )


def parse_identities(content: bytes) -> Identities:
    """Return the identities of a YAML file.

        identities:
          - identity: billing.example.com            # or spiffe://example.com/billing, or a common name
            capabilities: [LIST, READ]               # by name, or an application's by number
            selector: app=billing                    # absent: everything
          - identity: spiffe://example.com/ns/ops/*  # everything below
            capabilities: [ALL]

    An entry for the identity itself counts before prefixes, and a longer prefix before a shorter one.

    Raises:
        ValidationError: it is malformed; the error names the entry.
    """
    # Here, because clients do not need it.
    from broadsheet.runtime.yaml_documents import decode_yaml

    try:
        entries = decode_yaml(content.decode(), _Grants, "identities_file").identities
    except UnicodeDecodeError as error:
        raise ValidationError("identities_file", "is not UTF-8 text") from error
    except ValidationError as error:
        problem = f"expected a list `identities:` ({error.problem})"
        raise ValidationError("identities_file", problem) from error
    exact: dict[str, Claims] = {}
    prefixes: dict[str, Claims] = {}
    for index, entry in enumerate(entries):
        place = f"identities[{index}]"
        claims = Claims(
            capability=_capability_of(entry.capabilities, place),
            selector=_selector_of(entry, place),
        )
        name = entry.identity.removesuffix("*")
        is_prefix = name != entry.identity
        if "*" in name or not name or (is_prefix and not _is_spiffe_path(name)):
            raise ValidationError(
                f"{place}.identity",
                f"expected a name, or spiffe://DOMAIN/…/*, got {entry.identity!r}",
            )
        known = prefixes if is_prefix else exact
        if name in known:
            raise ValidationError(f"{place}.identity", f"{entry.identity} has an entry already")
        known[name] = claims
    longest_first = sorted(prefixes.items(), key=lambda each: -len(each[0]))
    return Identities(exact, dict(longest_first))


def _is_spiffe_path(name: str) -> bool:
    """Tell whether a text begins identities of one trust domain: only their parts are checked, and mean a hierarchy."""
    domain, slash, _ = name.removeprefix(_SPIFFE).partition("/")
    return name.startswith(_SPIFFE) and bool(domain and slash) and name.endswith("/")


def _selector_of(entry: _Grant, place: str) -> LabelSelector:
    try:
        return parse_selector(entry.selector)
    except ValidationError as error:
        raise error.under(place) from error


def _capability_of(given: Iterable[str | int], place: str) -> Capability:
    found = Capability(0)
    for each in given:
        found |= parse_capability(str(each), f"{place}.capabilities")
    if not found:
        raise ValidationError(f"{place}.capabilities", "expected one at least")
    return found


def parse_capability(text: str, place: str) -> Capability:
    """Return a capability by its name, or an application's by its number.

    Raises:
        ValidationError: there is none such.
    """
    if (
        text.isascii()
        and text.isdecimal()
        and APPLICATION_CAPABILITY <= int(text) <= Capability.ALL
    ):
        return Capability(int(text))
    try:
        return Capability[text.upper()]
    except KeyError:
        names = ", ".join(str(each.name) for each in (*Capability, Capability.ALL))
        raise ValidationError(
            place,
            f"expected one of {names}, or a number from {APPLICATION_CAPABILITY} up, got {text!r}",
        ) from None


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


def key_ids(keys_text: str) -> tuple[str, ...]:
    """Return an id of each key of a text, which tells nothing of the key; none for a file, which may be elsewhere.

    Raises:
        ValidationError: a key is no base64, or there is none.
    """
    if not keys_text or is_keys_file(keys_text):
        return ()
    return tuple(
        hmac.digest(key, b"id of a key of Broadsheet", "sha256").hex()[:16]
        for key in _keys_in(keys_text).keys
    )


def trust_from(options: Mapping[str, Any]) -> TrustConfig:
    """Return what the options of a command line say, by parameter name; `Any`, because it has other options too."""
    file = options["identities_file"]
    return TrustConfig(
        jwks=options["jwks"] or "",
        issuer=options["jwks_issuer"] or "",
        audience=options["jwks_audience"] or "",
        identities_file="" if file is None else str(file.absolute()),
    )


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
    subject: str = "",
) -> Claims:
    """Return claims that expire `life_seconds` from now."""
    return Claims(
        capability=capability,
        selector=selector or LabelSelector(),
        expires_at=datetime.now(UTC) + timedelta(seconds=life_seconds),
        subject=subject,
    )


def require_capability(claims: Claims, require: Capability) -> Claims:
    """Return claims that have a capability.

    Raises:
        NotAuthorizedError: they lack it.
    """
    lacking = require & ~claims.capability
    if lacking:
        raise NotAuthorizedError(
            f"the token lacks the capability {capability_text(lacking)}; it has {capability_text(claims.capability)}"
        )
    return claims


def _decoded(text: str, index: int) -> bytes:
    try:
        key = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        # The text is a secret, so only its position is named.
        raise ValidationError(f"auth_keys[{index}]", "expected base64") from error
    if len(key) < KEY_BYTES_MIN:
        raise ValidationError(
            f"auth_keys[{index}]",
            f"expected {KEY_BYTES_MIN} bytes at least, got {len(key)}; make one with: openssl rand -base64 32",
        )
    # HMAC itself pads keys with zeros up to its hash's block. Padding here changes no signature, and stops the JWT
    # library from warning of keys shorter than an HS384 digest.
    return key.ljust(_PADDED_KEY_BYTES, b"\0")


def _token_of(metadata: Metadata | None) -> str | None:
    """Return the token of a request; None without one."""
    for key, value in metadata or ():
        if key.lower() == AUTHORIZATION:
            header = value.decode(errors="replace") if isinstance(value, bytes) else value
            scheme, _, token = header.partition(" ")
            # Tokens are base64 with dots; what a library makes of other bytes is its own business.
            if scheme.lower() != "bearer" or not token or not token.isascii():
                raise UnauthenticatedError(
                    "malformed metadata `authorization`: expected Bearer TOKEN"
                )
            return token.strip()
    return None


def _claims_of(decoded: dict[str, Any]) -> Claims:
    capability = decoded.get("cap", 0)
    if type(capability) is not int or not 0 <= capability <= Capability.ALL:
        raise UnauthenticatedError("bad token: expected `cap` to be a 32-bit mask")
    try:
        return Claims(
            capability=Capability(capability),
            selector=_selector_from_json(decoded.get("sel")),
            expires_at=datetime.fromtimestamp(decoded["exp"], UTC),
            subject=_subject_of(decoded),
        )
    except msgspec.ValidationError as error:
        raise UnauthenticatedError(f"bad token: malformed claim `sel`: {error}") from error
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise UnauthenticatedError(f"bad token: malformed claims: {error}") from error


def _subject_of(decoded: dict[str, Any]) -> str:
    """Return the subject as it may be logged."""
    subject = str(decoded.get("sub", ""))[:SUBJECT_CHARACTERS_MAX]
    return "".join(each if each.isprintable() else "?" for each in subject)


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


class _JsonLabel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    value: str = ""
    """Empty: any value. Gazette's own tokens leave an empty one out (`json:"value,omitempty"`)."""
    prefix: bool = False


class _JsonLabels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    labels: list[_JsonLabel] | None = None


class _JsonSelector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token's `sel`. What is not understood is refused: read as absent, it would mean everything."""

    include: _JsonLabels | None = None
    exclude: _JsonLabels | None = None


def _selector_from_json(decoded: object) -> LabelSelector:
    """Return a token's selector; without one, the token covers everything.

    Raises:
        msgspec.ValidationError: it is malformed.
    """
    selector = msgspec.convert(decoded, _JsonSelector | None)
    if selector is None:
        return LabelSelector()

    def half(given: _JsonLabels | None) -> LabelSet:
        labels = (given and given.labels) or ()
        return LabelSet(
            labels=[Label(name=each.name, value=each.value, prefix=each.prefix) for each in labels]
        )

    return LabelSelector(include=half(selector.include), exclude=half(selector.exclude))


def capability_text(capability: Capability) -> str:
    """Return a capability for people, e.g. `LIST+READ`."""
    if capability == Capability.ALL:
        return "ALL"
    # Bit by bit, because the enumeration of a flag has no members for the bits of applications.
    bits = (1 << place for place in range(capability.bit_length()) if capability >> place & 1)
    return "+".join(Capability(bit).name or hex(bit) for bit in bits) or "none"
