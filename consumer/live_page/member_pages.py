"""Origins of the members' admin ports: those that a page may call, and those whose pages may call this member."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import Final

from broadsheet.runtime.clock import Clock

PRESENT_MAX: Final = 32
"""Origins in a page's policy, which is a header: proxies take some 8 kB of those."""
LEFT_SECONDS_MAX: Final = 3600.0
"""How long the pages of a member that left may call others: their reader goes on looking. Another program may get the
address later."""
LEFT_MAX: Final = 256
_ORIGIN: Final = re.compile(r"https?://[A-Za-z0-9.-]{1,253}:\d{1,5}")
"""What a policy can name: no IPv6 address, and nothing that would end its place in the header."""


class MemberPages:
    """The admin ports that members of this cluster announced, each in its own key, which only members write."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_zone: dict[str, list[str]] = {}
        self._present: frozenset[str] = frozenset()
        self._left: OrderedDict[str, float] = OrderedDict()
        """When a member with the origin was last there, seconds of the clock."""

    def take(self, announced: Iterable[tuple[str, str]]) -> None:
        """Take (zone, URL of the admin port) of each member that is there now.

        Values of keys are foreign: what is no plain origin, such as an IPv6 address, is left out.
        """
        by_zone: dict[str, list[str]] = {}
        for zone, origin in announced:
            if _ORIGIN.fullmatch(origin):
                by_zone.setdefault(zone, []).append(origin)
        present = frozenset(chain.from_iterable(by_zone.values()))
        for origin in self._present - present:
            self._left[origin] = self._clock.monotonic_seconds()
        while len(self._left) > LEFT_MAX:
            self._left.popitem(last=False)
        self._by_zone, self._present = by_zone, present

    def present(self) -> list[str]:
        """Return the origins that a page may call: of each zone in turn, because a whole zone may fail."""
        turns = zip_longest(*self._by_zone.values())
        return [each for each in chain.from_iterable(turns) if each is not None][:PRESENT_MAX]

    def is_of_member(self, origin: str) -> bool:
        """Report whether a page of an origin may call this member: one of a member that is there, or was lately."""
        if origin in self._present:
            return True
        left_at = self._left.get(origin)
        return left_at is not None and self._clock.monotonic_seconds() - left_at < LEFT_SECONDS_MAX
