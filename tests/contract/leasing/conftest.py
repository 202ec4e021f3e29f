"""Each backend in turn, for the tests of what is built on record stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.leases.facades.kcl import LeaseManager
from tests.support.azure_stores import native_subject
from tests.support.dynamodb_stores import LAYOUTS, dynamodb_subject
from tests.support.lease_stores import LeaseSubject, etcd_subject, sql_subject

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient


@pytest.fixture(
    params=[
        pytest.param("etcd", marks=pytest.mark.etcd),
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("azurite", marks=pytest.mark.azurite),
        pytest.param("kcl-java", marks=pytest.mark.moto),
    ]
)
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LeaseSubject]:
    """A backend, its store created, with the workers w1 here and w2 in another process."""
    opened: AbstractAsyncContextManager[LeaseSubject]
    if request.param == "etcd":
        server: EmbeddedEtcdProcess = request.getfixturevalue("etcd_server")
        opened = etcd_subject(server.endpoint)
    elif request.param == "postgresql":
        opened = sql_subject(request.getfixturevalue("postgresql_url"))
    elif request.param == "azurite":
        opened = native_subject(request.getfixturevalue("azurite"))
    elif request.param in LAYOUTS:
        client: DynamoDBClient = request.getfixturevalue("dynamodb_client")
        opened = dynamodb_subject(client, request.param)
    else:
        opened = sql_subject(f"sqlite:///{tmp_path}/leases.db")
    async with opened as subject:
        await subject.store.create_store()
        await subject.store.join("w1")
        await subject.rival.join("w2")
        yield subject


@pytest.fixture
def manager(subject: LeaseSubject) -> LeaseManager:
    """The manager of w1's process."""
    return LeaseManager(subject.store)


@pytest.fixture
def rival(subject: LeaseSubject) -> LeaseManager:
    """The manager of w2's process."""
    return LeaseManager(subject.rival)
