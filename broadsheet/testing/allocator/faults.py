"""Events of a simulated cluster, one at a time, drawn from its seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from broadsheet.allocator.model import ItemId
from broadsheet.testing.allocator.cluster import Cluster
from broadsheet.testing.allocator.kernel.cluster import State
from broadsheet.testing.allocator.kernel.faults import Action, FaultBounds, FaultInjector, mend
from broadsheet.testing.allocator.member import SimulatedMember
from broadsheet.testing.allocator.scenario import ClusterFault

BOUNDS = FaultBounds(loss_max=0.4, late_max=0.3, history_kept_max=15)
SLOW_SECONDS_MAX = 3.0


class Faults(FaultInjector[ClusterFault, SimulatedMember]):
    """Draws the next event, causes it, and undoes every event that can be undone."""

    _cluster: Cluster

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, cluster.scenario.faults, BOUNDS)
        self._hanging: set[SimulatedMember] = set()
        """Members that hang for ever."""

    def actions(self) -> Mapping[ClusterFault, Action]:
        """Return the action of each event."""
        return {
            ClusterFault.JOIN: self._join,
            ClusterFault.EXIT: self._exit,
            ClusterFault.ROLLOUT: self._roll_out,
            ClusterFault.CRASH: self._crash,
            ClusterFault.REVOKE: self._revoke,
            ClusterFault.LEASE_LOST: self._lose_lease,
            ClusterFault.ZONE_LOST: self._lose_zone,
            ClusterFault.PAUSE: self._pause,
            ClusterFault.HANG: self._hang,
            ClusterFault.CUT: self._cut,
            ClusterFault.CORDON: self._cordon,
            ClusterFault.OUTAGE: self._outage,
            ClusterFault.SLOW: self._slow,
            ClusterFault.LOSSY: self._lossy,
            ClusterFault.WATCH_BROKEN: self._break_watch,
            ClusterFault.COMPACTION: self._compact,
            ClusterFault.ORPHAN: self._orphan,
            ClusterFault.ITEM_ADDED: self._add_item,
            ClusterFault.ITEM_REMOVED: self._remove_item,
            ClusterFault.REPLICATION_CHANGED: self._change_replication,
            ClusterFault.LIMIT_CHANGED: self._change_limit,
            ClusterFault.REPLICA_FAILED: self._fail_replica,
        }

    def end(self) -> None:
        """Undo transient faults: from now on only members act."""
        self._cluster.cursed.clear()
        super().end()

    def calm(self, member: SimulatedMember) -> None:
        """Wake a member that is stopped, and end its hang."""
        self._wake(member)
        self._over(member)

    def _over(self, member: SimulatedMember) -> None:
        """End a member's hang, or make it permanent: the other members must not depend on it."""
        others = [m for m in self._cluster.alive() if not m.process.stuck_in_work]
        if member.process.stuck_in_work and others and self.random.random() < 0.5:
            self._hanging.add(member)
            self._cluster.trace.add(f"{member.member_id} hangs for ever")
        else:
            member.process.get_unstuck()

    def _any_member(self, *, spare: int = 0) -> SimulatedMember | None:
        """Draw a live member, if there are more than `spare`."""
        alive = self._cluster.alive()
        return self.random.choice(alive) if len(alive) > spare else None

    def _join(self) -> str | None:
        cluster = self._cluster
        if len(cluster.present()) >= cluster.scenario.members_max:
            return None
        suffixes = {member.member_id.suffix for member in cluster.members}
        gone = [
            member
            for member in cluster.members
            if member.state is not State.ALIVE and _next_suffix(member) not in suffixes
        ]
        heir_of = self.random.choice(gone) if gone and self.random.random() < 0.5 else None
        return str(cluster.join(successor_of=heir_of).member_id)

    def _exit(self) -> str | None:
        member = self._any_member(spare=1)
        if member is None:
            return None
        member.change(replace(member.value, exiting=True))
        return str(member.member_id)

    def _cordon(self) -> str | None:
        member = self._any_member(spare=1)
        if member is None:
            return None
        member.change(replace(member.value, cordoned=not member.value.cordoned))
        return f"{member.member_id}{'' if member.value.cordoned else ' no longer'}"

    def _roll_out(self) -> str | None:
        alive = [member for member in self._cluster.alive() if not member.value.exiting]
        if len(alive) < 2:
            return None
        leaving = self.random.sample(alive, self.random.randint(1, len(alive) - 1))
        coming = max(0, self._cluster.scenario.members_max - len(self._cluster.present()))
        comes_first = self.random.random() < 0.5
        if not comes_first:
            self._leave(leaving)
        for _ in leaving[:coming]:
            self._cluster.join()
        if comes_first:
            self._leave(leaving)
        return f"{len(leaving)} members leave: {', '.join(str(m.member_id) for m in leaving)}"

    def _leave(self, members: Iterable[SimulatedMember]) -> None:
        for member in members:
            member.change(replace(member.value, exiting=True))

    def _crash(self) -> str | None:
        member = self._any_member(spare=1)
        if member is None:
            return None
        member.kill()
        return str(member.member_id)

    def _revoke(self) -> str | None:
        member = self._any_member(spare=1)
        if member is None:
            return None
        member.kill()
        self._cluster.revoke_lease_of(member)
        return str(member.member_id)

    def _lose_lease(self) -> str | None:
        member = self._any_member(spare=1)
        if member is None:
            return None
        self._cluster.revoke_lease_of(member)
        return str(member.member_id)

    def _lose_zone(self) -> str | None:
        if len(self._cluster.zones) < 2:
            return None
        zone = self.random.choice(self._cluster.zones)
        for member in self._cluster.alive():
            if member.member_id.zone == zone:
                member.kill()
        return zone

    def _pause(self) -> str | None:
        member = self._any_member()
        if member is None:
            return None
        member.process.stop()
        seconds = self.passes(lambda: self._wake(member))
        return f"{member.member_id} for {seconds:.1f} s"

    def _wake(self, member: SimulatedMember) -> None:
        if member.state is State.STOPPED:
            self._cluster.trace.add(f"{member.member_id} goes on")
            member.resume()

    def _hang(self) -> str | None:
        member = self._any_member()
        if member is None:
            return None
        member.process.get_stuck()
        seconds = self.passes(lambda: self._unhang(member))
        return f"{member.member_id} for {seconds:.1f} s"

    def _unhang(self, member: SimulatedMember) -> None:
        # It may hang for ever by now: `end` decided that after this timer was set.
        if member not in self._hanging:
            member.process.get_unstuck()

    def _cut(self) -> str | None:
        member = self._any_member()
        if member is None:
            return None
        return f"{member.member_id} for {self._cut_off(member):.1f} s"

    def _outage(self) -> str | None:
        for member in self._cluster.present():
            self.cut_off(member.link)
        seconds = self.passes(lambda: mend(member.link for member in self._cluster.members))
        return f"for {seconds:.1f} s"

    def _cut_off(self, member: SimulatedMember) -> float:
        self.cut_off(member.link)
        if self.random.random() < 0.5:
            return self.passes(member.link.mend)
        # The history that it missed is compacted when it comes back.
        return self.passes(lambda: self._forget_and_mend(member))

    def _forget_and_mend(self, member: SimulatedMember) -> None:
        # The link may have been mended by another event since.
        if member.link.cut:
            self._forget_all()
        member.link.mend()

    def _slow(self) -> str | None:
        member = self._any_member()
        if member is None:
            return None
        link = member.link
        link.latency_seconds = (0.01, self.random.uniform(0.1, SLOW_SECONDS_MAX))
        seconds = self.passes(lambda: link.heal(self._cluster.latency_seconds))
        return f"{member.member_id} up to {link.latency_seconds[1]:.1f} s a message for {seconds:.1f} s"

    def _lossy(self) -> str | None:
        member = self._any_member()
        if member is None:
            return None
        link = member.link
        seconds = self.make_lossy(link)
        return (
            f"{member.member_id} loses {link.loss:.0%}, delays {link.late:.0%} for {seconds:.1f} s"
        )

    def _break_watch(self) -> str | None:
        member = self._any_member()
        if member is None:
            return None
        member.link.breaks += 1
        return str(member.member_id)

    def _compact(self) -> str | None:
        revision = self.compact()
        return None if revision is None else f"to revision {revision}"

    def _forget_all(self) -> None:
        store = self._cluster.etcd.store
        if store.revision > store.compacted_revision:
            self._cluster.etcd.compact(store.revision)
            self._cluster.trace.add(
                f"{ClusterFault.COMPACTION.value}: to revision {store.revision}"
            )

    def _add_item(self) -> str | None:
        return self._cluster.new_item()

    def _orphan(self) -> str | None:
        item_id = self._any_item()
        return None if item_id is None else f"{item_id} on {self._cluster.put_orphan(item_id)}"

    def _any_item(self) -> ItemId | None:
        items = self._cluster.item_ids()
        return self.random.choice(items) if items else None

    def _remove_item(self) -> str | None:
        item_id = self._any_item()
        if item_id is not None:
            self._cluster.delete_item(item_id)
        return item_id

    def _change_replication(self) -> str | None:
        item_id = self._any_item()
        if item_id is None:
            return None
        replication = self._cluster.draw(self._cluster.scenario.replication)
        self._cluster.put_item(item_id, replication)
        return f"{item_id} wants {replication}"

    def _change_limit(self) -> str | None:
        member = self._any_member()
        if member is None:
            return None
        limit = self._cluster.draw(self._cluster.scenario.limit)
        member.change(replace(member.value, limit=limit))
        return f"{member.member_id} takes {limit}"

    def _fail_replica(self) -> str | None:
        member, item_id = self._any_member(), self._any_item()
        if member is None or item_id is None:
            return None
        curse = (item_id, member.member_id)
        self._cluster.cursed.add(curse)
        seconds = self.passes(lambda: self._cluster.cursed.discard(curse))
        return f"{item_id} on {member.member_id} for {seconds:.1f} s"


def _next_suffix(member: SimulatedMember) -> str:
    base, _, number = member.member_id.suffix.partition("-")
    return f"{base}-{int(number) + 1}"
