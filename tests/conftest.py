"""Fixtures shared by every tier: real servers, started once and left clean.

Heavy imports stay inside the fixtures, so that the pure tiers start at once.
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

    from broadsheet.allocator.etcd.client import EtcdClient
    from broadsheet.embedded.broker import EmbeddedBroker
    from broadsheet.embedded.etcd import EmbeddedEtcdProcess
    from broadsheet.journals.client import JournalClient
    from tests.support.grouped_tests import GroupedTests


def pytest_configure(config: pytest.Config) -> None:
    """Say what failed even where the run breaks off, and let no property depend on the speed of the machine."""
    from hypothesis import HealthCheck, settings

    from tests.support.broken_runs import FailureLines
    from tests.support.disk_space import DiskSpace
    from tests.support.temporary_files import TemporaryFiles

    # An example that takes longer than 0.2 s, or a slow draw, is a failure by default: on a busy machine any is.
    settings.register_profile(
        "any-speed", deadline=None, suppress_health_check=(HealthCheck.too_slow,)
    )
    settings.load_profile("any-speed")
    # A developer's contexts name clusters and credentials that are not for tests.
    os.environ["BROADSHEET_CONFIG"] = os.devnull
    # It has been read. A pytest that a test starts shares its directories and plugins with nothing.
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        os.environ.pop("PYTEST_ADDOPTS", None)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureLines())
        config.pluginmanager.register(DiskSpace())
    else:
        from tests.support.grouped_tests import LongTestsFirst

        config.pluginmanager.register(LongTestsFirst())
    config.pluginmanager.register(TemporaryFiles(), "temporary-files")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """Where several processes run tests, let a report of any text reach the one that collects them."""
    from tests.support.sendable_reports import sendable

    return sendable((yield))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> GroupedTests | None:
    """Where several processes run tests, keep those of the one Spark session together, and those with their own."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from tests.support.grouped_tests import GroupedTests

    return GroupedTests(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: modules and tests stay, and each look takes longer than the one before."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        # A million objects that no later look needs to visit.
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests on Azurite the time to install it."""
    on_azurite = [item for item in items if item.get_closest_marker("azurite") is not None]
    if on_azurite:
        _give_time_to_install_azurite(on_azurite)


def _give_time_to_install_azurite(items: list[pytest.Item]) -> None:
    """Let the first test on Azurite wait for npm, if it is not installed yet."""
    from tests.support.azurite_server import is_azurite_installed
    from tests.support.node_tools import INSTALL_TIMEOUT_SECONDS

    if not is_azurite_installed():
        for item in items:
            item.add_marker(pytest.mark.timeout(INSTALL_TIMEOUT_SECONDS))


@pytest.fixture(scope="session", autouse=True)
def _temporary_files(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Keep what uses the system's directory for temporary files in one of this session, removed at its end."""
    # Before, because the directories of failed tests stay where they always were.
    tmp_path_factory.getbasetemp()
    from tests.support.temporary_files import TemporaryFiles

    files = request.config.pluginmanager.get_plugin("temporary-files")
    assert isinstance(files, TemporaryFiles), "registered by pytest_configure"
    with files.kept_together():
        yield


@pytest.fixture(autouse=True)
def _default_logging() -> Iterator[None]:
    """Undo what a command run in this process did to the logs: they are global."""
    import structlog

    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEtcdProcess]:
    """A real etcd for the whole run; tests keep to their own `etcd_root`."""
    from broadsheet.embedded.etcd import EmbeddedEtcdProcess

    with EmbeddedEtcdProcess(data_dir=tmp_path_factory.mktemp("etcd")) as server:
        yield server
        assert server.is_running, f"etcd ended by itself; its log ends:\n{server.log_tail}"


@pytest.fixture
async def etcd(etcd_server: EmbeddedEtcdProcess) -> AsyncIterator[EtcdClient]:
    """A client of the session's etcd."""
    from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig

    # On a busy machine etcd may take seconds; no test means to tell how many.
    config = EtcdConfig(endpoints=(etcd_server.endpoint,), request_timeout_seconds=120.0)
    async with EtcdClient(config) as client:
        yield client


@pytest.fixture
def etcd_root() -> str:
    """A root no other test uses."""
    return f"/test/{uuid4().hex}"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """An embedded broker on this loop, with its data in the test's own directory."""
    from broadsheet.embedded.broker import EmbeddedBroker

    async with EmbeddedBroker(tmp_path / "broker") as running:
        yield running


@pytest.fixture
async def journals(broker: EmbeddedBroker) -> AsyncIterator[JournalClient]:
    """A journal client of the test's broker."""
    from broadsheet.journals.client import JournalClient

    async with JournalClient(broker.address) as client:
        yield client


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """The SQLAlchemy URL of a real PostgreSQL for the whole run; tests keep to rows and tables of their own."""
    from tests.support.postgresql import running_postgresql

    with running_postgresql() as url:
        yield url


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    """The connection string of a real Azurite for the whole run; tests keep to containers of their own."""
    from tests.support.azurite_server import running_azurite

    with running_azurite() as connection_string:
        yield connection_string


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """The URL of a real moto server (DynamoDB, Kinesis) for the whole run; tests keep to names of their own."""
    from tests.support.moto import running_moto

    program = Path(__file__).parent / "support" / "dynamodb_process.py"
    with running_moto("-P", str(program)) as url:
        yield url


@pytest.fixture(scope="session")
def dynamodb_client(moto_endpoint: str) -> Iterator[DynamoDBClient]:
    """A client of the session's DynamoDB."""
    import boto3

    from tests.support.moto import aws_settings

    client = boto3.client("dynamodb", **aws_settings(moto_endpoint))
    yield client
    client.close()


@pytest.fixture(scope="session")
def kinesis_endpoint() -> Iterator[str]:
    """The URL of a moto server whose Kinesis does as AWS' where moto does not; tests keep to streams of their own."""
    from tests.support.moto import running_moto

    program = Path(__file__).parent / "support" / "kinesis_process.py"
    with running_moto("-P", str(program)) as url:
        yield url


@pytest.fixture(scope="session")
def kafka_servers() -> Iterator[str]:
    """The `bootstrap.servers` of librdkafka's mock cluster for the whole run; tests keep to topics of their own."""
    from tests.support.kafka_cluster import running_kafka

    with running_kafka() as servers:
        yield servers
