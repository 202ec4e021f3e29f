"""`shardctl journals describe`: all that is known of a journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.journals.users import uses_of
from broadsheet.cli.names import JournalName
from broadsheet.cli.options import command_options
from broadsheet.cli.output.documents import Output, OutputFormat, fields_of, print_fields
from broadsheet.cli.output.tables import print_facts, print_sections
from broadsheet.cli.shards.state import status_of
from broadsheet.journals.client import JournalClient
from broadsheet.journals.guard import epoch_text
from broadsheet.runtime.errors import BroadsheetError
from broadsheet.wire import shard_pb2


@command_options
class _DescribeOptions:
    journal: JournalName
    output: Output


@cluster_command("describe", _DescribeOptions)
async def describe_journal(connection: Connection, options: _DescribeOptions) -> None:
    """Show all that is known of a journal.

    Its spec, where it is served, how much it holds, and which shards read it or record into it. What cannot be asked
    at the moment is left out, with the reason.

    \b
    Examples:
      shardctl journals describe flights/part-000
      shardctl journals describe flights/part-000 -o yaml
    """
    async with connection.journals() as client:
        document = await _journal_document(connection, client, options.journal)
    if options.output is not OutputFormat.TABLE:
        print_fields(document, options.output)
        return
    _print_journal(document)


async def _journal_document(
    connection: Connection, client: JournalClient, name: str
) -> dict[str, Any]:
    listed = await client.get(name)
    notes: list[str] = []
    content: dict[str, Any] = {}
    users: list[dict[str, Any]] = []
    try:
        present = await client.present(name)
        fragments = [each.spec for each in await client.list_fragments(name)]
        content = {
            "begin": min((each.begin for each in fragments), default=present.write_head),
            "write_head": present.write_head,
            "fragments": len(fragments),
            "persisted": sum(each.mod_time > 0 for each in fragments),
            "epoch": epoch_text(present.epoch),
        }
    except (BroadsheetError, TimeoutError) as error:
        notes.append(f"its content cannot be shown: {' '.join(str(error).split())}")
    try:
        async with connection.shards() as shards:
            users = [*_users_of(listed.spec.name, (await shards.list()).shards)]
    except (BroadsheetError, TimeoutError) as error:
        notes.append(f"shards that use it cannot be shown: {' '.join(str(error).split())}")
    return {"journal": fields_of(listed), "content": content, "shards": users, "notes": notes}


def _users_of(
    journal: str, listed: Sequence[shard_pb2.ListResponse.Shard]
) -> Iterator[dict[str, Any]]:
    for shard in listed:
        for user in uses_of(shard.spec):
            if user.journal == journal:
                yield {"shard": user.shard, "state": status_of(shard), "use": user.use.value}


def _print_journal(document: dict[str, Any]) -> None:
    spec = document["journal"]["spec"]
    route = document["journal"].get("route", {})
    members = [f"{each['zone']}#{each['suffix']}" for each in route.get("members", ())]
    fragment, suspend = spec.get("fragment", {}), spec.get("suspend", {})
    content = document["content"]
    labels = spec.get("labels", {}).get("labels", ())
    print_facts(
        {
            "journal": spec["name"],
            "labels": ", ".join(f"{label['name']}={label['value']}" for label in labels),
            "replication": str(spec["replication"]),
            "served by": ", ".join(members) or "no broker",
            "suspended": ""
            if suspend.get("level", "NONE") == "NONE"
            else f"{suspend['level']} at offset {suspend['offset']}",
            "fragments of": f"{fragment.get('length', 0)} bytes, {fragment.get('compression_codec', '')}",
            "stores": ", ".join(fragment.get("stores", ())),
            "retention": fragment.get("retention", ""),
            "content": f"[{content['begin']}, {content['write_head']}) in {content['fragments']} fragments, "
            f"{content['persisted']} of them persisted"
            if content
            else "",
            "epoch": content.get("epoch", ""),
            "revision": f"{document['journal']['mod_revision']}, created at {document['journal']['create_revision']}",
        }
    )
    print_sections(document, ("shards",))
