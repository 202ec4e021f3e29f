"""Each implementation of the port `broadsheet.allocator.etcd.api.Etcd` in turn.

An implementation joins by adding itself to `IMPLEMENTATIONS`; the tests ask nothing beyond the port but a way to
compact.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.testing.allocator.kernel.etcd import FakeEtcd
from tests.support.etcd_contract import EtcdUnderTest

Opened = AbstractAsyncContextManager[EtcdUnderTest]


@pytest.fixture(scope="package")
def contract_server() -> Iterator[EmbeddedEtcdProcess]:
    """A server of these tests' own, because compaction concerns everybody."""
    with EmbeddedEtcdProcess() as server:
        yield server


@asynccontextmanager
async def _real_etcd(request: pytest.FixtureRequest) -> AsyncIterator[EtcdUnderTest]:
    """Open the client of a real server, emptied."""
    server: EmbeddedEtcdProcess = request.getfixturevalue("contract_server")
    async with EtcdClient(EtcdConfig(endpoints=(server.endpoint,))) as client:
        await client.delete(b"\x00", b"\x00")
        yield EtcdUnderTest(etcd=client, compact=client.compact)


@asynccontextmanager
async def _fake_etcd(request: pytest.FixtureRequest) -> AsyncIterator[EtcdUnderTest]:
    """Open the simulator's, in memory, on real time here."""
    etcd = FakeEtcd()

    async def compact(revision: int) -> None:
        etcd.compact(revision)

    yield EtcdUnderTest(etcd=etcd, compact=compact)
    etcd.close()


IMPLEMENTATIONS = [
    pytest.param(_real_etcd, id="real", marks=pytest.mark.etcd),
    pytest.param(_fake_etcd, id="fake"),
]


@pytest.fixture(params=IMPLEMENTATIONS)
async def under_test(request: pytest.FixtureRequest) -> AsyncIterator[EtcdUnderTest]:
    """Each implementation in turn."""
    opened: Opened = request.param(request)
    async with opened as implementation:
        yield implementation


@pytest.fixture
def etcd(under_test: EtcdUnderTest) -> Etcd:
    """The port alone."""
    return under_test.etcd
