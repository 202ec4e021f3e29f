"""The faults that a test asked for, and the steps that were taken: shared by all processes of a cluster."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

from broadsheet.testing.kit.steps import Step, StepTaken

CommitFault = Literal["", "fail", "lose answer"]


@dataclass(eq=False)
class ArmedCommit:
    """A fault that waits for its commit."""

    fault: CommitFault
    shard: str = ""
    """Empty: any."""
    times: int = 1
    """It is the n-th commit from now on."""


@dataclass(eq=False)
class ArmedKill:
    """A kill that waits for its step."""

    step: Step
    shard: str = ""
    """Empty: any."""
    detail: str = ""
    """Empty: any."""
    times: int = 1
    """How often the step must be taken, from now on."""
    is_done: bool = False

    def fits(self, taken: StepTaken) -> bool:
        """Return whether a step is the one that it waits for."""
        return (
            self.step is taken.step
            and self.shard in ("", taken.shard)
            and self.detail in ("", taken.detail)
        )


class Switchboard:
    """Asked at each step, on the thread that takes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kills: list[ArmedKill] = []
        self._commits: list[ArmedCommit] = []
        self._taken: list[StepTaken] = []

    def arm_kill(self, kill: ArmedKill) -> None:
        """Kill the primary that takes a step."""
        with self._lock:
            self._kills.append(kill)

    def arm_commit(self, commit: ArmedCommit) -> None:
        """Let a commit fail."""
        with self._lock:
            self._commits.append(commit)

    def armed(self) -> list[str]:
        """Return the faults that have not happened yet, as text."""
        with self._lock:
            kills = [f"kill after {kill.step.value}" for kill in self._kills]
            return kills + [f"{commit.fault} of a commit" for commit in self._commits]

    def disarm(self) -> list[str]:
        """Ask for no faults any more; return those that have not happened, as text."""
        left = self.armed()
        with self._lock:
            self._kills, self._commits = [], []
        return left

    def taken(self) -> list[StepTaken]:
        """Return the steps taken so far, in order."""
        with self._lock:
            return list(self._taken)

    def kills_at(self, taken: StepTaken) -> bool:
        """Note a step, and return whether the process that took it is killed here."""
        with self._lock:
            self._taken.append(taken)
            for kill in self._kills:
                if kill.fits(taken):
                    kill.times -= 1
                    kill.is_done = kill.times == 0
            killed = any(kill.is_done for kill in self._kills)
            self._kills = [kill for kill in self._kills if not kill.is_done]
        return killed

    def commit_fault(self, shard: str) -> CommitFault:
        """Return the fault of a commit that starts now."""
        with self._lock:
            found: CommitFault = ""
            for commit in self._commits:
                if commit.shard in ("", shard):
                    commit.times -= 1
                    if commit.times == 0:
                        found = commit.fault
            self._commits = [commit for commit in self._commits if commit.times > 0]
        return found
