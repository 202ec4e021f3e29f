"""Texts of URLs with secrets."""

from __future__ import annotations

import pickle

import pytest

from broadsheet.security.secret_url import SecretUrl

SECRET = "s3cr3t-of-mine"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"http://me:{SECRET}@gateway:9091", "http://gateway:9091"),
        (f"https://{SECRET}@gateway/", "https://gateway/"),
        (f"https://gateway/{SECRET}", "https://gateway/…"),
        (f"https://gateway/?x={SECRET}", "https://gateway/?x=…"),
        (f"https://gateway#{SECRET}", "https://gateway"),
        (f"https://gateway?{SECRET}", "https://gateway?…"),
        (f"http://me:at@{SECRET}@gateway", "http://gateway"),
        (
            f"sql:postgresql://me:{SECRET}@db/leases?table=t",
            "sql:postgresql://me@db/leases?table=t",
        ),
        (f"sql:postgresql://me:a/b?{SECRET}@db/l", "sql:postgresql://me@db/l"),
        (f"sql:postgresql://db/l?user=me&password={SECRET}", None),
        (f"sql:postgresql://db/l?user=me&%70assword={SECRET}", None),
        (f"dynamodb:t?region=eu&endpoint=http://me:{SECRET}@h:8000", None),
        (f"dynamodb:t?region=eu&endpoint=http://h:8000/{SECRET}", None),
        (
            f"s3://bucket/?region=eu&secret_access_key={SECRET}",
            "s3://bucket/?region=eu&secret_access_key=…",
        ),
        (f"azure://c/?sas_token={SECRET}&x", None),
        (
            "etcd:/app?endpoints=a:1,b:2&key_file=/k.pem",
            "etcd:/app?endpoints=a:1,b:2&key_file=/k.pem",
        ),
        ("sql:sqlite:////var/lib/leases.db", "sql:sqlite:////var/lib/leases.db"),
        ("/etc/keys.json", "/etc/keys.json"),
        ("", ""),
    ],
)
def test_url_shows_its_place_and_no_secret(url: str, shown: str | None) -> None:
    """Operators must see where something goes; a secret may be a user, a password, a path, or any parameter."""
    kept = SecretUrl(url)

    assert kept.reveal() == url
    assert shown is None or kept.shown == shown
    for text in (
        str(kept),
        repr(kept),
        f"{kept}",
        f"{[kept]}",
        kept.hidden_in(f"no route to {url}!"),
    ):
        assert SECRET not in text
    assert kept.has_secret == (SECRET in url)
    assert pickle.loads(pickle.dumps(kept)) == kept  # noqa: S301 - made a moment ago


@pytest.mark.parametrize("quoted", ["s3crét pw", "s3cr%C3%A9t%20pw"])
def test_texts_of_libraries_lose_the_decoded_secret_too(quoted: str) -> None:
    """A driver quotes what it made of a URL, not the URL."""
    kept = SecretUrl("sql:postgresql://me:s3cr%C3%A9t%20pw@db/leases")

    assert "s3cr" not in kept.hidden_in(f"login as me with {quoted} failed at db")
    assert kept.hidden_in("no route to host db") == "no route to host db"
