"""Keys of tokens in files, which are read again when they change: rotation needs no restart.

a use ──a look, at most once a second──► unchanged: the content in use
                                    └──► changed ──► readable and well-formed: in use from now on
                                                └──► not so: the former stays in use, and the log says why
"""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec
import structlog

from broadsheet.runtime.documents import DocumentError, decode_json
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.secret_url import SecretUrl

LOOK_SECONDS = 1.0
"""Least time between two looks at a file; a look takes some microseconds."""
FILE_BYTES_MAX = 1 << 20
"""Longest file that is read: a wrong path must not fill the memory."""
FILE_PREFIX = "file:"
"""Begins a text that names a file with keys, in place of the keys."""
FETCH_SECONDS_MAX = 5.0
"""Longest fetch of public keys."""
FETCH_EVERY_SECONDS = 300.0
"""Age at which public keys are fetched again: a key that was withdrawn is believed so long at most."""
FETCH_PAUSE_SECONDS = 10.0
"""Least time between two fetches, whatever keys tokens name."""
KEEP_SECONDS_MAX = 86_400.0
"""Age at which public keys are believed no more, although they cannot be fetched."""
PUBLIC_KEYS_MAX = 128
"""Most keys of a set."""
KEY_ID_CHARACTERS_MAX = 256
RSA_BITS_MIN = 2048
_ALGORITHMS: Final = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}
"""The one algorithm of each kind of key: a token's header does not choose."""
_CURVES: Final = {"EC": "P-256", "OKP": "Ed25519"}
_LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")

_log = structlog.get_logger()
T = TypeVar("T")
_Stamp = tuple[int, int, int, int] | None
_UNWATCHED: Final = (0, 0, 0, 0)
"""Stamp of what is no regular file."""


class WatchedFile(Generic[T]):
    """The parsed content of a file. Threads may share it: at worst two of them read a change."""

    def __init__(
        self,
        path: Path,
        parse: Callable[[bytes], T],
        *,
        name: str,
        monotonic_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the file.

        Args:
            path: Of the file; may be a link, as those of Kubernetes' secrets are.
            parse: Raises ValidationError for a content that is malformed.
            name: Of the setting, for errors and logs.
            monotonic_seconds: Time.

        Raises:
            ValidationError: the file cannot be read, or its content is malformed.
        """
        self._path = path
        self._parse = parse
        self._name = name
        self._monotonic_seconds = monotonic_seconds
        self._looked_monotonic_seconds = monotonic_seconds()
        # Taken before the content, so that a change during the read is noticed at the next look.
        self._stamp = self._refused = _stamp_of(path)
        self._present = self._read()

    def present(self) -> T:
        """Return the content in use: the file's, unless it changed within `LOOK_SECONDS`, or is wrong."""
        now = self._monotonic_seconds()
        if now - self._looked_monotonic_seconds >= LOOK_SECONDS:
            self._looked_monotonic_seconds = now
            stamp = _stamp_of(self._path)
            # A content that was refused is not parsed again before it changes.
            if stamp not in (self._stamp, self._refused):
                self._reload(stamp)
        return self._present

    def _reload(self, stamp: _Stamp) -> None:
        try:
            self._present = self._read()
        except ValidationError as error:
            self._refused = stamp
            _log.warning("auth.reload_refused", setting=self._name, cause=str(error))
            return
        self._stamp = self._refused = stamp
        _log.info("auth.reloaded", setting=self._name, file=str(self._path))

    def _read(self) -> T:
        try:
            with self._path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise ValidationError(
                self._name, f"cannot read {self._path}: {error.strerror}"
            ) from error
        if len(content) > FILE_BYTES_MAX:
            raise ValidationError(
                self._name, f"expected {FILE_BYTES_MAX} bytes at most in {self._path}"
            )
        try:
            return self._parse(content)
        except ValidationError as error:
            raise ValidationError(error.field_path, f"{self._path}: {error.problem}") from error


def _stamp_of(path: Path) -> _Stamp:
    """Return what changes when a file is replaced, written to, or linked to another one."""
    try:
        status = path.stat()
    except OSError:
        return None
    # A pipe, as of a shell's <(command), can be read once: to open it again would wait for a writer without end.
    if not stat.S_ISREG(status.st_mode):
        return _UNWATCHED
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


# Public keys (JSON Web Key Sets).


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that verifies tokens of others."""

    algorithm: str
    """The only one with which it verifies."""
    key: Any = field(repr=False)
    """As the JWT library has it: its classes vary by kind."""


PublicKeys = Mapping[str, PublicKey]
"""Keys by their id; a key without one has the empty id."""


class _Jwk(msgspec.Struct, frozen=True):
    """The fields of a JWK that decide about its use; others belong to its kind."""

    kty: str
    kid: str = ""
    use: str = "sig"
    alg: str = ""
    crv: str = ""
    key_ops: tuple[str, ...] = ("verify",)
    d: str = ""
    """Of a private key."""

    @property
    def is_for_tokens(self) -> bool:
        """Report whether the key verifies signatures with an algorithm that is accepted here."""
        return (
            self.use == "sig"
            and "verify" in self.key_ops
            and self.kty in _ALGORITHMS
            and self.alg in ("", _ALGORITHMS[self.kty])
            and self.crv == _CURVES.get(self.kty, "")
        )


class _Jwks(msgspec.Struct, frozen=True):
    keys: tuple[msgspec.Raw, ...]


def parse_public_keys(content: bytes) -> PublicKeys:
    """Return the keys of a set that verify tokens; others are left out, and the log says why.

    Raises:
        ValidationError: it is no set of keys, too long, or no key of it can be used.
    """
    try:
        raws = decode_json(content, _Jwks).keys
    except DocumentError as error:
        raise ValidationError("jwks", f"expected a set of JSON Web Keys: {error}") from error
    if len(raws) > PUBLIC_KEYS_MAX:
        raise ValidationError("jwks", f"expected {PUBLIC_KEYS_MAX} keys at most, got {len(raws)}")
    keys: dict[str, PublicKey] = {}
    problems: list[str] = []
    for index, raw in enumerate(raws):
        try:
            key_id, key = _public_key(bytes(raw))
            if key_id in keys:
                raise ValidationError("kid", "expected an id that no other key has")
            keys[key_id] = key
        # As RFC 7517 asks: a key of a new kind must not make the others unusable.
        except ValidationError as error:
            problems.append(f"keys[{index}].{error}")
    if not keys:
        raise ValidationError("jwks", "; ".join(["expected a key for signatures", *problems]))
    if problems:
        _log.warning("auth.public_keys_left_out", problems=problems)
    return keys


def _public_key(raw: bytes) -> tuple[str, PublicKey]:
    """Return the id of a key, and the key."""
    # Imported here like the rest of the JWT library, see `KeyedAuth`.
    import jwt

    try:
        jwk = decode_json(raw, _Jwk)
    except DocumentError as error:
        raise ValidationError("", f"expected a JSON Web Key: {error}") from error
    # A reader of the set could sign with such a key.
    if jwk.d or jwk.kty == "oct":
        raise ValidationError("d", "expected a public key, got a secret one")
    if len(jwk.kid) > KEY_ID_CHARACTERS_MAX:
        raise ValidationError("kid", f"expected {KEY_ID_CHARACTERS_MAX} characters at most")
    if not jwk.is_for_tokens:
        raise ValidationError(
            "kty", "expected RSA, EC with P-256 or OKP with Ed25519, for signatures"
        )
    algorithm = _ALGORITHMS[jwk.kty]
    try:
        key = jwt.PyJWK.from_json(raw.decode(), algorithm).key
    except Exception as error:  # The libraries raise many kinds for numbers that are no key.
        raise ValidationError("", f"expected a JSON Web Key: {error}") from error
    bits = getattr(key, "key_size", 0)
    if jwk.kty == "RSA" and bits < RSA_BITS_MIN:
        raise ValidationError("n", f"expected {RSA_BITS_MIN} bits at least, got {bits}")
    return jwk.kid, PublicKey(algorithm, key)


class PublicKeyFile:
    """Public keys in a file."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ValidationError: see `WatchedFile` and `parse_public_keys`.
        """
        self._file = WatchedFile(path, parse_public_keys, name="jwks")

    def known(self, key_id: str) -> PublicKey | None:
        """Return a key."""
        return self._file.present().get(key_id)

    async def sought(self, key_id: str) -> PublicKey | None:
        """Return a key that was not known a moment ago."""
        return self.known(key_id)


class PublicKeyServer:
    """Public keys at a URL. Used on one event loop; fetches run on a thread."""

    def __init__(
        self,
        url: str,
        *,
        fetch: Callable[[str], bytes] | None = None,
        monotonic_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to fetch the keys; a server that cannot be reached is asked again later.

        Args:
            url: `https://…`, or `http://` on this machine.
            fetch: Returns the content of a URL, or raises OSError or ValidationError.
            monotonic_seconds: Time.

        Raises:
            ValidationError: the URL is not such.
        """
        self._url = check_keys_url(url)
        self._fetch = fetch or fetch_content
        self._monotonic_seconds = monotonic_seconds
        self._keys: PublicKeys = {}
        self._fetched_monotonic_seconds: float | None = None
        self._begun_monotonic_seconds = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="public-keys")
        self._fetching = self._begin()

    def known(self, key_id: str) -> PublicKey | None:
        """Return a key of the last fetch, unless that is too long ago."""
        now = self._monotonic_seconds()
        fetched = self._fetched_monotonic_seconds
        age = None if fetched is None else now - fetched
        if age is None or age >= FETCH_EVERY_SECONDS:
            # No request waits for this: the keys that are known serve meanwhile.
            self._begin_if_due()
        if age is None or age >= KEEP_SECONDS_MAX:
            return None
        return self._keys.get(key_id)

    async def sought(self, key_id: str) -> PublicKey | None:
        """Return a key that was not known a moment ago: after the fetch under way, or one that may begin now."""
        self._begin_if_due()
        if not self._fetching.done():
            # Shielded, because others wait for the same fetch.
            await asyncio.shield(asyncio.wrap_future(self._fetching))
        return self.known(key_id)

    def _begin_if_due(self) -> None:
        since = self._monotonic_seconds() - self._begun_monotonic_seconds
        if self._fetching.done() and since >= FETCH_PAUSE_SECONDS:
            self._fetching = self._begin()

    def _begin(self) -> Future[None]:
        self._begun_monotonic_seconds = self._monotonic_seconds()
        return self._thread.submit(self._refresh)

    def _refresh(self) -> None:
        """Fetch the keys. Blocking."""
        try:
            keys = parse_public_keys(self._fetch(self._url))
        except Exception as error:  # Whatever the server sends, the former keys stay in use.
            url = SecretUrl(self._url)
            _log.warning("auth.keys_not_fetched", url=str(url), cause=url.hidden_in(str(error)))
            return
        if keys.keys() != self._keys.keys():
            _log.info("auth.keys_fetched", url=str(SecretUrl(self._url)), ids=sorted(keys))
        # Each assignment is one step, so that the loop sees either the former or the present keys.
        self._keys = keys
        self._fetched_monotonic_seconds = self._monotonic_seconds()


def check_keys_url(url: str) -> str:
    """Return a URL from which public keys may be fetched.

    Raises:
        ValidationError: who controls the network could replace them, or the URL has a secret.
    """
    try:
        parts: SplitResult = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise ValidationError("jwks", f"expected a URL: {error}") from error
    if not host or not (
        parts.scheme == "https" or (parts.scheme == "http" and host in _LOCAL_HOSTS)
    ):
        raise ValidationError("jwks", "expected https://…, or http:// on this machine")
    if parts.username is not None:
        raise ValidationError("jwks", "expected no user in the URL: it is shown in logs")
    return url


def fetch_content(url: str) -> bytes:
    """Return the content of a URL, bounded in length and in time, headers included. Blocking; runs a loop of its own.

    Raises:
        OSError: it cannot be fetched, or the answer is not 200: it redirects, too.
        ValidationError: the content is too long.
    """
    return asyncio.run(_fetched(url))


async def _fetched(url: str) -> bytes:
    # Imported here, because servers without public keys at a URL do not need it.
    import aiohttp

    # No proxy leads to this machine.
    is_local = urlsplit(url).hostname in _LOCAL_HOSTS
    content = b""
    try:
        # One time for all of it: a server that sends a byte now and then, in headers or content, must not hold the
        # fetch, and with it the change of keys.
        async with (
            asyncio.timeout(FETCH_SECONDS_MAX),
            aiohttp.ClientSession(trust_env=not is_local) as session,
            # No redirection is followed, because it could lead to another scheme or host.
            session.get(url, allow_redirects=False) as response,
        ):
            if response.status != HTTPStatus.OK:
                raise OSError(f"expected 200, got {response.status} {response.reason}")
            async for part in response.content.iter_any():
                content += part
                if len(content) > FILE_BYTES_MAX:
                    raise ValidationError("jwks", f"expected {FILE_BYTES_MAX} bytes at most")
    except TimeoutError as error:
        raise TimeoutError(f"expected all keys within {FETCH_SECONDS_MAX:g} seconds") from error
    except aiohttp.ClientError as error:
        raise OSError(str(error)) from error
    return content


def public_keys_of(source: SecretUrl) -> PublicKeyFile | PublicKeyServer:
    """Return the public keys of a file or a URL.

    Raises:
        ValidationError: the file or the URL cannot be used.
    """
    text = source.reveal()
    return PublicKeyServer(text) if "://" in text else PublicKeyFile(Path(text))
