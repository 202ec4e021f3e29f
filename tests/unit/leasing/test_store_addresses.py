"""Addresses of stores: what they name, and what a mistake in one is told."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest

from broadsheet.leases.addresses import parse_store_address
from broadsheet.leases.opening import missing_file, open_store
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.secret_url import without_passwords


@pytest.mark.parametrize(
    ("text", "kind", "place", "layout", "options"),
    [
        ("etcd:/my-app", "etcd", "/my-app", "native", {}),
        (
            "etcd:/a/b?endpoints=h1:2379,unix:/s",
            *("etcd", "/a/b", "native"),
            {"endpoints": "h1:2379,unix:/s"},
        ),
        ("sql:sqlite:////tmp/a.db", "sql", "sqlite:////tmp/a.db", "native", {}),
        (
            "sql:postgresql://u@/d?host=/run/pg&table=t",
            *("sql", "postgresql://u@/d?host=/run/pg", "native"),
            {"table": "t"},
        ),
        (
            "dynamodb:orders?layout=kcl-java&endpoint=http://h:1",
            *("dynamodb", "orders", "kcl-java"),
            {"endpoint": "http://h:1"},
        ),
        ("azblob:c?layout=eph&group=$default", "azblob", "c", "eph", {"group": "$default"}),
        ("azblob:c?layout=eventhubs&scope=n/h/g", "azblob", "c", "eventhubs", {"scope": "n/h/g"}),
    ],
)
def test_address_names_a_store(
    text: str, kind: str, place: str, layout: str, options: Mapping[str, str]
) -> None:
    """A database keeps its own options; ours are taken out."""
    address = parse_store_address(text)

    assert (address.kind, address.place, address.layout) == (kind, place, layout)
    assert dict(address.options) == options


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("orders", "store: expected e.g. etcd:/my-application"),
        ("s3:bucket", "expected e.g. etcd:/my-application"),
        ("etcd:my-app", "expected e.g. etcd:/my-application, got 'etcd:my-app'"),
        ("dynamodb:", "expected e.g. dynamodb:my-table"),
        ("dynamodb:t?layout=kcl", "store.layout: dynamodb: expected one of native, kcl-java, vm"),
        ("dynamodb:t?regoin=x", "store.regoin: dynamodb with layout native takes endpoint, region"),
        ("azblob:c?layout=eventhubs&group=g", "store.group: azblob with layout eventhubs takes"),
    ],
)
def test_mistake_in_an_address_is_named(text: str, problem: str) -> None:
    """Kind, place, layout, option: each with what is right."""
    with pytest.raises(ValidationError) as caught:
        parse_store_address(text)

    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "sql:postgresql://me:s3cret@db/leases",
        "sql:postgresql://me:at@s3cret@db/leases",
        "sql:postgresql://db/l?user=me&password=s3cret",
    ],
)
def test_password_is_not_shown(text: str) -> None:
    """Addresses are printed, and stand in exports."""
    assert "s3cret" not in parse_store_address(text).text
    assert "s3cret" in parse_store_address(text).place
    cause = f"connection failed: {text} (try again)"
    assert "s3cret" not in without_passwords(cause)
    assert without_passwords(cause).endswith(" (try again)")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sql:mysql://db/leases", "expected postgresql or sqlite, got 'mysql'"),
        ("sql:nonsense", "expected sql:postgresql://host/database or sql:sqlite:///file"),
        ("sql:sqlite:///:memory:", "a memory database keeps nothing"),
        ("etcd:/a?endpoints=nowhere", r"etcd.endpoints\[0\]: expected host:port"),
        ("etcd:/a?ca_file=/no/file", "store.ca_file: there is no file /no/file"),
        ("etcd:/a/", "expected /a/path without a slash at its end"),
        ("azblob:c", "AZURE_STORAGE_CONNECTION_STRING: expected the connection string"),
        ("azblob:c?connection_env=OLD", "OLD: expected the connection string"),
    ],
)
async def test_store_that_cannot_be_opened_says_why(text: str, problem: str) -> None:
    """Before anything is asked of a server."""
    with pytest.raises(ValidationError, match=problem):
        async with open_store(parse_store_address(text), environment={}):
            pytest.fail("opened")


async def test_connection_string_that_is_none_is_an_error_of_its_variable() -> None:
    """Most often it is an account's key alone."""
    with pytest.raises(ValidationError, match="OLD: is not a connection string"):
        async with open_store(
            parse_store_address("azblob:c?connection_env=OLD"), environment={"OLD": "a-key"}
        ):
            pytest.fail("opened")


@pytest.mark.parametrize(
    ("text", "module", "extra"),
    [
        ("dynamodb:t", "botocore.exceptions", "aws"),
        ("azblob:c", "aiohttp", "azure"),
        ("sql:postgresql://db/leases", "psycopg", "postgresql"),
        ("sql:postgresql://db/leases", "sqlalchemy", "sql"),
    ],
)
async def test_missing_extra_is_named(
    text: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients of other systems are not installed with us: the error is what to type."""
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(ValidationError, match=rf"\(the extra `{extra}`\): pip install "):
        async with open_store(parse_store_address(text), environment={"PATH": ""}):
            pytest.fail("opened")


def test_file_of_a_database_that_is_not_there_is_told_before_it_is_made() -> None:
    """SQLite makes what it is asked to open; a look must not."""
    path = missing_file(parse_store_address("sql:sqlite:////no/such/leases.db"))

    assert str(path) == "/no/such/leases.db"
    assert missing_file(parse_store_address("etcd:/a")) is None
