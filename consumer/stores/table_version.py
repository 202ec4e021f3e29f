"""Versions by which a lake table knows its shards: the epoch counts holders, the number counts their commits."""

from __future__ import annotations

from typing import Final, NamedTuple

_NUMBER_BITS: Final = 32
_NUMBER_MASK: Final = 2**_NUMBER_BITS - 1


class TableVersion(NamedTuple):
    """The version of a shard in a table."""

    epoch: int = 0
    """Of its holder; 0: it never had one."""
    number: int = 0
    """Of its commits."""

    @property
    def encoded(self) -> int:
        """As a table keeps it."""
        return self.epoch << _NUMBER_BITS | self.number

    def taken_over(self) -> TableVersion:
        """Return the version of the next holder, who committed nothing yet."""
        return TableVersion(self.epoch + 1, self.number)

    def followed(self) -> TableVersion:
        """Return the version of the next commit of this holder."""
        return TableVersion(self.epoch, self.number + 1)


def version_of(encoded: int | None) -> TableVersion:
    """Return the version that a table has; None: it has none of this shard."""
    return TableVersion((encoded or 0) >> _NUMBER_BITS, (encoded or 0) & _NUMBER_MASK)
