"""The application: bids of each bidder and session, Nexmark's query 11, whose open sessions can be asked for.

    sessions/bids/part-000…001 ─► sessions-000…001: bids by bidder, until none came for 10 s ─► sessions/closed
                                     └─► KeyedService: the sessions that a bidder has open

Source: nexmark/nexmark, nexmark-flink/…/queries/q11.sql (sessions of 10 s).
"""

from __future__ import annotations

from broadsheet.examples.sessions.bids import BIDS, CLOSED, COLUMNS, GAP_MS
from broadsheet.keyed import StreamApplication, count, max_, session, stream


def create() -> StreamApplication:
    """Make the application."""
    by_bidder = stream(BIDS, COLUMNS, time="at", delay="4s").key_by("bidder")
    return by_bidder.window(session(GAP_MS)).agg(bids=count(), highest=max_("price")).to(CLOSED)
