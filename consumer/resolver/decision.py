"""The resolver's decision: which process answers for a shard, from one snapshot of the key space.

                      proxied here for another cluster or process ─► ForwardRefused
                      proxied here from a later revision          ─► AwaitRevision, then decide again
                      unknown or hidden, no primary, not ours     ─► Answered
                      another process is the primary              ─► Forward
                      this process is the primary                 ─► ServeHere, once the local shard is ready

Source: gazette/core consumer/resolver.go (Resolve, order of the checks), broker/protocol/route_extensions.go (order,
primary and endpoints of a route).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broadsheet.allocator.etcd.api import Header as EtcdHeader
from broadsheet.allocator.model import Assignment, Item, Member, MemberId
from broadsheet.consumer.elastic.family import is_fork
from broadsheet.consumer.registry.key_space import (
    PRIMARY_SLOT,
    is_visible,
    member_id_of,
    process_id_of,
    process_of,
    spec_of,
)
from broadsheet.wire.journal_pb2 import Header, LabelSelector, Route
from broadsheet.wire.shard_pb2 import ShardSpec, Status


def replicas_of(assignments: Sequence[Assignment]) -> tuple[Assignment, ...]:
    """Return one assignment per member, in member order.

    Two of one member are illegal, but another writer may leave them behind; the member acts on the lowest slot.
    """
    chosen: dict[MemberId, Assignment] = {}
    for assignment in assignments:
        known = chosen.get(assignment.member_id)
        if known is None or assignment.slot < known.slot:
            chosen[assignment.member_id] = assignment
    return tuple(chosen[member_id] for member_id in sorted(chosen))


def primary_of(assignments: Sequence[Assignment]) -> MemberId | None:
    """Return the member in slot 0; None if there is none."""
    return next((a.member_id for a in assignments if a.slot == PRIMARY_SLOT), None)


def build_route(replicas: Sequence[Assignment], members: Mapping[MemberId, Member]) -> Route:
    """Return the route of a shard.

    Args:
        replicas: One per member, in member order (`replicas_of`).
        members: Live processes. In the route, a member that is gone has an empty endpoint.
    """
    primary = primary_of(replicas)
    return Route(
        members=[process_id_of(replica.member_id) for replica in replicas],
        primary=next((index for index, r in enumerate(replicas) if r.member_id == primary), -1),
        endpoints=[_endpoint(members.get(replica.member_id)) for replica in replicas],
    )


def _endpoint(member: Member | None) -> str:
    return "" if member is None else process_of(member).process_spec.endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveQuestion:
    """The question to the resolver: the shard, and the rights of the caller."""

    shard_id: str
    selector: LabelSelector
    """The selector of the caller's claims: the shards that it may see."""
    may_proxy: bool
    """Whether the caller can forward to another process."""
    proxy_header: Header | None
    """Header of the process that forwarded the request to us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolverSnapshot:
    """The state of the shard known to this process, as of one revision."""

    local_id: MemberId | None
    """None once our member key is gone, because we are shutting down."""
    etcd: EtcdHeader
    item: Item | None
    assignments: Sequence[Assignment]
    members: Mapping[MemberId, Member]


@dataclass(frozen=True, slots=True)
class ForwardRefused:
    """The request was forwarded to the wrong process or cluster."""

    problem: str


@dataclass(frozen=True, slots=True)
class AwaitRevision:
    """The forwarding process has a later revision: catch up with it, then decide again."""

    revision: int


@dataclass(frozen=True, slots=True)
class Answered:
    """No process can serve the request; `status` tells why."""

    status: Status.ValueType
    header: Header
    spec: ShardSpec | None


@dataclass(frozen=True, slots=True)
class Forward:
    """The process that the header names serves the shard."""

    header: Header
    spec: ShardSpec


@dataclass(frozen=True, slots=True)
class ServeHere:
    """This process is the shard's primary."""

    header: Header
    spec: ShardSpec


Decision = ForwardRefused | AwaitRevision | Answered | Forward | ServeHere


def decide(question: ResolveQuestion, snapshot: ResolverSnapshot) -> Decision:
    """Decide which process answers."""
    if question.proxy_header is not None:
        objection = check_proxied(question.proxy_header, snapshot.local_id, snapshot.etcd)
        if objection is not None:
            return objection
    return decide_here(question, snapshot)


def decide_here(
    question: ResolveQuestion, snapshot: ResolverSnapshot
) -> Answered | Forward | ServeHere:
    """Decide for a request that may come here. It depends on the question, without its header, and the snapshot."""
    spec = None if snapshot.item is None else spec_of(snapshot.item)
    replicas = replicas_of(snapshot.assignments)
    if spec is not None and not is_visible(spec, question.selector):
        # A hidden shard must look exactly like one that does not exist.
        spec, replicas = None, ()
    primary = primary_of(replicas)
    status = _status(spec, primary, local_id=snapshot.local_id, may_proxy=question.may_proxy)
    route = build_route(replicas, snapshot.members)
    if spec is None or status != Status.OK:
        return Answered(status, header_of(snapshot.local_id, snapshot.etcd, route), spec)
    header = header_of(primary, snapshot.etcd, route)
    return ServeHere(header, spec) if primary == snapshot.local_id else Forward(header, spec)


def check_proxied(
    header: Header, local_id: MemberId | None, etcd: EtcdHeader
) -> ForwardRefused | AwaitRevision | None:
    """Return why a request that another process forwarded cannot be answered here yet; None if it can."""
    expected, named = etcd.cluster_id, header.etcd.cluster_id
    if named != expected:
        return ForwardRefused(
            f"header.etcd.cluster_id: expected {expected:#x}, got {named:#x}; "
            "do both processes use one etcd cluster?"
        )
    wanted = header.process_id
    # An empty identity addresses any process.
    if (wanted.zone or wanted.suffix) and member_id_of(wanted) != local_id:
        here = "a process that is leaving" if local_id is None else str(local_id)
        return ForwardRefused(
            f"header.process_id: the request is for {member_id_of(wanted)}, but this is {here}"
        )
    if header.etcd.revision > etcd.revision:
        return AwaitRevision(header.etcd.revision)
    return None


def header_of(process_id: MemberId | None, etcd: EtcdHeader, route: Route | None = None) -> Header:
    """Return a response header; without a route it is "unrouted": no members, no primary."""
    return Header(
        process_id=process_id_of(process_id),
        route=Route(primary=-1) if route is None else route,
        etcd=Header.Etcd(
            cluster_id=etcd.cluster_id,
            member_id=etcd.member_id,
            revision=etcd.revision,
            raft_term=etcd.raft_term,
        ),
    )


def _status(
    spec: ShardSpec | None,
    primary: MemberId | None,
    *,
    local_id: MemberId | None,
    may_proxy: bool,
) -> Status.ValueType:
    if spec is None:
        return Status.SHARD_NOT_FOUND
    # The replica of a fork follows its parent, which serves the fork's keys.
    if primary is None or is_fork(spec):
        return Status.NO_SHARD_PRIMARY
    if primary != local_id and not may_proxy:
        return Status.NOT_SHARD_PRIMARY
    return Status.OK
