"""docs/sources.md: the applications that it shows count each record once."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import REPOSITORY, blocks_of
from tests.support.eventually import eventually
from tests.support.kafka_cluster import TestTopic
from tests.support.kinesis_streams import TestStream
from tests.support.live_shards import SHARD, ShardHost, counts, spec_of
from tests.support.moto import REGION

pytestmark = pytest.mark.etcd


def application_of(tmp_path: Path, name: str) -> Any:  # Any: classes of a document's.
    """Return a class that the document shows."""
    (code,) = (
        block.code
        for block in blocks_of(REPOSITORY / "docs" / "sources.md")
        if f"class {name}:" in block.code
    )
    source = tmp_path / "shown.py"
    source.write_text(code)
    return runpy.run_path(str(source))[name]


async def test_application_of_the_document_counts_a_stream(
    host: ShardHost, tmp_path: Path, kinesis_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody copies it: it must work as it stands, with the client that the environment configures."""
    for name, value in (
        ("AWS_ENDPOINT_URL", kinesis_endpoint),
        ("AWS_DEFAULT_REGION", REGION),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
    ):
        monkeypatch.setenv(name, value)
    stream = await TestStream(kinesis_endpoint).create(1)
    await stream.put("a", range(3))
    await host.assign(spec_of(SHARD))

    live = host.start(
        spec_of(SHARD), application_of(tmp_path, "StreamCounter")(stream.name, tmp_path)
    )

    async def has_counted() -> bool:
        return await counts(live) == {"a": 3}

    await eventually(has_counted)


async def test_application_of_the_document_counts_a_topic(
    host: ShardHost, tmp_path: Path, kafka_servers: str
) -> None:
    """The same for Kafka; and Stat may be asked for the end of the topic."""
    topic = TestTopic(kafka_servers)
    await topic.put_raw([json.dumps({"kind": kind}).encode() for kind in "aba"])
    await host.assign(spec_of(SHARD))
    application = application_of(tmp_path, "TopicCounter")(topic.name, kafka_servers, tmp_path)

    live = host.start(spec_of(SHARD), application)
    with live.acquire() as reference:
        await reference.wait_ready()
        await eventually(
            lambda: (
                application.read_through(live, None, {f"kafka/{topic.name}": 0}).get(
                    topic.name_of(0)
                )
                == 3
            )
        )
        await reference.wait_for_offsets(
            application.read_through(live, None, {f"kafka/{topic.name}": 0})
        )

    assert await counts(live) == {"a": 2, "b": 1}
