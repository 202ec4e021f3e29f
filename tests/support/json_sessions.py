"""What tests of allocator sessions do with members of JSON: start them, give them items, ask whether all is placed."""

from __future__ import annotations

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import ItemId
from tests.support.json_members import JsonMemberProcess, item_value, member_value


async def put_items(etcd: EtcdClient, root: str, count: int, *, replication: int) -> None:
    """Write items item-00, item-01 and so on."""
    for number in range(count):
        item_id = ItemId(f"item-{number:02}")
        await etcd.put(Keys(root).item(item_id), item_value(replication))


async def start_all(
    etcd: EtcdClient, root: str, *names: str, limit: int = 100
) -> list[JsonMemberProcess]:
    """Start members one after the other, so that the first is the oldest."""
    members = [JsonMemberProcess.create(etcd, root, name) for name in names]
    for member in members:
        await member.session.start(member_value(limit))
    return members


def settled(member: JsonMemberProcess, items: int, *, replication: int) -> bool:
    """Whether the member sees every item with all replicas, consistent, slots packed."""
    key_space = member.key_space
    placement = member.placement()
    return (
        len(placement) == items
        and all(len(set(members)) == replication for members in placement.values())
        and all(len(members) == replication for members in placement.values())
        and all(a.kv.value == b"consistent" for a in key_space.assignments.values())
    )


def counted(member: JsonMemberProcess, name: str) -> float:
    """Return one of the member's metrics."""
    value = member.session.metrics.registry.get_sample_value(f"gazette_allocator_{name}")
    assert value is not None, f"no metric {name}"
    return value
