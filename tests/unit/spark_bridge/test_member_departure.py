"""The way of a member's leaving on Spark: it is told to stop before anything else, and the reason comes after."""

from __future__ import annotations

import pytest
import structlog

from broadsheet.spark_bridge.member.serving import Departure


class _Service:
    """Records, in turn with the log, how it was stopped."""

    def __init__(self) -> None:
        self.story: list[str] = []

    def stop(self) -> None:
        self.story.append("stop")

    def force_stop(self) -> None:
        self.story.append("force_stop")


@pytest.mark.parametrize(("at_once", "way"), [(True, "force_stop"), (False, "stop")])
def test_departure_whose_reason_cannot_be_logged_stops_the_member(at_once: bool, way: str) -> None:
    """The pipe of a member's log ends with its executor: a member that tells first never leaves, and its shards wait
    for the end of its lease.
    """
    service = _Service()
    departure = Departure(service)

    def refuse(*_: object) -> structlog.typing.EventDict:
        service.story.append("told")
        raise BrokenPipeError

    before = structlog.get_config()
    structlog.configure(processors=[refuse])
    try:
        with pytest.raises(BrokenPipeError):
            departure.leave_now("executor exit") if at_once else departure.leave("SIGTERM")
    finally:
        structlog.configure(**before)

    assert service.story == [way, "told"]
    assert departure.reason in {"executor exit", "SIGTERM"}
