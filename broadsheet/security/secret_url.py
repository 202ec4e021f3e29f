"""URLs that may hold secrets: users, passwords, tokens in queries and paths.

A `SecretUrl` is what configurations keep of such an option. No text of it, in an error, a log, `/debug/vars` or a
`repr`, has more than `shown`; only `reveal()` gives the URL, to the library that opens it.

    http://me:pass@gateway:9091/t-123?token=x     http://gateway:9091/…?token=…
    sql:postgresql://me:pass@db/leases?table=t    sql:postgresql://me@db/leases?table=t

Pure.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote, unquote_plus

HIDDEN: Final = "…"
HARMLESS_PARAMETERS: Final = frozenset(
    {
        *(
            "application_name",
            "connect_timeout",
            "connection_env",
            "dbname",
            "endpoint",
            "endpoints",
        ),
        *("group", "host", "layout", "lease_seconds", "mode", "port", "prefix", "region", "scope"),
        *("ca_file", "cert_file", "key_file", "sslmode", "table", "target_session_attrs", "user"),
    }
)
"""Parameters of queries whose values are shown; any other may be a secret under a name that is not known here."""
SECRET_CHARACTERS_MIN: Final = 4
"""Shorter parts are not looked for in the texts of others, which would become unreadable."""

_CREDENTIALS: Final = re.compile(r"(://[^/@:\s]*):\S*@|((?:password|sslpassword)=)[^&\s]*")
_USER: Final = re.compile(r"[^,/\s]*@")
_WEB: Final = re.compile(r"(https?://)(?:\S*@)?([^/?#\s]*)(\S*)", re.IGNORECASE)


class SecretUrl:
    """A URL whose secrets no text shows. Equal to others of the same URL; may be pickled."""

    __slots__ = ("_text", "shown")

    def __init__(self, text: str) -> None:
        """Keep a URL, which need not be valid."""
        self._text = text
        self.shown = _shown(text)
        """The URL without what may be secret."""

    @staticmethod
    def of(url: str | SecretUrl) -> SecretUrl:
        """Return a URL that was given as text or already kept."""
        return url if isinstance(url, SecretUrl) else SecretUrl(url)

    def reveal(self) -> str:
        """Return the URL with its secrets, to open it."""
        return self._text

    @property
    def has_secret(self) -> bool:
        """Report whether something of the URL is hidden."""
        return self.shown != self._text

    def hidden_in(self, text: str) -> str:
        """Return the text of a library that was given the URL, and may quote it or parts of it, without its secrets."""
        text = text.replace(self._text, self.shown) if self._text else text
        for part in sorted(_parts_hidden(self._text, self.shown), key=len, reverse=True):
            text = text.replace(part, HIDDEN)
        return without_passwords(text)

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"SecretUrl({self.shown!r})"

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretUrl) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


def without_passwords(text: str) -> str:
    """Return a text without the passwords in its URLs."""
    return _CREDENTIALS.sub(
        lambda found: f"{found[1]}@" if found[1] else f"{found[2]}{HIDDEN}", text
    )


def _shown(text: str) -> str:
    # A password may have any character, a question mark too, so it ends at the last sign that could end it.
    head, mark, query = without_passwords(text).partition("?")
    head = _WEB.sub(_shown_web, head.partition("#")[0])
    if not mark:
        return head
    return f"{head}?{'&'.join(_shown_parameter(each) for each in query.split('&'))}"


def _shown_web(found: re.Match[str]) -> str:
    # Gateways and hooks know their clients by a path, or by a user without a password.
    path = found[3]
    return f"{found[1]}{found[2]}{path if path in ('', '/') else f'/{HIDDEN}'}"


def _shown_parameter(parameter: str) -> str:
    name, sign, value = parameter.partition("=")
    if sign and unquote_plus(name) in HARMLESS_PARAMETERS:
        # An address may have a user without a scheme before it.
        return f"{name}={_USER.sub('', _WEB.sub(_shown_web, unquote_plus(value)))}"
    return f"{name}={HIDDEN}" if sign else HIDDEN


def _parts_hidden(text: str, shown: str) -> set[str]:
    """Return the parts of a URL that may be secret, as they are written and decoded."""
    found = set(re.split(r"[:/?#&=@]+", text)) | set(re.findall(r"[?&][^=&]*=([^&#]*)", text))
    found |= set(re.findall(r"://[^/@:\s]*:(\S*)@", text))
    return {
        each
        for part in found
        for each in (part, unquote(part), unquote_plus(part))
        if len(each) >= SECRET_CHARACTERS_MIN and each not in shown
    }
