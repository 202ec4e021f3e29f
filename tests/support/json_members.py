"""Members of a cluster that holds JSON values: a session over real etcd, and an application that catches up at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from broadsheet.allocator.announcement import Predecessors
from broadsheet.allocator.config import AllocationConfig, Offload
from broadsheet.allocator.errors import EtcdUnavailableError
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.leader.election import LeadershipConfig
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Compare, KeyValue, Put
from broadsheet.allocator.placement.problem import Solver
from broadsheet.allocator.policy import AllocationPolicy, TransitionPolicy
from broadsheet.allocator.session import Session, SessionConfig
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.task_group import TaskGroup
from tests.support.memory_cluster import CONSISTENT, JsonItem, JsonMember, ValueConsistency

POISON = b"poison"
"""An assignment's value that cannot be decoded."""

AT_ONCE = AllocationPolicy(transition=TransitionPolicy(settle_seconds=0.0))
"""Balance does not wait."""


class JsonDecoder:
    """Decodes `{"R": n, "E": bool, "C": bool}`; assignments stay as they are."""

    def decode_item(self, item_id: ItemId, kv: KeyValue) -> JsonItem:
        """Return the item."""
        return JsonItem(_replication(kv.value))

    def decode_member(self, member_id: MemberId, kv: KeyValue) -> JsonMember:
        """Return the member."""
        flags = json.loads(kv.value)
        return JsonMember(_replication(kv.value), bool(flags.get("E")), bool(flags.get("C")))

    def decode_assignment(
        self, item_id: ItemId, member_id: MemberId, slot: int, kv: KeyValue
    ) -> bytes:
        """Return the value, unless it is the one that stands for a broken one."""
        if kv.value == POISON:
            raise ValidationError("value", "expected anything but poison")
        return kv.value


def _replication(value: bytes) -> int:
    try:
        return int(json.loads(value)["R"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValidationError("R", f"expected a JSON object with R, got {value!r}") from error


def member_value(limit: int, *, exiting: bool = False, cordoned: bool = False) -> bytes:
    """Encode a member."""
    return json.dumps({"R": limit, "E": exiting, "C": cordoned}).encode()


def item_value(replication: int) -> bytes:
    """Encode an item."""
    return json.dumps({"R": replication}).encode()


@dataclass
class JsonMemberProcess:
    """What would be a process: its own session and mirror, on the test's loop."""

    etcd: EtcdClient
    key_space: KeySpace
    session: Session
    member_id: MemberId
    ended: bool = False
    """Whether `run` has returned."""

    @classmethod
    def create(
        cls,
        etcd: EtcdClient,
        root: str,
        name: str,
        *,
        config: SessionConfig | None = None,
        solver: Solver | None = None,
        offload: Offload = asyncio.to_thread,
    ) -> JsonMemberProcess:
        """Make a member `zone#suffix`."""
        zone, suffix = name.split("#")
        member_id = MemberId(zone, suffix)
        key_space = KeySpace(etcd, Keys(root), JsonDecoder(), apply_delay_seconds=0.005)
        session = Session(
            etcd,
            key_space,
            config or session_config(member_id),
            ValueConsistency(),
            solver=solver,
            offload=offload,
        )
        return cls(etcd, key_space, session, member_id)

    async def run(self) -> None:
        """Run the session and the application until the session ends."""
        async with TaskGroup() as group:
            group.start_soon(self._catch_up(), name=f"catch up {self.member_id}")
            await self.session.run()
            group.stop()
        self.ended = True

    def holds(self) -> list[str]:
        """Return items assigned to the member, by its own mirror."""
        return sorted({i for i, m, _ in self.key_space.assignments if m == self.member_id})

    def placement(self) -> dict[str, list[str]]:
        """Return each item's members by slot, by its own mirror."""
        found: dict[str, list[tuple[int, str]]] = {}
        for item_id, member_id, slot in self.key_space.assignments:
            found.setdefault(item_id, []).append((slot, str(member_id)))
        return {item_id: [m for _, m in sorted(slots)] for item_id, slots in found.items()}

    async def _catch_up(self) -> None:
        backoff = Backoff()
        while True:
            seen = self.key_space.header.revision
            behind = [
                assignment.kv
                for assignment in dict.values(self.key_space.assignments)
                if assignment.member_id == self.member_id and assignment.kv.value != CONSISTENT
            ]
            try:
                for kv in behind:
                    await self.etcd.txn(
                        (Compare.mod_revision(kv.key, kv.mod_revision),),
                        (Put(kv.key, CONSISTENT, ignore_lease=True),),
                    )
            except EtcdUnavailableError:
                await backoff.sleep()
                continue
            backoff.reset()
            await self.key_space.wait_for_update(after_revision=seen)


def session_config(
    member_id: MemberId,
    *,
    lease_ttl_seconds: float = 10.0,
    announce_timeout_seconds: float = 10.0,
    predecessors: Predecessors | None = None,
    leadership: LeadershipConfig | None = None,
    policy: AllocationPolicy | None = None,
) -> SessionConfig:
    """Return a configuration whose timers are short enough for a test."""
    return SessionConfig(
        member_id=member_id,
        lease_ttl_seconds=lease_ttl_seconds,
        announce_timeout_seconds=announce_timeout_seconds,
        predecessors=predecessors,
        allocation=AllocationConfig(
            recheck_seconds=1.0,
            retry_seconds_max=0.5,
            policy=policy or AT_ONCE,
        ),
        leadership=leadership or LeadershipConfig(),
    )


@asynccontextmanager
async def running(group: TaskGroup, *members: JsonMemberProcess) -> AsyncIterator[None]:
    """Run started members in the group; stop and revoke them at the end."""
    for member in members:
        group.start_soon(member.run(), name=f"member {member.member_id}")
    try:
        yield
    finally:
        for member in members:
            member.session.stop()
        for member in members:
            await member.session.revoke()
