"""A `ShardCluster` as HTML, for notebooks."""

from __future__ import annotations

from typing import Protocol

from broadsheet.allocator.errors import EtcdError
from broadsheet.notebook.html_tables import html_table
from broadsheet.spark_bridge.cluster.membership import MemberInfo
from broadsheet.spark_bridge.errors import ClusterStoppedError

_COLUMNS = ("MEMBER", "TASK", "ATTEMPT", "STATE", "EXECUTOR", "ADDRESS", "LOG")


class ShownCluster(Protocol):
    """The parts of a cluster that are shown."""

    @property
    def root(self) -> str:
        """Prefix of its keys in etcd."""
        ...

    def members(self) -> tuple[MemberInfo, ...]:
        """Its live members."""
        ...

    def last_failure(self) -> str:
        """The member that failed last, and the reason."""
        ...


def cluster_html(cluster: ShownCluster) -> str:
    """Return a cluster's live members as a table; of one that does not run, or cannot be reached, why."""
    title = f"ShardCluster {cluster.root}"
    try:
        members, failure = cluster.members(), cluster.last_failure()
    # A cell that shows a value must not end in an error.
    except (ClusterStoppedError, EtcdError) as error:
        return html_table(title, (), (), notes=[str(error)])
    rows = [
        (
            str(member.member_id),
            str(member.partition),
            str(member.attempt),
            "leaving" if member.exiting else "ready",
            member.executor_id,
            member.endpoint,
            member.log_url,
        )
        for member in members
    ]
    notes = [f"the last failure: {failure}"] if failure else []
    count = len(rows)
    return html_table(f"{title}: {count} member{'s' * (count != 1)}", _COLUMNS, rows, notes=notes)
