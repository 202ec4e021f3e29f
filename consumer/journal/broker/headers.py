"""Headers: who answered, who serves, and as of which revision.

Source: gazette/core broker/protocol/header_extensions.go, route_extensions.go (what peers insist on).
"""

from __future__ import annotations

from dataclasses import dataclass

from consumer.protocol.journal_pb2 import Header, ProcessSpec, Route

NO_PRIMARY = -1


@dataclass(frozen=True, slots=True)
class Identity:
    """How this broker presents itself. Its own route is that of every journal."""

    cluster_id: int
    member_id: int
    term: int
    zone: str
    suffix: str
    endpoint: str

    @property
    def process_id(self) -> ProcessSpec.ID:
        """The id of this process."""
        return ProcessSpec.ID(zone=self.zone, suffix=self.suffix)

    def route(self) -> Route:
        """Return the route of a journal: this broker alone. Members always come with endpoints."""
        return Route(members=[self.process_id], primary=0, endpoints=[self.endpoint])

    def header(self, revision: int, *, routed: bool) -> Header:
        """Return a header as of a revision.

        Args:
            revision: Of the catalogue.
            routed: Whether the answer is about a journal that exists here.
        """
        return Header(
            process_id=self.process_id,
            # A zero-valued route is invalid: without members the primary must be -1.
            route=self.route() if routed else Route(primary=NO_PRIMARY),
            etcd=Header.Etcd(
                cluster_id=self.cluster_id,
                member_id=self.member_id,
                revision=revision,
                raft_term=self.term,
            ),
        )
