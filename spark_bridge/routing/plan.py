"""What a task resolver takes from the driver to tasks: data only, no connection."""

from __future__ import annotations

from dataclasses import dataclass, field

from broadsheet.consumer.protocol.call_metadata import Token
from broadsheet.spark_bridge.routing.key_mapping import KeyMapping
from broadsheet.spark_bridge.routing.routes import ShardRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolverPlan:
    """Which shards, where to start looking for them, and how calls are made."""

    cluster: str
    """Tells clusters apart: a worker may serve tasks of several."""
    revision: int
    """Of etcd, when the plan was made: who knows an earlier one only may not know the shards."""
    seeds: tuple[str, ...]
    """Addresses of members that can be asked where shards are."""
    routes: tuple[ShardRoute, ...]
    """The shards, as of `revision`."""
    key_mapping: KeyMapping | None
    """None: shards are asked for by their ids."""
    deadline_seconds: float
    """Of each call, retries included."""
    auth_keys: str = field(repr=False)
    """Sign each call; empty: none is signed."""
    capability: int
    """What the application's methods need of a credential: bits of `broadsheet.consumer.protocol.auth.Capability`."""

    def relevant(self, token: Token, route: ShardRoute) -> Token:
        """Return what of a token concerns a shard: not the journals that others of the shards read, and it does not."""
        if not token:
            return token
        foreign = {journal for one in self.routes for journal in one.sources} - {*route.sources}
        return {journal: offset for journal, offset in token.items() if journal not in foreign}
