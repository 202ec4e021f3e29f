"""Which of the applied revisions were stale: a refused apply, explained spec by spec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

NAMED_MAX = 10
"""Specs named in the message; the rest are counted."""


def describe_conflicts(expected: Iterable[tuple[str, int]], stored: Mapping[str, int]) -> str:
    """Return what differs, or an empty text if by now nothing does.

    Args:
        expected: (id, revision that the change demands) of each change; -1 demands nothing.
        stored: Present mod revision by id.
    """
    problems = []
    for spec_id, revision in expected:
        current = stored.get(spec_id, 0)
        if revision in (current, -1):
            continue
        now = f"is at revision {current}" if current else "does not exist"
        problems.append(f"{spec_id} {now}, the file says {revision}")
    more = f"; and {len(problems) - NAMED_MAX} more" if len(problems) > NAMED_MAX else ""
    return "; ".join(problems[:NAMED_MAX]) + more
