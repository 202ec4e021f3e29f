"""What the harness needs of each kind of disk that is cut."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Protocol


class PowerCutSubject(Protocol):
    """A program, and what must hold on the disks that a power cut leaves of it."""

    @property
    def name(self) -> str:
        """Name, for people and for choosing."""
        ...

    @property
    def module(self) -> str:
        """The module of the program, which has `main(arguments)`."""
        ...

    def arguments(self, root: Path, random: Random) -> Sequence[str]:
        """Return the arguments of one life of the program on a directory."""
        ...

    def check(self, image: Path, said: Sequence[str]) -> str:
        """Open a disk after a power cut, and compare it with what was promised.

        Args:
            image: The disk, which may be changed.
            said: Lines of all lives up to the cut.

        Returns:
            What is wrong, for people; empty if nothing is.
        """
        ...
