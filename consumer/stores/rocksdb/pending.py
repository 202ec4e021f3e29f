"""Changes that are not in the database yet, laid over what is there: so that a transaction reads its own writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Changes = dict[bytes, bytes | None]
"""New values by key; None is a deletion."""


class PendingWrites:
    """The changes of one transaction, by column family."""

    def __init__(self) -> None:
        """Begin with none."""
        self.families: dict[str, Changes] = {}

    def of(self, family: str) -> Changes:
        """Return the changes of a family, to be added to."""
        changes = self.families.get(family)
        if changes is None:
            changes = self.families[family] = {}
        return changes


def changes_between(
    layers: Iterable[PendingWrites], family: str, begin: bytes, end: bytes | None
) -> Changes:
    """Return the changes of keys in [begin, end) that `layers`, oldest first, make together; in order of keys."""
    changes: Changes = {}
    for layer in layers:
        for key, value in layer.families.get(family, {}).items():
            if key >= begin and (end is None or key < end):
                changes[key] = value
    return dict(sorted(changes.items()))


def overlaid(
    stored: Iterator[tuple[bytes, bytes]], changes: Changes
) -> Iterator[tuple[bytes, bytes]]:
    """Yield `stored` with `changes` made to it. Both are in order of keys; so is the result."""
    following = iter(changes.items())
    changed = next(following, None)
    for key, value in stored:
        while changed is not None and changed[0] < key:
            if changed[1] is not None:
                yield changed[0], changed[1]
            changed = next(following, None)
        if changed is not None and changed[0] == key:
            continue  # Its turn comes before the next stored key.
        yield key, value
    while changed is not None:
        if changed[1] is not None:
            yield changed[0], changed[1]
        changed = next(following, None)
