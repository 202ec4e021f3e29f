"""A client of whichever member lives: members come and go, their addresses with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from allocator.model import MemberId
from consumer.client import SyncShardClient
from consumer.protocol.auth import ClientAuth
from spark_bridge.cluster.membership import MemberInfo
from spark_bridge.errors import NoMemberError


class MemberClient:
    """Keeps a connection to one member for as long as it lives, and then finds another."""

    def __init__(
        self, members: Callable[[], Sequence[MemberInfo]], *, auth: ClientAuth | None
    ) -> None:
        """Create it, not connected.

        Args:
            members: Returns the live members.
            auth: Signs each request; None attaches nothing.
        """
        self._members = members
        self._auth = auth
        self._connected: tuple[MemberId, SyncShardClient] | None = None
        self._unreachable: set[MemberId] = set()

    def current(self) -> SyncShardClient:
        """Return a client of a member that etcd knows, preferably of one that was reachable.

        Raises:
            NoMemberError: there is none at the moment.
        """
        members = self._members()
        if self._connected is not None:
            held_by, client = self._connected
            if any(member.member_id == held_by for member in members):
                return client
            self.close()
        if not members:
            raise NoMemberError("no member is alive at the moment; Spark starts lost ones again")
        self._unreachable &= {member.member_id for member in members}
        chosen = min(
            members,
            key=lambda one: (one.member_id in self._unreachable, one.exiting, one.partition),
        )
        client = SyncShardClient(chosen.endpoint, auth=self._auth)
        self._connected = (chosen.member_id, client)
        return client

    def give_up(self) -> None:
        """Let go of the member in use, which did not answer, and prefer others from now on."""
        if self._connected is not None:
            self._unreachable.add(self._connected[0])
            self.close()

    def close(self) -> None:
        """Disconnect. Idempotent."""
        if self._connected is not None:
            connected, self._connected = self._connected, None
            connected[1].close()
