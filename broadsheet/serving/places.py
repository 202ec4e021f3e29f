"""Bounded slots that clients take and return, in total and for each owner: a connection, or a journal."""

from __future__ import annotations

from collections import Counter
from typing import Final

from broadsheet.runtime.errors import BoundExceededError


class Places:
    """Counts the holders of slots. A request beyond the bound is refused, and never made to wait."""

    def __init__(self, bounds: object, name: str, each: str, *, server: str) -> None:
        """Take two bounds.

        Args:
            bounds: Has both as fields.
            name: Of the bound in total; `calls_max` is the option `--calls-max`.
            each: Of the bound for each owner; 0: half of the former.
            server: Who has them, for people: `the broker`.
        """
        self.name: Final = name
        self.bound: Final[int] = getattr(bounds, name)
        self.each: Final = each
        # Without a bound of its own, an owner may have a half: the others keep the other one.
        self.each_bound: Final[int] = getattr(bounds, each) or (self.bound + 1) // 2
        self._server = server
        self._owners: Counter[str] = Counter()
        self.in_use = 0
        self.refused: Counter[str] = Counter()
        """By bound, since the start."""

    def taken(self, owner: str) -> HeldPlace:
        """Return the block during which an owner holds a slot; entering it may raise BoundExceededError."""
        return HeldPlace(self, owner)

    def take(self, owner: str) -> None:
        """Take a slot for an owner, who returns it.

        Raises:
            BoundExceededError: all are taken.
        """
        if self._owners[owner] >= self.each_bound:
            self._refuse(self.each, self.each_bound)
        if self.in_use >= self.bound:
            self._refuse(self.name, self.bound)
        self._owners[owner] += 1
        self.in_use += 1

    def give_back(self, owner: str) -> None:
        """Return a slot that the owner took."""
        self.in_use -= 1
        self._owners[owner] -= 1
        if not self._owners[owner]:
            del self._owners[owner]

    def _refuse(self, name: str, bound: int) -> None:
        self.refused[name] += 1
        raise BoundExceededError(
            f"{self._server} has {bound} {name.removesuffix('_max').replace('_', ' ')} by now, "
            f"its bound ({option_of(name)})"
        )


class HeldPlace:
    """The block during which an owner holds a slot. A class, because every call of a server enters one."""

    __slots__ = ("_owner", "_places")

    def __init__(self, places: Places, owner: str) -> None:
        self._places = places
        self._owner = owner

    def __enter__(self) -> None:
        self._places.take(self._owner)

    def __exit__(self, *_: object) -> None:
        self._places.give_back(self._owner)


def host_of(peer: str) -> str:
    """Return the host of a peer's address as gRPC writes it: `ipv4:10.0.0.7:5000`, `ipv6:[::1]:5000`, `unix:`."""
    return peer.rpartition(":")[0]


def option_of(name: str) -> str:
    """Return the name of the option that sets a bound."""
    return f"--{name.replace('_', '-')}"
