"""What a chaos run says at its end: its figures, or all that is needed to find out what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from broadsheet.examples.stream_sum.publish import Producers
from tests.chaos.schedule import Fault, FaultKind
from tests.chaos.witness import Witness

OFTEN_MADE = ("chunks", "outside", "repeated", "forged", "committed", "rolled back")
"""What producers make again and again, so that every run has some of it."""
SELDOM_MADE = ("abandoned",)
"""One round in forty: a short run may have none."""
LOG_CHARACTERS_MAX = 6_000
"""Of each process, from its end."""
_FORBIDDEN = ("StreamOrderError", "AssertionError")
"""No fault may lead to these: a chunk read twice or not at all, and a state that cannot be."""
_FORBIDDEN_LINES_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosReport:
    """The figures of a run that went well."""

    faults: Mapping[FaultKind, int]
    """How often each kind struck."""
    remarks: Sequence[str] = ()
    """What faults came to, beside the sums."""
    streams: int
    longest_gap_seconds: float
    """Longest time without a new sum."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What producers made, by kind."""

    @classmethod
    def of(
        cls,
        producers: Producers,
        witness: Witness,
        *,
        schedule: Sequence[Fault],
        remarks: Sequence[str] = (),
    ) -> Self:
        """Collect the figures."""
        return cls(
            faults=Counter(fault.kind for fault in schedule),
            remarks=remarks,
            streams=len(producers.expected),
            longest_gap_seconds=witness.longest_gap_seconds,
            counts={kind: producers.count(kind) for kind in (*OFTEN_MADE, *SELDOM_MADE)},
        )

    def __str__(self) -> str:
        counts = ", ".join(f"{kind} {count:,}" for kind, count in self.counts.items())
        return (
            f"exactly once: {self.streams:,} streams through {sum(self.faults.values())} faults; {counts}; "
            f"longest wait for a sum {self.longest_gap_seconds:.1f} s\n"
            + "\n".join(f"{count:5} × {kind.value}" for kind, count in self.faults.items())
            + "".join(f"\n{remark}" for remark in self.remarks)
        )


class ChaosError(Exception):
    """A run went wrong; the text has the cause, how to repeat it, the schedule, and every log's end."""

    def __init__(
        self,
        cause: BaseException,
        *,
        replay: str,
        schedule: Sequence[Fault],
        logs: Mapping[str, str],
    ) -> None:
        """Put the text together.

        Args:
            cause: What went wrong.
            replay: The command that runs the same streams and faults again.
            schedule: The faults.
            logs: Of every process, by its name.
        """
        ends = [f"--- {name}\n{log[-LOG_CHARACTERS_MAX:]}" for name, log in logs.items()]
        faults = "\n".join(map(str, schedule))
        super().__init__(
            f"{type(cause).__name__}: {cause}\nrepeat it: {replay}\n{faults}\n" + "\n".join(ends)
        )


def forbidden_lines(logs: Mapping[str, str]) -> list[str]:
    """Return lines of logs that must not be, with whose they are."""
    found = [
        f"{name}: {line}"
        for name, log in logs.items()
        for line in log.splitlines()
        if any(word in line for word in _FORBIDDEN)
    ]
    return found[:_FORBIDDEN_LINES_MAX]
