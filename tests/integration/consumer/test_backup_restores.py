"""A backup of a cluster's specs, which two commands write, restored into an empty cluster."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner

from broadsheet.cli.journals.space import format_journal_space, tree_of_listing
from broadsheet.cli.main import main
from broadsheet.cli.shards.space import format_shard_space, space_of_listing
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.content.protobuf import PROTOBUF_FIXED
from broadsheet.wire.journal_pb2 import ApplyRequest as JournalApply, JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, label_set
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.broker import journal_spec
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    shard,
    upserts,
    wait_for_primaries,
)

pytestmark = pytest.mark.etcd


def _journals() -> list[JournalSpec]:
    """Journals that differ in every field that a file can say."""
    ndjson = label_set((CONTENT_TYPE, NDJSON), ("multi", "a"), ("multi", "b"))
    odd = journal_spec(
        "other/odd", length=1 << 20, labels=label_set((CONTENT_TYPE, PROTOBUF_FIXED))
    )
    odd.fragment.retention.FromSeconds(86_400)
    odd.fragment.flush_interval.FromSeconds(3_600)
    odd.max_append_rate = 1 << 20
    odd.flags = JournalSpec.O_RDONLY
    log = label_set((CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG))
    return [
        journal_spec("in/region=us/part-000", labels=ndjson),
        journal_spec("in/region=us/part-001", labels=ndjson),
        journal_spec("logs/shard-recorded", labels=log),
        odd,
    ]


def _shards() -> list[ShardSpec]:
    """Shards that differ in every field that a file can say."""
    plain = shard("shard-plain", "in/region=us/part-000")
    odd = shard("shard-odd", "in/region=us/part-000;meta", "in/region=us/part-001", hot_standbys=2)
    odd.sources[0].min_offset = 100
    odd.labels.CopyFrom(label_set(("app", "on"), ("multi", "1"), ("multi", "2"), ("empty", "")))
    odd.min_txn_duration.FromMilliseconds(50)
    odd.disable = odd.disable_wait_for_ack = True
    odd.ring_buffer_size = odd.read_channel_size = 100
    recorded = shard("shard-recorded", "in/region=us/part-001")
    recorded.recovery_log_prefix, recorded.hint_prefix = "logs", "/hints"
    recorded.hint_backups = 2
    recorded.disable = True
    return [plain, odd, recorded]


class _Terminal:
    """Commands against one cluster."""

    def __init__(self, member: str, broker: str) -> None:
        self._where = ("--address", member, "--broker", broker)

    async def run(self, *arguments: str) -> None:
        """Run a command in this process, which must succeed. Members here log between what it prints."""
        result = await asyncio.to_thread(
            lambda: CliRunner().invoke(main, [*arguments, *self._where])
        )
        assert result.exit_code == 0, result.output

    async def printed(self, *arguments: str) -> str:
        """Return what a command prints in a process of its own."""
        command = [sys.executable, "-P", "-m", "broadsheet.cli.main", *arguments]
        process = await asyncio.create_subprocess_exec(
            *command, *self._where, stdout=asyncio.subprocess.PIPE
        )
        text, _ = await process.communicate()
        assert process.returncode == 0
        return text.decode()


def _without_revisions(text: str) -> str:
    return re.sub(r"^ *revision: \d+\n", "", text, flags=re.MULTILINE)


async def test_backup_restores_into_an_empty_cluster(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """Two commands write a cluster's specs; two restore them where there is nothing, field by field, and its shards
    serve. Compared once more, nothing differs.
    """
    changes = [JournalApply.Change(upsert=spec) for spec in _journals()]
    await journals.apply(changes)
    async with cluster.member("a") as member, client_of(member) as client:
        await client.apply(upserts(*_shards()))
        terminal = _Terminal(member.address, cluster.broker_address)
        backup = {}
        for kind in ("journals", "shards"):
            backup[kind] = await terminal.printed(kind, "list", "-o", "yaml")
            (tmp_path / f"{kind}.yaml").write_text(backup[kind])

    cluster.root, cluster.directory = f"/test/{uuid4().hex}", tmp_path / "restored"
    cluster.directory.mkdir()
    async with (
        EmbeddedBroker(tmp_path / "empty") as broker,
        cluster.member("b", broker_address=broker.address) as member,
        client_of(member) as client,
        JournalClient(broker.address) as restored,
    ):
        terminal = _Terminal(member.address, broker.address)
        for kind in ("journals", "shards"):
            await terminal.run(kind, "apply", "-f", str(tmp_path / f"{kind}.yaml"))
            await terminal.run(kind, "diff", "-f", str(tmp_path / f"{kind}.yaml"))
        shards_now = space_of_listing((await client.list()).shards)
        journals_now = tree_of_listing((await restored.list()).journals)
        assert _without_revisions(backup["shards"]) == _without_revisions(
            format_shard_space(shards_now)
        )
        assert _without_revisions(backup["journals"]) == _without_revisions(
            format_journal_space(journals_now)
        )

        await wait_for_primaries(client, "shard-plain")
        end = await Producer(restored).publish("in/region=us/part-000", ["a", "b", "a"])
        await client.stat("shard-plain", read_through={"in/region=us/part-000": end})
        assert cluster.counts("shard-plain") == {"a": 2, "b": 1}
