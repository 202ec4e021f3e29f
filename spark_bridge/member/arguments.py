"""What an application is told beside its code: arguments and secrets, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spark_bridge.errors import ArgumentMissingError


class Arguments(Mapping[str, str]):
    """A read-only mapping whose text shows names and never values, for some are secrets."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """Copy the values."""
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        try:
            return self._values[name]
        except KeyError:
            raise ArgumentMissingError(name, given=sorted(self._values)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Arguments({', '.join(sorted(self._values))})"
