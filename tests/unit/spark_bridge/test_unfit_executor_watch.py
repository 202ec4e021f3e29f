"""A wait for members on a session without executors: the log says so, once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from broadsheet.spark_bridge.cluster.elasticity import NO_EXECUTOR_SECONDS, UnfitExecutorWatch
from broadsheet.spark_bridge.cluster.executor_problems import Unfit


@dataclass
class Session:
    """What a session says of its executors, and the time."""

    can_be_lost: bool = True
    connected: frozenset[str] = frozenset()
    now: float = 0.0
    events: list[str] = field(default_factory=list)

    def alive(self) -> frozenset[str]:
        """See `ConnectedExecutors`."""
        return self.connected

    def unfit(self, *, serving: Collection[str], alive: Collection[str]) -> Unfit | None:
        """No attempt failed."""
        del serving, alive
        return None

    def events_until(self, watch: UnfitExecutorWatch, seconds: float) -> list[str]:
        """Look each second; return the names of events."""
        with capture_logs() as logs:
            while self.now < seconds:
                self.now += 1.0
                watch.at(())
        return [each["event"] for each in logs]


def _watched(session: Session) -> UnfitExecutorWatch:
    return UnfitExecutorWatch(session, session, monotonic=lambda: session.now)


def test_session_without_executors_is_told_once_after_a_while() -> None:
    """A cluster manager that grants nothing looks like slow members, unless the log says where to look."""
    session = Session()
    watch = _watched(session)

    assert session.events_until(watch, NO_EXECUTOR_SECONDS - 1.0) == []
    assert session.events_until(watch, NO_EXECUTOR_SECONDS + 30.0) == ["cluster.no_executor"]


@pytest.mark.parametrize(
    "session",
    [Session(can_be_lost=False), Session(connected=frozenset({"0"}))],
    ids=["the driver is the executor", "one is connected"],
)
def test_session_with_an_executor_is_told_nothing(session: Session) -> None:
    """A warning that is wrong sends its reader to the wrong page."""
    assert session.events_until(_watched(session), 60.0) == []
