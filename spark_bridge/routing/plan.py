"""The plan that a task resolver takes from the driver to tasks: data without connections."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from broadsheet.security.endpoints import is_tls
from broadsheet.security.tls import TlsConfig
from broadsheet.spark_bridge.routing.key_shards import KeyShards
from broadsheet.spark_bridge.routing.member_list import MemberDirectory
from broadsheet.spark_bridge.routing.routes import ShardRoute
from broadsheet.wire.journal_pb2 import LabelSelector
from broadsheet.wire.shard_metadata import Token


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAccess:
    """Credentials and files that requests to members need beside an address."""

    auth_keys: str = field(default="", repr=False)
    """Sign each call; empty: none is signed."""
    tls: TlsConfig | None = None
    """Files for `https://` addresses, at the same path on executors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolverPlan:
    """The shards, members to look them up at, and the settings of calls."""

    cluster: str
    """Identifies the cluster, because a worker may serve tasks of several."""
    cluster_id: int = 0
    """Id of the etcd cluster, in which `revision` has its meaning."""
    shards: LabelSelector | None = None
    """Selects the shards; None: all."""
    revision: int
    """Etcd's revision when the plan was made; a member at an earlier one may not know the shards."""
    seeds: tuple[str, ...]
    """Addresses of members at which shards can be looked up."""
    routes: tuple[ShardRoute, ...]
    """The shards, as of `revision`."""
    key_mapping: KeyShards | None
    """None: callers name shards by their ids."""
    deadline_seconds: float
    """Deadline of each call, retries included."""
    access: MemberAccess
    capability: int
    """Capabilities that the application's methods need: bits of `broadsheet.security.auth.Capability`."""
    directory: MemberDirectory | None = None
    """Lists the living members if none of the known ones answers; None: only members are asked."""
    made_at: float = field(default_factory=time.time)
    """Wall time of the plan, seconds since the Unix epoch."""

    def permits(self, endpoint: str) -> bool:
        """Report whether calls may go to an endpoint: not to clear text, if the members that were given have TLS."""
        return is_tls(endpoint) or not all(map(is_tls, self.seeds))

    def relevant(self, token: Token, route: ShardRoute) -> Token:
        """Return the part of a token that concerns a shard: without journals that only other shards read."""
        if not token:
            return token
        foreign = {journal for one in self.routes for journal in one.sources} - {*route.sources}
        return {journal: offset for journal, offset in token.items() if journal not in foreign}
