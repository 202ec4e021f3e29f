"""Endpoints that a client knows, and the order in which it asks them.

An address names one endpoint, or several separated by commas. Answers name further members, which are kept as a
reserve, so that a client keeps working when the members it was given are gone. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, TypeAlias

from broadsheet.runtime.errors import ValidationError
from broadsheet.security.endpoints import is_tls, parse_endpoint

Addresses: TypeAlias = str | Sequence[str]
"""`http://host:port` or `host:port`, several of them separated by commas, or as a sequence."""

LEARNED_MAX: Final = 16
"""Members that are kept as a reserve: enough to outlive any but a whole cluster, and to try in a moment."""


class KnownEndpoints:
    """Endpoints that were given or learned, in the order in which the client asks them."""

    def __init__(self, given: tuple[str, ...]) -> None:
        """Begin with the first.

        Args:
            given: By the user; they come first, and are never forgotten.
        """
        self._given = given
        self._learned: tuple[str, ...] = ()
        self._current = given[0]

    @property
    def current(self) -> str:
        """The member that answered last, or the first."""
        return self._current

    def in_turn(self) -> tuple[str, ...]:
        """Return all, the current one first, then those that the user gave."""
        rest = (*self._given, *self._learned)
        return (self._current, *(each for each in rest if each != self._current))

    def answered(self, endpoint: str) -> None:
        """Go on with a member that answered."""
        self._current = endpoint

    def fell_silent(self, endpoint: str) -> None:
        """Go on with the next in order after one that did not answer, or not in time."""
        if endpoint != self._current:
            return
        order = list(dict.fromkeys((*self._given, *self._learned)))
        after = order.index(endpoint) + 1 if endpoint in order else 0
        self._current = order[after % len(order)]

    def learn(self, endpoints: Iterable[str]) -> None:
        """Keep members that an answer named, in place of those before.

        Left out are what is no endpoint, and members without TLS if all that the user gave have it.
        """
        # A list names the same few members with each of thousands of shards, so each is examined once, and only if it
        # is new.
        named = (each for each in dict.fromkeys(endpoints) if each and each not in self._given)
        learned = tuple(
            islice(
                (each for each in named if each in self._learned or self._may_ask(each)),
                LEARNED_MAX,
            )
        )
        if learned:
            self._learned = learned

    def _may_ask(self, endpoint: str) -> bool:
        # To members in clear text, a client that was given TLS would send its tokens readable by all on the way.
        return _is_valid(endpoint) and (is_tls(endpoint) or not all(map(is_tls, self._given)))


def _is_valid(endpoint: str) -> bool:
    try:
        parse_endpoint(endpoint, may_be_tls=True)
    except ValidationError:
        return False
    return True
