"""Decides what follows an attempt of a call, and remembers who was asked: pure, with time as an argument.

Answered ─► Done                 Failed ─► Final
Moved, to where its header says ─► Again, at once
Moved ─► Again, after a pause, looked up anew
Questioned, by the primary as was just heard ─► Final
Questioned ─► Confirm: look the primary up; the same ─► Final, another ─► Again
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from spark_bridge.errors import ShardNotServedError, TokenIgnoredError
from spark_bridge.routing.outcome import Answered, Failed, Moved, Outcome, Questioned
from spark_bridge.routing.routes import ShardRoute, later_route

FOLLOWED_MAX = 3
"""Most moves followed without a pause: two members that each name the other must not be asked in a rush."""
ASKED_MAX = 8
"""Most members that an error tells of: the last ones."""
CAUSE_CHARACTERS_MAX = 300
_NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Done:
    """The answer is the call's."""


@dataclass(frozen=True, slots=True)
class Final:
    """The call ends with an error."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Again:
    """Another attempt follows."""

    learned: ShardRoute | None = None
    """Where the shard is now; None: look it up."""
    pause: bool = True


@dataclass(frozen=True, slots=True)
class Confirm:
    """Find out whether the primary was asked; if so, the call ends with the error."""

    error: Exception


Step = Done | Final | Again | Confirm


class CallHistory:
    """What one call has met so far."""

    def __init__(self, shard_id: str, method: str, *, seconds: float) -> None:
        """Begin.

        Args:
            shard_id: Whom the call is for.
            method: The method's full name.
            seconds: Until the call's deadline.
        """
        self._shard_id = shard_id
        self._method = method
        self._seconds = seconds
        self._asked: dict[str, tuple[int, str]] = {}
        self._followed = 0
        self.attempts = 0

    def after(self, outcome: Outcome, route: ShardRoute | None, *, confirmed: bool) -> Step:
        """Return what follows an attempt.

        Args:
            outcome: Of the attempt.
            route: Whom it asked; None if nobody was known.
            confirmed: Whether a member named this primary just now.
        """
        self.attempts += 1
        match outcome:
            case Answered():
                return Done()
            case Failed(error):
                return Final(error)
            case Moved(cause, header):
                self._note(route, cause)
                learned = None if route is None else later_route(route, header)
                return self._again(route, learned)
            case Questioned(cause, error):
                self._note(route, cause)
                end = error or TokenIgnoredError(self._shard_id, self._method)
                return Final(end) if confirmed else Confirm(end)
            case _:
                assert_never(outcome)

    def confirmed(self, asked: ShardRoute, found: ShardRoute, error: Exception) -> Step:
        """Return what follows once the primary was looked up.

        Args:
            asked: Whom the attempt asked.
            found: Who the primary is.
            error: What the attempt met.
        """
        if found.endpoint == asked.endpoint:
            return Final(error)
        return self._again(asked, found)

    def too_late(self) -> ShardNotServedError:
        """Return the error of a call whose deadline passed."""
        asked = {endpoint: f"{_times(n)}{cause}" for endpoint, (n, cause) in self._asked.items()}
        return ShardNotServedError(
            self._shard_id,
            self._method,
            attempts=self.attempts,
            seconds=self._seconds,
            asked=asked,
        )

    def _again(self, asked: ShardRoute | None, learned: ShardRoute | None) -> Again:
        elsewhere = learned is not None and (asked is None or learned.endpoint != asked.endpoint)
        if elsewhere and self._followed < FOLLOWED_MAX:
            self._followed += 1
            return Again(learned, pause=False)
        self._followed = 0
        return Again(learned if elsewhere else None)

    def _note(self, route: ShardRoute | None, cause: str) -> None:
        endpoint = _NOBODY if route is None or not route.endpoint else route.endpoint
        times, _ = self._asked.pop(endpoint, (0, ""))
        self._asked[endpoint] = (times + 1, cause[:CAUSE_CHARACTERS_MAX])
        while len(self._asked) > ASKED_MAX:
            self._asked.pop(next(iter(self._asked)))


def _times(count: int) -> str:
    return "" if count == 1 else f"{count} times, last "
