"""`shardctl members list`: each member, its replicas, and whether it accepts more."""

from __future__ import annotations

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.options import command_options
from broadsheet.cli.output.documents import Output, print_list
from broadsheet.wire.allocation_pb2 import ClusterMember

COLUMNS = ["MEMBER", "STATE", "REPLICAS", "PRIMARIES", "LIMIT", "LEADER", "ENDPOINT"]


@command_options
class _ListOptions:
    output: Output


@cluster_command("list", _ListOptions)
async def list_members(connection: Connection, options: _ListOptions) -> None:
    """List each member, its replicas, and whether it accepts more.

    STATE is ready, cordoned, leaving or outdated: of a release that cannot read what the cluster has stored.

    \b
    Examples:
      shardctl members list
      shardctl members list -o json
    """
    async with connection.allocation() as client:
        found = await client.members()
    rows = [member_cells(each, found.format_level) for each in found.members]
    print_list(options.output, "members", found.members, COLUMNS, rows)


def member_cells(member: ClusterMember, format_level: int = 0) -> list[str]:
    """Return a member's cells below `COLUMNS`.

    Args:
        member: As listed.
        format_level: Of the cluster; 0: a member of an earlier release answered, which does not know it.
    """
    return [
        member.id,
        _state_of(member, format_level),
        str(member.replicas),
        str(member.primaries),
        str(member.shard_limit),
        "yes" if member.leads else "",
        member.endpoint,
    ]


def _state_of(member: ClusterMember, format_level: int) -> str:
    if member.exiting:
        return "leaving"
    if member.format_level < format_level:
        return "outdated"
    return "cordoned" if member.cordoned else "ready"
