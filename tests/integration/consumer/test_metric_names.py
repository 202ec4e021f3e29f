"""Each metric that the dashboard, the alerts and the documentation name is one that a member or a broker has."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from broadsheet.broker.config import BrokerConfig
from broadsheet.consumer.client import ShardClient
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.transport import TransportPolicy
from tests.support.certificates import CertificateAuthority
from tests.support.documents import REPOSITORY
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    Producer,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)

pytestmark = pytest.mark.etcd

SOURCE, OUTPUT = "test/source", "test/output"
SECONDS_MAX = 300.0
ALERTS = REPOSITORY / "docs" / "operations" / "alerts.yaml"
DASHBOARD = REPOSITORY / "docs" / "operations" / "dashboard.json"
OPERATIONS = REPOSITORY / "docs" / "operations.md"
_KEYWORDS = {"by", "without", "on", "ignoring", "and", "or", "unless", "bool", "offset"}
_FROM_PROMETHEUS = {"up"}
"""Made by Prometheus itself, of each target."""
_SCRAPE_LABELS = {"job", "instance"}
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


@dataclass
class Scraped:
    """Names of samples, and their labels, of what was scraped."""

    labels: dict[str, set[str]] = field(default_factory=dict)
    """By sample; empty for a metric that has no sample yet."""

    def add(self, text: str) -> None:
        """Take one page of metrics."""
        for kind, name in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
            for suffix in _SUFFIXES.get(name, ("",)):
                self.labels.setdefault(f"{kind}{suffix}", set())
        families: Any = text_string_to_metric_families(text)  # `Any`: it has no types.
        for family in families:
            for sample in family.samples:
                self.labels.setdefault(sample.name, set()).update(sample.labels)


async def _page(address: str, trust: ssl.SSLContext) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{address}/metrics", ssl=trust) as answer,
    ):
        assert answer.status == 200
        return await answer.text()


@pytest.fixture
async def scraped(
    etcd_server: EmbeddedEtcdProcess, etcd_root: str, tmp_path: Path
) -> AsyncIterator[Scraped]:
    """What a member with a shard and its broker show, on their admin ports; with TLS, which adds some metrics."""
    authority = CertificateAuthority(tmp_path)
    tls = authority.tls("process", "127.0.0.1")
    trust = ssl.create_default_context(cafile=str(authority.ca_file))
    config = BrokerConfig(data_dir=tmp_path / "broker", admin_port=0, tls=tls)
    found = Scraped()
    async with (
        EmbeddedBroker(tmp_path, config=config) as broker,
        JournalClient(broker.address, policy=TransportPolicy(tls=tls)) as journals,
    ):
        await create_journals(journals, SOURCE, OUTPUT)
        cluster = Cluster(
            etcd_endpoint=etcd_server.endpoint,
            broker_address=broker.address,
            root=etcd_root,
            directory=tmp_path,
            output=OUTPUT,
            settings={"admin_port": 0, "tls": tls},
        )
        async with cluster.member("a") as service, ShardClient(service.address, tls=tls) as client:
            await client.apply(upserts(shard("shard-1", SOURCE)))
            await wait_for_primaries(client, "shard-1")
            end = await Producer(journals).publish(SOURCE, ["x"] * 10)
            await client.stat("shard-1", read_through={SOURCE: end})

            async def is_caught_up() -> bool:
                text = await _page(service.admin_address, trust)
                return bool(
                    re.search(r"^broadsheet_shard_source_lag_bytes{.*} 0\.0$", text, re.MULTILINE)
                )

            await eventually(is_caught_up, timeout_seconds=SECONDS_MAX)
            found.add(await _page(service.admin_address, trust))
            found.add(await _page(broker.broker.admin_address, trust))
            yield found


def _expressions() -> Iterator[tuple[str, str]]:
    """Yield where an expression stands, and the expression."""
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def _used(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each metric of an expression, and the labels that its selector names."""
    text = re.sub(r"\b(by|without)\s*\([^)]*\)", " ", expression)
    text = re.sub(r"\[[^]]*\]", " ", text)
    for match in re.finditer(r"([A-Za-z_:][\w:]*)\s*(\{[^}]*\})?(\s*\()?", text):
        name, selector, is_call = match.groups()
        if not is_call and name not in _KEYWORDS and not re.fullmatch(r"e\d+", name):
            yield name, set(re.findall(r"(\w+)\s*[=!]~?=?", selector or ""))


def _aggregated(expression: str) -> set[str]:
    """Return the labels by which an expression is aggregated."""
    lists = re.findall(r"\bby\s*\(([^)]*)\)", expression)
    return {label.strip() for each in lists for label in each.split(",")}


async def test_names_and_labels_exist(scraped: Scraped) -> None:
    """An alert on a metric that was renamed never fires, and nobody sees that; the same with a label."""
    wrong: list[str] = []
    uses = 0
    for place, expression in _expressions():
        known: set[str] = set()
        for name, labels in _used(expression):
            uses += 1
            if name in _FROM_PROMETHEUS:
                continue
            if name not in scraped.labels:
                wrong.append(f"{place}: no metric {name}")
                continue
            has = scraped.labels[name]
            known |= has
            # A metric of something that did not happen has no samples to compare with.
            if has and (unknown := labels - has - _SCRAPE_LABELS):
                wrong.append(f"{place}: {name} has no label {unknown}")
        if known and (unknown := _aggregated(expression) - known - _SCRAPE_LABELS):
            wrong.append(f"{place}: aggregated by {unknown}, which no metric in it has")
    assert wrong == []
    assert uses > 70


async def test_documented_names_exist(scraped: Scraped) -> None:
    """The table of metrics is what people search when they write queries of their own."""
    rows = re.findall(r"^\| (`[a-z_]*.*?) \| ", OPERATIONS.read_text(), re.MULTILINE)
    names = {
        name
        for row in rows
        for name in re.findall(r"`((?:gazette|broadsheet|grpc_server)_\w+)(?:\{[^}]*\})?`", row)
    }
    bases = {re.sub(r"_(bucket|sum|count)$", "", each) for each in scraped.labels}
    # Those of other pages, of workers and sources, are checked there.
    elsewhere = ("broadsheet_lease", "broadsheet_processor_", "broadsheet_source_")
    ours = {name for name in names if not name.startswith(elsewhere)}
    assert ours - bases - set(scraped.labels) == set()
    assert len(ours) > 40
